"""Transactions at a broker: each request over the wire, what readers see, and restarts in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.protocol import messages as m
from tests.server.live import Live, Wire, batch
from tests.server.transactions import Transactional

CONTROL, COMMIT = 0x20, b"\0\0\0\1"
SETS = (
    "transaction.state.log.num.partitions=2", "offsets.topic.num.partitions=2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=50",
)  # fmt: skip


@pytest.fixture
async def live(tmp_path: Path) -> Any:
    made = Live(tmp_path / "data", SETS)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wire(live: Live) -> Wire:
    return await live.connect()


@pytest.fixture
async def producer(wire: Wire) -> Transactional:
    made = Transactional(wire)
    assert await made.init() == 0
    return made


async def read(wire: Wire, topic: str, isolation: int = 1) -> list[bytes | None]:
    """The values up to the last stable offset, without those of transactions that a marker aborts; or all values."""
    part = await wire.fetch(topic, 0, isolation_level=isolation)
    assert part.error_code == 0
    data, found, open_ = bytes(part.records), [], []
    for position, header in core.iter_batches(data):
        records = list(core.walk_records(data[position + 61 : position + header.size], header))
        if not header.attributes & CONTROL:
            open_ += [value for _, _, _, value, _ in records]
        elif records[0][2] == COMMIT:
            found, open_ = found + open_, []
        else:
            open_.clear()
    return found if isolation else found + open_


async def test_what_is_committed_is_read_and_what_is_aborted_is_not(wire: Wire, producer: Transactional) -> None:
    one, two = await wire.topic(), await wire.topic()
    for topic, commit in ((one, True), (two, False)):
        assert await producer.add(topic, 0) == [0]
        assert (await producer.write(topic, b"a", b"b")).error_code == 0
        assert await read(wire, topic, 1) == [] and await read(wire, topic, 0) == [b"a", b"b"]
        assert (await producer.end(commit)).error_code == 0
        assert (await producer.end(commit)).error_code == 0, "a repetition"
        assert await producer.settled() == ("CompleteCommit" if commit else "CompleteAbort")
        assert await read(wire, topic, 1) == ([b"a", b"b"] if commit else [])


async def test_a_partition_that_was_not_added_takes_no_batch(wire: Wire, producer: Transactional) -> None:
    """Faults 2 and 5: a first batch of a partition is verified with the coordinator; before version 11 a client gets
    INVALID_TXN_STATE, then TRANSACTION_ABORTABLE. So does one that comes after its transaction has ended."""
    topic = await wire.topic()
    assert (await producer.write(topic, b"x")).error_code == errors.INVALID_TXN_STATE
    producer.sequences.clear()
    assert (await producer.write(topic, b"x", version=11)).error_code == errors.TRANSACTION_ABORTABLE
    producer.sequences.clear()
    assert await producer.add(topic, 0) == [0]
    assert (await producer.write(topic, b"x")).error_code == 0
    await producer.end(False)
    await producer.settled()
    late = await producer.write(topic, b"late")
    assert late.error_code == errors.INVALID_TXN_STATE
    part = (await wire.call("DescribeProducers", 0, topics=[
        m.DescribeProducersRequest.Topics(name=topic, partition_indexes=[0])])).topics[0].partitions[0]  # fmt: skip
    assert [each.current_txn_start_offset for each in part.active_producers] == [-1], "no transaction hangs"


async def test_a_newer_client_adds_a_partition_with_its_first_batch(wire: Wire, producer: Transactional) -> None:
    """A batch of Produce 12 adds its partition; EndTxn 5 gives the next epoch, and a repetition gives it again."""
    topic = await wire.topic()
    assert (await producer.write(topic, b"x", version=12)).error_code == 0
    for _ in range(2):
        answer = await producer.end(True, version=5)
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, producer.me.id, 1)
    assert await producer.settled() == "CompleteCommit"
    assert await read(wire, topic) == [b"x"]
    assert (await producer.write(topic, b"y", version=12)).error_code == errors.INVALID_PRODUCER_EPOCH
    producer.me = ProducerIdAndEpoch(producer.me.id, 1)
    producer.sequences.clear()
    assert (await producer.write(topic, b"y", version=12)).error_code == 0
    assert (await producer.end(True, version=5)).producer_epoch == 2


async def test_a_batch_without_the_transactional_id(wire: Wire, producer: Transactional) -> None:
    """A transactional batch needs the request's transactional id, and all of a request are of one producer id."""
    topic = await wire.topic(2)
    await producer.add(topic, 0, 1)
    records = producer.records(topic, 0, b"x")
    answer = await wire.produce(topic, records)
    assert answer.error_code == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    other = Transactional(wire, "other")
    await other.init()
    kind = m.ProduceRequest.TopicData
    parts = [
        kind.PartitionData(index=index, records=each.records(topic, index, b"x"))
        for index, each in enumerate((producer, other))
    ]
    answer = await wire.call(
        "Produce", 9, transactional_id="tx", acks=-1, timeout_ms=1000,
        topic_data=[kind(name=topic, partition_data=parts)],
    )  # fmt: skip
    codes = {p.error_code for p in answer.responses[0].partition_responses}
    assert codes == {errors.INVALID_PRODUCER_ID_MAPPING}


async def test_a_client_that_is_fenced(live: Live, wire: Wire, producer: Transactional) -> None:
    """A second client of the id fences the first, whose open transaction is aborted. Clients of old versions get
    INVALID_PRODUCER_EPOCH."""
    topic = await wire.topic()
    await producer.add(topic, 0)
    await producer.write(topic, b"zombie")
    second = Transactional(await live.connect())
    assert await second.init() == 0 and second.me.epoch == producer.me.epoch + 2
    assert (await producer.write(topic, b"more")).error_code == errors.INVALID_PRODUCER_EPOCH
    for version, code in ((1, errors.INVALID_PRODUCER_EPOCH), (2, errors.PRODUCER_FENCED)):
        assert (await producer.end(True, version=version)).error_code == code
        assert await producer.add(topic, 0, version=version) == [code]
    assert await producer.init(brings=True) == errors.PRODUCER_FENCED
    assert await read(wire, topic) == []


async def test_a_transaction_times_out(wire: Wire, producer: Transactional) -> None:
    """Fault 7: the coordinator aborts what is older than its timeout, and its producer is fenced."""
    topic = await wire.topic()
    await producer.init(timeout_ms=1)
    await producer.add(topic, 0)
    assert await producer.settled() == "CompleteAbort"
    assert (await producer.end(True)).error_code == errors.PRODUCER_FENCED
    assert (await producer.write(topic, b"late")).error_code == errors.INVALID_PRODUCER_EPOCH


async def test_partitions_that_cannot_be_added(wire: Wire, producer: Transactional) -> None:
    """If one partition is unknown or internal none is added."""
    topic = await wire.topic(2)
    assert await producer.add(topic, 0, 5) == [errors.OPERATION_NOT_ATTEMPTED, errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert await producer.add("__transaction_state", 0) == [errors.TOPIC_AUTHORIZATION_FAILED]
    answer = await wire.call("DescribeTransactions", 0, transactional_ids=["tx", "none", ""])
    states = {each.transactional_id: (each.error_code, each.transaction_state) for each in answer.transaction_states}
    assert states == {
        "tx": (0, "Empty"), "none": (errors.TRANSACTIONAL_ID_NOT_FOUND, ""), "": (errors.INVALID_REQUEST, "")
    }  # fmt: skip


async def test_transactions_are_listed(wire: Wire, producer: Transactional) -> None:
    topic = await wire.topic()
    await producer.add(topic, 0)
    other = Transactional(wire, "other")
    await other.init()

    async def listed(**filters: Any) -> set[str]:
        answer = await wire.call("ListTransactions", 1, **filters)
        assert answer.error_code == 0
        return {each.transactional_id for each in answer.transaction_states}

    assert await listed() == {"tx", "other"}
    assert await listed(state_filters=["Ongoing"]) == {"tx"}
    assert await listed(state_filters=["Nonsense"]) == set()
    assert await listed(producer_id_filters=[other.me.id]) == {"other"}
    assert await listed(duration_filter=3_600_000) == {"other"}
    answer = await wire.call("ListTransactions", 1, state_filters=["Nonsense", "Empty"])
    assert answer.unknown_state_filters == ["Nonsense"]


@pytest.mark.parametrize("size", [249, 32_767])
async def test_a_long_transactional_id(live: Live, size: int) -> None:
    """Fault 45: an id may be as long as a string of the protocol; it fits into the key of a record."""
    producer = Transactional(await live.connect(), "x" * size)
    assert await producer.init() == 0 and await producer.init() == 0 and producer.me.epoch == 1
    other = Transactional(await live.connect())
    assert await other.init() == 0


async def test_requests_that_are_refused(wire: Wire, producer: Transactional) -> None:
    async def init(**fields: Any) -> int:
        asked: dict[str, Any] = {
            "transactional_id": "tx", "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1
        }  # fmt: skip
        return int((await wire.call("InitProducerId", 4, **(asked | fields))).error_code)

    assert await init(producer_id=1) == errors.INVALID_REQUEST
    assert await init(producer_epoch=1) == errors.INVALID_REQUEST
    assert await init(transactional_id="") == errors.INVALID_REQUEST
    assert await init(transaction_timeout_ms=0) == errors.INVALID_TRANSACTION_TIMEOUT
    answer = await wire.call("FindCoordinator", 4, key_type=1, coordinator_keys=[""])
    assert answer.coordinators[0].error_code == errors.INVALID_REQUEST
    kind = m.WriteTxnMarkersRequest.Markers
    bad = kind(producer_id=-1, topics=[kind.Topics(name="none", partition_indexes=[0])])
    answer = await wire.call("WriteTxnMarkers", 1, markers=[bad])
    assert answer.markers[0].topics[0].partitions[0].error_code == errors.INVALID_PRODUCER_EPOCH
    unknown = kind(producer_id=1, topics=[kind.Topics(name="none", partition_indexes=[0])])
    answer = await wire.call("WriteTxnMarkers", 1, markers=[unknown])
    assert answer.markers[0].topics[0].partitions[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_survives_a_restart(live: Live, producer: Transactional, commit: bool) -> None:
    """Faults 11 and 26: EndTxn was answered and the broker dies at once; after its restart the transaction ends as
    the client was answered. A transaction that was open goes on."""
    topic = await producer.wire.topic()
    await producer.add(topic, 0)
    await producer.write(topic, b"a")
    broker, live.broker = live.broker, None
    assert broker is not None
    await broker.abort()
    await live.start()
    producer.wire = await live.connect()
    await producer.find()
    assert (await producer.write(topic, b"b")).error_code == 0
    assert (await producer.end(commit)).error_code == 0
    broker, live.broker = live.broker, None
    assert broker is not None
    await broker.abort()
    await live.start()
    producer.wire = await live.connect()
    await producer.find()
    assert await producer.settled() == ("CompleteCommit" if commit else "CompleteAbort")
    assert await read(producer.wire, topic) == ([b"a", b"b"] if commit else [])


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "made again"])
async def test_a_topic_that_is_deleted_in_a_transaction(wire: Wire, producer: Transactional, again: bool) -> None:
    """Fault 13: a deleted topic does not hold up its transaction; one that is made anew by its name has no part in it,
    and no transaction that is open."""
    gone, kept = await wire.topic(), await wire.topic()
    for topic in (gone, kept):
        await producer.add(topic, 0)
        await producer.write(topic, b"x")
    assert (await wire.call("DeleteTopics", 5, topic_names=[gone], timeout_ms=5000)).responses[0].error_code == 0
    if again:
        assert (await wire.create(gone)).error_code == 0
    assert (await producer.end(True)).error_code == 0
    assert await producer.settled() == "CompleteCommit"
    assert await read(wire, kept) == [b"x"]
    if again:
        assert await read(wire, gone) == []
        assert (await wire.produce(gone, batch(b"plain"))).error_code == 0
        assert await read(wire, gone, 0) == [b"plain"]


async def test_verification_can_be_switched_off(live: Live, producer: Transactional) -> None:
    await live.restart("transaction.partition.verification.enable=false")
    producer.wire = await live.connect()
    topic = await producer.wire.topic()
    assert (await producer.write(topic, b"x")).error_code == 0


# -- offsets of groups -----------------------------------------------------------------------------------------------


async def offset(wire: Wire, topic: str, group: str = "g", *, stable: bool = True) -> int:
    """The committed offset of partition 0, -1 if there is none, or a negated error code."""
    kind = m.OffsetFetchRequest.Groups
    asked = [kind(group_id=group, topics=[kind.Topics(name=topic, partition_indexes=[0])])]
    answer = await wire.call("OffsetFetch", 8, groups=asked, require_stable=stable)
    (group_,) = answer.groups
    if group_.error_code:
        return -int(group_.error_code)
    part = group_.topics[0].partitions[0]
    return -int(part.error_code) if part.error_code else int(part.committed_offset)


async def commit(wire: Wire, topic: str, at: int, group: str = "g") -> None:
    kind = m.OffsetCommitRequest.Topics
    asked = [kind(name=topic, partitions=[kind.Partitions(partition_index=0, committed_offset=at)])]
    answer = await wire.call("OffsetCommit", 8, group_id=group, generation_id_or_member_epoch=-1, topics=asked)
    assert answer.topics[0].partitions[0].error_code == 0


UNSTABLE = -errors.UNSTABLE_OFFSET_COMMIT


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("restarts", [False, True])
async def test_offsets_count_once_the_transaction_is_committed(
    live: Live, wire: Wire, producer: Transactional, commits: bool, restarts: bool
) -> None:
    """Faults 41 and 44: until the marker a reader that wants a stable offset has to wait, another gets the one before;
    after it, the offset is there at once, also when the next coordinator has read the log in between."""
    topic = await wire.topic()
    assert await producer.add_offsets("g") == 0
    await commit(wire, topic, 3)
    assert await producer.commit_offsets("g", topic, 7) == 0
    assert await offset(wire, topic) == UNSTABLE and await offset(wire, topic, stable=False) == 3
    if restarts:
        await live.restart()
        wire = producer.wire = await live.connect()
        await producer.find()
        await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
        assert live.broker is not None and live.broker.groups is not None
        await live.broker.groups.loaded()
        assert await offset(wire, topic) == UNSTABLE and await offset(wire, topic, stable=False) == 3
    assert (await producer.end(commits)).error_code == 0
    await producer.settled()
    assert await offset(wire, topic) == await offset(wire, topic, stable=False) == (7 if commits else 3)


async def test_a_later_plain_commit_stays(live: Live, wire: Wire, producer: Transactional) -> None:
    """Fault 42: a plain commit after that of the transaction is later, committed or aborted; live and
    after a restart."""
    topic = await wire.topic()
    await producer.add_offsets("g")
    assert await producer.commit_offsets("g", topic, 7) == 0
    await commit(wire, topic, 3)
    assert await offset(wire, topic) == 3
    await producer.end(True)
    await producer.settled()
    assert await offset(wire, topic) == 3
    await live.restart()
    wire = await live.connect()
    assert live.broker is not None and live.broker.groups is not None
    await live.broker.groups.loaded()
    assert await offset(wire, topic) == 3


async def test_a_group_with_offsets_of_a_transaction_is_not_removed(
    live: Live, wire: Wire, producer: Transactional
) -> None:
    """Fault 42: DeleteGroups and expiry keep a group that an open transaction has offsets of; Kafka loses them."""
    topic = await wire.topic()
    await producer.add_offsets("g")
    assert await producer.commit_offsets("g", topic, 7) == 0
    answer = await wire.call("DeleteGroups", 2, groups_names=["g"])
    assert answer.results[0].error_code == errors.NON_EMPTY_GROUP
    assert live.broker is not None and live.broker.groups is not None
    await live.broker.groups.expire(1 << 60)
    await producer.end(True)
    await producer.settled()
    assert await offset(wire, topic) == 7
    answer = await wire.call("DeleteGroups", 2, groups_names=["g"])
    assert answer.results[0].error_code == 0
    assert await offset(wire, topic) == -1


async def test_offsets_that_are_refused(wire: Wire, producer: Transactional) -> None:
    """Fault 43: a member of another generation is refused; without member and generation nothing is checked. A
    partition of the group that was not added is refused, before version 4 with INVALID_TXN_STATE."""
    topic = await wire.topic()
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    assert await producer.commit_offsets("g", topic, 7) == errors.INVALID_TXN_STATE
    assert await producer.commit_offsets("g", topic, 7, version=4) == errors.TRANSACTION_ABORTABLE
    assert await producer.add_offsets("g") == 0
    assert await producer.commit_offsets("g", topic, 7, generation_id=3, member_id="m") == errors.ILLEGAL_GENERATION
    assert await producer.commit_offsets("g", "none", 7) == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.commit_offsets("g", topic, 7) == 0
    code = await producer.commit_offsets("g", topic, 8, generation_id=3, member_id="m")
    assert code == errors.UNKNOWN_MEMBER_ID
    fenced = Transactional(wire)
    assert await fenced.init() == 0
    assert await producer.commit_offsets("g", topic, 9) == errors.INVALID_PRODUCER_EPOCH


async def test_a_newer_client_adds_the_group_with_its_first_offset(wire: Wire, producer: Transactional) -> None:
    topic = await wire.topic()
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    assert await producer.commit_offsets("g", topic, 7, version=5) == 0
    assert (await producer.end(True, version=5)).producer_epoch == 1
    await producer.settled()
    assert await offset(wire, topic) == 7
