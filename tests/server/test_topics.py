"""Topics are created, described, extended and deleted, and survive a restart."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.harness import eventually
from tests.rows import with_each
from tests.server.live import Live, Wire, batch, fetch_fields

NO_ID = bytes(16)


async def describe(wire: Wire, *names: str, version: int = 12, **fields: Any) -> list[Any]:
    asked = [m.MetadataRequest.Topics(name=name) for name in names]
    return list((await wire.call("Metadata", version, topics=asked, **fields)).topics)


async def test_a_topic_is_found_with_its_leader_as_soon_as_it_is_created(live: Live, wire: Wire) -> None:
    created = await wire.create("orders", 3, retention_ms="1234")
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 3, 1)
    assert {c.name: c.value for c in created.configs}["retention.ms"] == "1234"
    [topic] = await describe(wire, "orders")
    assert topic.topic_id == created.topic_id != NO_ID
    assert live.broker is not None
    me = live.broker.broker_id
    assert [(p.partition_index, p.leader_id, p.error_code) for p in topic.partitions] == [(n, me, 0) for n in range(3)]
    assert all(list(p.replica_nodes) == list(p.isr_nodes) == [me] for p in topic.partitions)


async def test_a_topic_is_found_by_its_id(wire: Wire) -> None:
    created = await wire.create("by-id")
    asked = [m.MetadataRequest.Topics(name=None, topic_id=i) for i in (created.topic_id, b"\7" * 16)]
    found, unknown = (await wire.call("Metadata", 12, topics=asked)).topics
    assert (found.error_code, found.name) == (0, "by-id")
    assert (unknown.error_code, unknown.name) == (errors.UNKNOWN_TOPIC_ID, None)


@with_each(("version", "topics", "found"), [(0, [], 2), (1, None, 2), (1, [], 0), (12, None, 2)])
async def test_all_topics_or_none(wire: Wire, version: int, topics: list[Any] | None, found: int) -> None:
    """An empty list means all topics in v0 and none from v1 on, where null means all."""
    await wire.create("a")
    await wire.create("b")
    assert len((await wire.call("Metadata", version, topics=topics)).topics) == found


async def test_what_a_topic_is_survives_a_restart(live: Live, wire: Wire) -> None:
    """Ids, partitions, configs, records and the cluster id stay the same; the leader epoch is higher."""
    created = await wire.create("kept", 2, cleanup_policy="delete", segment_bytes="1048576")
    await wire.produce("kept", batch(b"one"), partition=1)
    before = await wire.call("Metadata", 12, topics=None)
    await live.restart()
    wire = await live.connect()
    after = await wire.call("Metadata", 12, topics=None)
    assert (after.cluster_id, after.controller_id) == (before.cluster_id, before.controller_id)
    [topic] = after.topics
    assert (topic.name, topic.topic_id, len(topic.partitions)) == ("kept", created.topic_id, 2)
    epochs = [[p.leader_epoch for p in found.topics[0].partitions] for found in (before, after)]
    assert all(old < new for old, new in zip(*epochs, strict=True))
    resource = m.DescribeConfigsRequest.Resources(
        resource_type=2, resource_name="kept", configuration_keys=["segment.bytes"]
    )
    [result] = (await wire.call("DescribeConfigs", 4, resources=[resource])).results
    assert [(c.name, c.value, c.config_source) for c in result.configs] == [("segment.bytes", "1048576", 1)]


@with_each("name", ["", ".", "..", "a/b", "a b", "ä", "nul\0", "x" * 250, "__cluster_metadata"])
async def test_names_that_no_topic_may_have(live: Live, wire: Wire, name: str) -> None:
    """An invalid name gets INVALID_TOPIC_EXCEPTION from creation and auto-creation, and makes no directory."""
    before = directories(live)
    assert (await wire.create(name)).error_code == errors.INVALID_TOPIC_EXCEPTION
    [answer] = await describe(wire, name)
    assert answer.error_code in (errors.INVALID_TOPIC_EXCEPTION, errors.LEADER_NOT_AVAILABLE)
    later = await wire.topic()  # after anything that an auto-creation would still do
    assert directories(live) - {f"{later}-0"} == before


def directories(live: Live) -> set[str]:
    """Return the directories of partitions. Files appear beside them at any time: checkpoints."""
    return {str(path.relative_to(live.data_dir)) for path in live.data_dir.rglob("*") if path.is_dir()}


async def test_the_longest_name_is_taken(wire: Wire) -> None:
    name = "x" * 249
    assert (await wire.create(name)).error_code == 0
    assert (await wire.produce(name, batch(b"v"))).error_code == 0


async def test_names_that_metrics_cannot_tell_apart(wire: Wire) -> None:
    await wire.create("a.b")
    assert (await wire.create("a_b")).error_code == errors.INVALID_TOPIC_EXCEPTION


def asked(**fields: Any) -> Any:
    fields = {"name": "t", "num_partitions": 1, "replication_factor": 1} | fields
    return m.CreateTopicsRequest.Topics(**fields)


def assignment(**replicas: list[int]) -> list[Any]:
    kind = m.CreateTopicsRequest.Topics.Assignments
    return [kind(partition_index=int(index[1:]), broker_ids=ids) for index, ids in replicas.items()]


def config(name: str, value: str | None) -> list[Any]:
    return [m.CreateTopicsRequest.Topics.Configs(name=name, value=value)]


@with_each(
    ("fields", "code"),
    [
        ({"num_partitions": 0}, errors.INVALID_PARTITIONS),
        ({"num_partitions": -2}, errors.INVALID_PARTITIONS),
        ({"num_partitions": 1_000_000}, errors.INVALID_PARTITIONS),
        ({"replication_factor": 0}, errors.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 2}, errors.INVALID_REPLICATION_FACTOR),
        ({"configs": config("retention.ms", "soon")}, errors.INVALID_CONFIG),
        ({"configs": config("retention.ms", None)}, errors.INVALID_CONFIG),
        ({"configs": config("no.such.setting", "1")}, errors.INVALID_CONFIG),
        ({"assignments": assignment(p0=[1001])}, errors.INVALID_REQUEST),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": assignment(p0=[7])}, 39),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": assignment(p0=[1001, 1001])}, 39),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": assignment(p1=[1001])}, 39),
        ({"num_partitions": -1, "replication_factor": -1, "assignments": assignment(p0=[])}, 39),
    ],
)
async def test_topics_that_cannot_be(wire: Wire, fields: dict[str, Any], code: int) -> None:
    """An invalid topic gets Kafka's error code and a message, and the next topic of the request is created."""
    await wire.call("DeleteTopics", 5, topic_names=["good"], timeout_ms=5000)
    response = await wire.call("CreateTopics", 7, topics=[asked(**fields), asked(name="good")], timeout_ms=5000)
    refused, created = response.topics
    assert (refused.error_code, created.error_code) == (code, 0)
    assert refused.error_message and refused.topic_id == NO_ID
    assert [t.name for t in (await wire.call("Metadata", 12, topics=None)).topics] == ["good"]


async def test_defaults_of_the_broker(live: Live) -> None:
    await live.restart("num.partitions=4")
    wire = await live.connect()
    response = await wire.call("CreateTopics", 7, topics=[asked(num_partitions=-1, replication_factor=-1)])
    assert response.topics[0].num_partitions == 4


async def test_a_topic_that_exists_or_is_named_twice(wire: Wire) -> None:
    await wire.create("t")
    assert (await wire.create("t")).error_code == errors.TOPIC_ALREADY_EXISTS
    response = await wire.call("CreateTopics", 7, topics=[asked(name="u"), asked(name="u")])
    assert [(t.name, t.error_code) for t in response.topics] == [("u", errors.INVALID_REQUEST)]


async def test_many_clients_create_the_same_topic_at_once(live: Live) -> None:
    """One client succeeds, and the others get TOPIC_ALREADY_EXISTS."""
    wires = [await live.connect() for _ in range(8)]
    codes = sorted(t.error_code for t in await asyncio.gather(*[wire.create("race", 3) for wire in wires]))
    assert codes == [0, *[errors.TOPIC_ALREADY_EXISTS] * 7]


async def test_validate_only_creates_nothing(live: Live, wire: Wire) -> None:
    response = await wire.call("CreateTopics", 7, topics=[asked(num_partitions=3)], validate_only=True)
    assert (response.topics[0].error_code, response.topics[0].num_partitions) == (0, 3)
    assert response.topics[0].topic_id == NO_ID
    assert live.broker is not None and live.broker.topic_count == 0
    assert not list(live.data_dir.glob("t-*"))


async def test_auto_creation_answers_at_once_and_is_found_later(wire: Wire) -> None:
    """The first answer is LEADER_NOT_AVAILABLE; the client retries and finds the topic."""
    [answer] = await describe(wire, "auto", allow_auto_topic_creation=True)
    assert answer.error_code == errors.LEADER_NOT_AVAILABLE

    async def found() -> bool:
        [answer] = await describe(wire, "auto")
        assert answer.error_code in (0, errors.LEADER_NOT_AVAILABLE)
        return not answer.error_code

    await eventually("it is found", found)
    [answer] = await describe(wire, "auto")
    assert [p.leader_id for p in answer.partitions] != [-1]


async def test_nobody_has_to_allow_auto_creation(live: Live, wire: Wire) -> None:
    """No topic is created if the client, or auto.create.topics.enable=false, forbids it."""
    [answer] = await describe(wire, "no", allow_auto_topic_creation=False)
    assert answer.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    await live.restart("auto.create.topics.enable=false")
    wire = await live.connect()
    [answer] = await describe(wire, "no", allow_auto_topic_creation=True)
    assert answer.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert live.broker is not None and live.broker.topic_count == 0


@pytest.mark.both_planes
async def test_a_deleted_topic_is_gone_for_everybody(live: Live, wire: Wire) -> None:
    """The topic's files are removed, its id is unknown, a parked fetch is answered at once, and its name is free."""
    created = await wire.create("gone", 2)
    await wire.produce("gone", batch(b"x"))
    reader = await live.connect()
    reader.send("Fetch", 13, **fetch_fields(created.topic_id, 1, max_wait_ms=60_000))
    await live.one_waits()
    response = await wire.call("DeleteTopics", 6, topics=[m.DeleteTopicsRequest.Topics(name="gone")], timeout_ms=5000)
    [deleted] = response.responses
    assert (deleted.error_code, deleted.name, deleted.topic_id) == (0, "gone", created.topic_id)
    _, fetched = await reader.receive("Fetch", 13)
    assert fetched.responses[0].partitions[0].error_code == errors.UNKNOWN_TOPIC_ID
    assert not [p.name for p in live.data_dir.glob("gone-[01]")]
    again = await wire.create("gone")
    assert again.error_code == 0 and again.topic_id != created.topic_id
    assert (await wire.fetch("gone", 0)).high_watermark == 0


async def test_deletion_by_id_and_what_cannot_be_deleted(live: Live, wire: Wire) -> None:
    created = await wire.create("t")
    kind = m.DeleteTopicsRequest.Topics
    wanted = [
        kind(name=None, topic_id=created.topic_id),
        kind(name=None, topic_id=b"\5" * 16),
        kind(name="unknown"),
        kind(name="both", topic_id=created.topic_id),
        kind(name=None),
    ]
    response = await wire.call("DeleteTopics", 6, topics=wanted, timeout_ms=5000)
    codes = [r.error_code for r in response.responses]
    assert codes == [0, errors.UNKNOWN_TOPIC_ID, errors.UNKNOWN_TOPIC_OR_PARTITION, 42, 42]
    assert response.responses[0].name == "t"
    await live.restart("delete.topic.enable=false")
    wire = await live.connect()
    await wire.create("stays")
    for version, code in ((1, errors.INVALID_REQUEST), (4, errors.TOPIC_DELETION_DISABLED)):
        response = await wire.call("DeleteTopics", version, topic_names=["stays"], timeout_ms=5000)
        assert [r.error_code for r in response.responses] == [code]


async def grow(wire: Wire, name: str, count: int, assignments: Any = None, **fields: Any) -> Any:
    topic = m.CreatePartitionsRequest.Topics(name=name, count=count, assignments=assignments)
    return (await wire.call("CreatePartitions", 3, topics=[topic], timeout_ms=5000, **fields)).results[0]


async def test_a_topic_grows(live: Live, wire: Wire) -> None:
    """New partitions take records at once, old ones keep theirs, and a restart changes nothing."""
    await wire.create("t", 1)
    await wire.produce("t", batch(b"old"))
    assert (await grow(wire, "t", 3)).error_code == 0
    assert (await wire.produce("t", batch(b"new"), partition=2)).error_code == 0
    await live.restart()
    wire = await live.connect()
    assert len((await describe(wire, "t"))[0].partitions) == 3
    assert (await wire.fetch("t", 0)).high_watermark == 1


async def test_growth_that_cannot_be(wire: Wire) -> None:
    await wire.create("t", 2)
    kind = m.CreatePartitionsRequest.Topics.Assignments
    assert (await grow(wire, "t", 2)).error_code == errors.INVALID_PARTITIONS
    assert (await grow(wire, "t", 1)).error_code == errors.INVALID_PARTITIONS
    assert (await grow(wire, "unknown", 2)).error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    for given in ([], [kind(broker_ids=[7])], [kind(broker_ids=[1001]), kind(broker_ids=[1001])]):
        assert (await grow(wire, "t", 3, given)).error_code == errors.INVALID_REPLICA_ASSIGNMENT
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    refused = await grow(wire, "__consumer_offsets", 100)  # a group's partition depends on their count
    assert refused.error_code == errors.INVALID_REQUEST and "cannot add partitions" in refused.error_message
    assert (await grow(wire, "t", 5, validate_only=True)).error_code == 0
    assert len((await describe(wire, "t"))[0].partitions) == 2


@pytest.mark.both_planes
async def test_an_internal_topic_is_not_written_by_clients(wire: Wire) -> None:
    await wire.create("__consumer_offsets")
    assert (await wire.produce("__consumer_offsets", batch(b"x"))).error_code == errors.INVALID_TOPIC_EXCEPTION
    [topic] = await describe(wire, "__consumer_offsets")
    assert topic.is_internal


async def test_a_topic_whose_log_cannot_be_made_is_refused(live: Live, wire: Wire) -> None:
    """The client gets KAFKA_STORAGE_ERROR, the name is free at once, and a restart brings nothing back."""
    assert live.broker is not None and live.broker.replicas is not None
    live.broker.replicas.arm("partition.create", errno.EIO, 1)
    refused = await wire.create("t", 3)
    assert refused.error_code == errors.KAFKA_STORAGE_ERROR and "cannot be created" in refused.error_message
    assert live.broker.partition_count == 0 and not list(live.data_dir.glob("t-?"))
    await live.restart()
    assert live.broker.partition_count == 0
    wire = await live.connect()
    assert (await wire.create("t", 3)).error_code == 0
    assert [(await wire.produce("t", batch(b"v"), partition=n)).base_offset for n in range(3)] == [0, 0, 0]


async def test_a_partition_whose_log_cannot_be_made_is_offline(live: Live, wire: Wire) -> None:
    """CreatePartitions gets KAFKA_STORAGE_ERROR, other partitions serve, and the next start creates the log."""
    await wire.create("t", 1)
    assert live.broker is not None and live.broker.replicas is not None
    live.broker.replicas.arm("partition.create", errno.EIO, 1)
    assert (await grow(wire, "t", 3)).error_code == errors.KAFKA_STORAGE_ERROR
    assert (await wire.produce("t", batch(b"v"))).base_offset == 0
    await live.restart()
    wire = await live.connect()
    assert [(await wire.produce("t", batch(b"v"), partition=n)).base_offset for n in range(3)] == [1, 0, 0]
