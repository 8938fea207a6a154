"""What a pipeline says while no executor is alive, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.spark.pipeline import executors
from tests.harness import until


class Cluster:
    """A session whose cluster has this many executors."""

    def __init__(self, count: int, master: str = "spark://h:7077") -> None:
        self.count = count
        self.looks = 0
        self.master = master
        self.sparkContext = self._jsc = self

    def sc(self) -> Any:
        return self

    def getExecutorMemoryStatus(self) -> Any:
        self.looks += 1
        return self

    def size(self) -> int:
        """The driver is one of them."""
        return self.count + 1


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_S", "PATIENCE_S", "SAY_S"):
        monkeypatch.setattr(executors, name, 0.01)


def test_no_executor_is_alive(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said, again and again, until there is one; nothing is said of a cluster that has one."""
    cluster = Cluster(1)
    said: list[str] = []

    def more() -> int:
        said.extend(capsys.readouterr().err.splitlines())
        return len(said)

    with executors.watched(cluster):  # type: ignore[arg-type]
        until("it has looked", lambda: cluster.looks > 9)
        assert not more()
        cluster.count = 0
        until("it is said twice", lambda: more() > 1)
        cluster.count, before = 2, cluster.looks
        until("it has looked", lambda: cluster.looks > before + 1)
        more()
        before = cluster.looks
        until("it has looked", lambda: cluster.looks > before + 9)
        assert all(line == "no executor is alive: waiting for spark://h:7077, 0 s so far" for line in said), said
        assert more() == len(said)
    looks = cluster.looks
    assert more() == len(said) and cluster.looks == looks


def test_a_local_master_is_its_own_executor() -> None:
    cluster = Cluster(0, "local[2]")
    with executors.watched(cluster):  # type: ignore[arg-type]
        pass
    assert not cluster.looks
