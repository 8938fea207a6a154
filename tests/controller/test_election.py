"""The controllership and the writes that depend on it, with two sessions of one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pybroker import errors
from pybroker.coordination.memory import MemoryStore
from pybroker.coordination.store import Create, NodeExists, NoNode, Session, Store, StoreDamaged
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, elect, write
from pybroker.metadata.lone_broker.loading import prepare
from pybroker.metadata.producer_ids import BLOCK, ProducerIds
from tests.rows import with_each

TIMEOUT_MS = 4000
NOW_MS = 1_700_000_000_000


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = MemoryStore()
    await made.open()
    yield made
    await made.close()


async def sessions(store: Store) -> tuple[Session, Session]:
    one, other = await store.session(TIMEOUT_MS), await store.session(TIMEOUT_MS)
    await prepare(one)
    return one, other


async def elected(session: Session, broker_id: int) -> Fence:
    fence = await elect(session, broker_id, NOW_MS)
    assert fence is not None
    return fence


async def test_one_controller_at_a_time(store: Store) -> None:
    """One of several candidates is elected; when its session ends, the next one gets the next epoch."""
    one, other = await sessions(store)
    fences = await asyncio.gather(*(elect(*who, NOW_MS) for who in ((one, 1), (other, 2)) * 2))
    (first,) = [fence for fence in fences if fence is not None]
    winner, loser, next_id = (one, other, 2) if fences[0] or fences[2] else (other, one, 1)
    assert await elect(loser, next_id, NOW_MS) is None
    await winner.close()
    assert (await elected(loser, next_id)).epoch == first.epoch + 1


async def test_a_stale_controller_writes_nothing(store: Store) -> None:
    """The stale epoch is checked first, so no operation of the write is executed."""
    one, other = await sessions(store)
    stale = await elected(one, 1)
    await one.delete(nodes.CONTROLLER)  # as an operator does by hand
    fresh = await elected(other, 2)
    with pytest.raises(KafkaError) as told:
        await write(one, stale, [Create("/brokers/topics/t")])
    assert told.value.code == errors.NOT_CONTROLLER
    with pytest.raises(NoNode):
        await one.get("/brokers/topics/t")
    await write(other, fresh, [Create("/brokers/topics/t")])
    assert await one.get("/brokers/topics/t")


async def test_a_write_is_all_or_nothing(store: Store) -> None:
    """One operation's error is raised as it is, and the other operations are not executed."""
    one, _ = await sessions(store)
    fence = await elected(one, 1)
    await write(one, fence, [Create("/brokers/topics/t")])
    with pytest.raises(NodeExists):
        await write(one, fence, [Create("/brokers/topics/u"), Create("/brokers/topics/t")])
    with pytest.raises(NoNode):
        await one.get("/brokers/topics/u")


async def test_no_two_brokers_draw_the_same_producer_id(store: Store) -> None:
    """Two brokers that draw at the same time take separate blocks, each above the ids in its logs."""
    one, other = await sessions(store)
    first = ProducerIds(lambda: one, 1, above=lambda: -1)
    second = ProducerIds(lambda: other, 2, above=lambda: 2 * BLOCK + 5)
    drawn = await asyncio.gather(*(ids.draw() for _ in range(BLOCK + 50) for ids in (first, second)))
    assert len(set(drawn)) == len(drawn)
    assert min(await second.draw(), *drawn[1::2]) > 2 * BLOCK + 5


async def test_a_block_that_another_broker_took_first_is_left_to_it(store: Store) -> None:
    """The compare-and-set fails, and the broker takes the next block."""
    one, other = await sessions(store)
    late = ProducerIds(lambda: one, 1, above=lambda: -1)
    get = one.get

    async def overtaken(path: str) -> object:
        found = await get(path)
        one.get = get  # type: ignore[method-assign]
        await ProducerIds(lambda: other, 2, above=lambda: -1).draw()
        return found

    one.get = overtaken  # type: ignore[assignment, method-assign]
    assert await late.draw() == BLOCK


async def test_without_a_store_there_are_no_ids_for_now(store: Store) -> None:
    """A client gets COORDINATOR_LOAD_IN_PROGRESS, as in Kafka: it retries, and looks for no other broker."""
    one, _ = await sessions(store)
    await one.close()
    ids = ProducerIds(lambda: one, 1, above=lambda: -1)
    for ask in (ids.draw, ids.block):
        with pytest.raises(KafkaError) as told:
            await ask()
        assert told.value.code == errors.COORDINATOR_LOAD_IN_PROGRESS


@with_each("data", [b"", b"{", b"[]", b"{}", b'{"version":1,"block_end":"x"}', b"\xff"])
def test_a_damaged_block_of_ids_is_told(data: bytes) -> None:
    """A damaged block is an error, and is not taken for an unused one."""
    with pytest.raises(StoreDamaged):
        nodes.load_block(data)
