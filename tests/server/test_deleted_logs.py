"""Logs of topics that were deleted while their broker was away."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import pytest

from pybroker import Admin
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Session
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.server.cluster.deleted_logs import delete_logs
from pybroker.testing import ClusterHandle
from tests.harness import until

ID, OTHER = b"t" * 16, b"u" * 16
LOGS = {TopicPartition("t", 0): ID, TopicPartition("t", 1): ID, TopicPartition("u", 0): OTHER}


def test_a_broker_returns_after_its_replicas_moved_and_the_topic_was_deleted() -> None:
    """The old logs are deleted, so that the broker can be a replica of a new topic of the same name."""
    with ClusterHandle(2, settings={"min.insync.replicas": 1}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", replica_assignments={0: [1, 2]})
            cluster.produce("t", b"old")
            (log,) = [Path(each.path) / "t-0" for each in admin.log_dirs([1], ["t"])]
        cluster.kill(1)
        with Admin(cluster.bootstrap_servers) as admin:
            until("it is gone", lambda: [node.id for node in admin.describe_cluster().nodes] == [2])
            assert admin.alter_partition_reassignments({("t", 0): [2]}) == {TopicPartition("t", 0): None}
            until("it is moved", lambda: admin.topics(["t"])[0].partitions[0].replicas == (2,))
            admin.delete_topic("t")
            until("it is deleted", functools.partial(_created, admin))
        cluster.produce("t", b"new")
        assert log.exists()
        cluster.start(1)
        until("its log is deleted", lambda: not log.exists())
        with Admin(cluster.bootstrap_servers) as admin:
            assert admin.alter_partition_reassignments({("t", 0): [1]}) == {TopicPartition("t", 0): None}
            until("it is moved", lambda: not admin.list_partition_reassignments())
        assert [record.value for record in cluster.records("t", count=1)] == [b"new"]


def _created(admin: Admin) -> bool:
    try:
        admin.create_topic("t", replica_assignments={0: [2]})
    except Exception as problem:
        assert "exists" in str(problem)
        return False
    return True


class Logs:
    """The logs of a broker, in a store that remembers deleted topics."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.removed: set[TopicPartition] = set()
        self.kept: set[TopicPartition] = set()

    async def remove(self, keys: object) -> set[TopicPartition]:
        assert isinstance(keys, set)
        self.removed |= keys
        return self.kept

    async def start(self, broker: int, *, whole: bool = True, logs: Mapping[TopicPartition, bytes] = LOGS) -> set[str]:
        self.removed = set()
        doomed = await delete_logs(self.session, broker, logs, self.remove, whole=whole)
        assert doomed == self.removed
        return {str(key) for key in doomed}

    async def remembered(self) -> dict[bytes, tuple[int, ...]]:
        names, _ = await self.session.children(nodes.DELETED)
        found = [nodes.load_deleted(name, (await self.session.get(f"{nodes.DELETED}/{name}"))[0]) for name in names]
        return dict(found)


@pytest.fixture
async def logs() -> Logs:
    store = MemoryStore()
    await store.open()
    session = await store.session(60_000)
    for path in ("/admin", "/brokers", nodes.TOPICS):
        await session.create(path)
    return Logs(session)


async def test_each_broker_deletes_its_own_and_the_last_one_the_node(logs: Logs) -> None:
    """A broker that is not named, or has no such log, deletes nothing; one that has done so is no longer named."""
    assert await logs.start(1) == set()  # a store of which Kafka alone has been the controller
    await logs.session.create(nodes.DELETED)
    await logs.session.create(nodes.deleted(ID), nodes.dump_deleted([1, 2, 3]))
    assert await logs.start(4) == set()
    assert await logs.start(1) == {"t-0", "t-1"}
    assert await logs.remembered() == {ID: (2, 3)}
    assert await logs.start(1) == set()
    assert await logs.start(2, logs={}) == set()
    assert await logs.start(3) == {"t-0", "t-1"}
    assert await logs.remembered() == {}


async def test_a_log_that_may_come_back_stays_remembered(logs: Logs) -> None:
    """A log dir that is offline may have a log, and a disk that fails may bring one back."""
    await logs.session.create(nodes.DELETED)
    await logs.session.create(nodes.deleted(ID), nodes.dump_deleted([1]))
    assert await logs.start(1, whole=False) == {"t-0", "t-1"}
    logs.kept = {TopicPartition("t", 0)}
    assert await logs.start(1) == {"t-0", "t-1"}
    assert await logs.remembered() == {ID: (1,)}


async def test_a_topic_that_exists_keeps_its_logs(logs: Logs) -> None:
    """The deletion has not ended, or a person restored the nodes; a topic with another id is another topic."""
    await logs.session.create(nodes.DELETED)
    await logs.session.create(nodes.deleted(ID), nodes.dump_deleted([1]))
    await logs.session.create(nodes.topic("t"), nodes.dump_assignment(ID, [[1]]))
    assert await logs.start(1) == set() and await logs.remembered() == {ID: (1,)}
    await logs.session.set(nodes.topic("t"), nodes.dump_assignment(OTHER, [[1]]))
    assert await logs.start(1) == {"t-0", "t-1"}


async def test_nodes_that_cannot_be_read_delete_nothing(logs: Logs) -> None:
    """Damage in one node stays within it."""
    await logs.session.create(nodes.DELETED)
    await logs.session.create(f"{nodes.DELETED}/no-id", nodes.dump_deleted([1]))
    await logs.session.create(nodes.deleted(OTHER), b"")
    await logs.session.create(nodes.deleted(ID), nodes.dump_deleted([1]))
    assert await logs.start(1) == {"t-0", "t-1"}
