"""Three brokers in a simulation: kills, restarts and cut connections under acks=all, by seeds that replay exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.replication.replica import Replica
from tests.simulation.world import Violated, simulate

SEEDS = range(1, 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds_after_each_step(seed: int, tmp_path: Path) -> None:
    """And records were acknowledged meanwhile, or nothing was tried."""
    history = simulate(seed, tmp_path)
    assert sum(" acked " in line for line in history) > 100


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    """Every event at the same moment; another seed has others."""
    first, again, other = (simulate(seed, tmp_path / name) for seed, name in ((1, "a"), (1, "b"), (2, "c")))
    assert first == again != other


def test_truncation_to_the_high_watermark_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: who follows anew cuts its log there, as Kafka did before KIP-101, and not where the logs diverge."""
    follow = Replica.follow

    async def cut_and_follow(replica: Replica, leader: int, leader_epoch: int, partition_epoch: int) -> None:
        await follow(replica, leader, leader_epoch, partition_epoch)
        log = replica.partition()
        log.truncate(log.high_watermark, leader_epoch=leader_epoch)

    monkeypatch.setattr(Replica, "follow", cut_and_follow)
    with pytest.raises(Violated, match=r"of the ISR lost|differs below"):
        for seed in SEEDS:
            simulate(seed, tmp_path / str(seed))
