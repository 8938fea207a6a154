"""Fixtures that the server tests share: whole brokers, and a bare listener."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.oracle.bench import bench as bench
from tests.server.cast import SETS as JUDGED
from tests.server.cast import Cast
from tests.server.live import Live, Wire


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test marked `both_planes` twice: with the native plane, and with Python's Produce, Fetch and throttling,
    which serve what the native plane declines. All other requests reach the same handlers either way."""
    given = any(mark.args[0] == "live" for mark in metafunc.definition.iter_markers("parametrize"))
    if "live" in metafunc.fixturenames and not given and metafunc.definition.get_closest_marker("both_planes"):
        metafunc.parametrize("live", ["native", "python"], indirect=True)


@pytest.fixture
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A running broker on its own data directory; `pytest_generate_tests` chooses its plane."""
    made = Live(tmp_path / "data", native_plane=getattr(request, "param", "native") == "native")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def wire(live: Live) -> Wire:
    return await live.connect()


@pytest.fixture
async def cast(tmp_path: Path) -> AsyncIterator[Cast]:
    made = Cast(Live(tmp_path / "data", JUDGED))
    await made.start()
    yield made
    await made.live.stop()
