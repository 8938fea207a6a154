"""Nodes, versions, transaction numbers, sessions and transactions behave alike in every store and in ZooKeeper."""

import contextlib
from typing import Any

import pytest

from pybroker.coordination.store import (
    DATA_BYTES_MAX,
    BadArguments,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Session,
    SessionExpired,
    Set,
    Stat,
    Store,
)
from tests.coordination.conftest import TIMEOUT_MS
from tests.rows import with_each

# -- nodes ------------------------------------------------------------------------------------------------------------


async def test_a_node_is_created_read_set_and_deleted(a: Session) -> None:
    path, created = await a.create("/topic", b"one")
    assert path == "/topic"
    assert await a.get("/topic") == (b"one", created)
    changed = await a.set("/topic", b"three")
    assert await a.get("/topic") == (b"three", changed)
    await a.delete("/topic")
    assert await a.exists("/topic") is None
    with pytest.raises(NoNode):
        await a.get("/topic")


async def test_a_stat_counts_versions_and_children(a: Session) -> None:
    """Set changes mzxid and version, children change pzxid and cversion, and nothing else changes."""
    _, created = await a.create("/n", b"abc")
    assert created == created._replace(version=0, cversion=0, ephemeral_owner=0, data_length=3, num_children=0)
    assert created.czxid == created.mzxid == created.pzxid > 0
    assert created.ctime_ms == created.mtime_ms > 1_600_000_000_000

    changed = await a.set("/n", b"")
    later = {"mzxid": changed.mzxid, "mtime_ms": changed.mtime_ms, "version": 1, "data_length": 0}
    assert changed == created._replace(**later)
    assert changed.mzxid > created.mzxid
    assert changed.mtime_ms >= created.mtime_ms

    _, child = await a.create("/n/child")
    with_child = await a.exists("/n")
    assert with_child == changed._replace(cversion=1, num_children=1, pzxid=child.czxid)
    await a.set("/n/child", b"x")
    assert await a.exists("/n") == with_child
    await a.delete("/n/child")
    without = await a.exists("/n")
    assert without is not None
    assert without == changed._replace(cversion=2, num_children=0, pzxid=without.pzxid)
    assert without.pzxid > child.czxid


async def test_children_are_the_names_of_the_next_generation_only(a: Session) -> None:
    for path in ("/p", "/p/b", "/p/a", "/p/a/deep", "/pq"):
        await a.create(path)
    names, stat = await a.children("/p")
    assert names == ["a", "b"]
    assert stat == await a.exists("/p")
    assert await a.children("/p/b") == ([], await a.exists("/p/b"))
    assert set((await a.children("/"))[0]) >= {"p", "pq"}


async def test_a_version_guards_set_and_delete(a: Session) -> None:
    await a.create("/n")
    await a.set("/n", b"", 0)
    for stale in (0, 2):
        with pytest.raises(BadVersion):
            await a.set("/n", b"", stale)
        with pytest.raises(BadVersion):
            await a.delete("/n", stale)
    await a.set("/n", b"", -1)
    await a.delete("/n", 2)


@pytest.fixture
async def tree(a: Session) -> None:
    """Nodes: one with a child, and an ephemeral one."""
    await a.create("/node")
    await a.create("/node/child")
    await a.create("/brief", ephemeral=True)


@with_each(
    ("op", "error"),
    [
        (Create("/node"), NodeExists),
        (Create("/"), NodeExists),
        (Create("/none/child"), NoNode),
        (Create("/node/none/child"), NoNode),
        (Create("/brief/child"), NoChildrenForEphemerals),
        (Create("/brief/child", sequential=True), NoChildrenForEphemerals),
        (Set("/none", b""), NoNode),
        (Delete("/none"), NoNode),
        (Delete("/none", 0), NoNode),
        (Delete("/node"), NotEmpty),
        (Delete("/node", 5), BadVersion),
    ],
    ids=str,
)
async def test_what_cannot_be_done_says_why_and_changes_nothing(
    a: Session, tree: None, op: Op, error: type[Exception]
) -> None:
    """An impossible operation raises its error and changes nothing, alone or in a multi."""
    before = [await a.exists(path) for path in ("/node", "/brief")]
    with pytest.raises(error):
        match op:
            case Create():
                await a.create(op.path, op.data, sequential=op.sequential)
            case Set():
                await a.set(op.path, op.data, op.version)
            case Delete():
                await a.delete(op.path, op.version)
    with pytest.raises(error) as caught:
        await a.multi([Check("/node"), op])
    assert getattr(caught.value, "index", None) == 1
    assert [await a.exists(path) for path in ("/node", "/brief")] == before


async def test_the_root_stays(embedded: Store) -> None:
    """The embedded store's root cannot be deleted; in ZooKeeper a client's root is a chroot like any node."""
    session = await embedded.session(TIMEOUT_MS)
    for delete in (session.delete("/"), session.multi([Delete("/")])):
        with pytest.raises(BadArguments):
            await delete
    assert await session.set("/", b"") == await session.exists("/")


async def test_reading_what_is_not_there(a: Session) -> None:
    assert await a.exists("/none") is None
    for read in (a.get, a.children):
        with pytest.raises(NoNode):
            await read("/none")


@with_each(
    "path",
    ["", "a", "/a/", "//", "/a//b", "/.", "/a/../b", "/a\0", "/\x1f", "/\x7f", "/\x9f", "/\ue000", "/\ufff0", "/😀"],
)
async def test_what_is_no_path_is_refused_by_every_operation(a: Session, path: str) -> None:
    for call in (a.create, a.get, a.delete, a.exists, a.children):
        with pytest.raises(BadArguments):
            await call(path)
    with pytest.raises(BadArguments):
        await a.set(path, b"")


@with_each("name", ["ä", "a b", "...", ".a", "a.", "\ufeef", "\u2028", "<default>", "x" * 249])
async def test_unusual_names_are_names(a: Session, name: str) -> None:
    await a.create(f"/{name}", b"x")
    assert (await a.get(f"/{name}"))[0] == b"x"
    assert name in (await a.children("/"))[0]


async def test_data_up_to_the_limit(store: Store) -> None:
    a = await store.session(5 * TIMEOUT_MS)  # a server may take a while for so much
    await a.create("/large", b"x" * DATA_BYTES_MAX)
    assert len((await a.get("/large"))[0]) == DATA_BYTES_MAX
    with pytest.raises(BadArguments):
        await a.set("/large", b"x" * (DATA_BYTES_MAX + 1))


# -- many reads at once ------------------------------------------------------------------------------------------------


async def test_many_reads_at_once(a: Session) -> None:
    """Many reads in flight each get their own answer."""
    await a.multi([Create("/r"), *(Create(f"/r/{n}", b"x" * n) for n in range(450))])
    made = [a.get(f"/r/{n}") for n in range(450)]
    missing, bad, root = a.get("/r/none"), a.get("r//"), a.get("/")
    for n, read in enumerate(made):
        data, stat = await read
        assert data == b"x" * n and stat == await a.exists(f"/r/{n}")
    with pytest.raises(NoNode) as none:
        await missing
    assert none.value.path == "/r/none"
    with pytest.raises(BadArguments):
        await bad
    assert (await root)[1] == await a.exists("/")


async def test_reads_keep_their_place_among_writes(a: Session) -> None:
    """A read sees operations submitted before it, and none submitted after it."""
    await a.create("/n", b"0")
    asked: list[Any] = []
    for n in range(1, 4):
        asked += [a.get("/n"), a.get("/n"), a.set("/n", b"%d" % n)]
    asked.append(a.get("/n"))
    answers = [await each for each in asked]
    assert [each[0] for each in answers if len(each) == 2] == [b"0", b"0", b"1", b"1", b"2", b"2", b"3"]


async def test_reads_of_a_session_that_has_ended(a: Session) -> None:
    await a.create("/n")
    reads = [a.get("/n"), a.get("/n")]
    await a.close()
    late = a.get("/n")
    for read in reads:
        with contextlib.suppress(SessionExpired):
            assert (await read)[0] == b""
    with pytest.raises(SessionExpired):
        await late


# -- numbers ----------------------------------------------------------------------------------------------------------


async def test_a_sequential_node_is_numbered_by_all_creations_under_its_parent(a: Session) -> None:
    """A sequential node's number counts all creations under its parent, including deleted nodes."""
    await a.create("/q")
    assert (await a.create("/q/n-", sequential=True))[0] == "/q/n-0000000000"
    await a.create("/q/plain")
    assert (await a.create("/q/m-", sequential=True))[0] == "/q/m-0000000002"
    await a.delete("/q/plain")
    await a.delete("/q/m-0000000002")
    path, stat = await a.create("/q/n-", b"x", sequential=True, ephemeral=True)
    assert path == "/q/n-0000000003"
    assert stat.ephemeral_owner == a.id
    assert (await a.create("/q/", sequential=True))[0] == "/q/0000000004"
    assert (await a.children("/q"))[0] == ["0000000004", "n-0000000000", "n-0000000003"]


async def test_transaction_numbers_only_grow(a: Session, b: Session) -> None:
    _, first = await a.create("/1")
    _, second = await b.create("/2")
    third = await a.set("/1", b"")
    assert first.czxid < second.czxid < third.mzxid


async def test_operations_take_effect_in_the_order_of_the_calls(a: Session) -> None:
    """Operations take effect in the order of the calls, without awaiting a parent before its child."""
    futures: list[Any] = [a.create("/deep")]
    path = "/deep"
    for level in range(50):
        path += f"/{level}"
        futures.append(a.create(path))
    futures.append(a.set("/deep", b"set"))
    futures.append(a.get("/deep"))
    assert (await futures[-1])[0] == b"set"
    numbers = [(await future)[1].czxid for future in futures[:51]]
    assert numbers == sorted(set(numbers))


# -- sessions ---------------------------------------------------------------------------------------------------------


async def test_an_ephemeral_node_goes_with_its_session(store: Store, a: Session, b: Session) -> None:
    await a.create("/ids")
    _, stat = await b.create("/ids/1", b"here", ephemeral=True)
    await b.create("/ids/2")
    assert stat.ephemeral_owner == b.id != a.id
    assert await a.get("/ids/1") == (b"here", stat)
    await a.set("/ids/1", b"by another")
    await b.close()
    assert (await a.children("/ids"))[0] == ["2"]
    again = await store.session(TIMEOUT_MS)
    assert again.id not in (a.id, b.id)


async def test_a_session_that_the_store_ended_hears_of_it(a: Session, b: Session) -> None:
    await a.create("/ids")
    await b.create("/ids/1", ephemeral=True)
    b.expire()  # type: ignore[attr-defined]
    await b.expired.wait()
    assert (await a.children("/ids"))[0] == []
    assert not a.expired.is_set()


async def test_a_session_that_ended_does_nothing_more(a: Session) -> None:
    await a.create("/n")
    await a.close()
    for call in (lambda: a.create("/m"), lambda: a.get("/n"), lambda: a.multi([Delete("/n")])):
        with pytest.raises(SessionExpired):
            await call()
    assert not a.expired.is_set()


# -- transactions -----------------------------------------------------------------------------------------------------


async def test_a_multi_does_everything_under_one_number(a: Session) -> None:
    await a.create("/old", b"x")
    made, changed, checked, gone, numbered = await a.multi(
        [
            Create("/new", b"y"),
            Set("/new", b"why", 0),
            Check("/new", 1),
            Delete("/old", 0),
            Create("/new/n-", sequential=True),
        ]
    )
    assert isinstance(changed, Stat)
    assert (checked, gone) == (None, None)
    data, stat = await a.get("/new")
    assert (data, stat.version, stat.czxid) == (b"why", 1, stat.mzxid)
    assert stat.mzxid == stat.pzxid == changed.mzxid
    assert made[0] == "/new"  # type: ignore[index]
    assert numbered[0] == "/new/n-0000000000"  # type: ignore[index]
    assert await a.exists("/old") is None


async def test_a_creation_in_a_multi_answers_its_stat(a: Session) -> None:
    """A creation's stat in a multi is that at creation, and later operations of the multi do not change it."""
    await a.create("/parent")
    plain, brief, numbered, *_ = await a.multi(
        [
            Create("/plain", b"abc"),
            Create("/brief", ephemeral=True),
            Create("/parent/n-", sequential=True),
            Create("/plain/child"),
            Set("/plain", b""),
        ]
    )
    for answer, owner, length in ((plain, 0, 3), (brief, a.id, 0), (numbered, 0, 0)):
        path, stat = answer  # type: ignore[misc]
        now = await a.exists(path)
        assert now is not None
        assert stat.ctime_ms in (0, now.ctime_ms), "ZooKeeper has no times there"
        assert stat == Stat(now.czxid, now.czxid, stat.ctime_ms, stat.ctime_ms, 0, 0, owner, length, 0, now.czxid)


async def test_a_multi_that_fails_did_nothing(a: Session) -> None:
    await a.create("/keep", b"x")
    before = await a.exists("/keep")
    ops: list[Op] = [Create("/new"), Set("/keep", b"y"), Delete("/keep"), Check("/keep")]
    with pytest.raises(NoNode) as caught:
        await a.multi(ops)
    assert caught.value.index == 3
    assert await a.exists("/new") is None
    assert await a.exists("/keep") == before


async def test_one_of_two_takes_the_controllership(a: Session, b: Session) -> None:
    """One of two sessions becomes controller: node and epoch change together; the loser's writes fail on the epoch."""
    await a.create("/controller_epoch", b"0")

    def claim(version: int) -> list[Op]:
        return [Create("/controller", ephemeral=True), Set("/controller_epoch", b"1", version)]

    await a.multi(claim(0))
    with pytest.raises(NodeExists) as caught:
        await b.multi(claim(1))
    assert caught.value.index == 0
    await a.close()
    await b.multi(claim(1))
    with pytest.raises(BadVersion):
        await b.multi([Check("/controller_epoch", 1), Create("/topic")])
    await b.multi([Check("/controller_epoch", 2), Create("/topic")])


async def test_a_multi_of_nothing(a: Session) -> None:
    assert await a.multi([]) == []


async def test_ephemeral_nodes_of_a_multi_go_with_the_session(a: Session, b: Session) -> None:
    await b.multi([Create("/x", ephemeral=True), Create("/y")])
    await b.close()
    assert await a.exists("/x") is None
    assert await a.exists("/y") is not None
