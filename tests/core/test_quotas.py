"""Quotas in the plane: the buckets that Python's reply sets hold until the client id or the quotas change."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.core import QuotaBucket
from tests.core.stage import FETCH, PRODUCE, Client, Stage, batch, step_until

NUMBER = 7
ANSWER = b"\0\0\0\4\0\0\0\1"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    made.plane.set_quotas(NUMBER)
    yield made
    made.close()


def asked(stage: Stage) -> int | None:
    """The token of the request that reached Python; None if there is none."""
    stage.step()
    letters = [letter for letter in stage.plane.take() if letter[0] == "request"]
    assert len(letters) <= 1
    return letters[0][2] if letters else None


def told(
    stage: Stage, client: Client, *buckets: QuotaBucket | None, number: int = NUMBER, client_id: bytes = b"c",
    mute_ms: int = 0,
) -> None:
    """Send a Produce that reaches Python, and reply with the client's buckets."""
    client.produce(batch(b"x"))
    token = asked(stage)
    assert token is not None
    three = (*buckets, None, None, None)[:3]
    stage.plane.reply(token, [b"\0\0\0\1"], quotas=(number, client_id, *three), mute_ms=mute_ms)
    stage.step()
    assert client._exactly(8) == ANSWER


def throttle_ms(stage: Stage, client: Client) -> int:
    client.produce(batch(b"y"))
    stage.step()
    return int(client.receive(PRODUCE, 9)[1].throttle_time_ms)


def test_what_was_told_holds_until_quotas_change(stage: Stage) -> None:
    client = Client(stage)
    bucket = QuotaBucket(1e9)
    for number in (NUMBER, NUMBER + 1):
        stage.plane.set_quotas(number)
        told(stage, client, bucket, number=number)
        assert throttle_ms(stage, client) == 0 and asked(stage) is None
    stage.plane.set_quotas(NUMBER)
    client.produce(batch(b"x"))
    assert asked(stage) is not None


def test_without_quotas_nobody_is_asked_for(stage: Stage) -> None:
    client = Client(stage)
    told(stage, client, QuotaBucket(0.001))
    stage.plane.set_quotas(0)
    assert throttle_ms(stage, client) == 0
    stage.plane.set_quotas(NUMBER)
    client.produce(batch(b"x"))
    assert asked(stage) is not None, "the earlier buckets are forgotten"


@pytest.mark.parametrize("known", [b"", b"b", b"cc", b"C", b"c" * 256])
def test_another_client_id_is_asked_for(stage: Stage, known: bytes) -> None:
    client = Client(stage)
    told(stage, client, client_id=known)
    client.produce(batch(b"x"))
    assert asked(stage) is not None


def test_a_client_id_that_is_too_long_is_not_told(stage: Stage) -> None:
    client = Client(stage)
    client.produce(batch(b"x"))
    token = asked(stage)
    assert token is not None
    with pytest.raises(ValueError, match="256"):
        stage.plane.reply(token, [b"\0\0\0\1"], quotas=(NUMBER, b"c" * 257, None, None, None))


def test_a_bucket_that_was_dropped_is_asked_for(stage: Stage) -> None:
    client, bucket = Client(stage), QuotaBucket(1e9)
    told(stage, client, None, None, bucket)
    assert throttle_ms(stage, client) == 0
    bucket.retire()
    client.produce(batch(b"x"))
    assert asked(stage) is not None


@pytest.mark.parametrize("length", [-2, -(1 << 15), 5, 1000, (1 << 15) - 1])
@pytest.mark.parametrize("api", [PRODUCE, FETCH])
def test_headers_that_lie(stage: Stage, length: int, api: int) -> None:
    """A client id that exceeds its frame, or has a length below -1, goes to Python to refuse."""
    client = Client(stage)
    told(stage, client, QuotaBucket(1e9), QuotaBucket(1e9), QuotaBucket(1e9))
    client.send(struct.pack(">hhih", api, 9, 1, length) + b"c")
    assert asked(stage) is not None


def test_short_frames(stage: Stage) -> None:
    for n in range(12):
        client = Client(stage)
        told(stage, client, QuotaBucket(1e9))
        client.send(struct.pack(">hhih", PRODUCE, 9, 1, 0)[:n])
        assert asked(stage) is not None


def muted(stage: Stage, *, mute_ms: int = 60_000) -> Client:
    client = Client(stage)
    told(stage, client, mute_ms=mute_ms)
    return client


def test_nothing_of_a_muted_connection_is_executed_until_its_time_is_over(stage: Stage) -> None:
    """Requests of a muted connection are executed when its time is over; a connection muted for longer waits on."""
    began = time.monotonic()
    client, other = muted(stage, mute_ms=300), muted(stage)
    for number in range(5):
        client.produce(batch(b"y"), number=number)
    other.produce(batch(b"y"))
    step_until(stage, lambda: not client.quiet())
    assert time.monotonic() - began >= 0.28 and other.quiet()


def test_the_wait_of_a_reactor_ends_with_the_first_who_is_muted_no_more(stage: Stage) -> None:
    """A reactor's wait ends with the first mute time, although the turn would wait ten minutes."""
    began = time.monotonic()
    clients = [muted(stage, mute_ms=mute_ms) for mute_ms in (60_000, 150, 30_000)]
    for client in clients:
        client.produce(batch(b"y"))
    assert step_until(stage, lambda: not clients[1].quiet(), 600_000) < 10
    assert time.monotonic() - began > 0.1 and clients[0].quiet() and clients[2].quiet()


def test_who_is_muted_and_leaves_is_gone_unless_it_left_requests(stage: Stage) -> None:
    leaves, left = muted(stage), muted(stage, mute_ms=400)
    leaves.sock.shutdown(socket.SHUT_WR)
    left.produce(batch(b"kept"), acks=0)
    left.sock.shutdown(socket.SHUT_WR)
    closed: list[int] = []

    def both() -> bool:
        closed.extend(letter[1] for letter in stage.plane.take() if letter[0] == "closed")
        return len(closed) >= 2

    step_until(stage, both)
    assert closed == [leaves.id, left.id]
    assert stage.log.log_end_offset == 1, "the request that it had sent is done"


def test_a_plane_that_ends_with_muted_connections(stage: Stage) -> None:
    for _ in range(3):
        muted(stage).produce(batch(b"y"))
    stage.step()


def test_other_quotas_let_all_go_on(stage: Stage) -> None:
    clients = [muted(stage) for _ in range(3)]
    for client in clients:
        client.produce(batch(b"y"))
    assert asked(stage) is None
    stage.plane.set_quotas(0)
    stage.step()
    for client in clients:
        assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0


def test_time_of_threads_is_counted(stage: Stage) -> None:
    client, bucket = Client(stage), QuotaBucket(1e3, throttle_ms_max=1000)
    told(stage, client, None, None, bucket)
    assert throttle_ms(stage, client) == 0, "it includes what was done before"
    assert bucket.throttle(time.monotonic_ns() // 1_000_000) == 1000


def test_a_fetch_that_is_refused_is_executed_later(stage: Stage) -> None:
    client, bucket = Client(stage), QuotaBucket(100.0)
    writer = Client(stage)
    told(stage, writer)
    for _ in range(3):
        assert throttle_ms(stage, writer) == 0
    told(stage, client, None, bucket)

    def fetched() -> tuple[int, int]:
        client.fetch(0)
        stage.step()
        answer: Any = client.receive(FETCH, 12)[1]
        return answer.throttle_time_ms, sum(len(p.records or b"") for t in answer.responses for p in t.partitions)

    got = [fetched()]
    while not got[-1][0]:
        got.append(fetched())
    assert got[-1][1] == 0 and all(size > 0 for _, size in got[:-1])
