"""A broker refuses a directory that another process uses or owns, and a segment missing in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess, Process, free_port
from tests.wire import Wire

Start = Callable[..., BrokerProcess]
KAFKA_STORAGE_ERROR = 56


def refused(data_dir: Path, sets: dict[str, object] | None = None) -> str:
    """The output of a broker that refuses to start; check that it exits by itself with a failure status."""
    process = Process(BrokerProcess(data_dir, free_port(), sets).command())
    try:
        assert process.wait(60) not in (0, -9, -11)
        assert "Traceback" not in process.output()
        return process.output()
    finally:
        process.kill()


def test_a_second_process_on_one_directory_refuses(broker: BrokerProcess, topic: str) -> None:
    """A second process on one directory refuses to start and names the directory; the first goes on."""
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
    producer = Sequenced(broker, topic)
    producer.send_range(0, 10)
    said = refused(broker.data_dir)
    assert str(broker.data_dir) in said
    assert "pybroker ready" not in said
    producer.send_range(10, 20)
    producer.assert_stored(20)


def test_a_killed_broker_is_not_its_own_second(broker: BrokerProcess) -> None:
    """A killed broker restarts five times over the lock and registration of its previous process."""
    for _ in range(5):
        broker.kill()
        broker.restart()


def test_a_directory_of_another_broker_or_cluster_is_refused(start_broker: Start) -> None:
    """A directory whose meta.properties has another broker id or cluster id is refused."""
    ours, theirs = start_broker(), start_broker()
    ours.stop()
    theirs.stop()
    assert "broker.id" in refused(ours.data_dir, {"broker.id": 77})
    meta = next(theirs.data_dir.rglob("meta.properties"))
    (next(ours.data_dir.rglob("meta.properties"))).write_bytes(meta.read_bytes())
    assert "cluster" in refused(ours.data_dir)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_segment_missing_in_the_middle(broker: BrokerProcess, topic: str, end: str) -> None:
    """A segment missing in the middle takes its partition offline with KAFKA_STORAGE_ERROR and a log line.

    Other partitions serve, and no file is removed.
    """
    other = topic + "-other"
    producers = {}
    with Wire(broker.port) as w:
        for name in (topic, other):
            assert w.create_topic(name, config={"segment.bytes": "2000"}) == 0
            producers[name] = Sequenced(broker, name, pad=100)
            producers[name].send_range(0, 60)
    getattr(broker, end)()
    logs = sorted(broker.partition_dir(topic).glob("*.log"))
    logs[2].rename(broker.data_dir.parent / logs[2].name)
    left = sorted(broker.partition_dir(topic).glob("*.log"))
    broker.restart()
    with Wire(broker.port) as w:
        assert w.fetch(topic, 0).error == KAFKA_STORAGE_ERROR
        assert producers[topic].send(w, 60).error == KAFKA_STORAGE_ERROR
        assert w.list_offset(topic, -1)[0] == KAFKA_STORAGE_ERROR
    producers[other].send_range(60, 70)
    producers[other].assert_stored(70)
    assert any(topic in line and "missing" in line for line in broker.output().splitlines())
    assert sorted(broker.partition_dir(topic).glob("*.log")) == left

    broker.stop()
    (broker.data_dir.parent / logs[2].name).rename(logs[2])
    broker.restart()
    producers[topic].send_range(60, 70)
    producers[topic].assert_stored(70)
