"""Rolling work as an operator does it: `pybroker cluster check`, and `restart`, on a cluster under load."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import Done, run
from tests.harness import until

pytestmark = [pytest.mark.java]


class Operator:
    """Restarts the brokers whose ids `command` writes to a pipe, as systemd would, and lets the command end then."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.restarted: list[int] = []
        self.refuses: set[int] = set()
        """Brokers that do not start again."""
        self._cluster = cluster
        self._asked, self._done = home / "asked", home / "done"
        for pipe in (self._asked, self._done):
            os.mkfifo(pipe)
        self.command = f"echo {{id}} > {self._asked} && read code < {self._done} && exit $code"
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            number = int(self._asked.read_text())
            self._cluster.brokers[number].stop()
            if number not in self.refuses:
                self._cluster.start(number)
                self.restarted.append(number)
            self._done.write_text(f"{int(number in self.refuses)}\n")


def check(cluster: Cluster, *options: object) -> Done:
    return run("cluster", "check", "-b", cluster.bootstrap, *options)


def test_a_check_sees_what_is_degraded(cluster: Cluster) -> None:
    """A killed broker is named with its replicas and partitions, and the exit code is 1; `--wait in-sync` ends once it
    has caught up, with 0. Without any broker the code is 2."""
    topic = cluster.create("t", replicas=[[1, 2, 3], [2, 3, 1]])
    cluster.create("pair", replicas=[[3, 1]])
    cluster.until_in_sync(topic, 2)
    assert check(cluster).code == 0
    cluster.kill(3)
    until("it is degraded", lambda: check(cluster).code == 1)
    until("each partition lacks broker 3", lambda: check(cluster, "--json").json["under_replicated"] == 3)
    until("Metadata does not list it", lambda: check(cluster, "--json").json["not_registered"] == [3])
    told = check(cluster).out
    assert "broker 3 is not registered, and has 3 replicas" in told, told
    assert "1 partition is under min ISR, and refuse acks=all: pair-0 (in sync 1 of 3,1, min.insync.replicas 2)" in told
    assert "2 partitions are under-replicated: t-0 (in sync 1,2 of 1,2,3), t-1" in told
    refused = run("cluster", "restart", "-b", cluster.bootstrap, "--yes", "--run", "false {id}")
    assert refused.code == 1 and "min.insync.replicas 2" in refused.sentence, refused
    cluster.restart(3)
    waited = check(cluster, "--wait", "in-sync", "--timeout", 60)
    assert waited.code == 0 and "3 brokers" in waited.out and "is healthy" in waited.out
    cluster.kill(1, 2, 3)
    assert check(cluster, "--timeout", 2).code == 2


def test_a_rolling_restart_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """Each broker is restarted once and the controller last, and clients lose nothing. Where a broker does not start,
    the run stops with the command that goes on, and that command does the rest."""
    topic = cluster.create("t", replicas=[[1, 2, 3]])
    cluster.until_in_sync(topic)
    operator = Operator(cluster, tmp_path)
    restart = ["cluster", "restart", "-b", cluster.bootstrap, "--yes", "--run", operator.command]
    with Witness(cluster, topic) as witness:
        witness.until_acked()
        controller = cluster.controller()
        others = [number for number in (1, 2, 3) if number != controller]
        operator.refuses = {others[1]}
        stopped = run(*restart)
        assert stopped.code == 1 and operator.restarted == others[:1], stopped
        assert f"Restarted: {others[0]}; to go on, mend broker {others[1]}" in stopped.err, stopped
        assert f"--broker {others[1]} --broker {controller} --run" in stopped.err, stopped
        operator.refuses = set()
        cluster.start(others[1])
        assert check(cluster, "--wait", "in-sync", "--timeout", 60).code == 0
        done = run(*restart)
        assert done.code == 0 and "Restarted 3 brokers." in done.out, done
        assert operator.restarted[1:] == [*others, controller]
        witness.until_acked()
        print(f"longest gap {witness.gap_s() * 1000:.0f} ms")
        witness.judge()
    assert cluster.leader(topic) == 1
