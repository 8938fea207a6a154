"""The store in memory has a clock that tests move, and connections that they break."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from pybroker.coordination.memory import Fate, MemoryStore
from pybroker.coordination.store import BadVersion, ConnectionLoss, SessionExpired, SessionState, StoreError
from tests.coordination.conftest import TIMEOUT_MS


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def memory(clock: Clock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock_ms=clock, wall_ms=clock)
    await store.open()
    yield store
    await store.close()


async def test_a_session_without_a_connection_lives_until_its_timeout(memory: MemoryStore, clock: Clock) -> None:
    """A disconnected session can reconnect up to its timeout; afterwards it learns of its expiry."""
    a, other = await memory.session(TIMEOUT_MS), await memory.session(TIMEOUT_MS)
    await a.create("/ids", ephemeral=True)
    a.disconnect()
    clock.ms += TIMEOUT_MS - 1
    memory.expire_overdue()
    assert a.answered_ms == clock.ms - TIMEOUT_MS + 1
    a.reconnect()
    assert (await a.exists("/ids"), a.answered_ms) == (await other.exists("/ids"), clock.ms)
    a.disconnect()
    clock.ms += TIMEOUT_MS
    assert a.state is SessionState.DISCONNECTED
    a.reconnect()
    assert a.state is SessionState.EXPIRED
    assert a.answered_ms == clock.ms - TIMEOUT_MS
    assert await other.exists("/ids") is None


async def test_who_closes_without_a_connection_leaves_the_rest_to_the_timeout(
    memory: MemoryStore, clock: Clock
) -> None:
    a, other = await memory.session(TIMEOUT_MS), await memory.session(TIMEOUT_MS)
    await a.create("/ids", ephemeral=True)
    a.disconnect()
    waiting = a.create("/new")
    await a.close()
    with pytest.raises(SessionExpired):
        await waiting
    with pytest.raises(SessionExpired):
        await a.create("/new")
    assert await other.exists("/ids")
    clock.ms += TIMEOUT_MS
    memory.expire_overdue()
    assert await other.exists("/ids") is None
    assert await other.exists("/new") is None
    assert a.state is SessionState.CLOSED


async def test_what_was_done_in_silence_is_lost_after_its_effect(memory: MemoryStore) -> None:
    """After a silence and a disconnect, an operation that the store had received took effect, a held one not."""
    a, other = await memory.session(TIMEOUT_MS), await memory.session(TIMEOUT_MS)
    sent = a.create("/sent")
    a.suspend()
    held = a.create("/held")
    assert await other.exists("/sent")
    a.disconnect()
    for unknown in (sent, held):
        with pytest.raises(ConnectionLoss):
            await unknown
    a.reconnect()
    assert (await a.exists("/sent"), await a.exists("/held")) == (await other.exists("/sent"), None)


async def test_what_the_store_has_not_come_to_is_lost_before_its_effect(memory: MemoryStore) -> None:
    a, other = await memory.session(TIMEOUT_MS), await memory.session(TIMEOUT_MS)
    sent, others = a.create("/sent"), other.create("/others")
    a.disconnect()
    with pytest.raises(ConnectionLoss):
        await sent
    assert (await others)[0] == "/others"
    assert await other.exists("/sent") is None


async def test_a_refusal_can_be_lost_too(memory: MemoryStore) -> None:
    a = await memory.session(TIMEOUT_MS)
    await a.create("/n")
    a.fate = iter([Fate.LOST_AFTER, Fate.ANSWERED]).__next__
    with pytest.raises(ConnectionLoss):
        await a.set("/n", b"", 7)
    a.reconnect()
    with pytest.raises(BadVersion):
        await a.set("/n", b"", 7)


async def life(seed: int) -> list[str]:
    """Run two sessions that write and lose connections at random; return everything they receive, in order."""
    chance = random.Random(seed)
    store = MemoryStore(clock_ms=Clock(), wall_ms=Clock())
    await store.open()
    trace: list[str] = []
    loop = asyncio.get_running_loop()

    async def write(name: str) -> None:
        session = await store.session(TIMEOUT_MS)
        session.fate = lambda: chance.choice(list(Fate))

        def listen(state: SessionState) -> None:
            trace.append(f"{name} {state.name}")
            if state is SessionState.DISCONNECTED:
                loop.call_soon(session.reconnect)

        session.listen(listen)
        for number in range(40):
            try:
                path, stat = await session.create("/n-", sequential=True)
                trace.append(f"{name} {number} {path} {stat.czxid}")
            except StoreError as error:
                trace.append(f"{name} {number} {error}")

    await asyncio.gather(write("a"), write("b"))
    await store.close()
    return trace


async def test_one_seed_is_one_life() -> None:
    one = await life(1)
    assert one == await life(1)
    assert one != await life(2)
    for what in ("DISCONNECTED", "CONNECTED", "/n-", "broke before the answer came"):
        assert any(what in line for line in one)
