"""Settings that clients change while a cluster runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import pybroker.testing
from pybroker.testing import ClusterHandle
from tests.harness import until

SET = AlterConfigOpType.SET


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    with pybroker.testing.cluster() as cluster:
        yield cluster


def alter(cluster: ClusterHandle, kind: Any, name: str, setting: str, value: str) -> None:
    changed = ConfigResource(kind, name, incremental_configs=[ConfigEntry(setting, value, incremental_operation=SET)])
    admin = AdminClient(cluster.confluent_config())
    admin.incremental_alter_configs([changed])[changed].result(10)


def shown(cluster: ClusterHandle, number: int, kind: Any, name: str, setting: str) -> str:
    """The value of a setting as one broker describes it."""
    asked = ConfigResource(kind, name)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers.split(",")[number - 1]})
    return str(admin.describe_configs([asked], broker=number)[asked].result(10)[setting].value)


def test_a_broker_s_setting_and_then_a_topic_s(cluster: ClusterHandle) -> None:
    """Every broker applies both: applying a change of a broker's settings does not end the watch."""
    topic = cluster.create_topic("t")
    for number in cluster.brokers:
        alter(cluster, ResourceType.BROKER, str(number), "log.cleaner.threads", "2")
        assert shown(cluster, number, ResourceType.BROKER, str(number), "log.cleaner.threads") == "2"
    alter(cluster, ResourceType.TOPIC, topic, "retention.ms", "7000")
    for number in cluster.brokers:
        until(
            f"broker {number} goes by it",
            lambda number=number: shown(cluster, number, ResourceType.TOPIC, topic, "retention.ms") == "7000",
        )
