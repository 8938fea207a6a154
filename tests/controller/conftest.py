"""A controller for each test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from pybroker.controller import nodes
from pybroker.controller.loading import prepare
from pybroker.coordination.memory import MemoryStore
from tests.controller.brokers import FakeCluster
from tests.controller.member import T_ID, Member
from tests.controller.stage import Stage


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Broker 1 is the controller of three."""
    made = await Stage(seed=1).begin()
    yield made
    await made.end()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three brokers that are told; 1 is the controller."""
    made = await FakeCluster().begin()
    yield made
    await made.end()


@pytest.fixture
async def members() -> AsyncIterator[tuple[Member, Member]]:
    """Brokers 1 and 2 of a cluster with the topic `t`, as far as their settings go."""
    store = MemoryStore()
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
