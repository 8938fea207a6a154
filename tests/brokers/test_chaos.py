"""A minute of faults on a cluster, and nothing that was acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.brokers import chaos

SECONDS = 60
SEED = 1


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(300)
def test_a_cluster_under_faults_loses_nothing(tmp_path: Path) -> None:
    """Killed, frozen, cut apart, its ZooKeeper restarted: each acknowledged record is read back once, where it was put,
    and all replicas are the same bytes."""
    history, faults = chaos.run(tmp_path, SECONDS, SEED, rate=50)
    print(chaos.summary(history, faults, SEED, SECONDS))
    assert not history.problems
    assert history.counts["acknowledged"] > 100 and history.counts["read"] > 100 and faults > 3
