"""A campaign of faults: a cluster is killed, frozen and partitioned under clients of three libraries, and judged.

    python -m tests.brokers.chaos --seconds 600 --seed 7
    python -m tests.brokers.chaos --seconds 300 --seeds 1-10
    python -m tests.brokers.chaos --seconds 60 --seed 7 --only fill_disk,kill

Three or four brokers, a store of three servers (ZooKeeper or etcd), and a network between them and their clients that
can be cut. In each round faults begin and end, one, two or three at a time (disturbances.py, store_faults.py,
damages.py), while replicas move to other brokers and log dirs (moves.py) and topics are created and deleted (churn.py);
or a broker is retired; or the store is restored from an older copy. Then all faults are undone, and all moves have to
end, replicas to be in sync again and writes acknowledged. Onlookers query each broker all the time (onlooker.py). At
the end every partition is read from start to end, its replicas are compared byte by byte, and nothing of a move may be
left (remains.py). The last line is a summary; the exit status is 1 if a rule was broken.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from pybroker.model import TopicPartition
from tests.asking import ask
from tests.brokers import moves
from tests.brokers.churn import PREFIX, Churn
from tests.brokers.damages import DAMAGES, VICTIM, Damages
from tests.brokers.disturbances import FAULTS, LEADERS_MOVE, OF_CLIENTS, OUTCOMES, RETIRE, ROLL_BACK, Disturbances
from tests.brokers.kit import Cluster
from tests.brokers.moves import Moves, Replicas
from tests.brokers.network import Network
from tests.brokers.onlooker import Onlooker
from tests.brokers.planted import BUGS
from tests.brokers.remains import remains
from tests.brokers.store_faults import start_store
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import Client, Refused
from tests.harness import until
from tests.lives.clients import Reader, Worker, Writer
from tests.lives.groups import GROUPS, ConfluentGroup
from tests.lives.history import History
from tests.stores import STORES

log = logging.getLogger(__name__)

BROKERS, LATE = 4, 4
"""Brokers, and the one that is added later."""
TOPIC = "lives"
PARTITIONS = 4
OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = 2
LIBRARIES: tuple[type[Client], ...] = (Confluent, KafkaPython, Aiokafka)
RULES = (
    "kept", "once", "in order", "whole", "constant", "committed", "end", "position", "client", "identical",
    "back", "up", "asked", "behind",
)  # fmt: skip
SESSION_MS = 3000
PAUSES_S = (0, 0.3, 1, SESSION_MS / 1000, 2 * SESSION_MS / 1000)
BACK_S_MAX = 180.0
"""The most seconds from the end of all faults until all replicas are in sync."""
RESTS_S_MAX = 20.0
"""The most seconds until all brokers know the result of a move, once no move is under way."""
UP_S_MAX = 60.0
"""The most seconds that a writer may wait for an answer during a fault of HARMLESS."""
HARMLESS = (*DAMAGES, *moves.HARMLESS, "fill_disk", "refuse", "refuse_often", "compact_store", "fill_store")
"""Faults that two of three replicas do not notice: while there are no others, writers go on."""
OUTAGES = ("kill", "stop")
"""Outages allowed beside damages of the store's nodes: another broker becomes leader within a session."""
ENDS_S_MAX = 10.0
SWITCH_S = 0.0005
"""The thread switch interval: each byte between brokers waits for a thread, and reconnecting clients load it."""
OWN_ROUNDS = {ROLL_BACK: 0.06, RETIRE: 0.1}
"""The share of rounds in which the store is restored from an older copy, or a broker is retired."""
MOVING = 0.7
"""The share of the other rounds in which replicas move."""
REST_S_MAX = 90.0
SETS: dict[str, object] = {
    "zookeeper_session_timeout_ms": SESSION_MS, "zookeeper_connection_timeout_ms": 180_000,
    "leader_imbalance_check_interval_seconds": 10, "offsets_topic_num_partitions": OFFSETS_PARTITIONS,
    "log_segment_delete_delay_ms": 1000,
}  # fmt: skip


class Chaos:
    """One cluster, its clients, and the faults that are injected."""

    def __init__(self, home: Path, seed: int, rate: float, bug: str, only: Collection[str], store: str) -> None:
        self.random = random.Random(seed)
        self.history = History()
        self.network = Network(refusing=True, has_clients=not only or bool(OF_CLIENTS & set(only)))
        self.only = only
        self.store = start_store(store, str(home / store))
        self.cluster = Cluster(
            home, self.store, BROKERS, bug, self.network, **SETS,
            log_dirs=lambda number: ",".join(str(home / f"broker-{number}" / name) for name in ("one", "two")),
        )  # fmt: skip
        self.cluster.absent.add(LATE)
        for broker in self.cluster.brokers.values():
            broker.is_fillable = True
        damages = Damages(self.cluster, TOPIC, self.random)
        self.moves = Moves(self.cluster, (TOPIC, OFFSETS), self.random, bug)
        self.faults = Disturbances(self.cluster, self.store, self.network, self.random, damages, self.moves, only)
        self.moving = [name for name, n in moves.WEIGHTS.items() for _ in range(n) if not only or name in only]
        self.faults.heal()  # starts the cluster
        self.cluster.create(TOPIC, PARTITIONS, retention_ms="-1", segment_bytes="300000")
        damages.prepare()
        self.moves.wrong = damages.wrong
        self.history.batch_of = lambda partition, offset: self.cluster.batch_of(TOPIC, partition, offset)
        self.clients = [library(self.cluster.bootstrap) for library in LIBRARIES]
        at = (self.history, TOPIC, PARTITIONS, seed)
        self.writers = [Writer(client, *at, rate) for client in self.clients]
        self.workers: list[Worker] = [*self.writers, *(Reader(client, *at) for client in self.clients)]
        self.churn = Churn(self.cluster.bootstrap, *at)
        groups = [group(self.cluster.bootstrap, *at) for group in GROUPS]
        self.workers += [*groups, self.churn]
        names = [group.name for group in groups]
        self.onlookers = [Onlooker(n, broker.port, names, *at) for n, broker in self.cluster.brokers.items()]
        self.workers += self.onlookers

    def run(self, seconds: float) -> None:
        """Inject faults until the time is over, heal, and judge."""
        for worker in self.workers:
            worker.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(self.random.uniform(0, 1))
            own = self.round_of_its_own()
            if own == ROLL_BACK:
                self.roll_back()
            elif own == RETIRE:
                self.retire()
            else:
                self.disturb()
            self.heal()
        self.judge()

    def disturb(self, among: Collection[str] = ()) -> None:
        begun: list[str] = []
        if not among and self.moving and self.random.random() < MOVING:
            begun.append(self.faults.begin(self.moving))
            time.sleep(self.random.choice(PAUSES_S[:2]))
        for _ in range(self.random.choice((1, 1, 2, 2, 3))):
            begun.append(self.faults.begin(among))
            if is_sound(begun):
                self.goes_on("up", f"with {', '.join(begun)}", UP_S_MAX)
            time.sleep(self.random.choice(PAUSES_S))
            if self.random.random() < 0.3:
                self.faults.undo_one()

    def round_of_its_own(self) -> str:
        """The name of the fault that has this round for itself, or an empty one. A number is always drawn, so that a
        seed gives the same faults either way."""
        drawn = self.random.random()
        for name, share in OWN_ROUNDS.items():
            drawn -= share if not self.only else 1 / len(self.only) if name in self.only else 0
            if drawn < 0:
                return name
        return ""

    def roll_back(self) -> None:
        """Restore the store from a copy older than the last elections, while all replicas are in sync: the copy does
        not know of lagging ones. No topic is created or deleted in between, for the same reason."""
        with self.churn.resting(REST_S_MAX) as rests:
            if not rests or OFFSETS not in self.cluster.metadata().topics:
                return
            self.faults.servers.copy()
            self.heal()
            self.disturb(LEADERS_MOVE)
            self.heal()
            self.faults.roll_back_store()
            self.heal()

    def retire(self) -> None:
        """Retire a broker while leaders and controllers move. No topic is created meanwhile, as it may get replicas on
        that broker."""
        with self.churn.resting(REST_S_MAX) as rests:
            if not rests or self.cluster.absent:
                return
            retired = self.moves.retire()
            next(retired)
            self.disturb(LEADERS_MOVE)
            self.heal()
            next(retired, None)
            self.rest()  # until all brokers know that it is gone: no topic is placed on it
            self.faults.counts[RETIRE.replace("_", " ")] += 1

    def heal(self) -> None:
        """Undo all faults; the cluster recovers by itself."""
        on = ", ".join(self.faults.on)
        self.faults.heal()
        self.moves.end_commands()
        log.info("healed")
        after = f"after {on or 'what passed'}"
        try:
            self.rest()
            while not self.moves.rested(self.placed):
                self.rest()
        except AssertionError as problem:
            self.history.accuse("back", f"{after}: {problem}: {self.moves.under_way} {self.told}")
            raise
        self.goes_on("back", after, BACK_S_MAX)

    def rest(self) -> None:
        """Wait until nothing moves, and all replicas are in sync and those that were asked for."""
        until("all moves end", self.moves.ended, BACK_S_MAX, every_s=0.1)
        until("all brokers say that all are in sync", self.whole, BACK_S_MAX, every_s=0.05)
        try:
            until("replicas are as asked", lambda: self.whole() and not self.unexpected(), RESTS_S_MAX)
        except AssertionError:
            for wrong in self.unexpected():
                self.history.accuse("asked", wrong)
            raise

    def unexpected(self) -> list[str]:
        return self.moves.unexpected(self.placed)

    def goes_on(self, rule: str, when: str, timeout_s: float) -> None:
        """Wait until each writer gets one more answer."""
        before = {writer: self.acknowledged(writer) for writer in self.writers}
        try:
            for writer in self.writers:
                until(f"{writer.name} goes on", lambda w=writer: self.acknowledged(w) > before[w], timeout_s)
        except AssertionError as problem:
            self.history.accuse(rule, f"{when}: {problem}")
            raise

    def whole(self) -> bool:
        """True if all brokers know the same controller, and for each partition a leader and replicas in sync."""
        views: list[tuple[int, dict[TopicPartition, tuple[int, Replicas]]]] = []
        self.told = ""
        for broker in (self.cluster.brokers[number] for number in self.cluster.present):
            try:
                told = ask(broker.port, "Metadata", 9, topics=None)
            except (OSError, struct.error):
                return False
            topics = [topic for topic in told.topics if topic.name in (TOPIC, OFFSETS, VICTIM)]
            states = [f"{t.name}-{p.partition_index} {p.leader_id} {p.isr_nodes}" for t in topics for p in t.partitions]
            self.told += f"\n    {broker.port}: controller {told.controller_id}, {'; '.join(states)}"
            placed = {TopicPartition(topic.name, p.partition_index): p for topic in topics for p in topic.partitions}
            if len(told.brokers) != len(self.cluster.present):
                return False
            if any({*p.isr_nodes} != {*p.replica_nodes} for p in placed.values()):
                return False
            views.append((told.controller_id, {tp: (p.leader_id, tuple(p.replica_nodes)) for tp, p in placed.items()}))
        controller, found = views[0]
        self.placed = {tp: replicas for tp, (_, replicas) in found.items()}
        return all(view == views[0] for view in views) and -1 not in {controller, *(each for each, _ in found.values())}

    def acknowledged(self, writer: Writer) -> int:
        return self.history.counts[f"acknowledged by {writer.client.name}"]

    # -- judging -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        for worker in self.workers:
            worker.ended.set()
        for worker in self.workers:
            worker.join(120)
            if isinstance(worker, ConfluentGroup) and worker.is_polling:
                # This poll of half a second does not depend on brokers: two threads of the library wait for each
                # other's lock (https://github.com/confluentinc/librdkafka/issues/5476).
                self.history.counts["librdkafka hangs"] += 1
            elif worker.is_alive():
                self.history.accuse("client", f"{worker.name} does not end")
        for partition in range(PARTITIONS):
            start, end = self.offsets(partition)
            self.history.check_log(partition, self.log(partition, end), start, end)
            self.history.counts["partitions read"] += 1
        for client in self.clients:
            client.close()
        for name, partitions in ((TOPIC, PARTITIONS), (OFFSETS, OFFSETS_PARTITIONS), (VICTIM, 1)):
            try:
                until("replicas are the same", lambda n=name, p=partitions: not self.cluster.differing(n, range(p)))
            except AssertionError:
                for wrong in self.cluster.differing(name, range(partitions)):
                    self.history.accuse("identical", wrong)
        self.churn.end()
        try:
            until("deleted topics are gone", lambda: not self.left(), BACK_S_MAX)
        except AssertionError:
            self.history.accuse("back", f"topics that were deleted are there: {self.left()}")
        try:
            until("nothing is left behind", lambda: not remains(self.cluster), BACK_S_MAX, every_s=0.5)
        except AssertionError:
            for each in remains(self.cluster):
                self.history.accuse("behind", each)

    def offsets(self, partition: int) -> tuple[int, int]:
        """The start and end of a partition, even while its leadership returns to the preferred replica. Each call uses
        a new client, as librdkafka's admin client keeps using the first leader epoch that it got."""
        found: list[tuple[int, int]] = []

        def told() -> bool:
            with suppress(Refused):
                found.append(LIBRARIES[0](self.cluster.bootstrap).offsets(TOPIC, partition))
            return bool(found)

        until("the leader says where it ends", told, BACK_S_MAX, every_s=0.5)
        return found[0]

    def log(self, partition: int, end: int) -> Iterator[tuple[int, bytes | None]]:
        """Yield all records of a partition, as librdkafka reads them."""
        at, quiet_until = 0, time.monotonic() + 30
        with self.clients[0].consumer(TOPIC, {partition: 0}, out_of_range="earliest") as consumer:
            while at < end and time.monotonic() < quiet_until:
                for record in consumer.poll(1):
                    yield record.offset, record.value
                    at, quiet_until = record.offset + 1, time.monotonic() + 30

    def left(self) -> list[str]:
        """The topics and logs left of topics that were deleted."""
        topics = self.cluster.metadata().topics
        walks = (os.walk(broker.data_dir) for broker in self.cluster.brokers.values())  # ignores vanished ones
        logs = (f"{place}/{name}" for walk in walks for place, names, _ in walk for name in names)
        return [name for name in (*topics, *logs) if name.rpartition("/")[2].startswith(PREFIX)]

    def close(self) -> None:
        """Close the cluster; the brokers' output is saved beside their data."""
        self.cluster.close()
        self.moves.close()
        for broker in self.cluster.brokers.values():
            broker.data_dir.with_suffix(".log").write_text("\n".join(broker.log))
        self.network.close()
        self.store.close()


def is_sound(begun: Collection[str]) -> bool:
    """True if these faults, some of which may be over, delay writers for a moment only."""
    out = [name for name in begun if name in OUTAGES]
    beside = (*DAMAGES, *moves.HARMLESS) if out else HARMLESS
    return len(out) <= 1 and all(name in beside for name in begun if name not in out)


def summary(history: History, faults: int, seed: int, seconds: float) -> str:
    broken = sum(history.counts[rule] for rule in RULES)
    first = ("acknowledged", "lost", "duplicated", "partitions read")  # some may be missing: ended unjudged
    told = ", ".join(f"{history.counts[name]:,} {name}" for name in first)
    more = ", ".join(f"{name} {n:,}" for name, n in sorted(history.counts.items()) if name not in first)
    verdict = f"FAILED, {broken} rules broken" if broken else "no rule broken"
    return f"{told}, {faults:,} faults, seed {seed}, {seconds:.0f} s: {verdict}; {more}"


def run(
    home: Path,
    seconds: float,
    seed: int,
    rate: float,
    bug: str = "",
    only: Collection[str] = (),
    store: str = STORES[0],
) -> tuple[History, int]:
    """Run a campaign on new directories; return its history and the number of faults. `bug` is a name in planted.py.
    `only` is the faults that may occur, `store` one of STORES."""
    for library in ("aiokafka", "kafka", "kazoo"):  # they log screens of errors about servers that are down
        logging.getLogger(library).setLevel(logging.CRITICAL)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    chaos = Chaos(home, seed, rate, bug, only, store)
    try:
        chaos.run(seconds)
    except AssertionError:
        if not (chaos.history.problems or chaos.faults.wrong):
            raise
    finally:
        for worker in chaos.workers:
            worker.ended.set()
        chaos.close()
        for worker in chaos.workers:  # if the campaign was not judged, stop its load before other tests run
            worker.join(ENDS_S_MAX)
    sys.setswitchinterval(interval_s)
    for wrong in chaos.faults.wrong:
        chaos.history.accuse("back", wrong)
    faults = chaos.faults.counts.total() - sum(chaos.faults.counts[each] for each in OUTCOMES)
    chaos.history.counts.update(chaos.faults.counts)
    return chaos.history, faults


def seeds(text: str) -> list[int]:
    """Parse `3` or `1-10` for argparse."""
    first, _, last = text.partition("-")
    return [*range(int(first), int(last or first) + 1)]


def names(text: str) -> list[str]:
    return text.split(",")


def one(asked: argparse.Namespace, seed: int) -> tuple[str, bool]:
    """Run a campaign and print its result; return its summary, and True if no rule was broken."""
    home = Path(tempfile.mkdtemp(prefix="pybroker-chaos-"))
    began = time.monotonic()
    history, faults = run(home, asked.seconds, seed, asked.rate, asked.bug, asked.only, asked.store)
    for problem in history.problems:
        print(problem)
    if history.problems:
        print(f"its data directories are kept: {home}")
    else:
        shutil.rmtree(home)
    told = summary(history, faults, seed, time.monotonic() - began)
    print(told, flush=True)
    return told, not history.problems


def main() -> int:
    parser = argparse.ArgumentParser(description="A cluster under faults, and what became of what it acknowledged.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--seeds", type=seeds, default=(), help="campaigns one after the other, as 1-10")
    parser.add_argument("--rate", type=float, default=100, help="records a second of each writer, about")
    parser.add_argument("--bug", choices=BUGS, default="", help="of tests/brokers/planted.py: it is to be found")
    parser.add_argument("--only", type=names, default=(), metavar="FAULT[,FAULT]", help="no other faults than these")
    parser.add_argument("--store", choices=STORES, default=STORES[0], help="what the cluster coordinates in")
    parser.add_argument("--told", action="store_true", help="tell of each fault when it comes")
    asked = parser.parse_args()
    if unknown := set(asked.only) - set(FAULTS):
        parser.error(f"no faults: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    if asked.told:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        for library in ("kazoo", "kafka", "aiokafka"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
    found = [one(asked, seed) for seed in asked.seeds or (asked.seed,)]
    if len(found) > 1:
        print("\n".join(told.partition(";")[0] for told, _ in found))
    return 0 if all(kept for _, kept in found) else 1


if __name__ == "__main__":
    sys.exit(main())
