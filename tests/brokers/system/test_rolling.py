"""Rolling work as an operator does it: `pybroker cluster check`, and `restart`, on a cluster under load."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import confluent_kafka as ck
import pytest

from tests.brokers.kit import QUIET, Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import Done, run
from tests.harness import until
from tests.stores import AnyStore

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


class Load:
    """A producer that writes to all partitions of a topic in turn, and how long each record waited until it was
    acknowledged."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, rate: int) -> None:
        self.acked: dict[int, tuple[int, int]] = {}
        """(partition, offset) of each record, by its number."""
        self.waited: list[tuple[float, float]] = []
        """(sent at, seconds until it was acknowledged)."""
        self.failed: list[str] = []
        self._cluster, self._topic, self._partitions, self._rate = cluster, topic, partitions, rate
        self.sent = 0
        self._producer = ck.Producer({
            "bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "message.timeout.ms": 120_000, **QUIET,
        })  # fmt: skip
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        began = time.monotonic()
        while not self._ended.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.sent
            for _ in range(due):
                number, sent = self.sent, time.monotonic()
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % self._partitions,
                    on_delivery=lambda e, m, number=number, sent=sent: self._told(e, m, number, sent),
                )  # fmt: skip
                self.sent += 1
            self._producer.poll(0.001)

    def _told(self, error: object, message: ck.Message, number: int, sent: float) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        self.waited.append((sent, time.monotonic() - sent))
        self.acked[number] = message.partition(), message.offset()

    def longest_ms(self, since: float = 0.0) -> float:
        return 1000 * max(waited for sent, waited in self.waited if sent >= since)

    def judge(self) -> None:
        """Stop, and check that each record is there once, at its offset."""
        self.__exit__()
        assert self._producer.flush(120) == 0
        assert not self.failed and len(self.acked) == self.sent, self.failed[:3]
        found: dict[int, tuple[int, int]] = {}
        consumer = ck.Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "judge", **QUIET})
        consumer.assign([ck.TopicPartition(self._topic, index, 0) for index in range(self._partitions)])
        count = 0
        while len(found) < self.sent:
            messages = consumer.consume(10_000, 10)
            assert messages, f"{self.sent - len(found)} records are missing"
            count += len(messages)
            found |= {int(m.value()): (m.partition(), m.offset()) for m in messages}
        consumer.close()
        assert count == self.sent and found == self.acked


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
    assert "1 partition is under min ISR, refusing acks=all: pair-0 (in sync 1 of 3,1, min.insync.replicas 2)" in told
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
        assert f"Restarted before it: {others[0]}; to go on, mend broker {others[1]}" in stopped.err, stopped
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


PARTITIONS, RATE = 1000, 2000


@pytest.mark.long
def test_a_thousand_partitions(cluster: Cluster, tmp_path: Path) -> None:
    """Each record is there once, at its offset, though each broker was restarted, and leaders came back."""
    topic = cluster.create("t", PARTITIONS)
    cluster.until_in_sync(topic, PARTITIONS)
    operator = Operator(cluster, tmp_path)
    with Load(cluster, topic, PARTITIONS, RATE) as load:
        until("records are acknowledged", lambda: len(load.acked) > 5 * PARTITIONS)
        print(f"longest wait without a restart {load.longest_ms():.0f} ms")
        began = time.monotonic()
        done = run("cluster", "restart", "-b", cluster.bootstrap, "--yes", "--run", operator.command)
        assert done.code == 0, done
        print(f"longest wait {load.longest_ms(began):.0f} ms in {time.monotonic() - began:.0f} s")
        load.judge()


@pytest.mark.long
def test_its_store_is_restarted(tmp_path: Path, ensemble: AnyStore) -> None:
    """Each of three servers is restarted in turn under load: no broker loses its registration, and no record waits for
    the store."""
    with Cluster(tmp_path, ensemble) as cluster:
        topic = cluster.create("t", replicas=[[1, 2, 3]])
        with Witness(cluster, topic) as witness:
            for number in (1, 2, 3):
                witness.until_acked()
                ensemble.stop(number)
                witness.until_acked(200)
                ensemble.start(number)
            witness.until_acked(200)
            assert check(cluster, "--wait", "in-sync", "--timeout", 60).code == 0
            print(f"longest gap {witness.gap_s() * 1000:.0f} ms")
            assert [broker.count("broker registered") for broker in cluster.brokers.values()] == [1, 1, 1]
            assert [broker.count("leader elected") for broker in cluster.brokers.values()] == [0, 0, 0]
            witness.judge()
