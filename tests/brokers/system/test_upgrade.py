"""A rolling upgrade from the brokers of another source tree to those of this one, and a step back, under load.

    PYBROKER_OTHER_TREE=/path/to/built/checkout pytest tests/brokers/system/test_upgrade.py

Without the variable the other tree is this one, which shows the procedure.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster, Planted
from tests.brokers.system.test_rolling import check
from tests.brokers.witness import Witness
from tests.clients.adapters.confluent import Confluent
from tests.harness import ROOT
from tests.stores import AnyStore

pytestmark = [pytest.mark.java, pytest.mark.long]
OTHER = Path(os.environ.get("PYBROKER_OTHER_TREE", ROOT))


class Versioned(Planted):
    """A broker of one of the two trees, each with the Python of its own environment, if it has one."""

    tree = OTHER

    def command(self) -> list[str]:
        _, *rest = super().command()
        own = self.tree / ".venv" / "bin" / "python"
        return ["env", "-C", str(self.tree), str(own) if own.exists() else sys.executable, *rest]


def test_a_rolling_upgrade_and_a_step_back(tmp_path: Path, store: AnyStore) -> None:
    """Brokers of both versions run together; each record is read once, a group goes on where it was, and configs stay,
    after the upgrade of all brokers and after the step back of all."""
    with Cluster(tmp_path, store, kind=Versioned) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]], retention_ms="86400001")
        with Witness(cluster, topic) as witness:
            for tree in (ROOT, OTHER):
                for number, broker in cluster.brokers.items():
                    witness.until_acked()
                    broker.stop()
                    assert isinstance(broker, Versioned)
                    broker.tree = tree
                    cluster.start(number)
                    done = check(cluster, "--wait", "in-sync", "--timeout", 120)
                    assert done.code == 0, done
                witness.until_acked()
                assert Confluent(cluster.bootstrap).topic_config(topic)["retention.ms"] == "86400001"
            print(f"longest gap {witness.gap_s() * 1000:.0f} ms")
            witness.judge()
