"""Request memory of the native plane is bounded, and requests that need none of it go on while it is full."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, METADATA, PRODUCE, Client, Stage, batch, step_until

POOL = 1 << 20
LARGE = 400_000


class Slow:
    """A client that sends a large Produce in two halves."""

    def __init__(self, stage: Stage, size: int = LARGE, address: str | None = None) -> None:
        self.client = Client(stage, address)
        kind = m.ProduceRequest.TopicData
        topics = [kind(name="t", partition_data=[kind.PartitionData(index=0, records=batch(bytes(size)))])]
        frame = codec.encode_request(PRODUCE, 9, 1, "c", m.ProduceRequest(acks=1, timeout_ms=1, topic_data=topics))
        self.data = struct.pack(">i", len(frame)) + frame
        self.sent = 0

    def send(self, end: int) -> bool:
        """Send up to `end`, as far as the socket takes it; True if everything up to there was sent."""
        self.client.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.sent += self.client.sock.send(self.data[self.sent : end])
        return self.sent == end

    @property
    def answered(self) -> bool:
        return not self.client.quiet()


def metadata(client: Client) -> None:
    client.send(codec.encode_request(METADATA, 9, 5, "c", m.MetadataRequest(topics=None)))


@pytest.fixture
def tight(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, pool_bytes=POOL)
    yield made
    made.close()


def test_half_requests_stay_below_the_limit_and_one(tight: Stage) -> None:
    """Ten clients that each sent half a large request stay within the limit plus one request, and all are answered."""
    slow = [Slow(tight) for _ in range(10)]
    for client in slow:
        for _ in range(40):
            client.send(LARGE // 2)
            tight.step(1)
    assert POOL // 2 < tight.plane.held_bytes <= POOL + 2 * LARGE
    waiting = list(slow)

    def done() -> bool:
        for client in list(waiting):
            client.send(len(client.data))
            if client.answered:
                assert client.client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
                waiting.remove(client)
        assert tight.plane.held_bytes <= POOL + 2 * LARGE
        return not waiting

    step_until(tight, done)
    step_until(tight, lambda: tight.plane.held_bytes == 0)  # a connection at rest returns its large buffer
    assert tight.log.log_end_offset == 10
    tight.close()


def filled(stage: Stage) -> list[Slow]:
    """Fill the pool with clients that have sent half a request each."""
    slow: list[Slow] = []
    while stage.plane.held_bytes < POOL:
        slow.append(Slow(stage, 600_000))
        for _ in range(40):
            slow[-1].send(500_000)
            stage.step(1)
    return slow


def test_small_requests_go_on_while_memory_is_short(tight: Stage) -> None:
    """A small Produce, a woken long poll and a request for Python are served while the pool is full."""
    filled(tight)
    reader, writer = Client(tight), Client(tight)
    reader.fetch(0, max_wait_ms=60_000)
    tight.step()
    assert reader.quiet()
    writer.produce(batch(b"x"))
    metadata(writer)
    writer.produce(batch(b"y"), number=9)
    tight.step()
    assert writer.receive(PRODUCE, 9)[0] == 1
    assert len(reader.receive(FETCH, 12)[1].responses[0].partitions[0].records) > 0
    ((kind, _, token, _),) = tight.plane.take()
    assert kind == "request"
    tight.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    step_until(tight, lambda: tight.log.log_end_offset == 2)
    assert writer.receive(METADATA, 9)[0] == 5 and writer.receive(PRODUCE, 9)[0] == 9
    tight.close()


def reasons_for(stage: Stage, done: Callable[[], object]) -> list[bytes]:
    """Step until `done`; return the reasons for connections closed meanwhile."""
    reasons: list[bytes] = []

    def look() -> object:
        reasons.extend(frame for kind, *_, frame in stage.plane.take() if kind == "closed")
        return done()

    step_until(stage, look)
    return reasons


def crowd(stage: Stage) -> list[Slow]:
    """Fill the pool with clients that stopped within a request of 250,000 bytes each."""
    made: list[Slow] = []
    while stage.plane.held_bytes < POOL:
        made.append(Slow(stage, 250_000))
        step_until(stage, lambda: made[-1].send(200_000))
        stage.step()
    return made


def test_who_stalls_makes_room(tight: Stage) -> None:
    """Clients that stopped within a request are closed, as few as necessary, and waiting clients are answered."""
    silent = crowd(tight)
    held = tight.plane.held_bytes
    silent.append(Slow(tight, 250_000))  # the first request passes the limit with any size
    step_until(tight, lambda: silent[-1].send(200_000) and tight.plane.held_bytes > held)
    late = Slow(tight, 250_000)

    def served() -> bool:
        late.send(len(late.data))
        return late.answered

    reasons = reasons_for(tight, served)
    assert 1 <= len(reasons) < len(silent) and all(b"neither sent" in reason for reason in reasons)
    tight.close()


def test_who_is_let_through_and_too_slow_is_closed(tmp_path: Path) -> None:
    """A client that passed the limit and sends slowly is closed after its time while memory is short."""
    stage = Stage(tmp_path, pool_bytes=POOL, holder_ms=1000)
    while stage.plane.held_bytes < POOL:  # requests that Python has: they wait for this test
        away = Slow(stage)
        away.data = struct.pack(">ihhi", LARGE, METADATA, 9, 1) + bytes(LARGE - 8)
        step_until(stage, lambda: away.send(len(away.data)))  # noqa: B023
        step_until(stage, stage.plane.take)
    slow = Slow(stage, 900_000)
    began = time.monotonic()

    reasons: list[bytes] = []

    def closed() -> bool:
        reasons.extend(letter[3] for letter in stage.plane.take())
        if not reasons:
            slow.send(min(int((time.monotonic() - began) * 60_000) + 4096, len(slow.data) - 1))
        return len(reasons) > 0

    step_until(stage, closed)
    assert b"too slow" in reasons[0]
    stage.close()


def test_an_address_has_its_share(tight: Stage) -> None:
    """A second address is served at once while the first one fills the pool, and the first one makes room for it."""
    crowd = [Slow(tight, 900_000, "127.0.0.2") for _ in range(12)]

    def crowded() -> bool:
        for client in crowd:
            client.send(700_000)
        return tight.plane.held_bytes >= POOL

    step_until(tight, crowded)
    guest = Slow(tight, LARGE, "127.0.0.3")

    def served() -> bool:
        for client in crowd:
            with contextlib.suppress(OSError):
                client.send(min(client.sent + 50_000, len(client.data) - 1))
        guest.send(len(guest.data))
        return guest.answered

    assert step_until(tight, served) < 250, "turns that wait 20 ms each if nothing happens"
    assert guest.client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].error_code == 0
    step_until(tight, lambda: tight.plane.held_bytes < 2 * POOL)
    tight.close()


def test_answers_that_nobody_reads_are_held(tight: Stage) -> None:
    """Answers that a client does not read count as held; if memory is short, the client is closed."""
    lazy = [Client(tight) for _ in range(6)]
    for client in lazy:
        metadata(client)
    tight.step()
    answer = [bytes(400_000)]
    for _, _, token, _ in tight.plane.take():
        tight.plane.reply(token, answer)
    tight.step()
    assert tight.plane.held_bytes > POOL
    lazy[0].sock.setblocking(False)
    metadata(lazy[0])
    tight.step()
    assert not tight.plane.take()  # the second request is not executed before the first answer is read
    reasons = reasons_for(tight, lambda: tight.plane.held_bytes < POOL)
    assert reasons and all(b"read its answers" in reason for reason in reasons)
    assert len(reasons) < len(lazy)
    tight.close()


def test_what_closed_connections_held_is_given_back(tight: Stage) -> None:
    slow = filled(tight)
    away = Client(tight)
    metadata(away)
    tight.step()
    assert tight.plane.held_bytes > POOL
    for client in [*(s.client for s in slow), away]:
        client.sock.close()
    tight.step()
    for kind, _, token, _ in tight.plane.take():
        if kind == "request":
            tight.plane.reply(token, None)
    step_until(tight, lambda: tight.plane.held_bytes == 0)
    tight.close()


@pytest.mark.parametrize("most", [1, 3])
def test_requests_that_wait_for_python(tmp_path: Path, most: int) -> None:
    """At the limit all requests for Python wait in the mailbox; at limit + 1, one stays with its connection.

    Produce and Fetch are served meanwhile.
    """
    stage = Stage(tmp_path, requests_max=most)
    clients = [Client(stage) for _ in range(most + 1)]
    for client in clients:
        metadata(client)
    writer = Client(stage)
    writer.produce(batch(b"x"))
    stage.step()
    assert writer.receive(PRODUCE, 9)[0] == 1
    first = stage.plane.take()
    assert [letter[0] for letter in first] == ["request"] * most
    stage.step()
    second = stage.plane.take()
    assert [letter[0] for letter in second] == ["request"]
    for _, _, token, _ in first + second:
        stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, 5, m.MetadataResponse()))
    stage.step()
    assert all(client.receive(METADATA, 9)[0] == 5 for client in clients)
    stage.close()


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    """connections.max.idle.ms closes a silent connection, but none that waits for records or sends requests."""
    stage = Stage(tmp_path, idle_ms=1500)
    idle, reader, busy = Client(stage), Client(stage), Client(stage)
    reader.fetch(0, max_wait_ms=60_000)

    def closed() -> bool:
        busy.produce(batch(b"x"), partition=1)
        stage.step(1)
        busy.receive(PRODUCE, 9)
        return any(kind == "closed" and key == idle.id for kind, key, *_ in stage.plane.take())

    step_until(stage, closed)
    assert idle.sock.recv(1) == b"" and reader.quiet()
    stage.close()
