"""Admin against running brokers, ours and Apache Kafka's: each test makes requests or changes and checks the
results."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pybroker import errors
from pybroker.client.admin import (
    EARLIEST,
    LATEST,
    Admin,
    Alteration,
    Committed,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from pybroker.client.admin.topics import HIGH_WATERMARK
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.cli.members import Reader, write
from tests.harness import Server, until


@pytest.fixture
def admin(target: Server) -> Iterator[Admin]:
    with Admin(target.bootstrap) as admin:
        yield admin


def refused(code: int) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code == code and bool(error.message))


def test_the_cluster_and_its_disks(admin: Admin, target: Server, topic: str) -> None:
    """Admin describes the cluster's brokers, and the size of each partition in each log dir."""
    admin.create_topic(topic, partitions=2)
    write(target.bootstrap, topic, 100)
    cluster = admin.describe_cluster()
    nodes, ports = {node.id for node in cluster.nodes}, sorted(node.port for node in cluster.nodes)
    assert cluster.id and cluster.controller in nodes and ports == sorted(target.ports)
    assert {node.host for node in cluster.nodes} == {"127.0.0.1"}
    # Kafka lists a partition here once its log exists, which may be after it has a leader.
    count = 2 * len(nodes)
    until("all replicas lie somewhere", lambda: sum(len(d.replicas) for d in admin.log_dirs(topics=[topic])) == count)
    log_dirs = admin.log_dirs(topics=[topic])
    assert {log_dir.broker for log_dir in log_dirs} == nodes and len(log_dirs) == len(nodes)
    for log_dir in log_dirs:
        assert not log_dir.error and log_dir.path.startswith(str(target.data_dir))
        assert log_dir.total_bytes and log_dir.usable_bytes and log_dir.total_bytes >= log_dir.usable_bytes
        sizes = {replica.partition: replica.size_bytes for replica in log_dir.replicas}
        assert sizes[TopicPartition(topic, 0)] > 100 and sizes[TopicPartition(topic, 1)] == 0
    everything = {replica.partition for log_dir in admin.log_dirs() for replica in log_dir.replicas}
    assert sizes.keys() <= everything


def test_a_change_shows_at_once(admin: Admin, topic: str) -> None:
    """A change is visible at once: created, altered and deleted topics show in the next request."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin.create_topic(topic, partitions=1)
    assert len(admin.topics([topic])[0].partitions) == 1
    admin.create_partitions(topic, 4)
    assert len(admin.topics([topic])[0].partitions) == 4
    admin.alter_configs(resource, [Alteration("retention.ms", ConfigOperation.SET, "1234567")])
    assert admin.configs(resource, ["retention.ms"])[0].value == "1234567"
    admin.delete_topic(topic)
    assert not admin.exists(topic)


def test_records_are_cut_off(admin: Admin, target: Server, topic: str) -> None:
    """Records are deleted up to an offset in one partition, and all in another; an offset past the end deletes
    nothing."""
    admin.create_topic(topic, partitions=2)
    for partition in (0, 1):
        write(target.bootstrap, topic, 10, partition=partition)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert admin.delete_records({first: 4, second: HIGH_WATERMARK}) == {first: 4, second: 10}
    described = admin.topics([topic])
    assert admin.offsets(described, EARLIEST) == {first: 4, second: 10}
    assert admin.offsets(described, LATEST) == {first: 10, second: 10}
    with refused(errors.OFFSET_OUT_OF_RANGE):
        admin.delete_records({first: 11})
    with refused(errors.UNKNOWN_TOPIC_OR_PARTITION):
        admin.delete_records({TopicPartition(topic, 2): 0})


def test_configs_are_altered_one_by_one(admin: Admin, topic: str) -> None:
    """Configs are altered one by one: set, appended to, subtracted from and deleted; others stay, and a refused change
    alters none."""
    admin.create_topic(topic, configs={"segment.bytes": "2097152"})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    names = ["cleanup.policy", "retention.ms", "segment.bytes"]

    def own() -> dict[str, str | None]:
        return {c.name: c.value for c in admin.configs(resource, names) if c.source == ConfigSource.TOPIC}

    admin.alter_configs(
        resource,
        [
            Alteration("retention.ms", ConfigOperation.SET, "60000"),
            Alteration("cleanup.policy", ConfigOperation.APPEND, "compact"),
        ],
    )
    assert own() == {"cleanup.policy": "delete,compact", "retention.ms": "60000", "segment.bytes": "2097152"}
    admin.alter_configs(
        resource,
        [
            Alteration("retention.ms", ConfigOperation.DELETE),
            Alteration("cleanup.policy", ConfigOperation.SUBTRACT, "delete"),
        ],
    )
    assert own() == {"cleanup.policy": "compact", "segment.bytes": "2097152"}
    with refused(errors.INVALID_CONFIG):
        admin.alter_configs(
            resource,
            [
                Alteration("segment.bytes", ConfigOperation.DELETE),
                Alteration("retention.ms", ConfigOperation.SET, "soon"),
            ],
        )
    admin.alter_configs(resource, [Alteration("segment.bytes", ConfigOperation.DELETE)], validate_only=True)
    assert own() == {"cleanup.policy": "compact", "segment.bytes": "2097152"}


def test_brokers_have_configs_too(admin: Admin) -> None:
    """Brokers have configs of their own, and a default for all; a broker that does not exist is an error."""
    node = admin.describe_cluster().nodes[0]
    everyone, one = ConfigResource(ResourceType.BROKER, ""), ConfigResource(ResourceType.BROKER, str(node.id))

    def now(resource: ConfigResource) -> tuple[str | None, int] | None:
        found = admin.configs(resource, ["log.retention.ms"])
        return (found[0].value, found[0].source) if found else None

    admin.alter_configs(everyone, [Alteration("log.retention.ms", ConfigOperation.SET, "7000000")])
    assert now(everyone) == ("7000000", ConfigSource.DYNAMIC_DEFAULT_BROKER) == now(one)
    admin.alter_configs(one, [Alteration("log.retention.ms", ConfigOperation.SET, "8000000")])
    assert now(one) == ("8000000", ConfigSource.DYNAMIC_BROKER)
    for resource in (one, everyone):
        admin.alter_configs(resource, [Alteration("log.retention.ms", ConfigOperation.DELETE)])
    assert now(everyone) in (None, (None, ConfigSource.DEFAULT))
    with refused(errors.BROKER_NOT_AVAILABLE):
        admin.configs(ConfigResource(ResourceType.BROKER, "77"))
    with refused(errors.INVALID_REQUEST):
        admin.configs(ConfigResource(ResourceType.BROKER, "x"))


def test_a_group_from_its_first_offset_to_its_end(admin: Admin, target: Server, topic: str) -> None:
    """A group from its first offset to its end: offsets are set before it has members; a member shows with its
    partitions; deletion waits until it has left."""
    admin.create_topic(topic, partitions=2)
    write(target.bootstrap, topic, 20)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(topic, {first: Committed(15, metadata="by hand"), second: Committed(0)})
    assert admin.group_offsets([topic])[topic] == {first: Committed(15, -1, "by hand"), second: Committed(0)}
    (listed,) = [group for group in admin.groups() if group.id == topic]
    assert listed.state == "Empty"
    with Reader(target.bootstrap, topic, topic, **{"client.id": "reader"}):
        (group,) = admin.describe_groups([topic])
        (member,) = group.members
        assert (group.state, group.type, group.protocol_type, group.protocol) == (
            "Stable", "classic", "consumer", "range",
        )  # fmt: skip
        assert member.client_id == "reader" and member.assignment == (first, second) and group.coordinator.id >= 0
        with refused(errors.UNKNOWN_MEMBER_ID):
            admin.alter_group_offsets(topic, {first: Committed(0)})
        with refused(errors.GROUP_SUBSCRIBED_TO_TOPIC):
            admin.delete_group_offsets(topic, [first])
        with refused(errors.NON_EMPTY_GROUP):
            admin.delete_group(topic)
        assert topic in {g.id for g in admin.groups(states=["stable"])}
    assert topic in {g.id for g in admin.groups(states=["Empty"])} - {g.id for g in admin.groups(states=["Stable"])}
    admin.delete_group_offsets(topic, [second])
    assert admin.group_offsets([topic])[topic].keys() == {first}
    admin.delete_group(topic)
    with refused(errors.GROUP_ID_NOT_FOUND):
        admin.describe_groups([topic])
    assert admin.group_offsets([topic]) == {topic: {}}


def test_what_there_is_none_of(admin: Admin, topic: str) -> None:
    """A missing topic, group or broker is an error with a code for programs, and a sentence."""
    with refused(errors.UNKNOWN_TOPIC_OR_PARTITION):
        admin.topics([topic])
    with refused(errors.UNKNOWN_TOPIC_OR_PARTITION):
        admin.log_dirs(topics=[topic])
    with refused(errors.UNKNOWN_TOPIC_OR_PARTITION):
        admin.configs(ConfigResource(ResourceType.TOPIC, topic))
    with refused(errors.UNKNOWN_TOPIC_OR_PARTITION):
        admin.alter_group_offsets("g", {TopicPartition(topic, 0): Committed(0)})
    with refused(errors.GROUP_ID_NOT_FOUND):
        admin.delete_group(topic)


def test_a_time_is_an_offset(admin: Admin, target: Server, topic: str) -> None:
    """A timestamp gives the offset of the first record at or after it, or none if all are older."""
    admin.create_topic(topic, partitions=1)
    base_ms = int(time.time() * 1000)
    for hour in range(3):
        write(target.bootstrap, topic, 5, timestamp_ms=base_ms + hour)
    described = admin.topics([topic])
    found = [admin.offsets(described, base_ms + ms)[TopicPartition(topic, 0)] for ms in (-1, 0, 1, 2, 3)]
    assert found == [0, 0, 5, 10, None]


@pytest.mark.java
@pytest.mark.xdist_group("kafka411")
def test_a_group_of_the_newer_protocol(kafka411: Server, topic: str) -> None:
    """A group of the newer protocol, whose members the broker assigns (KIP-848), is listed and described as others
    are."""
    with Admin(kafka411.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        with Reader(kafka411.bootstrap, topic, topic, **{"group.protocol": "consumer", "client.id": "new"}):
            (listed,) = [group for group in admin.groups(types=["consumer"]) if group.id == topic]
            (group,) = admin.describe_groups([topic])
            assert listed.state == group.state and group.type == listed.type == "consumer"
            assert [(m.client_id, m.assignment) for m in group.members] == [
                ("new", (TopicPartition(topic, 0), TopicPartition(topic, 1)))
            ]
        assert topic not in {group.id for group in admin.groups(types=["classic"])}
