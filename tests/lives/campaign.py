"""Random lives of a broker with clients of three libraries; `history` judges what clients received.

    python -m tests.lives.campaign --seconds 3600 --seed 7

A life starts the broker on what the last one left, with or without armed failpoints. The campaign disturbs it with
connections that are reset, half frames, random bytes, and topics that are created and deleted. SIGKILL, SIGTERM or a
failpoint ends it. At last the broker starts undisturbed, and every partition is read from its start to its end. The
last line is a summary; the exit status is 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import errno
import logging
import random
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client
from tests.harness import HOST, BrokerProcess, Ended
from tests.lives.clients import Reader, Worker, Writer
from tests.lives.groups import ConfluentGroup
from tests.lives.history import History
from tests.stores import STORES, AnyStore, alone_on, new_store
from tests.wire import Wire

TOPIC = "lives"
PARTITIONS = 4
LIVES_MIN = 3
LIBRARIES: tuple[type[Client], ...] = (Confluent, KafkaPython, Aiokafka)
CONFIG = {"segment.bytes": "300000", "index.interval.bytes": "500", "retention.ms": "-1", "file.delete.delay.ms": "999"}
SETS = {
    "log.retention.check.interval.ms": 1000, "offsets.topic.num.partitions": 2, "log.cleaner.backoff.ms": 500,
    "group.initial.rebalance.delay.ms": 0, "queued.max.request.bytes": 8 << 20, "socket.request.max.bytes": 4 << 20,
    "offsets.topic.segment.bytes": 1 << 20,
}  # fmt: skip
KILLS = (
    "append.before", "append.after", "segment.create", "segment.reserve", "segment.write", "segment.sync",
    "segment.rename", "segment.unlink", "roll.before", "roll.after", "index.write", "index.rename", "snapshot.write",
    "snapshot.sync", "snapshot.rename", "epoch.write", "metadata.write", "checkpoint.write", "checkpoint.rename",
    "partition.create", "partition.rename", "clean.write", "clean.sync", "directory.sync",
)  # fmt: skip
FULL = ("segment.write", "segment.reserve", "segment.create", "snapshot.write", "index.write", "checkpoint.write")
BROKEN = ("segment.write", "segment.sync", "index.write", "snapshot.sync")
SLOW = ("segment.sync", "snapshot.sync", "index.write", "segment.unlink", "checkpoint.sync", "directory.sync")
RULES = ("kept", "once", "in order", "whole", "constant", "committed", "start", "client")


def failpoints(chance: random.Random) -> tuple[str, str]:
    """The failpoints of a life, and its kind for the count."""
    kind = chance.choice(("none", "none", "kill", "kill", "errno", "sleep"))
    if kind == "kill":
        written = chance.randrange(70)
        return f"{chance.choice(KILLS)}=kill:{written}:{chance.randrange(60)}", "lives with a failpoint that kills"
    if kind == "errno":
        full = chance.random() < 0.5
        point = chance.choice(FULL if full else BROKEN)
        fault = f"errno:{errno.ENOSPC if full else errno.EIO}:{chance.randrange(100)}:{chance.randrange(1, 4)}"
        return f"{point}={fault}", "lives with a full disk" if full else "lives with a failing disk"
    if kind == "sleep":
        return f"{chance.choice(SLOW)}=sleep:{chance.randrange(50, 800)}:0:20", "lives with a slow disk"
    return "", "lives without a fault of the disk"


class Campaign:
    """The lives of one broker over one data directory."""

    def __init__(self, home: Path, seed: int, rate: float, store: AnyStore | None = None) -> None:
        """Without `store` the broker has the embedded one."""
        self.random = random.Random(seed)
        self.seed = seed
        self.history = History()
        self.broker = BrokerProcess(home / "data", port=0, sets={**SETS, **alone_on(store, home / "data")})
        self.broker.start()
        with Wire(self.broker.port) as wire:
            assert wire.create_topic(TOPIC, PARTITIONS, CONFIG) == 0
        self.clients: list[Client] = [library(self.broker.bootstrap) for library in LIBRARIES]
        at = (self.history, TOPIC, PARTITIONS, seed)
        self.workers: list[Worker] = [Writer(client, *at, rate) for client in self.clients]
        self.workers += [Reader(client, *at) for client in self.clients]
        self.workers.append(ConfluentGroup(self.broker.bootstrap, *at))

    def run(self, seconds: float) -> None:
        """Run lives until time is up, and LIVES_MIN of them on a busy machine, then judge."""
        until = time.monotonic() + seconds
        for worker in self.workers:
            worker.start()
        while time.monotonic() < until or self.history.counts["lives"] < LIVES_MIN:
            self.live(until)
            self.begin()
        self.end()

    def live(self, until: float) -> None:
        """Disturb a running broker, then end it."""
        counts = self.history.counts
        counts["lives"] += 1
        began = time.monotonic()
        stop_at = min(began + self.random.uniform(1, 8), max(until, began + 1))
        while time.monotonic() < stop_at and self.broker.running:
            with suppress(OSError, ConnectionError, TimeoutError):
                self.random.choice((self.reset, self.half_frames, self.nonsense, self.churn, self.rest))()
        if not self.broker.running:
            code = self.broker.wait_end()
            counts[f"ended by itself with {code}"] += 1
        elif self.random.random() < 0.75:
            self.broker.kill()
            counts["kill -9"] += 1
        else:
            with suppress(AssertionError):
                self.broker.stop()
            counts["SIGTERM"] += 1

    def begin(self) -> None:
        """Start the broker again; if a failpoint ends it during the start, start without failpoints."""
        self.broker.failpoints, kind = failpoints(self.random)
        self.history.counts[kind] += 1
        while True:
            try:
                self.broker.restart()
                return
            except Ended:
                self.history.counts["ended while it started"] += 1
                armed, self.broker.failpoints = self.broker.failpoints, ""
                self.broker.wait_end()
                if not armed:
                    self.history.accuse("start", f"it does not start any more: {self.broker.output()[-2000:]}")
                    raise

    def end(self) -> None:
        """Let the writers finish undisturbed, then read everything."""
        if self.broker.running:
            self.broker.kill()
            self.broker.failpoints = ""
        self.broker.failpoints = ""
        self.broker.restart()
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
        self.broker.stop()
        self.broker.close()

    def log(self, partition: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """All records of a partition, as librdkafka reads them."""
        at, quiet_until = 0, time.monotonic() + 30
        with self.clients[0].consumer(TOPIC, {partition: 0}, out_of_range="earliest") as consumer:
            while at < end and time.monotonic() < quiet_until:
                for record in consumer.poll(1):
                    yield record.offset, record.value
                    at, quiet_until = record.offset + 1, time.monotonic() + 30

    # -- disturbances ----------------------------------------------------------------------------------------------

    def rest(self) -> None:
        time.sleep(self.random.uniform(0.05, 0.5))

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.broker.port), 2)

    def reset(self) -> None:
        """Open connections and reset them at once, some after a request."""
        for _ in range(50):
            sock = self.connect()
            if self.random.random() < 0.5:
                sock.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            self.history.counts["connections reset"] += 1

    def half_frames(self) -> None:
        """Open connections that stop within a large frame, and hold them for a while."""
        held = []
        for _ in range(10):
            sock = self.connect()
            sock.setblocking(False)
            held.append(sock)
            with suppress(BlockingIOError):
                sock.send(struct.pack(">i", 4 << 20) + bytes(self.random.randrange(1 << 19)))
            self.history.counts["half frames"] += 1
        time.sleep(self.random.uniform(0, 1))
        for sock in held:
            sock.close()

    def nonsense(self) -> None:
        for _ in range(10):
            with self.connect() as sock:
                sock.sendall(struct.pack(">i", 40) + self.random.randbytes(40))
                self.history.counts["frames of nonsense"] += 1

    def churn(self) -> None:
        """Create a topic, append a record, and delete the topic."""
        name = f"churn-{self.random.randrange(1 << 30)}"
        with Wire(self.broker.port) as wire:
            wire.create_topic(name, self.random.randrange(1, 8))
            self.history.counts["topics that came and went"] += 1
            if self.random.random() < 0.8:
                wire.delete_topic(name)


def summary(history: History, seed: int, seconds: float) -> str:
    broken = sum(history.counts[rule] for rule in RULES)
    counts = ", ".join(f"{name} {n:,}" for name, n in sorted(history.counts.items()))
    return f"seed {seed}, {seconds:.0f} s: {'FAILED, ' if broken else ''}{broken} rules broken; {counts}"


def run(home: Path, seconds: float, seed: int, rate: float, store: AnyStore | None = None) -> History:
    """Run a campaign over a new data directory; return its history. `store`: as for Campaign."""
    for library in ("aiokafka", "kafka"):  # they log screens of errors about a broker that is down
        logging.getLogger(library).setLevel(logging.CRITICAL)
    campaign = Campaign(home, seed, rate, store)
    campaign.run(seconds)
    return campaign.history


def main() -> int:
    parser = argparse.ArgumentParser(description="Random lives of a broker, and what became of what it acknowledged.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--rate", type=float, default=100, help="records a second of each writer, about")
    parser.add_argument("--store", choices=STORES, help="what the broker coordinates in, in place of the embedded one")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="pybroker-lives-"))
    began = time.monotonic()
    with nullcontext() if asked.store is None else new_store(asked.store) as store:
        history = run(home, asked.seconds, asked.seed, asked.rate, store)
    for problem in history.problems:
        print(problem)
    print(summary(history, asked.seed, time.monotonic() - began))
    if history.problems:
        print(f"its data directory is kept: {home}")
        return 1
    shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
