"""The settings compared with Apache Kafka 3.9's answers to DescribeConfigs: names, types, defaults, sources,
synonyms."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.config import BrokerConfig, DescribedConfig, Source, TopicConfig
from pybroker.config.ssl_settings import OF_STORES
from tests.harness import HOST, Server
from tests.java import peers

pytestmark = peers.SHARED["kafka391"]

OWN_DEFAULTS = {
    "background.threads",
    "log.dir",
    "offsets.topic.replication.factor",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "socket.listen.backlog.size",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
}
"""Defaults that are ours: a directory that outlives a reboot; what one broker can give; what was measured best; a
backlog that a burst of clients does not fill; no mechanism, where Kafka's is one that this broker has not."""
OWN = {
    "auto.balance.check.interval.seconds",
    "auto.balance.disk.limit.percentage",
    "auto.balance.enable",
    "auto.balance.excluded.brokers",
    "auto.balance.note",
    "auto.balance.partitions.at.once",
    "auto.balance.threshold.percentage",
    "auto.balance.throttled.rate",
    "broker.death.proof.enable",
    "etcd.connect",
    "etcd.password",
    "etcd.ssl.endpoint.identification.algorithm",
    "etcd.ssl.keystore.location",
    "etcd.ssl.keystore.password",
    "etcd.ssl.truststore.location",
    "etcd.ssl.truststore.password",
    "etcd.user",
    "group.metadata.memory.bytes",
    "log.scrub.interval.ms",
    "log.scrub.io.max.bytes.per.second",
    "metrics.listener",
    "metrics.topics.max",
    "metrics.groups.max",
    "metrics.partitions.max",
    "tracing.enable",
    "tracing.samples.per.second",
    "reassign.throttle.note",
    "record.validation",
    "unclean.recovery.timeout.ms",
    "zookeeper.sasl.client.password",
    "zookeeper.sasl.client.username",
    "org.apache.kafka.sasl.oauthbearer.allowed.urls",
    "sasl.oauthbearer.accept.any.audience",
    "sasl.oauthbearer.accept.any.issuer",
}
"""Settings that Kafka lacks, or does not have for brokers."""
INTERNAL = {
    "group.consumer.migration.policy", "group.coordinator.new.enable", "group.share.enable",
    "metadata.log.segment.min.bytes", "remote.log.manager.task.retry.backoff.max.ms",
    "remote.log.manager.task.retry.backoff.ms", "remote.log.manager.task.retry.jitter", "server.max.startup.time.ms",
    "unclean.leader.election.interval.ms", "unstable.api.versions.enable", "unstable.feature.versions.enable",
    "zookeeper.metadata.migration.min.batch.size",
}  # fmt: skip
"""Settings of Kafka's own tests."""
HIDDEN = OWN | INTERNAL | {
    "producer.id.expiration.check.interval.ms", "super.users", "allow.everyone.if.no.acl.found",
    "leader.replication.throttled.rate", "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}  # fmt: skip
"""Kafka has these, but keeps them out of its answers: the authorizer's are its own, and rates are there once they are
set."""
SOURCES = {"DYNAMIC_TOPIC_CONFIG": Source.DYNAMIC_TOPIC, "STATIC_BROKER_CONFIG": Source.STATIC_BROKER}
SOURCES["DEFAULT_CONFIG"] = Source.DEFAULT


@pytest.fixture
def described(kafka391: Server, topic: str) -> Iterator[Any]:
    """`described(kind, name)`: Kafka's description of a resource, by setting."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own import of importlib.resources
        kafka: Any = importlib.import_module("kafka.admin")
    client = kafka.KafkaAdminClient(bootstrap_servers=f"{HOST}:{kafka391.port}")
    client.create_topics([kafka.NewTopic(topic, 1, 1, topic_configs={"retention.ms": "7"})])

    def describe(kind: str, name: str) -> Any:
        resource = kafka.ConfigResource(kind, name, None)
        return client.describe_configs([resource], include_synonyms=True, config_filter="all")[kind.lower()][name]

    yield describe
    client.close()


def as_kafka(entry: DescribedConfig) -> dict[str, Any]:
    return {
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "config_type": entry.type.name,
        "synonyms": [tuple(s) for s in entry.synonyms],
    }


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    synonyms = [(s["name"], s["value"], SOURCES[s["source"]]) for s in answer["synonyms"]]
    source = SOURCES[answer["config_source"]]
    return {name: answer[name] for name in ("value", "read_only", "is_sensitive", "config_type")} | {
        "config_source": source,
        "synonyms": synonyms,
    }


def test_a_topics_settings_are_kafkas_every_one(described: Any, topic: str) -> None:
    """A topic's settings are Kafka's, with the same names and answers, and our own; if several broker settings apply,
    ours names the effective one."""
    theirs = {name: plain(answer) for name, answer in described("TOPIC", topic).items()}
    ours = {e.name: as_kafka(e) for e in TopicConfig(BrokerConfig.load(), {"retention.ms": "7"}).entries()}
    assert set(ours) - OWN == set(theirs)
    for name in theirs:
        entry = ours[name]
        if not entry["synonyms"]:
            theirs[name]["synonyms"] = []  # Kafka names a broker setting that does nothing here
        if any(synonym.endswith((".hours", ".scheduler.interval.ms")) for synonym, _, _ in entry["synonyms"]):
            theirs[name]["synonyms"] = entry["synonyms"]
        assert entry == theirs[name], name


def test_a_brokers_settings_are_kafkas_every_one(described: Any) -> None:
    """A broker's settings are all of Kafka's, with type and default. The same ones are dynamic, except key stores,
    which change for one listener."""
    theirs = described("BROKER", "1")
    ours = {entry.name: entry for entry in BrokerConfig.load().entries()}
    assert set(ours) - HIDDEN == set(theirs)
    for name, raw in theirs.items():
        entry, answer = ours[name], plain(raw)
        assert (entry.type.name, entry.sensitive) == (answer["config_type"], answer["is_sensitive"]), name
        assert entry.read_only == (answer["read_only"] or name in OF_STORES), name
        if name not in OWN_DEFAULTS and entry.value is not None:
            default = {(n, value) for n, value, source in answer["synonyms"] if source is Source.DEFAULT}
            assert (name, entry.value) in default, name
