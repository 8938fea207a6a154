"""Sessions of the embedded store: size of commits, order of events and answers, and ends of sessions."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from pybroker.coordination.embedded import EmbeddedStore
from pybroker.coordination.local_session import LocalSession
from pybroker.coordination.store import Create, NodeExists, NoNode, SessionExpired, StoreClosed, WatchEvent
from pybroker.coordination.tree import Tree
from tests.coordination.conftest import TIMEOUT_MS, on_the_thread, opened


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


# -- batches and order ------------------------------------------------------------------------------------------------


async def test_what_waits_together_is_committed_together(embedded: EmbeddedStore) -> None:
    """A thousand waiting writes take one or two commits."""
    session = await embedded.session(TIMEOUT_MS)
    await session.create("/p")
    commits: list[int] = []
    await on_the_thread(
        embedded, lambda tree: tree._sql.set_trace_callback(lambda sql: commits.append(sql == "COMMIT"))
    )
    begun, all_wait = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def until_all_wait(_: Tree) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert all_wait.wait(30)

    before = asyncio.create_task(on_the_thread(embedded, until_all_wait))
    await begun.wait()
    created = [session.create(f"/p/{number}", b"x" * 80) for number in range(1000)]
    all_wait.set()
    await asyncio.gather(before, *created)
    assert 1 <= sum(commits) <= 3


async def test_a_watch_fires_before_any_answer_that_sees_the_change(embedded: EmbeddedStore) -> None:
    """A watch fires before the answer to its own session's write, and before another session's read of the change."""
    a, b = await embedded.session(TIMEOUT_MS), await embedded.session(TIMEOUT_MS)
    order: list[str] = []
    await a.create("/n")
    await a.get("/n", watch=lambda event: order.append("event"))
    before, write, read = b.get("/n"), a.set("/n", b"new"), b.get("/n")
    for name, future in (("before", before), ("write", write), ("read", read)):
        future.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    await asyncio.gather(before, write, read)
    assert sorted(order) == ["before", "event", "read", "write"]
    assert order.index("event") < order.index("write") < order.index("read")
    assert (await read)[0] == b"new"


async def test_a_cancelled_caller_does_not_stop_the_operation(embedded: EmbeddedStore) -> None:
    session = await embedded.session(TIMEOUT_MS)
    session.create("/n").cancel()
    assert await session.exists("/n")


async def test_a_watcher_that_fails_costs_the_others_nothing(embedded: EmbeddedStore) -> None:
    session = await embedded.session(TIMEOUT_MS)
    heard: list[WatchEvent] = []
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))

    def broken(event: WatchEvent) -> None:
        raise ZeroDivisionError

    await session.create("/n")
    await session.get("/n", watch=broken)
    await session.get("/n", watch=heard.append)
    await session.set("/n", b"")
    assert len(heard) == 1
    assert said[0]["message"] == "a watch failed on DATA_CHANGED of /n"


async def test_closing_finishes_what_was_submitted_and_refuses_the_rest(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db") as store:
        session = await store.session(TIMEOUT_MS)
        futures = [session.create(f"/{number}") for number in range(100)]
        await store.close()
        assert [(await future)[0] for future in futures] == [f"/{number}" for number in range(100)]
        with pytest.raises(StoreClosed):
            await session.get("/1")
        with pytest.raises(StoreClosed):
            await store.session(TIMEOUT_MS)
        await store.close()


async def test_a_store_that_was_never_opened_is_closed(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path / "store.db"))
    with pytest.raises(StoreClosed):
        await store.session(TIMEOUT_MS)
    await store.close()


# -- sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "granted"), [(1, 4000), (4000, 4000), (18000, 18000), (40000, 40000), (1 << 40, 40000)]
)
async def test_a_timeout_is_granted_within_limits(embedded: EmbeddedStore, asked: int, granted: int) -> None:
    assert (await embedded.session(asked)).timeout_ms == granted


async def suspended_pair(store: EmbeddedStore) -> tuple[LocalSession, LocalSession]:
    """A suspended session with an ephemeral node and a watch on /n, and an active one."""
    frozen, other = await store.session(TIMEOUT_MS), await store.session(TIMEOUT_MS)
    await other.create("/n")
    await frozen.create("/ids", ephemeral=True)
    frozen.suspend()
    return frozen, other


async def test_a_suspended_session_lives_until_its_timeout(tmp_path: Path) -> None:
    """A suspended session is ended exactly at its timeout, and not 1 ms before."""
    clock = Clock()
    async with opened(tmp_path / "store.db", clock_ms=clock) as store:
        frozen, other = await suspended_pair(store)
        clock.ms += TIMEOUT_MS - 1
        store.expire_overdue()
        assert await other.exists("/ids")
        clock.ms += 1
        store.expire_overdue()
        assert await other.exists("/ids") is None
        assert not frozen.expired.is_set(), "a disconnected client does not know"
        frozen.resume()
        await asyncio.wait_for(frozen.expired.wait(), 1)
        with pytest.raises(SessionExpired):
            await frozen.get("/n")
        assert not other.expired.is_set()


async def test_a_session_that_is_there_again_in_time_goes_on(tmp_path: Path) -> None:
    """A session that resumes in time gets its answers and events in order."""
    clock = Clock()
    async with opened(tmp_path / "store.db", clock_ms=clock) as store:
        frozen, other = await suspended_pair(store)
        frozen.resume()
        heard: list[str] = []
        await frozen.get("/n", watch=lambda event: heard.append(event.path))
        frozen.suspend()
        sent = frozen.create("/sent")
        await other.set("/n", b"meanwhile")
        assert heard == []
        assert await other.exists("/sent") is None
        clock.ms += TIMEOUT_MS - 1
        frozen.resume()
        assert heard == ["/n"]
        assert (await sent)[0] == "/sent"
        clock.ms += TIMEOUT_MS
        store.expire_overdue()
        assert await other.exists("/ids")


async def test_what_a_frozen_client_sent_after_its_end_is_refused(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "store.db", clock_ms=clock) as store:
        frozen, other = await suspended_pair(store)
        sent = frozen.create("/sent")
        clock.ms += TIMEOUT_MS
        store.expire_overdue()
        await other.exists("/n")
        frozen.resume()
        with pytest.raises(SessionExpired):
            await sent
        assert await other.exists("/sent") is None


async def test_a_suspended_session_is_ended_by_the_clock_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "store.db", timeouts_ms=(50, 50)) as store:
        frozen, other = await suspended_pair(store)
        gone = asyncio.Event()
        await other.exists("/ids", watch=lambda event: gone.set())
        await asyncio.wait_for(gone.wait(), 5)
        frozen.resume()
        await asyncio.wait_for(frozen.expired.wait(), 1)


async def test_closing_twice_is_closing_once(embedded: EmbeddedStore) -> None:
    session = await embedded.session(TIMEOUT_MS)
    await session.close()
    await session.close()


async def test_errors_say_where_and_what(embedded: EmbeddedStore) -> None:
    session = await embedded.session(TIMEOUT_MS)
    await session.create("/n")
    with pytest.raises(NodeExists) as exists:
        await session.multi([Create("/m"), Create("/n")])
    assert str(exists.value) == "/n: the node exists (operation 1 of the multi)"
    with pytest.raises(NoNode) as none:
        await session.get("/none")
    assert str(none.value) == "/none: the node does not exist, or the parent of a new node does not"
