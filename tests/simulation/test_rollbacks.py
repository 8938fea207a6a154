"""The store of a simulated cluster goes back in time: no acknowledged record is lost, and all goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.rollbacks import ROLLBACKS
from tests.simulation.world import simulate


@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("what", ROLLBACKS)
def test_the_store_is_restored_from_an_older_copy(what: str, seed: int, tmp_path: Path) -> None:
    """Leaders are elected by the brokers' logs, with epochs above those that brokers know."""
    history = simulate(seed, tmp_path, script=ROLLBACKS[what])
    assert any("the store is restored" in line for line in history)
