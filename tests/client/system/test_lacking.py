"""A client that waits in vain for a leader or an impossible coordinator names it in the error."""

from __future__ import annotations

import logging

import pytest

import pybroker.testing
from pybroker import Consumer
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

WAIT_MS = 500


def test_a_partition_that_nobody_leads() -> None:
    with pybroker.testing.cluster(2, settings={"default.replication.factor": 1}) as cluster:
        cluster.create_topic("t", partitions=2)
        dead = cluster.leader("t", 1)
        cluster.kill(dead)
        with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
            with pytest.raises(KafkaError, match=r"in time: no broker leads t-1$"):
                consumer.beginning_offsets([("t", 0), ("t", 1)], timeout_ms=WAIT_MS)
            consumer.assign([("t", 1)])
            with pytest.raises(KafkaError, match=r"the position in t-1 could not be had in time: no broker leads t-1$"):
                consumer.position(("t", 1), timeout_ms=WAIT_MS)


def test_a_topic_of_groups_that_cannot_be_made(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A groups topic that cannot be created is logged once by the broker, however often clients ask, and named by the
    client."""
    monkeypatch.setattr("pybroker.client.net.find_coordinator.SILENT_S", WAIT_MS / 1000)
    settings = {"offsets.topic.replication.factor": 3}
    with caplog.at_level(logging.WARNING, "pybroker"), pybroker.testing.cluster(2, settings=settings) as cluster:
        cluster.create_topic("t")
        with Consumer(bootstrap_servers=cluster.bootstrap_servers.split(",")[0], group_id="g") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            why = "the coordinator of group 'g': __consumer_offsets cannot be created: INVALID_REPLICATION_FACTOR: "
            with pytest.raises(KafkaError, match=f"the position in t-0 could not be had in time: {why}"):
                consumer.position(("t", 0), timeout_ms=3 * WAIT_MS)
        said = [record.getMessage() for record in caplog.records]
        assert 1 <= sum("topic not created" in words for words in said) <= len(cluster.brokers)
        assert sum(why in words for words in said) == 1
