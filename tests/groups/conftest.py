"""Fixtures that the tests of groups share: a whole broker in this process, and members driven request by request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.groups.logs import PARTITIONS, Bench
from tests.groups.members import Member
from tests.server.live import Live, Wire

FEW = ("offsets.topic.num.partitions=4", "group.initial.rebalance.delay.ms=0", "group.min.session.timeout.ms=100")


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A running broker with few partitions for groups and no delay before their first rebalance."""
    made = Live(tmp_path / "data", FEW)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wire(live: Live) -> Wire:
    """A connection to a broker that has its offsets topic, and a topic `t` of four partitions."""
    wire = await live.connect()
    await wire.create("t", 4)
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    return wire


@pytest.fixture
def member(live: Live, wire: Wire) -> Callable[..., Awaitable[Member]]:
    """A function that makes members of groups, each with its own connection: `await member("g")`."""

    async def make(group: str = "g", **how: object) -> Member:
        return Member(await live.connect(), group, **how)  # type: ignore[arg-type]

    return make


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ThreadPoolExecutor(PARTITIONS) as workers:
        made = Bench(tmp_path, workers)
        yield made
        made.close()
