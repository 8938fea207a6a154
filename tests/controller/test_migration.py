"""Migration of a cluster's tree between stores: what is copied, compared, interrupted and refused.

Memory stores stand for all of them: as a tree of ours (embedded, etcd), and behind `Foreign` as a ZooKeeper, which
counts versions and zxids itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Create, Session, Set, Store
from pybroker.decisions.image import PartitionState
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError, StartError
from pybroker.metadata import delegation_tokens, identity, nodes
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.migration import copies, marks
from pybroker.metadata.migration.copies import TreeForm
from pybroker.metadata.migration.move import FirstOfACluster, Moved, Side, check_lone, check_sole, move
from pybroker.security import acl_nodes

CLUSTER = "cluster-of-the-lone-br"
CONNECT = "zk:2181/kafka"
ETCD = "http://etcd:2379/kafka"
FILE = "/data"


class Foreign:
    """A session that is no tree of ours, as one of ZooKeeper."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class ForeignStore(MemoryStore):
    """A store whose sessions are `Foreign`."""

    async def session(self, timeout_ms: int) -> Any:
        return Foreign(await super().session(timeout_ms))


class Cut(Exception):
    """The end of the process."""


class Knife:
    """Ends the migration at the write of this number, counted over several sessions."""

    def __init__(self, at: int, *sessions: Session) -> None:
        self.left = at
        for session in sessions:
            for name in ("create", "set", "multi", "restore", "delete"):
                if hasattr(session, name):
                    setattr(session, name, self._counted(getattr(session, name)))

    def _counted(self, do: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Cut
            return do(*given, **named)

        return counted


async def opened(kind: type[MemoryStore] = ForeignStore, address: str = CONNECT) -> Side:
    store = kind()
    await store.open()
    return Side(cast(Store, store), await store.session(60_000), address)


async def migrate(source: Side, target: Side, form: TreeForm | None = None, said: Any = lambda *_: None) -> Moved:
    """Move as the command does."""
    if source.embedded:
        await check_lone(source.session)
    return await move(source, target, form or (FirstOfACluster() if source.embedded else TreeForm()), said)


async def refusal(source: Side, target: Side) -> str:
    """The sentence of a refused move, which has written nothing."""
    before = await tree(source.session), await tree(target.session)
    with pytest.raises(KafkaError) as refused:
        await migrate(source, target)
    assert (await tree(source.session), await tree(target.session)) == before
    return refused.value.message


async def lone(*names: str) -> Side:
    """Create the embedded store of broker 7 with topics of two partitions each."""
    side = await opened(MemoryStore, FILE)
    session = side.session
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
    return side


async def tree(session: Session, path: str = "/") -> dict[str, bytes]:
    """Return every node with its data."""
    found = {path: (await session.get(path))[0]}
    for name in (await session.children(path))[0]:
        found |= await tree(session, f"{path.rstrip('/')}/{name}")
    return found


async def cluster(*names: str, kind: type[MemoryStore] = ForeignStore, address: str = CONNECT) -> Side:
    """Create the store of a cluster that broker 7 was the first of."""
    side = await opened(kind, address)
    await migrate(await lone(*names), side)
    return side


async def test_what_is_moved() -> None:
    """Kafka's nodes are written as Kafka writes them; nodes of the embedded store alone stay behind."""
    source, target = await lone("a", "b"), await opened()
    moved = await migrate(source, target)
    assert (moved.cluster_id, moved.topics, moved.partitions, moved.again) == (CLUSTER, 2, 4, False)
    there = await tree(target.session)
    assert moved.nodes == len(there)
    assert there[nodes.topic("a")] == (
        b'{"version":3,"topic_id":"AQEBAQEBAQEBAQEBAQEBAQ","partitions":{"0":[7],"1":[7]},'
        b'"adding_replicas":{},"removing_replicas":{}}'
    )
    before = await tree(source.session)
    kept = [nodes.state("b", 1), nodes.topic_config("a"), nodes.broker_config(None), nodes.PRODUCER_IDS,
            nodes.CONTROLLER_EPOCH, nodes.CLUSTER_ID]  # fmt: skip
    assert {path: there[path] for path in kept} == {path: before[path] for path in kept}
    assert (await target.session.set(nodes.SEQUENCE_OF_IDS, b"")).version == 4  # three ids were generated
    assert not any(path in there for path in (*marks.MARKS, nodes.LOG_DIRS, nodes.DELETED))
    assert await marks.moved_to(source.session) == CONNECT
    again = await migrate(source, target)
    assert again == moved._replace(again=True)


async def test_what_says_who_may_do_what_is_moved() -> None:
    """Users, quotas, ACLs of both kinds of patterns and delegation tokens arrive as they were; old notices do not."""
    source, target = await lone("a"), await opened()
    await loading.prepare(source.session, (*acl_nodes.PERSISTENT, *delegation_tokens.PERSISTENT))
    kept = {
        f"{nodes.USER_CONFIGS}/ann": b"her password and quotas",
        f"{nodes.USER_CONFIGS}/ann/clients": b"",
        f"{nodes.USER_CONFIGS}/ann/clients/c": b"quotas of a user with a client id",
        f"{acl_nodes.ACLS}/Topic/a": b"ACLs of a name",
        f"{acl_nodes.PREFIXED_ACLS}/Group/g-": b"ACLs of a prefix",
        f"{delegation_tokens.TOKENS}/t": b"a token",
        nodes.REASSIGNMENTS: b"a request of Kafka's tools",
        nodes.deletion("a"): b"",
        nodes.FEATURE: nodes.NO_FEATURES,
    }
    parents = (nodes.CONFIG_CHANGES, delegation_tokens.CHANGES, acl_nodes.CHANGES, acl_nodes.EXTENDED_CHANGES,
               nodes.LOG_DIR_EVENTS, "/isr_change_notification")  # fmt: skip
    notices = [f"{parent}/notice_0000000007" for parent in parents]
    others = ["/hbase", "/zookeeper", "/zookeeper/config"]
    for path in (*kept, *notices, *others):
        await source.session.create(path, kept.get(path, b""))
    for side in (target, await opened(MemoryStore, ETCD)):
        await move(source._replace(address=CONNECT), side, TreeForm(), lambda *_: None)
        there = await tree(side.session)
        assert {path: there.get(path) for path in kept} == kept
        assert not {*notices, *others} & there.keys()
        await side.session.create(f"{nodes.CONFIG_CHANGE}", b"", sequential=True)  # and no name is taken
        await source.session.delete(marks.MIGRATED)


async def test_a_tree_of_ours_keeps_the_numbers_of_nodes() -> None:
    """From ZooKeeper to etcd each Stat is kept, and zxids go on above those of the source: broker epochs only grow."""
    source, target = await cluster("a"), await opened(MemoryStore, ETCD)
    for _ in range(5):
        await source.session.set(nodes.state("a", 1), (await source.session.get(nodes.state("a", 1)))[0])
    latest = (await source.session.create(nodes.broker(7), b"", ephemeral=True))[1].czxid
    await source.session.delete(nodes.broker(7))
    before = {path: (await source.session.get(path))[1] for path in await tree(source.session) if path != "/"}
    await migrate(source, target)
    for path, stat in before.items():
        assert (await target.session.get(path))[1] == stat, path
    assert (await target.session.create(nodes.broker(7), b"", ephemeral=True))[1].czxid > latest


@pytest.mark.parametrize("way", ["lone to ZooKeeper", "lone to etcd", "ZooKeeper to etcd", "etcd to ZooKeeper"])
async def test_a_move_is_cut_short_anywhere(way: str) -> None:
    """The same command finishes it. Until the last step but one the source is as it was, and no broker starts on the
    target."""

    async def both() -> tuple[Side, Side]:
        from_, to = way.split(" to ")
        kinds = {"ZooKeeper": (ForeignStore, CONNECT), "etcd": (MemoryStore, ETCD)}
        target = await opened(kinds[to][0], f"{kinds[to][1]}/new")
        if from_ == "lone":
            return await lone("a", "b"), target
        return await cluster("a", "b", kind=kinds[from_][0], address=kinds[from_][1]), target

    source, target = await both()
    untouched = await tree(source.session)
    await migrate(source, target)
    whole = await tree(target.session)
    at, done = 0, False
    while not done:
        at += 1
        source, target = await both()
        knife = Knife(at, source.session, target.session)
        with contextlib.suppress(Cut):
            await migrate(source, target)
            done = True
        knife.left = -1
        await source.session.exists("/")
        with contextlib.suppress(Exception):
            await source.session.delete(marks.MIGRATING)  # as with its session
        if await tree(source.session) == untouched:
            if set(await tree(target.session)) != {"/"}:
                with pytest.raises(StartError, match="has an unfinished copy of"):
                    await marks.check(target.session)
        else:
            assert await marks.moved_to(source.session) == target.address
            assert (await tree(target.session)).keys() - {marks.MIGRATED_FROM} == whole.keys()
        if not done:
            await migrate(source, target)
        assert await tree(target.session) == whole
        await marks.check(target.session)
        with pytest.raises(StartError, match="topics were moved to"):
            await marks.check(source.session)
    assert at > 5


async def test_an_interrupted_copy_begins_anew() -> None:
    """Brokers that went on with the source meanwhile have changed it: nothing of the first copy is left."""
    source, target = await cluster("a", "b"), await opened(MemoryStore, ETCD)
    knife = Knife(1, target.session)
    knife.left = 4  # the mark, and two generations
    with contextlib.suppress(Cut):
        await migrate(source, target)
    knife.left = -1
    assert set(await tree(target.session)) > {marks.MIGRATED_FROM}
    for path in (nodes.state("b", 1), nodes.partition("b", 1)):
        await source.session.delete(path)
    await source.session.set(nodes.state("a", 0), b"later")
    await migrate(source, target)
    before, after = await tree(source.session), await tree(target.session)
    assert before.keys() - after.keys() == {marks.MIGRATED} and not after.keys() - before.keys()
    assert after[nodes.state("a", 0)] == b"later"


async def test_a_source_that_changes_is_noticed() -> None:
    """A change between copy and comparison ends the move, and the same command does it again."""
    for change in ("data", "version", "new", "gone"):
        source, target = await cluster("a"), await opened(MemoryStore, ETCD)
        path = nodes.state("a", 1)
        kept = (await source.session.get(path))[0]

        async def changed(change: str = change, path: str = path, source: Side = source, kept: bytes = kept) -> None:
            if change == "new":
                await source.session.create(nodes.topic("new"), b"{}")
            elif change == "gone":
                await source.session.delete(path)
            else:
                await source.session.set(path, b"other" if change == "data" else kept)

        changes: list[Any] = []

        class Store_(MemoryStore):
            async def session(self, timeout_ms: int, changed: Any = changed, changes: list[Any] = changes) -> Any:
                if not changes:
                    changes.append(None)
                    await changed()
                return await super().session(timeout_ms)

        target.store.__class__ = Store_
        with pytest.raises(KafkaError, match=r"differs after the copy .* run the same command again"):
            await migrate(source, target)
        with pytest.raises(StartError, match="has an unfinished copy of"):
            await marks.check(target.session)
        assert await marks.moved_to(source.session) is None
        assert not (await migrate(source, target)).again


async def test_large_trees_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never are more nodes read at once than a batch, and each batch is reported."""
    source, target = await cluster(*(f"t{number}" for number in range(60))), await opened(MemoryStore, ETCD)
    monkeypatch.setattr(copies, "AT_ONCE", 50)
    said: list[tuple[str, int]] = []
    most, reading = 0, 0
    get = source.session.get

    async def counted(path: str) -> Any:
        nonlocal most, reading
        reading += 1
        most = max(most, reading)
        try:
            return await get(path)
        finally:
            reading -= 1

    cast(Any, source.session).get = counted
    moved = await migrate(source, target, said=lambda *step: said.append(step))
    assert (moved.topics, moved.partitions) == (60, 120) and most == 50
    assert said[-1] == ("compared", moved.nodes) and len(said) > 2 * moved.nodes / 50
    assert ("copied", moved.nodes) in said


async def test_what_is_refused() -> None:
    """Each refusal is one sentence, and nothing is written."""
    source = await lone("a")
    other = await opened()
    await loading.prepare(other.session, nodes.OF_A_CLUSTER)
    await identity.record_cluster_id(other.session, "another-cluster")
    assert "belongs to cluster another-cluster, but the data to" in await refusal(source, other)
    foreign = await opened()
    await loading.prepare(foreign.session, ("/config", nodes.USER_CONFIGS))
    assert "ZooKeeper at zk:2181/kafka is not empty, it has /config: name another chroot" in await refusal(
        source, foreign
    )
    same = await cluster("a")
    assert "already has the cluster" in await refusal(source, same)
    assert "was moved to etcd" in await refusal(await moved(source_of="a"), await opened())
    half = await opened()
    await half.session.create(marks.MIGRATED_FROM, marks.CopyOrigin("zk:1", "another").dump())
    assert "has an unfinished copy of another cluster, of ZooKeeper at zk:1" in await refusal(source, half)
    empty = await opened(MemoryStore, FILE)
    assert "no broker has ever run" in await refusal(empty, await opened())
    await loading.prepare(empty.session)
    assert "no broker has ever run" in await refusal(empty, await opened())
    assert "there is no cluster in etcd at" in await refusal(await opened(MemoryStore, ETCD), await opened())
    left = await moved(source_of="a")
    assert "has what was moved to etcd at http://etcd:2379/kafka before" in await refusal(source, left)
    await source.session.create(nodes.deletion("a"))
    assert "is still being created or deleted" in await refusal(source, await opened())


async def test_a_target_that_was_emptied_is_filled_once_more() -> None:
    """An operator deletes the target's nodes and moves again: the cluster is as it was at the source."""
    source, target = await cluster("a"), await opened(MemoryStore, ETCD)
    await migrate(source, target)
    whole = await tree(target.session)
    await copies.wipe(target.session, lambda *_: None)
    knife = Knife(6, target.session)
    with contextlib.suppress(Cut):
        await migrate(source, target)
    knife.left = -1
    assert await marks.moved_to(source.session) is None and marks.MIGRATED_FROM in await tree(target.session)
    assert not (await migrate(source, target)).again
    assert await tree(target.session) == whole and await marks.moved_to(source.session) == ETCD


async def moved(source_of: str) -> Side:
    """The store that a cluster with this topic has left for etcd."""
    source = await cluster(source_of)
    await migrate(source, await opened(MemoryStore, ETCD))
    return source


async def test_brokers_and_other_moves_keep_it_waiting() -> None:
    """A registered broker, or another migrate-store at the source, is a refusal."""
    source, target = await cluster("a"), await opened(MemoryStore, ETCD)
    await source.session.create(nodes.broker(3), b"", ephemeral=True)
    assert "broker 3 is registered in ZooKeeper at zk:2181/kafka: stop all brokers" in await refusal(source, target)
    await source.session.delete(nodes.broker(3))
    another = await source.store.session(60_000)
    await another.create(marks.MIGRATING, ephemeral=True)
    assert "another migrate-store is at work on ZooKeeper at zk:2181/kafka" in await refusal(source, target)
    with pytest.raises(StartError, match="is moving this cluster to another store"):
        await marks.check(source.session)
    await another.close()
    assert (await migrate(source, target)).topics == 1


async def test_only_a_broker_with_all_replicas_goes_on_alone() -> None:
    source = await cluster("a")
    await check_sole(source.session, 7)
    with pytest.raises(KafkaError, match="broker 7 has replicas of the topic a, and a lone broker must have all"):
        await check_sole(source.session, 8)
    await source.session.create(nodes.topic("b"), nodes.dump_assignment(b"b" * 16, [(7,), (7, 9)]))
    with pytest.raises(KafkaError, match="broker 9 has replicas of the topic b"):
        await check_sole(source.session, 7)


async def test_a_cluster_of_one_becomes_a_lone_broker() -> None:
    """The new store loads as one that was always alone, and takes part in the next move."""
    source, target = await cluster("a"), await opened(MemoryStore, FILE)
    await migrate(source, target)
    await marks.check(target.session)
    found = await loading.load(target.session)
    assert [(each.name, len(each.partitions), each.config) for each in found.topics] == [
        ("a", 2, {"retention.ms": "1"})
    ]
    assert await check_lone_id(target) == 7
    with pytest.raises(StartError, match=r"moved to the embedded store in /data: start it without zookeeper\.connect"):
        await marks.check(source.session)


async def check_lone_id(side: Side) -> int:
    await loading.prepare(side.session)
    return await check_lone(side.session)


async def test_a_set_of_the_state_is_seen() -> None:
    """The last leader epochs of the lone broker are the first ones of the cluster."""
    source, target = await lone("a"), await opened()
    state = PartitionState((7,), 7, 41, (7,), 4, 1)
    await source.session.multi([Set(nodes.state("a", 0), nodes.dump_state(state))])
    await migrate(source, target)
    data, stat = await target.session.get(nodes.state("a", 0))
    assert nodes.load_state(data, (7,), stat.version).leader_epoch == 41
