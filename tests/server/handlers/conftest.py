"""A fixture that gives each test its own table of handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.handlers.desk import Desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = await Desk(tmp_path / "data").begin()
    yield made
    await made.end()
