"""Kafka's own tool and this project's reader read the files that a killed broker left behind."""

from __future__ import annotations

import pytest

import pybroker
from tests.clients.adapters.confluent import Confluent
from tests.harness import BrokerProcess
from tests.java import peers
from tests.java.dump import everything
from tests.java.system.test_dump import SMALL_SEGMENTS, assert_holds, fill


@pytest.mark.java
def test_kafka_reads_what_a_killed_broker_left(broker: BrokerProcess, topic: str) -> None:
    """Kafka 3.9.1's DumpLogSegments checks each log, index and snapshot, and prints each sent record, in every codec,
    with and without idempotence."""
    try:
        peers.jars("3.9.1")
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    Confluent(broker.bootstrap).create_topic(topic, config=SMALL_SEGMENTS)
    end = fill(broker, topic)
    broker.kill()
    broker.restart()
    directory = broker.partition_dir(topic)
    assert len(list(directory.glob("*.log"))) > 5
    assert_holds(everything(directory, live=True), 0, end)


def test_a_log_directory_is_read_without_a_broker(broker: BrokerProcess, topic: str) -> None:
    """`read_log` returns the records of a directory whose broker is dead."""
    Confluent(broker.bootstrap).create_topic(topic, config=SMALL_SEGMENTS)
    end = fill(broker, topic)
    broker.kill()
    offsets: list[int] = []
    for part in pybroker.read_log(str(broker.partition_dir(topic)), columns=["offset", "value"]):
        offsets += part["offset"].to_pylist()
        assert part["value"].to_pylist() == [b"value %d" % offset for offset in part["offset"].to_pylist()]
    assert offsets == list(range(end))
