"""A controller for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controller.brokers import FakeCluster
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
