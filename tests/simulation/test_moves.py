"""Reassignments in simulated clusters: at each step with each broker killed, by seeds, and with planted bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import planted
from tests.simulation.checker import Violated
from tests.simulation.moves import STEPS, VICTIMS, MovingWorld, a_new_leader_lags, cancelled, killed_at, moved
from tests.simulation.planted import Plant
from tests.simulation.world import Script, simulate

SEEDS = range(1, 9)


@pytest.mark.parametrize("script", [moved, cancelled, a_new_leader_lags], ids=lambda script: script.__name__)
def test_a_move_while_clients_write(script: Script, tmp_path: Path) -> None:
    """Replicas move or stay, nothing that was acknowledged is lost, and no log is left behind."""
    simulate(1, tmp_path, script=script, kind=MovingWorld)


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("step", STEPS)
def test_a_broker_is_killed_at_each_step(step: str, victim: str, tmp_path: Path) -> None:
    """The reassignment goes on under the next controller or leader, and is complete once the broker is back."""
    simulate(1, tmp_path, script=killed_at(step, victim), kind=MovingWorld)


@pytest.mark.parametrize("seed", SEEDS)
def test_moves_with_all_faults(seed: int, tmp_path: Path) -> None:
    """Requests to move and to cancel at any time, with kills, cuts, lost sessions, full disks and lost power."""
    simulate(seed, tmp_path, kind=MovingWorld)


@pytest.mark.parametrize(
    ("plant", "script"),
    [
        (planted.the_leader_moves_too_early, moved),
        (planted.logs_are_deleted_too_early, moved),
        (planted.a_cancel_keeps_the_target, cancelled),
        (planted.growth_at_the_high_watermark, a_new_leader_lags),
    ],
    ids=lambda each: each.__name__,
)
def test_a_planted_bug_is_found(
    plant: Plant, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bug breaks a rule in a schedule that holds without it."""
    plant(monkeypatch)
    with pytest.raises(Violated):
        simulate(1, tmp_path, script=script, kind=MovingWorld)
