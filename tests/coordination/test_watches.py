"""Watches of every store fire for the right change, once, in order, and in the right session."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pybroker.coordination.store import Create, Delete, EventType, NodeExists, NoNode, Session, Set, WatchEvent

CREATED, DELETED, DATA, CHILDREN = (
    EventType.CREATED,
    EventType.DELETED,
    EventType.DATA_CHANGED,
    EventType.CHILDREN_CHANGED,
)


class Ear:
    """A watcher that records events; `all` ends with an event that every watcher receives."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.heard: list[tuple[EventType, str]] = []
        self._end = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.heard.append((event.type, event.path))

    async def all(self) -> list[tuple[EventType, str]]:
        """All events so far: events are ordered, so one more event ends the list."""
        end = asyncio.Event()
        path, _ = await self.session.create("/end-", sequential=True)
        await self.session.get(path, watch=lambda event: end.set())
        await self.session.delete(path)
        await end.wait()
        return self.heard


@pytest.fixture
async def ear(a: Session) -> AsyncIterator[Ear]:
    yield Ear(a)


async def test_a_data_watch_fires_on_set_once(a: Session, ear: Ear) -> None:
    await a.create("/n")
    await a.get("/n", watch=ear)
    await a.set("/n", b"1")
    await a.set("/n", b"2")
    assert await ear.all() == [(DATA, "/n")]


async def test_a_data_watch_fires_on_deletion(a: Session, ear: Ear) -> None:
    await a.create("/n")
    await a.get("/n", watch=ear)
    await a.delete("/n")
    await a.create("/n")
    assert await ear.all() == [(DELETED, "/n")]


async def test_a_data_watch_does_not_hear_of_children(a: Session, ear: Ear) -> None:
    await a.create("/n")
    await a.get("/n", watch=ear)
    await a.create("/n/child")
    await a.delete("/n/child")
    assert await ear.all() == []


async def test_a_watch_for_existence_fires_on_creation(a: Session, ear: Ear) -> None:
    assert await a.exists("/n", watch=ear) is None
    await a.create("/n")
    await a.set("/n", b"")
    assert await ear.all() == [(CREATED, "/n")]


@pytest.mark.parametrize("what", [DATA, DELETED])
async def test_a_watch_for_existence_of_what_is_there_fires_on_change(a: Session, ear: Ear, what: EventType) -> None:
    await a.create("/n")
    await a.exists("/n", watch=ear)
    await (a.set("/n", b"") if what is DATA else a.delete("/n"))
    assert await ear.all() == [(what, "/n")]


async def test_reading_what_is_not_there_sets_no_watch(a: Session, ear: Ear) -> None:
    for read in (a.get, a.children):
        with pytest.raises(NoNode):
            await read("/n", watch=ear)
    await a.create("/n")
    await a.set("/n", b"")
    assert await ear.all() == []


@pytest.mark.parametrize("change", ["create", "delete"])
async def test_a_child_watch_fires_when_a_child_comes_or_goes(a: Session, ear: Ear, change: str) -> None:
    await a.create("/p")
    await a.create("/p/old")
    await a.children("/p", watch=ear)
    await (a.create("/p/new") if change == "create" else a.delete("/p/old"))
    await a.create("/p/newer")
    assert await ear.all() == [(CHILDREN, "/p")]


async def test_a_child_watch_does_not_hear_of_data_or_of_grandchildren(a: Session, ear: Ear) -> None:
    await a.create("/p")
    await a.create("/p/c")
    await a.children("/p", watch=ear)
    await a.set("/p", b"")
    await a.set("/p/c", b"")
    await a.create("/p/c/g")
    assert await ear.all() == []


async def test_a_child_watch_fires_when_its_own_node_goes(a: Session, ear: Ear) -> None:
    await a.create("/p")
    await a.children("/p", watch=ear)
    await a.delete("/p")
    assert await ear.all() == [(DELETED, "/p")]


async def test_one_deletion_is_heard_once_by_a_watcher_of_data_and_children(a: Session, ear: Ear) -> None:
    await a.create("/p")
    await a.children("/p", watch=ear)
    await a.get("/p", watch=ear)
    await a.get("/p", watch=ear)
    await a.delete("/p")
    assert await ear.all() == [(DELETED, "/p")]


async def test_two_watchers_of_one_node_both_hear(a: Session, ear: Ear) -> None:
    other = Ear(a)
    await a.create("/n")
    await a.get("/n", watch=ear)
    await a.get("/n", watch=other)
    await a.set("/n", b"")
    assert await ear.all() == [(DATA, "/n")]
    assert await other.all() == [(DATA, "/n")]


async def test_a_watcher_that_asks_again_misses_nothing_that_it_then_reads(a: Session, b: Session) -> None:
    """A watcher that reads and watches again at each event ends with the last state."""
    await a.create("/n", b"0")
    seen: list[bytes] = []
    done = asyncio.Event()

    async def follow() -> None:
        data, _ = await a.get("/n", watch=lambda event: tasks.append(asyncio.ensure_future(follow())))
        seen.append(data)
        if data == b"30":
            done.set()

    tasks: list[Any] = [asyncio.ensure_future(follow())]
    for number in range(1, 31):
        await b.set("/n", str(number).encode())
    await asyncio.wait_for(done.wait(), 10)
    await asyncio.gather(*tasks)
    numbers = [int(data) for data in seen]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 30


async def test_watches_fire_before_any_answer_that_sees_the_change(a: Session, b: Session) -> None:
    """All of many watches fire before the write's answer, and before another session's read of the change."""
    await a.create("/n")
    for number in range(10):
        heard: list[int] = []
        watches = [lambda event, watcher=watcher: heard.append(watcher) for watcher in range(300)]  # noqa: B023
        await asyncio.gather(*(a.get("/n", watch=watch) for watch in watches))
        if number % 2:
            await a.set("/n", str(number).encode())
        else:
            write = asyncio.ensure_future(b.set("/n", str(number).encode()))
            while (await a.get("/n"))[0] != str(number).encode():
                pass
        assert len(heard) == len(watches), f"in round {number}"
        if not number % 2:
            await write


async def test_another_sessions_change_is_heard(a: Session, b: Session, ear: Ear) -> None:
    await a.create("/p")
    await a.get("/p", watch=ear)
    await a.children("/p", watch=ear)
    await b.create("/p/c")
    await b.set("/p", b"")
    assert await ear.all() == [(CHILDREN, "/p"), (DATA, "/p")]


async def test_a_node_and_its_parent_are_heard_in_that_order(a: Session, ear: Ear) -> None:
    await a.create("/p")
    await a.exists("/p/c", watch=ear)
    await a.children("/p", watch=ear)
    await a.create("/p/c")
    await a.get("/p/c", watch=ear)
    await a.children("/p", watch=ear)
    await a.delete("/p/c")
    assert await ear.all() == [(CREATED, "/p/c"), (CHILDREN, "/p"), (DELETED, "/p/c"), (CHILDREN, "/p")]


async def test_a_multi_is_heard_operation_by_operation(a: Session, b: Session, ear: Ear) -> None:
    await a.create("/one")
    await a.create("/two")
    for path in ("/one", "/two", "/three"):
        await a.exists(path, watch=ear)
    await b.multi([Create("/three"), Set("/two", b""), Delete("/one")])
    assert await ear.all() == [(CREATED, "/three"), (DATA, "/two"), (DELETED, "/one")]


async def test_a_multi_that_fails_is_not_heard(a: Session, b: Session, ear: Ear) -> None:
    await a.create("/n")
    await a.get("/n", watch=ear)
    with pytest.raises(NodeExists):
        await b.multi([Set("/n", b""), Create("/n")])
    assert await ear.all() == []
    await b.set("/n", b"")
    assert await ear.all() == [(DATA, "/n")]


@pytest.mark.parametrize("how", ["close", "expire"])
async def test_the_end_of_a_session_is_heard_by_the_others(a: Session, b: Session, ear: Ear, how: str) -> None:
    await a.create("/ids")
    await b.create("/ids/1", ephemeral=True)
    await a.exists("/ids/1", watch=ear)
    await a.children("/ids", watch=ear)
    if how == "close":
        await b.close()
    else:
        b.expire()  # type: ignore[attr-defined]
        await b.expired.wait()
    assert await ear.all() == [(DELETED, "/ids/1"), (CHILDREN, "/ids")]


async def test_a_closed_session_hears_nothing(a: Session, b: Session) -> None:
    other = Ear(a)
    await b.create("/n")
    await b.get("/n", watch=other)
    await b.close()
    await a.set("/n", b"")
    assert await other.all() == []
