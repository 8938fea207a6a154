"""The log lines and the failure of a pipeline that has no live executor, without a cluster."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from pybroker.spark.pipeline import executor_watch
from tests.harness import HOST, free_port, until


class Cluster:
    """A session whose cluster has this many executors."""

    def __init__(self, count: int, master: str = "yarn") -> None:
        self.count = count
        self.looks = 0
        self.master = master
        self.sparkContext = self._jsc = self

    def sc(self) -> Any:
        return self

    def statusTracker(self) -> Any:
        self.looks += 1
        return self

    def getExecutorInfos(self) -> list[str]:
        return ["the driver", *("an executor" for _ in range(self.count))]


class Clock:
    """The clock of a watch."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(executor_watch, "time", made)
    return made


def pass_by(watch: executor_watch.Watch, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += 1
        watch.look()


def test_no_executor_is_alive(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipeline without an executor logs it after a while, and repeats it until there is one. A resource manager's
    queue has no time limit."""
    cluster = Cluster(1)
    watch = executor_watch.Watch(cluster)  # type: ignore[arg-type]
    pass_by(watch, clock, 60)
    assert capsys.readouterr().err == ""
    cluster.count = 0
    pass_by(watch, clock, 20)
    said = [f"no executor is alive: waiting for yarn, {seconds} s so far" for seconds in (6, 17)]
    assert capsys.readouterr().err.splitlines() == said
    cluster.count = 2
    pass_by(watch, clock, 60)
    assert capsys.readouterr().err == ""
    cluster.count = 0
    pass_by(watch, clock, 2000)
    assert capsys.readouterr().err.startswith(said[0]) and watch.problem is None


def test_a_master_that_gives_none(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """A standalone master that answers and gives no executor for three minutes fails the pipeline; one that does not
    answer is waited for."""
    port = free_port()
    master = f"spark://{HOST}:{port}"
    watch = executor_watch.Watch(Cluster(0, master))  # type: ignore[arg-type]
    pass_by(watch, clock, 2000)
    away = f"waiting for {master}, 6 s so far (no Spark master at {HOST}:{port}: connection refused)"
    assert away in capsys.readouterr().err and watch.problem is None
    with socket.create_server((HOST, port), backlog=100):
        pass_by(watch, clock, 170)
        assert watch.problem is None
        pass_by(watch, clock, 40)
    assert watch.problem is not None
    told = watch.problem.message
    assert told.startswith(f"{master} has given no executor for 2") and "start the pipeline again" in told


def test_a_thread_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread watches the executors until the work is over; a local master has none to watch."""
    monkeypatch.setattr(executor_watch, "LOOK_S", 0.01)
    cluster, local = Cluster(1), Cluster(0, "local[2]")
    with executor_watch.watched(cluster), executor_watch.watched(local):  # type: ignore[arg-type]
        until("it has looked", lambda: cluster.looks > 3)
    looks = cluster.looks
    with pytest.raises(AssertionError):
        until("it looks again", lambda: cluster.looks > looks, 0.1)
    assert local.looks == 0
