"""Fixtures that give each test its own controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import pytest

from pybroker.coordination.memory import MemoryStore
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.loading import prepare
from tests import virtual
from tests.controller.brokers import FakeCluster
from tests.controller.member import T_ID, Member
from tests.controller.stage import Stage
from tests.virtual import loop_ms


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Give a test marked `virtual_time` an event loop with virtual time."""
    is_virtual = item.get_closest_marker("virtual_time") is not None
    return {"virtual" if is_virtual else "real": virtual.Loop if is_virtual else asyncio.new_event_loop}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Three brokers, of which broker 1 is the controller."""
    made = await Stage(seed=1).begin()
    yield made
    await made.end()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three brokers that receive requests; broker 1 is the controller."""
    made = await FakeCluster().begin()
    yield made
    await made.end()


@pytest.fixture
async def members() -> AsyncIterator[tuple[Member, Member]]:
    """Brokers 1 and 2 of a cluster with the topic `t`, with only the parts that handle settings."""
    store = MemoryStore(clock_ms=loop_ms)
    await store.open()
    session = await store.session(60_000)
    await prepare(session, nodes.OF_A_CLUSTER)
    await session.create(nodes.topic_config("t"), nodes.dump_config({"max.message.bytes": "1000"}))
    await session.create(nodes.topic("t"), nodes.dump_assignment(T_ID, [(1, 2)]))
    two = Member(1), Member(2)
    for member in two:
        await member.join(store)
    yield two
    for member in two:
        member.following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await member.following
    await store.close()
