"""A partition moves from our brokers to Kafka's and back, under a controller of either kind."""

from __future__ import annotations

import pytest

from pybroker import Admin
from tests.brokers.system.test_failover import Writer, read_all
from tests.harness import until
from tests.java.mixed import KAFKA, OURS, Mixed

pytestmark = [
    pytest.mark.java,
    pytest.mark.zookeeper("Kafka's brokers have no other store"),
    pytest.mark.xdist_group("peer brokers"),
]
MOVED_S_MAX = 90


def moved(cluster: Mixed, topic: str, *replicas: int) -> None:
    """Move partition 0, and wait until all of the target are in sync and nothing moves."""
    with Admin(cluster.bootstrap) as admin:
        assert list(admin.alter_partition_reassignments({(topic, 0): replicas}).values()) == [None]
        until("nothing moves", lambda: not admin.list_partition_reassignments(), timeout_s=MOVED_S_MAX)

    def there() -> bool:
        found = cluster.metadata(topic).topics[topic].partitions[0]
        return list(found.replicas) == list(replicas) and sorted(found.isrs) == sorted(replicas)

    until(f"the replicas are {replicas}", there, timeout_s=MOVED_S_MAX)


@pytest.mark.parametrize("controllers", [(KAFKA,), OURS], ids=["under Kafka's", "under ours"])
def test_to_kafka_and_back(cluster: Mixed, controllers: tuple[int, ...]) -> None:
    """The last replica of one kind goes, and what was acknowledged is read back once from the other kind."""
    cluster.move_controller(*controllers)
    topic = cluster.create(f"moved-under-{controllers[0]}", replicas=[[1, 2]], min_insync_replicas="1")
    writer = Writer(cluster, topic)
    for replicas in ((KAFKA, 1), (KAFKA,), (2, KAFKA), (2, 1)):
        writer.write(30)
        moved(cluster, topic, *replicas)
        writer.write(30)
        writer.settle()
        assert cluster.leader(topic) in replicas
        writer.judge(read_all(cluster, topic))
    gone = cluster.brokers[KAFKA].data_dir / "log" / f"{topic}-0"
    until("Kafka's log is gone", lambda: not gone.exists())
