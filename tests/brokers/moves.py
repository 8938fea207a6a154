"""Replicas that move during a campaign: between brokers and log dirs, and to brokers that join.

    begin ──> a reassignment is under way, other faults begin and end ──> undo: cancelled, or it goes on
    all faults are undone ──> nothing moves, three replicas, no throttle

Each is a generator like the faults of disturbances.py. A request may be refused, or its answer lost: `Expected` has
the replicas that a partition may have afterwards.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from pybroker import Admin, PartitionReassignment
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.brokers.churn import PREFIX
from tests.brokers.kit import Cluster
from tests.harness import Process

log = logging.getLogger(__name__)

WEIGHTS = {
    "move": 5, "change_factor": 2, "drain": 2, "execute_throttled": 3, "move_log_dirs": 4, "add_broker": 4,
}  # fmt: skip
"""The relative frequency of each."""
MOVES = tuple(WEIGHTS)
HARMLESS = ("move", "drain", "execute_throttled", "move_log_dirs", "add_broker")
"""Those that no writer notices, as the number of replicas in sync never shrinks."""
FACTOR = 3
"""The replicas of each partition when all is settled."""
ANSWER_S = 3.0
COMMAND_S = 60.0
COMMANDS_MAX = 5
"""Attempts of a command in a healthy cluster."""
RATES = (200_000, 1_000_000)
CANCELLED = 0.4
"""The share of moves that are cancelled when they are undone."""
INTERRUPTED = 0.7
"""The share of commands that are ended before they have done their work."""
Replicas = tuple[int, ...]
Fault = Iterator[None]


class Expected:
    """The replicas that a partition may have once its reassignments have ended, by the answers so far. A cancel may
    leave them in another order, as in Kafka."""

    def __init__(self) -> None:
        self.possible: set[Replicas] = set()
        self.sets: set[frozenset[int]] = set()
        """Those after a cancel, in any order."""
        self.rested: set[frozenset[int]] = set()
        """Those to which a cancel may return."""
        self.is_known = False
        """False if requests were sent of which nothing is known, or nothing was seen yet."""

    def at_rest(self, replicas: Replicas) -> None:
        """Note what the partition has while nothing moves."""
        self.possible, self.sets, self.rested, self.is_known = {replicas}, set(), {frozenset(replicas)}, True

    def asked(self, target: Replicas | None, accepted: bool) -> None:
        """Note a request for a target, or for a cancel. One that was not accepted may have had an effect all the same,
        as the client repeats a request whose answer is lost."""
        if target is not None:  # any of these may have been reached when it began
            self.rested = self.rested | self.sets | {frozenset(each) for each in self.possible}
        if accepted:
            self.possible, self.sets = set(), set()
        if target is None:
            self.sets = self.sets | self.rested
        else:
            self.possible = self.possible | {target}

    def allows(self, replicas: Replicas) -> bool:
        return not self.is_known or replicas in self.possible or frozenset(replicas) in self.sets

    def __repr__(self) -> str:
        return f"{sorted(self.possible)}, or in any order {sorted(map(sorted, self.sets))}"


class Moves:
    """The moves of one cluster, all called by one thread."""

    def __init__(self, cluster: Cluster, judged: Collection[str], chance: random.Random, bug: str = "") -> None:
        """`judged`: the topics whose replicas are checked."""
        self.cluster = cluster
        self.judged = judged
        self.chance = chance
        self.bug = bug
        self.under_way: dict[TopicPartition, PartitionReassignment] = {}
        self.expected: defaultdict[TopicPartition, Expected] = defaultdict(Expected)
        self.wrong: list[str] = []
        self._commands: list[Process] = []
        self._throttled = False
        self._known: dict[TopicPartition, Replicas] = {}
        """The replicas of all partitions, as some broker answered last."""

    # -- requests ----------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Ask for all partitions; False if no broker answers."""
        try:
            with Admin(self.cluster.bootstrap, timeout_s=ANSWER_S) as admin:
                topics = admin.topics()
        except (KafkaError, OSError):
            return False
        self._known = {TopicPartition(t.name, p.partition): tuple(p.replicas) for t in topics for p in t.partitions}
        return True

    def _movable(self) -> list[TopicPartition]:
        """The partitions that may be moved during faults: damages have a topic of their own."""
        self._look()
        return [tp for tp in self._known if tp.topic in self.judged or tp.topic.startswith(PREFIX)]

    def ask(self, targets: Mapping[TopicPartition, Replicas | None]) -> None:
        """Send one request, whether or not it is answered."""
        log.info("move %s", {str(tp): target for tp, target in targets.items()})
        found: Mapping[TopicPartition, KafkaError | None] | None = None
        try:
            with Admin(self.cluster.bootstrap, timeout_s=ANSWER_S) as admin:
                found = admin.alter_partition_reassignments(targets)
        except (KafkaError, OSError) as problem:
            log.info("moves without an answer: %s", problem)
        for tp, target in targets.items():
            self.expected[tp].asked(target, accepted=found is not None and found[tp] is None)

    def _some(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        return self.chance.sample(partitions, self.chance.randint(1, len(partitions))) if partitions else []

    def _to(self, count: int) -> Replicas:
        brokers = self.cluster.present
        return tuple(self.chance.sample(brokers, min(count, len(brokers))))

    def _moving(self, targets: Mapping[TopicPartition, Replicas]) -> Fault:
        """Begin to move partitions; in the end some go on, and some are cancelled."""
        if targets:
            self.ask(targets)
        yield
        cancelled = [tp for tp in targets if self.chance.random() < CANCELLED]
        if cancelled:
            self.ask(dict.fromkeys(cancelled))

    # -- moves between brokers ---------------------------------------------------------------------------------------

    def move(self) -> Fault:
        """Move some partitions to other brokers, and later some of them again, while the first move may go on."""
        return self._moving({tp: self._to(FACTOR) for tp in self._some(self._movable())})

    def change_factor(self) -> Fault:
        """Give some partitions fewer or more replicas."""
        count = self.chance.randint(1, len(self.cluster.present))
        return self._moving({tp: self._to(count) for tp in self._some(self._movable())})

    def drain(self) -> Fault:
        """Move all partitions off a broker, as far as there are others."""
        number = self.chance.choice(self.cluster.present)
        log.info("drain %s", number)
        return self._moving(
            {tp: self._without(replicas, number) for tp in self._movable() if number in (replicas := self._known[tp])}
        )

    def _without(self, replicas: Replicas, number: int) -> Replicas:
        others = [each for each in self.cluster.present if each != number and each not in replicas]
        kept = [each for each in replicas if each != number]
        return (*kept, *self.chance.sample(others, min(1, len(others))))

    def execute_throttled(self) -> Fault:
        """Run `pybroker reassign execute --throttle`; then it is interrupted or killed, if it still runs."""
        targets = {tp: self._to(FACTOR) for tp in self._some(self._movable())}
        if targets:
            self.execute(targets, self.chance.choice(RATES))
        yield
        for command in self._commands:
            if command.running and self.chance.random() < INTERRUPTED:
                command.signal(self.chance.choice((signal.SIGINT, signal.SIGKILL)))

    def execute(self, targets: Mapping[TopicPartition, Replicas], rate: int) -> None:
        """Begin to carry out a plan at a throttle."""
        log.info("execute %s at %s", {str(tp): target for tp, target in targets.items()}, rate)
        document = [{"topic": tp.topic, "partition": tp.partition, "replicas": r} for tp, r in targets.items()]
        file = self.cluster.brokers[1].data_dir.with_suffix(".json")
        file.write_text(json.dumps({"version": 1, "partitions": document}))
        self._expect_anything(targets)
        self._throttled = True
        self._commands.append(self._command("execute", str(file), "--throttle", str(rate)))

    def _command(self, *words: str, of: str = "reassign") -> Process:
        planted = ["-m", "tests.brokers.planted", self.bug] if self.bug else ["-m", "pybroker"]
        return Process([sys.executable, *planted, of, *words, "-b", self.cluster.bootstrap])

    # -- brokers -----------------------------------------------------------------------------------------------------

    def add_broker(self) -> Fault:
        """Start a broker that was absent, with an empty disk, and move partitions to it while it starts."""
        number = self.chance.choice(sorted(self.cluster.absent))
        log.info("add %s", number)
        self.cluster.absent.discard(number)
        self.cluster.brokers[number].begin()
        yield
        tps = self._some(self._movable())
        kept = {tp: [broker for broker in self._known[tp] if broker != number] for tp in tps}
        if tps:
            self.ask({tp: (number, *kept[tp][: FACTOR - 1]) for tp in tps})

    def retire(self) -> Fault:
        """Have `pybroker brokers retire` empty a broker while other faults come and go. Once all is well it succeeds,
        and the broker leaves the cluster, without its data."""
        number = self.chance.choice(self.cluster.present)
        log.info("retire %s", number)
        words = "retire", str(number), "--yes", "--disk-limit", "100"
        self._look()
        self._expect_anything(self._known)
        self._commands.append(self._command(*words, of="brokers"))
        yield
        self._expect_anything(self._known)  # again: the cluster has come to rest meanwhile
        self.succeed(*words, of="brokers")
        broker = self.cluster.brokers[number]
        broker.stop()
        self.cluster.absent.add(number)
        shutil.rmtree(broker.data_dir)

    def _expect_anything(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that a command may or may not move these partitions, sooner or later."""
        for tp in partitions:
            self.expected[tp].is_known = False

    def succeed(self, *words: str, of: str = "reassign") -> None:
        """Run a command in a healthy cluster until it succeeds. AssertionError if it never does."""
        for _ in range(COMMANDS_MAX):
            command = self._command(*words, of=of)
            code = command.wait(COMMAND_S)
            if code == 0:
                return
        self.wrong.append(f"pybroker {of} {' '.join(words)} ended with {code}: {command.output()}")
        raise AssertionError(self.wrong[-1])

    # -- log dirs ----------------------------------------------------------------------------------------------------

    def move_log_dirs(self) -> Fault:
        """Move some replicas of a broker between its log dirs; later some are moved back."""
        number = self.chance.choice(self.cluster.present)
        here = [tp for tp in self._movable() if number in self._known[tp]]
        moved = {tp: self.chance.choice(self.cluster.log_dirs(number)) for tp in self._some(here)}
        self.change_log_dirs(number, moved)
        yield
        others = {tp: self.chance.choice(self.cluster.log_dirs(number)) for tp in moved}
        self.change_log_dirs(number, {tp: to for tp, to in others.items() if self.chance.random() < CANCELLED})

    def change_log_dirs(self, number: int, dirs: Mapping[TopicPartition, str]) -> None:
        log.info("at %s move %s", number, {str(tp): path for tp, path in dirs.items()})
        with suppress(KafkaError, OSError), Admin(self.cluster.bootstrap, timeout_s=ANSWER_S) as admin:
            if dirs:
                admin.alter_replica_log_dirs(number, dirs)

    # -- the end of a round ------------------------------------------------------------------------------------------

    def kinds(self) -> dict[str, Callable[[], Fault]]:
        return {name: getattr(self, name) for name in MOVES}

    def ended(self) -> bool:
        """True if the controller answers that nothing is being moved."""
        try:
            with Admin(self.cluster.bootstrap, timeout_s=ANSWER_S) as admin:
                self.under_way = admin.list_partition_reassignments()
        except (KafkaError, OSError):
            return False
        return not self.under_way

    def unexpected(self, placed: Mapping[TopicPartition, Replicas]) -> list[str]:
        """Return a sentence for each partition that rests on other replicas than those that were asked for."""
        return [
            f"{tp} is on {replicas}, and these were asked for: {self.expected[tp]}"
            for tp, replicas in placed.items()
            if not self.expected[tp].allows(replicas)
        ]

    def rested(self, placed: Mapping[TopicPartition, Replicas]) -> bool:
        """Note where partitions rest. If each has FACTOR replicas, remove a throttle that was left, and return True;
        else begin to give them that many. AssertionError if the throttle stays."""
        for tp, replicas in placed.items():
            self.expected[tp].at_rest(replicas)
        if off := [tp for tp, replicas in placed.items() if len(replicas) != FACTOR]:
            self.ask({tp: self._to(FACTOR) for tp in off})
            return False
        if self._throttled:
            self.succeed("status")
            self._throttled = False
        return True

    def end_commands(self) -> None:
        """Wait until the commands have ended, which takes no longer than the cluster has to recover."""
        for command in self._commands:
            with suppress(AssertionError):
                command.wait(COMMAND_S)
            command.kill()
        self._commands.clear()

    def close(self) -> None:
        """Kill the commands that still run."""
        for command in self._commands:
            command.kill()
