"""A coordinator of one partition of __transaction_state, on a loop whose time jumps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transactions.kit import World
from tests.virtual import Inline


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Inline())
    yield made
    made.close()
