"""A connection goes on while an answer waits, and answers keep the order of their requests."""

from __future__ import annotations

import random
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, METADATA, PRODUCE, STUCK_MS, Client, Stage, batch, step_until

LONG_MS = 60_000


@pytest.fixture
def synced(stage: Stage) -> Iterator[Stage]:
    """A stage whose partition 0 syncs before each acknowledgement, with a disk that hangs until the test disarms it."""
    stage.log.configure({"flush.messages": 1})
    stage.broker.arm("segment.sync", "sleep", STUCK_MS)
    yield stage


def ask(client: Client, number: int) -> None:
    """Send a request that Python must answer."""
    client.send(codec.encode_request(METADATA, 9, number, "c", m.MetadataRequest(topics=None)))


def reply(stage: Stage, token: int, number: int) -> None:
    stage.plane.reply(token, codec.encode_response_parts(METADATA, 9, number, m.MetadataResponse()))


def letters(stage: Stage, kind: str = "request") -> list[int]:
    """The tokens of requests that reached Python."""
    return [token for what, _, token, _ in stage.plane.take() if what == kind]


def number(client: Client) -> int:
    """Receive the next answer; return its correlation id."""
    size = struct.unpack(">i", client._exactly(4))[0]
    return int(struct.unpack_from(">i", client._exactly(size))[0])


def test_what_follows_a_produce_that_waits_is_executed(synced: Stage) -> None:
    """A Produce behind one that waits for a slow sync is appended at once, and answered after it."""
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
    step_until(synced, lambda: not client.quiet())
    assert [number(client) for _ in range(3)] == [2, 3, 4]


def test_one_request_over_several_partitions_waits_for_all(synced: Stage) -> None:
    """A Produce for two partitions, one of them synced, gets one answer after the sync."""
    client = Client(synced)
    kind = m.ProduceRequest.TopicData
    parts = [kind.PartitionData(index=i, records=batch(b"a")) for i in (1, 0)]
    request = m.ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[kind(name="t", partition_data=parts)])
    client.send(codec.encode_request(PRODUCE, 9, 7, "c", request))
    synced.step()
    assert client.quiet() and [p.log_end_offset for p in synced.partitions] == [1, 1]
    synced.broker.disarm()
    step_until(synced, lambda: not client.quiet())
    told = client.receive(PRODUCE, 9)[1].responses[0].partition_responses
    assert [(p.index, p.error_code, p.base_offset) for p in told] == [(1, 0, 0), (0, 0, 0)]


def test_python_is_asked_while_a_produce_waits(synced: Stage) -> None:
    """A request behind a waiting Produce reaches Python at once, and Python's answer waits for the Produce's."""
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
    step_until(synced, lambda: not client.quiet())
    assert [number(client) for _ in range(3)] == [1, 2, 3]


def test_a_connection_that_ends_is_owed_what_waits(synced: Stage) -> None:
    client = Client(synced)
    client.produce(batch(b"a"), number=1)
    client.sock.shutdown(1)
    synced.step()
    assert client.quiet()
    synced.broker.disarm()
    step_until(synced, lambda: not client.quiet())
    assert number(client) == 1 and client.sock.recv(1) == b""


def test_a_connection_goes_while_its_answer_waits(synced: Stage) -> None:
    """A connection that closes while its answer waits is freed at once, and the next one is served."""
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
    step_until(synced, lambda: not client.quiet())
    assert client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0].base_offset == 10


def test_too_many_that_wait_hold_the_rest_back(synced: Stage) -> None:
    """Only some of a connection's thousand requests wait; the others are executed later, and none is lost."""
    client = Client(synced)
    client.sock.settimeout(30)
    sender = threading.Thread(target=lambda: [client.produce(batch(b"a"), number=n) for n in range(1000)])
    sender.start()
    step_until(synced, lambda: synced.log.log_end_offset >= 256)
    synced.step(100)
    assert synced.log.log_end_offset < 600
    synced.broker.disarm()
    synced.plane.start()
    assert [number(client) for _ in range(1000)] == list(range(1000))
    sender.join()


def test_what_follows_a_fetch_that_waits_is_executed(stage: Stage) -> None:
    """A Produce behind a long poll is appended, and both are answered in order when the long poll has records."""
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
    """A Produce wakes the long poll before it on its own connection."""
    client = Client(stage)
    client.fetch(0, max_wait_ms=LONG_MS, number=1)
    client.produce(batch(b"a"), number=2)
    stage.step()
    assert len(client.receive(FETCH, 12)[1].responses[0].partitions[0].records) == len(batch(b"a"))
    assert client.receive(PRODUCE, 9)[0] == 2


def test_a_fetch_waits_behind_a_fetch(stage: Stage) -> None:
    """The second of two long polls of a connection is executed when the first is answered."""
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
    """A parked Fetch whose partition goes reaches Python after the request that Python already has.

    Python has one request of a connection at a time, and answers keep their order.
    """
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
    """Answers keep the order of their requests, and each request is answered once.

    The requests are random, the disk hangs at times, Python answers late, records arrive, and the client reads or not.
    """
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

    step_until(stage, settled)
    assert told == list(range(asked))
    stage.close()


def stage_number(frame: bytes) -> int:
    """The correlation id of a request's frame."""
    return int(struct.unpack_from(">i", frame, 4)[0])


# -- acks=all: the answer waits for the high watermark -----------------------------------------------------------------

FOLLOWER = 2
NOW_MS = 1


@pytest.fixture
def led(stage: Stage) -> Iterator[Stage]:
    """A stage that leads partition 0 with a follower in the ISR, and partition 1 without followers."""
    stage.log.become_leader(1, 1, followers=[FOLLOWER])
    yield stage


def outcome(client: Client) -> tuple[int, int, int]:
    """Receive the next Produce answer; return (correlation id, error code, base offset)."""
    step_until(client.stage, lambda: not client.quiet())
    correlation, answer = client.receive(PRODUCE, 9)
    part = answer.responses[0].partition_responses[0]
    return correlation, part.error_code, part.base_offset


def test_acks_all_waits_for_the_isr(led: Stage) -> None:
    """acks=1 is answered at once, and acks=all when the follower has fetched behind the records, each in order."""
    client, other = Client(led), Client(led)
    client.produce(batch(b"a"), acks=1, number=1)
    client.produce(batch(b"b"), acks=-1, number=2)
    client.produce(batch(b"c"), acks=-1, partition=1, number=3)
    other.produce(batch(b"d"), acks=-1, partition=1, number=4)
    led.step()
    assert outcome(client) == (1, 0, 0) and client.quiet()
    assert outcome(other) == (4, 0, 1)
    led.log.note_fetch(FOLLOWER, 1, leader_epoch=1, now_ms=NOW_MS)
    led.step()
    assert client.quiet()
    led.log.note_fetch(FOLLOWER, 2, leader_epoch=1, now_ms=NOW_MS)
    assert outcome(client) == (2, 0, 1)
    assert outcome(client) == (3, 0, 0)


def test_acks_all_is_answered_when_the_isr_shrinks(led: Stage) -> None:
    client = Client(led)
    client.produce(batch(b"a"), acks=-1)
    led.step()
    assert client.quiet()
    led.log.set_isr([], 1, 2)
    assert outcome(client) == (1, 0, 0)


def test_acks_all_has_its_deadline(led: Stage) -> None:
    """An acks=all Produce without a follower's Fetch gets REQUEST_TIMED_OUT in time; the record stays."""
    client = Client(led)
    client.produce(batch(b"a"), acks=-1, timeout_ms=50)
    began = time.monotonic()
    assert outcome(client) == (1, errors.REQUEST_TIMED_OUT, -1)
    assert time.monotonic() - began >= 0.049
    assert led.log.log_end_offset == 1
    led.log.note_fetch(FOLLOWER, 1, leader_epoch=1, now_ms=NOW_MS)
    led.step()
    assert client.quiet()


@pytest.mark.parametrize("change", ["follower", "offline", "withdrawn"])
def test_acks_all_is_refused_when_another_leads(led: Stage, change: str) -> None:
    """A waiting acks=all Produce is refused when another broker leads, as its records may be truncated.

    It is also refused if the high watermark passes its offset under another leader.
    """
    client = Client(led)
    client.produce(batch(b"a"), acks=-1)
    led.step()
    assert client.quiet()
    if change == "follower":
        led.log.become_follower(FOLLOWER, 2, 2)
    elif change == "offline":
        led.log.become_offline(2, 2)
    else:
        led.plane.withdraw(led.log)
    assert outcome(client) == (1, errors.NOT_LEADER_OR_FOLLOWER, -1)


def test_a_duplicate_waits_for_the_isr_as_its_original(led: Stage) -> None:
    sequenced = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    one, two = Client(led), Client(led)
    one.produce(sequenced, acks=-1)
    led.step()
    two.produce(sequenced, acks=-1)
    led.step()
    assert one.quiet() and two.quiet()
    led.log.note_fetch(FOLLOWER, 1, leader_epoch=1, now_ms=NOW_MS)
    assert outcome(one) == (1, 0, 0) and outcome(two) == (1, 0, 0)


def test_acks_all_waits_for_the_disk_and_the_isr(led: Stage) -> None:
    """acks=all waits for disk and ISR, whichever is later, and gets an error if the disk hangs beyond its timeout."""
    led.log.configure({"flush.messages": 1})
    client = Client(led)
    led.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"a"), acks=-1, number=1)
    led.step()
    led.log.note_fetch(FOLLOWER, 1, leader_epoch=1, now_ms=NOW_MS)
    led.step()
    assert client.quiet()
    led.broker.disarm()
    assert outcome(client) == (1, 0, 0)
    client.produce(batch(b"b"), acks=-1, number=2)
    step_until(led, lambda: led.log.durable_offset == 2)
    led.step()
    assert client.quiet()
    led.log.note_fetch(FOLLOWER, 2, leader_epoch=1, now_ms=NOW_MS)
    assert outcome(client) == (2, 0, 1)
    led.broker.arm("segment.sync", "sleep", STUCK_MS)
    client.produce(batch(b"c"), acks=-1, timeout_ms=30, number=3)
    assert outcome(client) == (3, errors.REQUEST_TIMED_OUT, -1)


def test_a_stop_waits_for_no_replica(led: Stage) -> None:
    """A stop answers a waiting acks=all Produce with REQUEST_TIMED_OUT, and then closes the connection."""
    client = Client(led)
    client.produce(batch(b"a"), acks=-1, timeout_ms=600_000)
    led.step()
    led.plane.finish()
    led.step()
    assert outcome(client) == (1, errors.REQUEST_TIMED_OUT, -1)
    assert client.sock.recv(1) == b""


def test_a_connection_goes_while_replicas_are_waited_for(led: Stage) -> None:
    client = Client(led)
    client.produce(batch(b"a"), acks=-1)
    led.step()
    client.sock.close()
    led.step()
    assert led.plane.stats()[0]["connections"] == 0
    led.log.note_fetch(FOLLOWER, 1, leader_epoch=1, now_ms=NOW_MS)
    led.step()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_acknowledged_is_committed(tmp_path: Path, seed: int) -> None:
    """Records that acks=all acknowledged are below the high watermark, and answers keep their order.

    Requests are random, the follower fetches or not, the ISR changes, and leader epochs end.
    """
    rng = random.Random(seed)
    stage = Stage(tmp_path)
    stage.log.become_leader(1, 1, followers=[FOLLOWER])
    client, asked, told = Client(stage), 0, 0
    epoch, version, fetched = 1, 1, 0
    for _ in range(150):
        what = rng.randrange(10)
        if what < 5 and asked - told < 40:
            client.produce(batch(b"v"), acks=-1, number=asked, timeout_ms=STUCK_MS)
            asked += 1
        elif what < 7:
            fetched = rng.randrange(fetched, stage.log.log_end_offset + 1)
            stage.log.note_fetch(FOLLOWER, fetched, leader_epoch=epoch, now_ms=NOW_MS)
        elif what == 7:
            version += 1
            stage.log.set_isr(rng.choice([[], [FOLLOWER]]), epoch, version)
        elif what == 8 and rng.random() < 0.2:
            epoch, version, fetched = epoch + 1, version + 1, stage.log.high_watermark
            stage.log.become_leader(epoch, version, followers=[FOLLOWER])
        stage.step(rng.randrange(1, 3))
        while not client.quiet():
            correlation, error, base = outcome(client)
            assert correlation == told
            told += 1
            assert error in (0, errors.NOT_LEADER_OR_FOLLOWER)
            assert error or base < stage.log.high_watermark
    stage.log.set_isr([], epoch, version + 1)
    while told < asked:
        assert outcome(client)[0] == told
        told += 1
    stage.close()
