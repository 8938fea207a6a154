"""Topics as clients see them: created, described, extended, deleted, refused."""

from __future__ import annotations

import pytest

from tests.clients.adapters.neutral import Client, Record, Refused
from tests.harness import HOST, Server, until

UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS = 3, 17, 36, 37
INVALID_REPLICATION_FACTOR, INVALID_CONFIG = 38, 40
WEEK_MS = str(7 * 24 * 3600 * 1000)


def test_a_created_topic_is_there_with_its_partitions_and_config(client: Client, topic: str) -> None:
    """A created topic has the requested partitions and config in Metadata and DescribeConfigs, and Kafka's defaults
    otherwise."""
    client.create_topic(topic, partitions=3, config={"retention.ms": "123456", "max.message.bytes": "54321"})
    until("metadata has the topic", lambda: client.topics().get(topic) == [0, 1, 2])
    config = config_of(client, topic)
    assert config["retention.ms"] == "123456"
    assert config["max.message.bytes"] == "54321"
    assert config["cleanup.policy"] == "delete"
    assert config["compression.type"] == "producer"
    assert config["segment.bytes"] == str(1 << 30)
    assert [client.offsets(topic, p) for p in range(3)] == [(0, 0)] * 3


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"topic": "a/b"}, INVALID_TOPIC),
        ({"partitions": 0}, INVALID_PARTITIONS),
        ({"replication_factor": 4}, INVALID_REPLICATION_FACTOR),
        ({"config": {"retention.ms": "soon"}}, INVALID_CONFIG),
        ({"config": {"no.such.setting": "1"}}, INVALID_CONFIG),
    ],
    ids=["name", "partitions", "replication factor", "config value", "config name"],
)
def test_a_topic_that_cannot_be_is_refused(client: Client, topic: str, how: dict, code: int) -> None:
    """An impossible topic is refused with the error code of its mistake, and not created."""
    if client.name == "confluent-kafka" and how.get("partitions") == 0:
        pytest.skip("librdkafka refuses it itself")
    asked = {"topic": topic, **how}
    with pytest.raises(Refused) as refused:
        client.create_topic(**asked)
    assert refused.value.code == code
    assert asked["topic"] not in client.topics()


def test_a_topic_is_created_once(client: Client, topic: str) -> None:
    """A topic is created once: a second CreateTopics is TOPIC_ALREADY_EXISTS and changes nothing."""
    client.create_topic(topic, partitions=2)
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, partitions=5)
    assert refused.value.code == TOPIC_ALREADY_EXISTS
    until("metadata has the topic", lambda: client.topics().get(topic) == [0, 1])


@pytest.mark.on_cluster
def test_a_topic_grows_but_never_shrinks(client: Client, topic: str) -> None:
    """A topic grows but never shrinks: CreatePartitions adds empty partitions that can be written at once, and refuses
    a smaller or equal count."""
    client.create_topic(topic, partitions=1)
    client.send_all(topic, [Record(b"before")])
    client.create_partitions(topic, 3)
    until("metadata has the new partitions", lambda: client.topics().get(topic) == [0, 1, 2])
    assert client.send_all(topic, [Record(b"%d" % p, partition=p) for p in range(3)]) == [1, 0, 0]
    for total in (3, 2):
        with pytest.raises(Refused) as refused:
            client.create_partitions(topic, total)
        assert refused.value.code == INVALID_PARTITIONS


@pytest.mark.on_cluster
def test_a_deleted_topic_is_gone_and_its_name_is_free(client: Client, topic: str) -> None:
    """A deleted topic's name is free: a new topic of that name is empty, begins at offset 0, and has none of the old
    configs."""
    client.create_topic(topic, config={"retention.ms": "1000000"})
    assert client.send_all(topic, [Record(b"old"), Record(b"older")]) == [0, 1]
    client.delete_topic(topic)
    until("metadata forgot the topic", lambda: topic not in client.topics())
    with pytest.raises(Refused) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION

    until("the name is free", lambda: created(client, topic))
    until("metadata has the new topic", lambda: client.topics().get(topic) == [0, 1])
    assert config_of(client, topic)["retention.ms"] == WEEK_MS
    assert offsets_of(client, topic) == (0, 0)
    assert client.send_all(topic, [Record(b"new")]) == [0]
    assert [r.value for r in client.read(topic, 1)] == [b"new"]


def offsets_of(client: Client, topic: str) -> tuple[int, int]:
    """The topic's start and end, once this broker's metadata has the topic."""
    found: list[tuple[int, int]] = []

    def told() -> bool:
        try:
            found.append(client.offsets(topic))
        except Refused as refused:
            assert refused.code == UNKNOWN_TOPIC_OR_PARTITION
        return bool(found)

    until("the broker has heard of it", told)
    return found[0]


def config_of(client: Client, topic: str) -> dict[str, str | None]:
    """The topic's settings, once this broker's metadata has the topic."""
    found: dict[str, str | None] = {}

    def told() -> bool:
        try:
            found.update(client.topic_config(topic))
        except Refused as e:
            assert e.code == UNKNOWN_TOPIC_OR_PARTITION
        return bool(found)

    until("the broker has the topic's metadata", told)
    return found


def created(client: Client, topic: str) -> bool:
    """Create a topic with two partitions; False while its deleted namesake is still being removed."""
    try:
        client.create_topic(topic, partitions=2)
    except Refused as e:
        assert e.code == TOPIC_ALREADY_EXISTS
        return False
    return True


@pytest.mark.on_cluster
def test_a_cluster_describes_itself(client: Client, target: Server) -> None:
    """A cluster describes itself with the addresses of the listener that the client used; one broker is the
    controller."""
    cluster_id, controller, nodes = client.cluster()
    assert sorted(nodes.values()) == sorted((HOST, port) for port in target.ports)
    assert controller in nodes
    assert len(cluster_id) == 22
    config = client.broker_config(controller)
    assert config["num.partitions"] == "1"
    assert config["message.max.bytes"] == "1048588"
