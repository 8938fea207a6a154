"""A minute of faults on a cluster whose replicas move loses no acknowledged record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers import chaos, moves

SECONDS = 60
SEED = 1
FAULTS = (
    "kill", "kill_controller", "kill_two", "kill_all", "stop", "freeze", "freeze_two", "cut_two_brokers",
    "cut_from_brokers", "cut_from_store", "cut_from_everybody", "cut_one_way", "reset", "kill_store_server",
    "freeze_store_server", "cut_store_leader", "kill_store", "elect_preferred", "elect_and_kill", "depose", "evict",
    "break_topic", "break_defaults", *moves.MOVES,
)  # fmt: skip
"""Faults that come and go within seconds, as a minute has room for few rounds. The others are for `make chaos`."""


@pytest.mark.java
def test_a_cluster_under_faults_loses_nothing(tmp_path: Path, store_kind: str) -> None:
    """After kills, freezes, cuts and restarts of the store, while replicas move, each acknowledged record is read once,
    at its offset, all replicas are identical, and nothing of a move is left."""
    history, faults = chaos.run(tmp_path, SECONDS, SEED, rate=50, only=FAULTS, store=store_kind)
    print(chaos.summary(history, faults, SEED, SECONDS))
    assert not history.problems
    assert history.counts["acknowledged"] > 100 and history.counts["read"] > 100 and faults > 3
