"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: positions of records, and the log start."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from pybroker import core, errors
from pybroker.protocol import messages as m
from pybroker.protocol.compression import compress
from tests.server.live import BASE_MS, Live, Wire, batch, values

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


async def list_offset(wire: Wire, topic: str, timestamp: int, version: int = 9, **more: Any) -> Any:
    kind = m.ListOffsetsRequest.Topics
    epoch = more.pop("current_leader_epoch", -1)
    partition = kind.Partitions(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    fields = {"replica_id": -1, "topics": [kind(name=topic, partitions=[partition])]} | more
    return (await wire.call("ListOffsets", version, **fields)).topics[0].partitions[0]


async def delete_records(wire: Wire, topic: str, offset: int) -> Any:
    kind = m.DeleteRecordsRequest.Topics
    wanted = kind(name=topic, partitions=[kind.Partitions(partition_index=0, offset=offset)])
    return (await wire.call("DeleteRecords", 2, topics=[wanted], timeout_ms=1000)).topics[0].partitions[0]


@pytest.fixture(params=range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])
async def filled(request: pytest.FixtureRequest, wire: Wire) -> str:
    """A topic with three batches of ten records, one second between two records, in each codec."""
    codec = request.param
    how: Any = {"attributes": codec, "compress": lambda data: compress(codec, data)} if codec else {}
    await wire.create("t", retention_ms="-1")
    for n in range(3):
        records = [(BASE_MS + 1000 * (10 * n + i), None, b"%d" % (10 * n + i), ()) for i in range(10)]
        assert (await wire.produce("t", core.build_batch(records, **how))).error_code == 0
    return "t"


async def test_a_time_finds_the_exact_record(wire: Wire, filled: str) -> None:
    """The answer is the first record with that timestamp or a later one, even inside a compressed batch."""
    for wanted_ms, offset in ((0, 0), (BASE_MS, 0), (BASE_MS + 1, 1), (BASE_MS + 14_500, 15), (BASE_MS + 29_000, 29)):
        answer = await list_offset(wire, filled, wanted_ms)
        assert (answer.offset, answer.timestamp) == (offset, BASE_MS + 1000 * offset)
    answer = await list_offset(wire, filled, BASE_MS + 29_001)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)


async def test_the_ends_and_the_largest_timestamp(wire: Wire, filled: str) -> None:
    answers = {t: await list_offset(wire, filled, t) for t in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL)}
    assert {t: a.offset for t, a in answers.items()} == {LATEST: 30, EARLIEST: 0, MAX_TIMESTAMP: 29, EARLIEST_LOCAL: 0}
    assert answers[MAX_TIMESTAMP].timestamp == BASE_MS + 29_000
    assert (await list_offset(wire, filled, LATEST_TIERED)).offset == -1
    assert (await list_offset(wire, filled, LATEST, isolation_level=1)).offset == 30


async def test_deleted_records_are_not_found(live: Live, wire: Wire, filled: str) -> None:
    """After DeleteRecords no request finds an earlier offset, even in the middle of a batch, and after a restart."""
    assert (await delete_records(wire, filled, 15)).low_watermark == 15
    for _ in range(2):
        assert (await list_offset(wire, filled, EARLIEST)).offset == 15
        assert (await list_offset(wire, filled, BASE_MS)).offset == 15
        assert (await list_offset(wire, filled, BASE_MS + 17_000)).offset == 17
        assert (await wire.fetch(filled, 14)).error_code == errors.OFFSET_OUT_OF_RANGE
        assert (await wire.fetch(filled, 15)).log_start_offset == 15
        await live.restart()
        wire = await live.connect()


async def test_an_empty_log(wire: Wire) -> None:
    await wire.create("t")
    found = [(await list_offset(wire, "t", t)).offset for t in (LATEST, EARLIEST, MAX_TIMESTAMP, BASE_MS)]
    assert found == [0, 0, -1, -1]


@pytest.mark.parametrize(
    ("timestamp", "version"), [(MAX_TIMESTAMP, 6), (EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (-6, 9)]
)
async def test_a_meaning_that_a_version_does_not_have(wire: Wire, timestamp: int, version: int) -> None:
    await wire.create("t")
    assert (await list_offset(wire, "t", timestamp, version)).error_code == errors.UNSUPPORTED_VERSION


async def test_what_cannot_be_answered(wire: Wire) -> None:
    await wire.create("t")
    assert (await list_offset(wire, "u", LATEST)).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert (await list_offset(wire, "t", LATEST, current_leader_epoch=99)).error_code == errors.UNKNOWN_LEADER_EPOCH
    kind = m.ListOffsetsRequest.Topics
    twice = kind(name="t", partitions=[kind.Partitions(partition_index=0, timestamp=LATEST) for _ in range(2)])
    response = await wire.call("ListOffsets", 9, replica_id=-1, topics=[twice])
    assert [p.error_code for p in response.topics[0].partitions] == [errors.INVALID_REQUEST] * 2


@pytest.mark.parametrize("replica_id", [-2, 0, 1, 1001])
async def test_a_replica_id_is_answered_like_a_consumer(wire: Wire, replica_id: int) -> None:
    """A replica id in ListOffsets is answered as in Kafka: kafka-python sends 0."""
    await wire.create("t")
    await wire.produce("t", batch(b"a", b"b"))
    for version in range(1, 10):
        answers = [await list_offset(wire, "t", LATEST, version, replica_id=who) for who in (-1, replica_id)]
        assert answers[0] == answers[1] and (answers[1].error_code, answers[1].offset) == (0, 2)
    kind = m.OffsetForLeaderEpochRequest.Topics
    asked = kind(topic="t", partitions=[kind.Partitions(partition=0, leader_epoch=0)])
    for version in (3, 4):
        answers = [
            (await wire.call("OffsetForLeaderEpoch", version, replica_id=who, topics=[asked])).topics[0].partitions[0]
            for who in (-1, replica_id)
        ]
        assert answers[0] == answers[1] and answers[1].error_code == 0


async def test_where_an_epoch_ended(live: Live, wire: Wire) -> None:
    """Each life of the broker is an epoch; OffsetForLeaderEpoch returns the start of the next one (KIP-320)."""
    await wire.create("t")
    ends = {}
    for n in range(3):
        await wire.produce("t", batch(*[b"v"] * (n + 1)))
        epoch = (await wire.call("Metadata", 12, topics=None)).topics[0].partitions[0].leader_epoch
        ends[epoch] = (await list_offset(wire, "t", LATEST)).offset
        await live.restart()
        wire = await live.connect()
    kind = m.OffsetForLeaderEpochRequest.Topics

    async def end(epoch: int, **more: Any) -> Any:
        asked = kind(topic="t", partitions=[kind.Partitions(partition=0, leader_epoch=epoch, **more)])
        response = await wire.call("OffsetForLeaderEpoch", 4, replica_id=-1, topics=[asked])
        return response.topics[0].partitions[0]

    for epoch, offset in ends.items():
        answer = await end(epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, epoch, offset)
    assert (await end(99)).end_offset == -1
    assert (await end(0, current_leader_epoch=0)).error_code == errors.FENCED_LEADER_EPOCH


async def test_delete_records_up_to_the_end_and_beyond(wire: Wire) -> None:
    await wire.create("t")
    await wire.produce("t", batch(b"a", b"b"))
    assert (await delete_records(wire, "t", 3)).error_code == errors.OFFSET_OUT_OF_RANGE
    assert (await delete_records(wire, "t", -1)).low_watermark == 2
    assert (await delete_records(wire, "t", 1)).low_watermark == 2
    assert (await wire.produce("t", batch(b"c"))).base_offset == 2
    assert values((await wire.fetch("t", 2)).records) == [b"c"]


async def test_records_that_may_not_be_deleted(wire: Wire) -> None:
    await wire.create("compacted", cleanup_policy="compact")
    await wire.create("__consumer_offsets")
    codes = [
        (await delete_records(wire, topic, 0)).error_code for topic in ("compacted", "__consumer_offsets", "unknown")
    ]
    assert codes == [errors.POLICY_VIOLATION, errors.INVALID_TOPIC_EXCEPTION, errors.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_log_start_that_cannot_be_recorded_is_no_success(live: Live, wire: Wire) -> None:
    """The client gets KAFKA_STORAGE_ERROR, as a crash would undo the deletion, and can retry once the disk works."""
    await wire.create("t")
    for _ in range(2):
        await wire.produce("t", batch(b"v"))
    assert live.broker is not None and live.broker.replicas is not None
    live.broker.replicas.arm("checkpoint.write", errno.ENOSPC, 2)
    refused = await delete_records(wire, "t", 1)
    assert (refused.error_code, refused.low_watermark) == (errors.KAFKA_STORAGE_ERROR, -1)
    assert live.broker.replicas.leader("t", 0).partition().log_start_offset == 0  # it was never visible
    assert (await delete_records(wire, "t", 1)).low_watermark == 1
    assert (live.data_dir / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 1\n"


async def test_a_log_start_is_on_record_while_older_files_are_there(live: Live, wire: Wire) -> None:
    """The checkpoint keeps the log start until older files are gone; a file that cannot be removed keeps it."""
    await wire.create("t", segment_bytes="200", file_delete_delay_ms="0")
    for _ in range(4):
        await wire.produce("t", batch(b"v" * 100))
    assert (await delete_records(wire, "t", 2)).low_watermark == 2
    assert live.broker is not None and live.broker.replicas is not None
    replicas, starts = live.broker.replicas, live.data_dir / "log-start-offset-checkpoint"
    replicas.arm("segment.unlink", errno.EPERM, 1)
    partition = replicas.leader("t", 0).partition()
    with pytest.raises(OSError, match="not permitted"):
        partition.enforce_retention(0)
    assert replicas.recorder.record_log_starts({}) == [] and starts.read_text() == "0\n1\nt 0 2\n"
    await live.restart()
    replicas = live.broker.replicas
    partition = replicas.leader("t", 0).partition()
    assert partition.log_start_offset == 2
    assert partition.enforce_retention(0) == 2
    assert replicas.recorder.record_log_starts({}) == [] and starts.read_text() == "0\n0\n"


async def test_what_is_recorded_of_a_log_outlives_its_disk(live: Live, wire: Wire) -> None:
    """After a failed sync the log dir is offline: its log starts are not raised, and the recorded one stays."""
    await wire.create("t", flush_messages="1")
    for _ in range(3):
        await wire.produce("t", batch(b"v"))
    assert (await delete_records(wire, "t", 2)).low_watermark == 2
    assert live.broker is not None and live.broker.replicas is not None
    live.broker.replicas.arm("segment.sync", errno.EIO, 1)
    assert (await wire.produce("t", batch(b"v"))).error_code == errors.KAFKA_STORAGE_ERROR
    refused = await delete_records(wire, "t", 3)
    assert (refused.error_code, refused.low_watermark) == (errors.KAFKA_STORAGE_ERROR, -1)
    await live.restart()
    assert live.broker.replicas.leader("t", 0).partition().log_start_offset == 2
