"""The leader's plane executes a follower's Fetch without Python: what it reads, reports and wakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.core.stage import FETCH, PRODUCE, STUCK_MS, TOPIC_ID, Client, Stage, batch
from tests.rows import with_each

INSIDE = 1
"""The listener for brokers."""
EPOCH = 4
BROKER_EPOCH = 77
VERSIONS = [11, 12, 14, 15, 17]


class Follower(Client):
    """A follower (broker 2 or 3) connected to its leader."""

    def __init__(self, stage: Stage, broker: int = 2, *, listener: int = INSIDE) -> None:
        super().__init__(stage, listener=listener)
        self.broker = broker

    def ask(
        self, offsets: dict[int, int], *, session: tuple[int, int] = (0, -1), version: int = 17, epoch: int = EPOCH,
        last_epoch: int = -1, broker_epoch: int = BROKER_EPOCH, max_wait_ms: int = 0, forget: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        kind = m.FetchRequest
        parts = [
            kind.Topics.Partitions(
                partition=i, fetch_offset=o, partition_max_bytes=1 << 20, current_leader_epoch=epoch,
                last_fetched_epoch=last_epoch, log_start_offset=0,
            )
            for i, o in offsets.items()
        ]  # fmt: skip
        gone = [kind.ForgottenTopicsData(topic="t", topic_id=TOPIC_ID, partitions=list(forget))] if forget else []
        who: dict[str, Any] = {"replica_id": self.broker}
        if version >= 15:
            who = {"replica_state": kind.ReplicaState(replica_id=self.broker, replica_epoch=broker_epoch)}
        request = kind(
            max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 24, session_id=session[0], session_epoch=session[1],
            topics=[kind.Topics(topic="t", topic_id=TOPIC_ID, partitions=parts)] if parts else [],
            forgotten_topics_data=gone, **who,
        )  # fmt: skip
        self.send(codec.encode_request(FETCH, version, 3, "broker-2-fetcher-0", request))
        self.stage.step()

    def fetches(self, offsets: dict[int, int], **how: Any) -> Any:
        self.ask(offsets, **how)
        return self.receive(FETCH, how.get("version", 17))[1]


def lead(partition: core.Partition, epoch: int = EPOCH, isr: tuple[int, ...] = (2, 3)) -> None:
    partition.become_leader(epoch, epoch, followers=[2, 3], isr=list(isr))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, partitions=3, replica_listener=INSIDE)
    for partition in made.partitions:
        lead(partition)
    yield made
    made.close()


def brought(answer: Any) -> dict[int, Any]:
    return {p.partition_index: p for topic in answer.responses for p in topic.partitions}


def known(partition: core.Partition) -> dict[int, tuple[int, int]]:
    """(log end, broker epoch) of each follower, as recorded by the leader."""
    return {f.broker: (f.log_end_offset, f.broker_epoch) for f in partition.followers}


@pytest.mark.parametrize("version", VERSIONS)
def test_it_reads_to_the_end_and_tells_what_it_has(stage: Stage, version: int) -> None:
    """A follower reads to the log end, also uncommitted records; its fetch offset is recorded as its log end."""
    stage.log.append(batch(b"x", b"y"), now_ms=1)
    stage.log.append(batch(b"z"), now_ms=1)
    one, other = Follower(stage, 2), Follower(stage, 3)
    p = brought(one.fetches({0: 0}, version=version))[0]
    assert (p.error_code, p.high_watermark, p.log_start_offset) == (0, 0, 0)
    assert [b.base_offset for _, b in core.iter_batches(bytes(p.records))] == [0, 2]
    one.fetches({0: 3}, version=version)
    assert stage.log.high_watermark == 0
    assert brought(other.fetches({0: 2}, version=version))[0].high_watermark == 2
    assert stage.log.high_watermark == 2
    assert known(stage.log) == dict.fromkeys([2, 3], (3, 77 if version >= 15 else -1)) | {
        3: (2, 77 if version >= 15 else -1)
    }
    assert stage.plane.take() == [], "no request goes to Python"


def test_an_acknowledgement_is_released_by_the_last_follower(stage: Stage) -> None:
    """An acks=all Produce is answered when the last follower fetches behind it, without a timer or Python."""
    producer, one, other = Client(stage), Follower(stage, 2), Follower(stage, 3)
    producer.produce(batch(b"x"), acks=-1, timeout_ms=STUCK_MS)
    stage.step()
    assert brought(one.fetches({0: 0}))[0].records and brought(other.fetches({0: 0}))[0].records
    one.ask({0: 1}, max_wait_ms=STUCK_MS)
    assert producer.quiet()
    other.ask({0: 1}, max_wait_ms=STUCK_MS)
    (p,) = producer.receive(PRODUCE, 9)[1].responses[0].partition_responses
    assert (p.error_code, p.base_offset) == (0, 0)
    assert one.quiet() and other.quiet(), "an advanced high watermark alone answers no Fetch"
    assert stage.plane.take() == []


def test_a_parked_fetch_is_answered_by_an_append(stage: Stage) -> None:
    one = Follower(stage)
    one.ask({0: 0, 1: 0}, max_wait_ms=STUCK_MS)
    assert one.quiet()
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    stage.step()
    parts = brought(one.receive(FETCH, 17)[1])
    assert [(i, len(p.records) > 0) for i, p in parts.items()] == [(0, False), (1, True)]


@pytest.mark.parametrize("version", VERSIONS)
def test_by_another_listener_it_is_not_believed(stage: Stage, version: int) -> None:
    """A follower's Fetch on another listener goes to Python, which refuses it."""
    Follower(stage, listener=0).ask({0: 0}, version=version)
    assert [kind for kind, *_ in stage.plane.take()] == ["request"]
    assert known(stage.log) == dict.fromkeys([2, 3], (-1, -1))


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"epoch": EPOCH - 1}, errors.FENCED_LEADER_EPOCH),
        ({"epoch": EPOCH + 1}, errors.UNKNOWN_LEADER_EPOCH),
        ({"broker": 9}, errors.UNKNOWN_LEADER_EPOCH),
        ({"broker_epoch": BROKER_EPOCH - 1}, errors.STALE_BROKER_EPOCH),
        ({"offset": 7}, errors.OFFSET_OUT_OF_RANGE),
        ({"offset": -1}, errors.OFFSET_OUT_OF_RANGE),
        ({"partition": 1}, errors.NOT_LEADER_OR_FOLLOWER),
    ],
)
def test_what_is_wrong_with_one_partition_counts_for_nothing(stage: Stage, how: dict[str, int], code: int) -> None:
    """An error of one partition is answered at once beside the other partitions' data, and records no fetch offset."""
    stage.partitions[1].become_follower(8, EPOCH, EPOCH + 1)
    stage.log.append(batch(b"x"), now_ms=1)
    Follower(stage).fetches({0: 0})
    before = known(stage.log)
    follower = Follower(stage, how.pop("broker", 2))
    index, offset = how.pop("partition", 0), how.pop("offset", 1)
    p = brought(follower.fetches({index: offset}, max_wait_ms=STUCK_MS, **how))[index]
    assert (p.error_code, p.high_watermark, len(p.records or b"")) == (code, -1, 0)
    assert (known(stage.log), stage.log.high_watermark) == (before, 0)
    assert stage.plane.take() == []


@pytest.mark.parametrize(
    ("last_epoch", "offset", "diverging"),
    [
        (EPOCH, 4, None),
        (EPOCH, 5, (EPOCH, 4)),
        (2, 2, None),
        (2, 3, (2, 2)),
        (3, 3, (2, 2)),
        (3, 2, (2, 2)),
        (1, 1, None),
    ],
)
def test_a_log_that_diverges_is_told_where(
    tmp_path: Path, last_epoch: int, offset: int, diverging: tuple[int, int] | None
) -> None:
    """A follower whose log diverges gets the epoch and end offset, and its fetch offset is not recorded.

    The leader's log has epoch 1 up to offset 1, epoch 2 up to 2, and its own epoch up to 4.
    """
    stage = Stage(tmp_path, partitions=1, replica_listener=INSIDE)
    for epoch, records in ((1, 1), (2, 1), (EPOCH, 2)):
        lead(stage.log, epoch)
        stage.log.append(batch(*[b"x"] * records), now_ms=1)
    p = brought(Follower(stage).fetches({0: offset}, last_epoch=last_epoch))[0]
    found = p.diverging_epoch and (p.diverging_epoch.epoch, p.diverging_epoch.end_offset)
    assert (p.error_code, found) == (0, diverging)
    assert known(stage.log)[2] == ((-1, -1) if diverging else (offset, BROKER_EPOCH))
    if diverging:
        assert not p.records
    assert stage.plane.take() == []
    stage.close()


def test_an_epoch_that_is_before_all_records_ends_where_they_begin(stage: Stage) -> None:
    stage.log.append(batch(b"x"), now_ms=1)
    follower = Follower(stage)
    assert brought(follower.fetches({0: 0}, last_epoch=1))[0].diverging_epoch is None
    found = brought(follower.fetches({0: 1}, last_epoch=1))[0].diverging_epoch
    assert (found.epoch, found.end_offset) == (1, 0)


def test_an_epoch_that_its_leader_never_knew_is_out_of_range(stage: Stage) -> None:
    """A last fetched epoch that the leader never had gets OFFSET_OUT_OF_RANGE, so the follower asks where to begin."""
    stage.log.append(batch(b"x"), now_ms=1)
    p = brought(Follower(stage).fetches({0: 1}, last_epoch=EPOCH + 3))[0]
    assert (p.error_code, known(stage.log)[2]) == (errors.OFFSET_OUT_OF_RANGE, (-1, -1))


def test_in_a_session_what_is_not_named_is_where_it_was(stage: Stage) -> None:
    """A partition that a session's Fetch does not name keeps its offset, which keeps the follower in the ISR."""
    one, other = Follower(stage, 2), Follower(stage, 3)
    session = one.fetches({0: 0, 1: 0, 2: 0}, session=(0, 0)).session_id
    assert session > 0
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    answer = one.fetches({}, session=(session, 1), max_wait_ms=STUCK_MS)
    assert [(i, len(p.records) > 0) for i, p in brought(answer).items()] == [(1, True)]
    other.fetches({1: 1})
    assert brought(one.fetches({1: 1}, session=(session, 2)))[1].high_watermark == 1
    one.ask({}, session=(session, 3), max_wait_ms=STUCK_MS)
    assert one.quiet()
    stage.partitions[2].append(batch(b"y"), now_ms=1)
    stage.step()
    assert list(brought(one.receive(FETCH, 17)[1])) == [2]
    answer = one.fetches({2: 1}, session=(session, 4), forget=(0,))
    assert known(stage.partitions[2])[2] == (1, BROKER_EPOCH)
    assert one.fetches({}, session=(session, 3)).error_code == errors.INVALID_FETCH_SESSION_EPOCH
    assert stage.plane.take() == []


def test_a_follower_that_is_idle_stays_caught_up(stage: Stage) -> None:
    """An idle follower stays caught up: each of its Fetches counts for all partitions of its session."""
    one = Follower(stage)
    session = one.fetches({0: 0}, session=(0, 0)).session_id
    first = stage.log.followers[0].caught_up_ms
    for number in range(1, 40):
        one.ask({}, session=(session, number), max_wait_ms=30)
        one.receive_while(FETCH, 17, stage.step)
        if stage.log.followers[0].caught_up_ms > first:
            return
    pytest.fail("the leader does not record the follower's requests")


def test_an_older_leader_epoch_in_a_session_is_fenced(stage: Stage) -> None:
    """A session's Fetch with an older leader epoch is fenced, also if the same leader was elected again."""
    one = Follower(stage)
    session = one.fetches({0: 0}, session=(0, 0)).session_id
    lead(stage.log, EPOCH + 1)
    answer = one.fetches({}, session=(session, 1), max_wait_ms=STUCK_MS)
    assert brought(answer)[0].error_code == errors.FENCED_LEADER_EPOCH
    assert known(stage.log)[2] == (-1, -1)
    one.fetches({0: 0}, session=(session, 2), epoch=EPOCH + 1)
    assert known(stage.log)[2] == (0, BROKER_EPOCH)


def test_who_caught_up_outside_the_isr_is_told_of_once(stage: Stage) -> None:
    """A follower outside the ISR is reported once when it has all committed records and all before this epoch."""
    lead(stage.log, EPOCH + 1, isr=(3,))
    stage.log.append(batch(b"x", b"y"), now_ms=1)
    lead(stage.log, EPOCH + 2, isr=(3,))
    stage.log.append(batch(b"z"), now_ms=1)
    stage.plane.watch_joining(stage.log)
    one, other = Follower(stage, 2), Follower(stage, 3)
    other.fetches({0: 3}, epoch=EPOCH + 2)
    for offset in (0, 2):
        one.fetches({0: offset}, epoch=EPOCH + 2)
        assert stage.plane.take() == [], "the follower lacks committed records"
    one.fetches({0: 3}, epoch=EPOCH + 2)
    assert [kind for kind, *_ in stage.plane.take()] == ["joining"]
    one.fetches({0: 3}, epoch=EPOCH + 2)
    assert stage.plane.take() == []
    stage.plane.watch_joining(stage.log)
    one.fetches({0: 3}, epoch=EPOCH + 2)
    assert [kind for kind, *_ in stage.plane.take()] == ["joining"]


def test_one_who_has_what_is_committed_but_not_what_is_before_the_epoch_may_not_join(stage: Stage) -> None:
    stage.log.append(batch(b"x", b"y"), now_ms=1)
    lead(stage.log, EPOCH + 1, isr=())
    lead(stage.partitions[1], EPOCH + 1, isr=(3,))
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    lead(stage.partitions[1], EPOCH + 2, isr=(3,))
    stage.plane.watch_joining(stage.partitions[1])
    one = Follower(stage)
    one.fetches({1: 0}, epoch=EPOCH + 2)
    assert stage.partitions[1].high_watermark == 0
    assert stage.plane.take() == []
    one.fetches({1: 1}, epoch=EPOCH + 2)
    assert [kind for kind, *_ in stage.plane.take()] == ["joining"]


@with_each("cut", range(1, 40))
def test_a_broken_request_is_for_python(stage: Stage, cut: int) -> None:
    """A Fetch that is cut anywhere goes to Python, and none of its offsets is recorded."""
    kind = m.FetchRequest
    request = kind(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1,
        replica_state=kind.ReplicaState(replica_id=2, replica_epoch=BROKER_EPOCH),
        topics=[kind.Topics(topic_id=TOPIC_ID, partitions=[
            kind.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=EPOCH)
        ])],
    )  # fmt: skip
    frame = codec.encode_request(FETCH, 17, 3, "c", request)
    Follower(stage).send(frame[:-cut])
    stage.step()
    assert [kind for kind, *_ in stage.plane.take()] == ["request"]
    assert known(stage.log)[2] == (-1, -1)


def test_a_second_request_ends_the_wait_of_the_first(stage: Stage) -> None:
    """A follower's second Fetch ends the wait of its first, as it may name a partition for which acks=all waits."""
    one = Follower(stage)
    session = one.fetches({0: 0}, session=(0, 0)).session_id
    one.ask({}, session=(session, 1), max_wait_ms=STUCK_MS)
    assert one.quiet()
    one.ask({1: 0}, session=(session, 2), max_wait_ms=STUCK_MS)
    assert brought(one.receive(FETCH, 17)[1]) == {}
    assert known(stage.partitions[1])[2] == (0, BROKER_EPOCH)
    assert one.quiet()
    stage.partitions[1].append(batch(b"x"), now_ms=1)
    stage.step()
    assert brought(one.receive(FETCH, 17)[1])[1].records
    consumer = Client(stage)
    consumer.fetch(0, max_wait_ms=STUCK_MS)
    consumer.fetch(0, max_wait_ms=STUCK_MS)
    stage.step()
    assert consumer.quiet(), "a consumer's Fetch waits its full time"


def reads(stage: Stage, rack: str, *, epoch: int = -1, version: int = 12, max_wait_ms: int = 0) -> Client:
    """Connect a consumer in this rack and send its Fetch of partition 0."""
    kind = m.FetchRequest
    part = kind.Topics.Partitions(
        partition=0, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )
    request = kind(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 24, session_epoch=-1, rack_id=rack,
        topics=[kind.Topics(topic="t", topic_id=TOPIC_ID, partitions=[part])],
    )  # fmt: skip
    client = Client(stage)
    client.send(codec.encode_request(FETCH, version, 3, "c", request))
    stage.step()
    return client


@pytest.fixture
def near(tmp_path: Path) -> Iterator[Stage]:
    """A follower in rack b that has two records, one of them committed."""
    made = Stage(tmp_path, partitions=1, rack="b")
    made.log.append(batch(b"x"), now_ms=1)
    made.log.become_follower(2, EPOCH, EPOCH)
    sent = (1).to_bytes(8, "big") + batch(b"y")[8:12] + EPOCH.to_bytes(4, "big") + batch(b"y")[16:]
    made.log.append_replica(sent, leader_epoch=EPOCH, high_watermark=1, now_ms=1)
    yield made
    made.close()


def test_a_consumer_in_its_rack_reads_from_a_follower(near: Stage) -> None:
    """A consumer in a follower's rack reads up to the high watermark that the follower knows (KIP-392)."""
    assert (near.log.high_watermark, near.log.log_end_offset) == (1, 2)
    p = brought(reads(near, "b").receive(FETCH, 12)[1])[0]
    assert (p.error_code, p.high_watermark) == (0, 1)
    assert [b.base_offset for _, b in core.iter_batches(bytes(p.records))] == [0]
    assert near.plane.take() == []


@pytest.mark.parametrize(
    ("rack", "epoch", "code"),
    [("", -1, errors.NOT_LEADER_OR_FOLLOWER), ("b", EPOCH + 1, errors.UNKNOWN_LEADER_EPOCH)],
)
def test_others_do_not(near: Stage, rack: str, epoch: int, code: int) -> None:
    assert brought(reads(near, rack, epoch=epoch).receive(FETCH, 12)[1])[0].error_code == code


def test_where_another_rack_reads_is_for_python(near: Stage) -> None:
    """A consumer of another rack is left to Python, which knows the replicas' racks."""
    reads(near, "c")
    assert [kind for kind, *_ in near.plane.take()] == ["request"]


def test_without_a_selector_racks_mean_nothing(stage: Stage) -> None:
    stage.log.become_follower(2, EPOCH + 1, EPOCH + 1)
    assert brought(reads(stage, "b").receive(FETCH, 12)[1])[0].error_code == errors.NOT_LEADER_OR_FOLLOWER
