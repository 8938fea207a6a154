"""Migration of an embedded store into ZooKeeper, on memory stores: what is written, interrupted and refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Create, Session, Set
from pybroker.decisions.image import PartitionState
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.metadata import delegation_tokens, identity, nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.lone_broker.migration import MIGRATED, goes_on, migrate, moved_to
from pybroker.security import acl_nodes

CLUSTER = "cluster-of-the-lone-br"
CONNECT = "zk:2181/kafka"


class Cut(Exception):
    """The end of the process."""


class Knife:
    """Ends the migration at the write of this number, counted over several sessions."""

    def __init__(self, at: int, *sessions: Session) -> None:
        self.left = at
        for session in sessions:
            for name in ("create", "set", "multi"):
                setattr(session, name, self._counted(getattr(session, name)))

    def _counted(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Cut
            return do(*given, **named)

        return counted


async def opened() -> Session:
    store = MemoryStore()
    await store.open()
    return await store.session(60_000)


async def lone(*names: str) -> Session:
    """Create the store of broker 7 with topics of two partitions each."""
    session = await opened()
    await loading.prepare(session)
    await session.create(nodes.CONTROLLER_EPOCH, b"4")
    await session.set(nodes.PRODUCER_IDS, b'{"version":1,"broker":7,"block_start":"2000","block_end":"2999"}')
    for _ in range(3):
        await session.set(nodes.SEQUENCE_OF_IDS, b"")
    await session.create(nodes.log_dirs(7), nodes.dump_log_dirs({"dir": "/data"}))
    await session.create(nodes.broker_config(None), nodes.dump_config({"log.cleaner.threads": "2"}))
    for number, name in enumerate(names):
        states = tuple(PartitionState((7,), 7, 5 + index, (7,), 4, 0) for index in range(2))
        topic = Topic(name, bytes([number + 1]) * 16, states, {"retention.ms": "1"}, {0: "dir", 1: "dir"})
        ops = [
            Create(nodes.topic(name), nodes.dump_topic(topic)),
            Create(nodes.topic_config(name), nodes.dump_config(topic.config)),
            Create(nodes.partitions(name)),
        ]
        for index, state in enumerate(states):
            ops += [Create(nodes.partition(name, index)), Create(nodes.state(name, index), nodes.dump_state(state))]
        await session.multi(ops)
    await identity.record_cluster_id(session, CLUSTER)
    return session


async def tree(session: Session, path: str = "/") -> dict[str, bytes]:
    """Return every node with its data."""
    found = {path: (await session.get(path))[0]}
    for name in (await session.children(path))[0]:
        found |= await tree(session, f"{path.rstrip('/')}/{name}")
    return found


async def test_what_is_moved() -> None:
    """Kafka's nodes are written as Kafka writes them; nodes of the embedded store alone stay behind."""
    source, target = await lone("a", "b"), await opened()
    moved = await migrate(source, target, CONNECT)
    assert moved == (CLUSTER, 7, 2, 4, False)
    there = await tree(target)
    assert there[nodes.topic("a")] == (
        b'{"version":3,"topic_id":"AQEBAQEBAQEBAQEBAQEBAQ","partitions":{"0":[7],"1":[7]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    before = await tree(source)
    kept = [nodes.state("b", 1), nodes.topic_config("a"), nodes.broker_config(None), nodes.PRODUCER_IDS,
            nodes.CONTROLLER_EPOCH, nodes.CLUSTER_ID]  # fmt: skip
    assert {path: there[path] for path in kept} == {path: before[path] for path in kept}
    assert (await target.set(nodes.SEQUENCE_OF_IDS, b"")).version == 4  # three ids were generated
    assert not any(path in there for path in (MIGRATED, nodes.LOG_DIRS, nodes.DELETED))
    assert await moved_to(source) == CONNECT
    assert (await migrate(source, target, CONNECT)).again


async def test_what_says_who_may_do_what_is_moved() -> None:
    """Users, quotas, ACLs of both kinds of patterns and delegation tokens arrive as they were; old notices do not."""
    source, target = await lone("a"), await opened()
    await loading.prepare(source, (*acl_nodes.PERSISTENT, *delegation_tokens.PERSISTENT))
    kept = {
        f"{nodes.USER_CONFIGS}/ann": b"her password and quotas",
        f"{nodes.USER_CONFIGS}/ann/clients": b"",
        f"{nodes.USER_CONFIGS}/ann/clients/c": b"quotas of a user with a client id",
        f"{acl_nodes.ACLS}/Topic/a": b"ACLs of a name",
        f"{acl_nodes.PREFIXED_ACLS}/Group/g-": b"ACLs of a prefix",
        f"{delegation_tokens.TOKENS}/t": b"a token",
    }
    notices = [f"{path}_0" for path in (nodes.CONFIG_CHANGE, delegation_tokens.CHANGE)]
    for path in (*kept, *notices, f"{acl_nodes.CHANGES}/acl_changes_0"):
        await source.create(path, kept.get(path, b""))
    await migrate(source, target, CONNECT)
    there = await tree(target)
    assert {path: there.get(path) for path in kept} == kept
    assert not [path for path in there if path.startswith(f"{acl_nodes.CHANGES}/") or path in notices]


async def test_a_move_is_cut_short_anywhere() -> None:
    """The same command finishes it. Until then the lone broker keeps its topics, or the cluster has no id."""
    source, target = await lone("a", "b"), await opened()
    await migrate(source, target, CONNECT)
    whole = await tree(target)
    at, done = 0, False
    while not done:
        at += 1
        source, target = await lone("a", "b"), await opened()
        knife = Knife(at, source, target)
        with contextlib.suppress(Cut):
            await migrate(source, target, CONNECT)
            done = True
        knife.left = -1
        assert await moved_to(source) is None or (await identity.cluster_id(target)) == CLUSTER
        if not done:
            await migrate(source, target, CONNECT)
        assert await tree(target) == whole
        assert await moved_to(source) == CONNECT
    assert at > 30


async def test_what_is_refused() -> None:
    """Each refusal is one sentence, and nothing is written."""
    source = await lone("a")

    async def refusal(target: Session, source: Session = source) -> str:
        before = await tree(target)
        with pytest.raises(KafkaError) as refused:
            await migrate(source, target, CONNECT)
        after = await tree(target)
        assert {path for path in after.keys() - before.keys() if path not in nodes.OF_A_CLUSTER} == set()
        assert await moved_to(source) is None
        return refused.value.message

    other = await opened()
    await loading.prepare(other, nodes.OF_A_CLUSTER)
    await identity.record_cluster_id(other, "another-cluster")
    assert "belongs to cluster another-cluster" in await refusal(other)
    foreign = await opened()
    await loading.prepare(foreign, nodes.OF_A_CLUSTER)
    await foreign.create(nodes.topic("theirs"), b"{}")
    assert "topics that are not this broker's (theirs)" in await refusal(foreign)
    same = await opened()
    await migrate(await lone("a"), same, CONNECT)  # a migration from another store with the same data
    assert "already has the cluster" in await refusal(same)
    assert "no broker has ever run" in await refusal(await opened(), await opened_empty())
    await source.create(nodes.deletion("a"))
    assert "is still being created or deleted" in await refusal(await opened())


async def opened_empty() -> Session:
    session = await opened()
    await loading.prepare(session)
    return session


async def test_a_broker_that_goes_on_alone_takes_a_move_back() -> None:
    """A lone broker that goes on after an interrupted migration makes the copy stale: a new migration is refused."""
    source, target = await lone("a"), await opened()
    marked: list[Any] = []
    multi = source.multi

    async def cut(ops: Any) -> Any:
        if MIGRATED in {op.path for op in ops}:
            marked.append(ops)
            raise Cut
        return await multi(ops)

    source.multi = cut  # type: ignore[method-assign]
    with contextlib.suppress(Cut):
        await migrate(source, target, CONNECT)
    assert marked and await identity.cluster_id(target) == CLUSTER
    source.multi = multi  # type: ignore[method-assign]
    assert await goes_on(source) is None
    with pytest.raises(KafkaError, match="already has the cluster"):
        await migrate(source, target, CONNECT)


async def test_a_set_of_the_state_is_seen() -> None:
    """The last leader epochs of the lone broker are the first ones of the cluster."""
    source, target = await lone("a"), await opened()
    state = PartitionState((7,), 7, 41, (7,), 4, 1)
    await source.multi([Set(nodes.state("a", 0), nodes.dump_state(state))])
    await migrate(source, target, CONNECT)
    data, stat = await target.get(nodes.state("a", 0))
    assert nodes.load_state(data, (7,), stat.version).leader_epoch == 41
