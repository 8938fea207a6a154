"""A Kafka UI opens its pages: the requests that such programs send, in their order, through two admin clients.

The brokers page, the list of topics, one topic with its settings and sizes, its messages page by page, the consumer
groups with their lag, the disabled ACL page, and a setting and a group's offset edited by hand.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka import admin as cka

from pybroker import errors
from tests.harness import BrokerProcess

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    from kafka.admin import ConfigResource, KafkaAdminClient, OffsetSpec

TOPIC, GROUP, RECORDS, READ, PAGE = "orders", "billing", 30, 20, 10
CALL_S_MAX = 20.0

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def busy(start_broker: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    """A broker with a topic of two partitions, 30 records in the second, and a consumer that has committed 20."""
    broker = start_broker(sets={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3})
    at = {"bootstrap.servers": broker.bootstrap}
    admin = cka.AdminClient(at)
    admin.create_topics([cka.NewTopic(TOPIC, 2, 1, config={"retention.ms": "3600000"})])[TOPIC].result(CALL_S_MAX)
    producer = ck.Producer(at)
    for n in range(RECORDS):
        producer.produce(TOPIC, f"order {n}", f"key {n}", partition=1)
    assert producer.flush(CALL_S_MAX) == 0
    consumer = ck.Consumer(
        at | {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": "biller"}
    )
    consumer.subscribe([TOPIC])
    seen = 0
    while seen < READ:
        message = consumer.poll(CALL_S_MAX)
        assert message is not None and message.error() is None
        seen += 1
    consumer.commit(offsets=[ck.TopicPartition(TOPIC, 1, READ)], asynchronous=False)
    yield broker
    consumer.close()


def page(bootstrap: str, end: int) -> list[bytes]:
    """The messages page: the last ten before `end`, newest first, read by a consumer without a group."""
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "ui", "enable.auto.commit": False})
    with contextlib.closing(consumer):
        consumer.assign([ck.TopicPartition(TOPIC, 1, end - PAGE)])
        messages = consumer.consume(PAGE, CALL_S_MAX)
        return [message.value() for message in reversed(messages)]


def test_a_ui_on_librdkafka(busy: BrokerProcess) -> None:
    admin = cka.AdminClient({"bootstrap.servers": busy.bootstrap})

    cluster = admin.describe_cluster(request_timeout=CALL_S_MAX).result()
    assert [node.port for node in cluster.nodes] == [busy.port] and cluster.controller.id == cluster.nodes[0].id
    me = str(cluster.controller.id)
    resource = cka.ConfigResource(cka.ConfigResource.Type.BROKER, me)
    assert admin.describe_configs([resource])[resource].result(CALL_S_MAX)["message.max.bytes"].value == "1048588"

    topics = admin.list_topics(timeout=CALL_S_MAX).topics
    assert sorted(topics) == ["__consumer_offsets", TOPIC]
    described = admin.describe_topics(ck.TopicCollection([TOPIC]))[TOPIC].result(CALL_S_MAX)
    assert [p.id for p in described.partitions] == [0, 1] and not described.is_internal
    resource = cka.ConfigResource(cka.ConfigResource.Type.TOPIC, TOPIC)
    config = admin.describe_configs([resource])[resource].result(CALL_S_MAX)
    assert config["retention.ms"].value == "3600000" and config["cleanup.policy"].is_default

    ends = {}
    for spec, at in ((cka.OffsetSpec.earliest(), 0), (cka.OffsetSpec.latest(), RECORDS)):
        asked = {ck.TopicPartition(TOPIC, p): spec for p in range(2)}
        found = {tp.partition: f.result(CALL_S_MAX).offset for tp, f in admin.list_offsets(asked).items()}
        assert found == {0: 0, 1: at}
        ends = found
    assert page(busy.bootstrap, ends[1]) == [f"order {n}".encode() for n in range(29, 19, -1)]

    states = {ck.ConsumerGroupState.STABLE, ck.ConsumerGroupState.EMPTY}
    listed = admin.list_consumer_groups(states=states).result(CALL_S_MAX)
    assert [(g.group_id, g.state) for g in listed.valid] == [(GROUP, ck.ConsumerGroupState.STABLE)]
    group = admin.describe_consumer_groups([GROUP])[GROUP].result(CALL_S_MAX)
    [member] = group.members
    assert (member.client_id, group.coordinator.port) == ("biller", busy.port)
    assert sorted(tp.partition for tp in member.assignment.topic_partitions) == [0, 1]
    wanted = ck.ConsumerGroupTopicPartitions(GROUP)
    stood = admin.list_consumer_group_offsets([wanted])[GROUP].result(CALL_S_MAX).topic_partitions
    assert {tp.partition: ends[tp.partition] - tp.offset for tp in stood} == {1: RECORDS - READ}  # the lag

    everything = cka.AclBindingFilter(
        cka.ResourceType.ANY, None, cka.ResourcePatternType.ANY, None, None, cka.AclOperation.ANY,
        cka.AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(everything).result(CALL_S_MAX) == []  # librdkafka drops the error
    with pytest.raises(ck.KafkaException) as disabled:
        admin.delete_acls([everything])[everything].result(CALL_S_MAX)
    assert disabled.value.args[0].code() == errors.SECURITY_DISABLED

    change = cka.ConfigEntry("retention.ms", "60000", incremental_operation=cka.AlterConfigOpType.SET)
    resource = cka.ConfigResource(cka.ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(CALL_S_MAX)
    assert admin.describe_configs([resource])[resource].result(CALL_S_MAX)["retention.ms"].value == "60000"
    with pytest.raises(ck.KafkaException) as refused:
        admin.delete_consumer_groups([GROUP])[GROUP].result(CALL_S_MAX)
    assert refused.value.args[0].code() == errors.NON_EMPTY_GROUP


def test_a_ui_on_kafka_python(busy: BrokerProcess) -> None:
    admin = KafkaAdminClient(bootstrap_servers=busy.bootstrap)
    with contextlib.closing(admin):
        [node] = admin.describe_cluster()["brokers"]
        assert node["port"] == busy.port
        asked = [ConfigResource("BROKER", str(node["broker_id"])), ConfigResource("TOPIC", TOPIC)]
        told = admin.describe_configs(asked, config_filter="all")
        assert told["broker"][str(node["broker_id"])]["num.partitions"]["value"] == "1"
        assert told["topic"][TOPIC]["retention.ms"]["value"] == "3600000"

        assert sorted(admin.list_topics()) == ["__consumer_offsets", TOPIC]
        [described] = admin.describe_topics([TOPIC])
        assert [p["partition_index"] for p in described["partitions"]] == [0, 1]
        assert sum(size_of(admin.describe_log_dirs()).values()) > 1000

        partitions = [kafka.TopicPartition(TOPIC, p) for p in range(2)]
        ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        latest = {tp.partition: found.offset for tp, found in ends.items()}
        assert latest == {0: 0, 1: RECORDS}

        [listed] = admin.list_groups()
        assert listed["group_id"] == GROUP and listed["group_state"] == "Stable"
        group = admin.describe_groups([GROUP])[GROUP]
        assert [member["client_id"] for member in group["members"]] == ["biller"]
        stood = admin.list_group_offsets({GROUP: None})[GROUP]
        assert {tp.partition: latest[tp.partition] - at.offset for tp, at in stood.items()} == {1: RECORDS - READ}

        producers = admin.describe_producers(partitions)
        assert {tp.partition for tp in producers} == {0, 1}
        admin.alter_configs([ConfigResource("TOPIC", TOPIC, {"retention.ms": "60000"})])
        told = admin.describe_configs(asked[1:], config_filter="all")
        assert told["topic"][TOPIC]["retention.ms"]["value"] == "60000"
        told = admin.alter_configs([ConfigResource("TOPIC", TOPIC, {"retention.ms": "soon"})])
        assert f"Error {errors.INVALID_CONFIG}" in told["topic"][TOPIC]


def size_of(log_dirs: Any) -> dict[tuple[str, int], int]:
    """{(topic, partition): bytes} from kafka-python's description of log dirs."""
    found = [
        (t["name"], p) for broker in log_dirs for d in broker["log_dirs"] for t in d["topics"] for p in t["partitions"]
    ]
    return {(name, p["partition_index"]): p["partition_size"] for name, p in found}
