"""Requests whose answers wait: their connection goes on meanwhile, and answers keep the order of their requests."""

from __future__ import annotations

import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, METADATA, PRODUCE, STUCK_MS, Client, Stage, batch
from tests.core.test_group_commit import until

LONG_MS = 60_000


@pytest.fixture
def synced(stage: Stage) -> Iterator[Stage]:
    """Partition 0 is durable before each acknowledgement, and its disk is stuck until the test disarms it."""
    stage.log.configure({"flush.messages": 1})
    stage.broker.arm("segment.sync", "sleep", STUCK_MS)
    yield stage


def ask(client: Client, number: int) -> None:
    """A request that is Python's."""
    client.send(codec.encode_request(METADATA, 9, number, "c", m.MetadataRequest(topics=None)))


def reply(stage: Stage, token: int, number: int) -> None:
    stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, number, m.MetadataResponse()))


def letters(stage: Stage, kind: str = "request") -> list[int]:
    """The tokens of requests that came to Python."""
    return [token for what, _, token, _ in stage.plane.take() if what == kind]


def number(client: Client) -> int:
    """Of the request that the next answer is for."""
    size = struct.unpack(">i", client._exactly(4))[0]
    return int(struct.unpack_from(">i", client._exactly(size))[0])


def test_what_follows_a_produce_that_waits_is_executed(synced: Stage) -> None:
    """Behind a sync that takes its time a produce elsewhere is appended; its answer waits for the one before it."""
    client, other = Client(synced), Client(synced)
    client.produce(batch(b"before"), partition=1, number=1)
    client.produce(batch(b"a"), number=2)
    synced.step()
    assert number(client) == 1 and client.quiet()
    client.produce(batch(b"b"), partition=1, number=3)
    client.fetch(0, number=4)
    synced.step()
    assert synced.partitions[1].log_end_offset == 2
    other.produce(batch(b"c"), partition=1)
    synced.step()
    assert other.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset == 2
    assert client.quiet()
    synced.broker.disarm()
    until(synced, lambda: not client.quiet())
    assert [number(client) for _ in range(3)] == [2, 3, 4]


def test_one_request_over_several_partitions_waits_for_all(synced: Stage) -> None:
    """Two partitions, of which one is synced: one answer, whole, once that is on disk."""
    client = Client(synced)
    kind = m.ProduceRequest.TopicData
    parts = [kind.PartitionData(index=i, records=batch(b"a")) for i in (1, 0)]
    request = m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[kind(name="t", partition_data=parts)])
    client.send(codec.encode_request(PRODUCE, 9, 7, "c", request))
    synced.step()
    assert client.quiet() and [p.log_end_offset for p in synced.partitions] == [1, 1]
    synced.broker.disarm()
    until(synced, lambda: not client.quiet())
    told = client.receive(PRODUCE, 9)[1].responses[0].partition_responses
    assert [(p.index, p.error_code, p.base_offset) for p in told] == [(1, 0, 0), (0, 0, 0)]


def test_python_is_asked_while_a_produce_waits(synced: Stage) -> None:
    """The request behind it comes out as a letter at once; Python's answer waits for the one before it."""
    client = Client(synced)
    client.produce(batch(b"a"), number=1)
    ask(client, 2)
    synced.step()
    (token,) = letters(synced)
    reply(synced, token, 2)
    client.produce(batch(b"b"), partition=1, number=3)
    synced.step()
    assert client.quiet() and synced.partitions[1].log_end_offset == 1
    synced.broker.disarm()
    until(synced, lambda: not client.quiet())
    assert [number(client) for _ in range(3)] == [1, 2, 3]


def test_a_connection_that_ends_is_owed_what_waits(synced: Stage) -> None:
    client = Client(synced)
    client.produce(batch(b"a"), number=1)
    client.sock.shutdown(1)
    synced.step()
    assert client.quiet()
    synced.broker.disarm()
    until(synced, lambda: not client.quiet())
    assert number(client) == 1 and client.sock.recv(1) == b""


def test_a_connection_goes_while_its_answer_waits(synced: Stage) -> None:
    """It is freed at once; the syncer finds nobody to tell, and the next one is served."""
    for _ in range(10):
        client = Client(synced)
        client.produce(batch(b"a"), number=1)
        synced.step()
        client.sock.close()
        synced.step()
    assert synced.plane.stats()[0]["connections"] == 0
    synced.broker.disarm()
    client = Client(synced)
    client.produce(batch(b"b"), number=2)
    until(synced, lambda: not client.quiet())
    assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset == 10


def test_too_many_that_wait_hold_the_rest_back(synced: Stage) -> None:
    """Of a thousand requests of one connection a bounded number waits; the rest is executed later, none is lost."""
    client = Client(synced)
    client.sock.settimeout(30)
    sender = threading.Thread(target=lambda: [client.produce(batch(b"a"), number=n) for n in range(1000)])
    sender.start()
    until(synced, lambda: synced.log.log_end_offset >= 256)
    synced.step(100)
    assert synced.log.log_end_offset < 600
    synced.broker.disarm()
    synced.plane.start()
    assert [number(client) for _ in range(1000)] == list(range(1000))
    sender.join()


def test_what_follows_a_fetch_that_waits_is_executed(stage: Stage) -> None:
    """A produce behind a long poll is appended; both are answered in order once the poll has what it waits for."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    client.produce(batch(b"b"), partition=1, number=2)
    stage.step()
    assert client.quiet() and stage.partitions[1].log_end_offset == 1
    stage.log.append(batch(b"a"), now_ms=1)
    stage.step()
    assert client.receive(FETCH, 12)[0] == 1
    assert client.receive(PRODUCE, 9)[0] == 2


def test_a_produce_wakes_the_fetch_before_it(stage: Stage) -> None:
    """The same connection brings what its long poll waits for."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    client.produce(batch(b"a"), number=2)
    stage.step()
    assert len(client.receive(FETCH, 12)[1].responses[0].partitions[0].records) == len(batch(b"a"))
    assert client.receive(PRODUCE, 9)[0] == 2


def test_a_fetch_waits_behind_a_fetch(stage: Stage) -> None:
    """Two long polls of one connection: the second is executed once the first is answered."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    client.fetch(1, max_wait_ms=LONG_MS, number=2)
    client.produce(batch(b"-"), partition=1, number=3)
    stage.step()
    assert client.quiet() and stage.plane.stats()[0]["parked"] == 1
    stage.log.append(batch(b"a"), now_ms=1)
    stage.step()
    assert client.receive(FETCH, 12)[0] == 1 and client.quiet()
    assert stage.plane.stats()[0]["parked"] == 1 and stage.partitions[1].log_end_offset == 1
    stage.log.append(batch(b"b"), now_ms=1)
    stage.step()
    assert [number(client) for _ in range(2)] == [2, 3]


def test_a_fetch_is_answered_while_python_has_what_follows(stage: Stage) -> None:
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    ask(client, 2)
    stage.step()
    (token,) = letters(stage)
    stage.log.append(batch(b"a"), now_ms=1)
    stage.step()
    assert client.receive(FETCH, 12)[0] == 1 and client.quiet()
    reply(stage, token, 2)
    stage.step()
    assert number(client) == 2


def test_a_fetch_that_is_declined_goes_to_python_after_what_it_has(stage: Stage) -> None:
    """Its partition goes while Python has the request behind it: one request of a connection is with Python at a time,
    and the answers keep their order all the same."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    ask(client, 2)
    stage.step()
    (later,) = letters(stage)
    stage.plane.withdraw(stage.log)
    stage.step()
    assert letters(stage) == []
    reply(stage, later, 2)
    client.produce(batch(b"b"), partition=1, number=3)
    stage.step()
    (fetch,) = letters(stage)
    assert client.quiet()
    reply(stage, fetch, 1)
    stage.step()
    assert [number(client) for _ in range(3)] == [1, 2, 3]


def test_a_connection_goes_with_a_fetch_that_python_has(stage: Stage) -> None:
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    client.produce(batch(b"b"), partition=1, number=2)
    stage.step()
    stage.plane.divert(True)
    stage.step()
    (fetch,) = letters(stage)
    client.sock.close()
    stage.step()
    reply(stage, fetch, 1)
    stage.step()
    assert stage.plane.stats()[0]["connections"] == 0


@pytest.mark.parametrize("seed", range(40))
def test_answers_keep_the_order_of_their_requests(tmp_path: Path, seed: int) -> None:
    """Any requests in any number and order, while the disk hangs and goes on, Python answers when it likes, records
    come, and the client receives or not: each request is answered once, in its turn."""
    rng = random.Random(seed)
    stage = Stage(tmp_path)
    stage.log.configure({"flush.messages": 1})
    client, asked, away, told = Client(stage), 0, [], []
    kinds: dict[int, int] = {}

    def receive(most: int) -> None:
        while most and not client.quiet():
            told.append(number(client))
            most -= 1

    def event() -> None:
        nonlocal asked
        what = rng.randrange(9)
        if what < 4 and asked < 60:
            kinds[asked] = what
            if what < 2:
                client.produce(batch(b"v" * rng.randrange(1, 3000)), partition=what, number=asked)
            elif what == 2:
                offset = rng.randrange(stage.log.log_end_offset + 1)
                client.fetch(offset, max_wait_ms=rng.choice([0, 1, LONG_MS]), number=asked)
            else:
                ask(client, asked)
            asked += 1
        elif what == 4:
            stage.broker.arm("segment.sync", "sleep", STUCK_MS)
        elif what == 5:
            stage.broker.disarm()
        elif what == 6:
            stage.log.append(batch(b"w"), now_ms=1)
        elif what == 7:
            stage.plane.divert(rng.random() < 0.3)
        else:
            receive(rng.randrange(4))
        stage.step(rng.randrange(3))
        away.extend((token, stage_number(frame)) for kind, _, token, frame in stage.plane.take() if kind == "request")
        if away and rng.random() < 0.4:
            reply(stage, *away.pop(0))

    for _ in range(200):
        event()
    stage.broker.disarm()
    stage.plane.divert(False)

    def settled() -> bool:
        away.extend((token, stage_number(frame)) for kind, _, token, frame in stage.plane.take() if kind == "request")
        while away:
            reply(stage, *away.pop(0))
        stage.log.append(batch(b"w"), now_ms=1)
        receive(100)
        return len(told) == asked

    until(stage, settled)
    assert told == list(range(asked))
    stage.close()


def stage_number(frame: bytes) -> int:
    """The correlation id of a request's frame."""
    return int(struct.unpack_from(">i", frame, 4)[0])
