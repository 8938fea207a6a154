"""A cluster that is killed, frozen, cut from its store and moved about, under clients of three libraries, and judged.

    python -m tests.brokers.chaos --seconds 600 --seed 7

Three brokers and a real ZooKeeper. Each fault hits one of them at random and is undone after a while; two brokers are
never away at once, so that what was acknowledged by two has to be there. At last all is healed, every partition is read
from its start to its end, and its replicas are compared byte by byte. The last line sums up; the exit status is 1 if a
rule was broken.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import confluent_kafka as ck

from pybroker.server.zookeeper_server import ZooKeeper
from tests.brokers.kit import Cluster
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import until
from tests.lives.clients import Group, Reader, Worker, Writer
from tests.lives.history import History

TOPIC = "lives"
PARTITIONS = 4
LIBRARIES: tuple[type[Client], ...] = (Confluent, KafkaPython, Aiokafka)
RULES = ("kept", "once", "in order", "whole", "constant", "committed", "start", "client", "identical")
SESSION_MS = 3000


class Chaos:
    """One cluster, its clients, and what is done to it."""

    def __init__(self, home: Path, seed: int, rate: float) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.zookeeper = ZooKeeper(data_dir=str(home / "zookeeper"))
        self.cluster = Cluster(home, self.zookeeper, zookeeper_session_timeout_ms=SESSION_MS)
        self.cluster.start()
        self.cluster.create(TOPIC, PARTITIONS, retention_ms="-1", segment_bytes="300000")
        self.clients = [library(self.cluster.bootstrap) for library in LIBRARIES]
        bootstrap, history = self.cluster.bootstrap, self.history
        self.workers: list[Worker] = [
            Writer(client, history, TOPIC, PARTITIONS, self.random.randrange(1 << 30), rate) for client in self.clients
        ]
        self.workers += [
            Reader(client, history, TOPIC, PARTITIONS, self.random.randrange(1 << 30)) for client in self.clients
        ]
        self.workers.append(Group(bootstrap, history, TOPIC, PARTITIONS, self.random.randrange(1 << 30)))

    def run(self, seconds: float) -> None:
        """Disturb until the time is over, heal, and judge."""
        for worker in self.workers:
            worker.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.random.uniform(0.5, 2))
            fault = self.random.choice(
                (self.kill, self.kill, self.kill_controller, self.stop, self.freeze, self.restart_store, self.move)
            )
            self.history.counts[fault.__name__.replace("_", " ")] += 1
            fault()
            self.heal()
        self.judge()

    # -- faults ------------------------------------------------------------------------------------------------------

    def one(self) -> int:
        return self.random.choice(list(self.cluster.brokers))

    def kill(self) -> None:
        """`kill -9` of a broker, and perhaps a while until it comes again."""
        self._kill(self.one())

    def kill_controller(self) -> None:
        with suppress(ck.KafkaException):
            self._kill(max(self.cluster.controller(), 1))

    def _kill(self, number: int) -> None:
        self.cluster.kill(number)
        time.sleep(self.random.choice((0, 0.2, 1, 3)))
        self.cluster.start(number)

    def stop(self) -> None:
        """SIGTERM: leadership is handed over."""
        number = self.one()
        self.cluster.brokers[number].stop()
        self.cluster.start(number)

    def freeze(self) -> None:
        """SIGSTOP, for less or more than a session."""
        number = self.one()
        self.cluster.signal(number, signal.SIGSTOP)
        time.sleep(self.random.choice((0.3, SESSION_MS / 1000, 2 * SESSION_MS / 1000)))
        self.cluster.signal(number, signal.SIGCONT)

    def restart_store(self) -> None:
        """ZooKeeper is killed and comes again, with what it has on disk."""
        self.zookeeper.kill()
        time.sleep(self.random.choice((0, 1, SESSION_MS / 1000)))
        self.zookeeper.start()

    def move(self) -> None:
        """A topic comes and goes, and leadership is given back to preferred replicas."""
        name = f"churn-{self.random.randrange(1 << 30)}"
        with suppress(ck.KafkaException, TimeoutError, Exception):
            self.cluster.create(name, self.random.randrange(1, 5))
            self.cluster.admin.delete_topics([name])[name].result(10)

    def heal(self) -> None:
        """All are in sync again before the next fault: two of three must have what was acknowledged."""
        try:
            self.cluster.until_in_sync(TOPIC, PARTITIONS)
        except AssertionError as problem:
            self.history.accuse("start", f"not in sync again: {problem}")
            for number, broker in self.cluster.brokers.items():
                print(f"-- broker {number}\n{broker.output()[-6000:]}", file=sys.stderr)
            raise

    # -- judging -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        for worker in self.workers:
            worker.ended.set()
        for worker in self.workers:
            worker.join(90)
            if worker.is_alive():
                self.history.accuse("client", f"{worker.name} does not end")
        for partition in range(PARTITIONS):
            start, end = self.clients[0].offsets(TOPIC, partition)
            self.history.check_log(partition, self.log(partition, end), start, end)
        for client in self.clients:
            client.close()
        try:
            until("replicas are the same", lambda: not self.cluster.differing(TOPIC, range(PARTITIONS)))
        except AssertionError:
            for wrong in self.cluster.differing(TOPIC, range(PARTITIONS)):
                self.history.accuse("identical", wrong)

    def log(self, partition: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """All records of a partition, as librdkafka reads them."""
        at, quiet_until = 0, time.monotonic() + 30
        with self.clients[0].consumer(TOPIC, {partition: 0}, out_of_range="earliest") as consumer:
            while at < end and time.monotonic() < quiet_until:
                for record in consumer.poll(1):
                    yield record.offset, record.value
                    at, quiet_until = record.offset + 1, time.monotonic() + 30

    def close(self) -> None:
        self.cluster.close()
        self.zookeeper.close()


def summary(history: History, seed: int, seconds: float) -> str:
    broken = sum(history.counts[rule] for rule in RULES)
    counts = ", ".join(f"{name} {n:,}" for name, n in sorted(history.counts.items()))
    return f"seed {seed}, {seconds:.0f} s: {'FAILED, ' if broken else ''}{broken} rules broken; {counts}"


def run(home: Path, seconds: float, seed: int, rate: float) -> History:
    """A campaign over new directories; its history."""
    for library in ("aiokafka", "kafka"):  # what they say of a broker that is down fills screens
        logging.getLogger(library).setLevel(logging.CRITICAL)
    chaos = Chaos(home, seed, rate)
    try:
        chaos.run(seconds)
    except AssertionError:
        if not chaos.history.problems:
            raise
    finally:
        chaos.close()
    return chaos.history


def main() -> int:
    parser = argparse.ArgumentParser(description="A cluster under faults, and what became of what it acknowledged.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--rate", type=float, default=100, help="records a second of each writer, about")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="pybroker-chaos-"))
    began = time.monotonic()
    history = run(home, asked.seconds, asked.seed, asked.rate)
    for problem in history.problems:
        print(problem)
    print(summary(history, asked.seed, time.monotonic() - began))
    if history.problems:
        print(f"its data directories are kept: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
