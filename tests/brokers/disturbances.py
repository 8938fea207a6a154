"""The faults that a campaign injects: each begins, lasts while others begin and end, and is undone.

    begin ──> on: others begin, some end ──> undo; or heal: all are undone, the cluster is healthy

No fault may lose acknowledged records: unclean elections are off, and a killed process leaves its writes in the page
cache. So faults may overlap in any way, and all brokers may be down at once.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import partial

import confluent_kafka as ck
from kazoo.exceptions import NoNodeError

from tests.brokers import moves, store_faults
from tests.brokers.damages import DAMAGES, Damages
from tests.brokers.editor import editing
from tests.brokers.kit import Cluster
from tests.brokers.moves import Moves
from tests.brokers.network import CLIENTS, STORE, Network
from tests.brokers.store_faults import StoreFaults
from tests.harness import STOP_S_MAX, Ended
from tests.stores import AnyStore

log = logging.getLogger(__name__)

Fault = Iterator[None]
"""A generator: the fault begins before the `yield`, and is undone after it."""
WEIGHTS = {
    "kill": 4, "kill_controller": 2, "kill_two": 2, "kill_all": 1, "stop": 2, "freeze": 3, "freeze_two": 1,
    "cut_two_brokers": 2, "cut_from_brokers": 2, "cut_from_store": 2, "cut_from_everybody": 2, "cut_one_way": 2,
    "reset": 1, "elect_preferred": 2, "elect_and_kill": 2, "depose": 1, "evict": 1, "fill_disk": 2, "fill_two": 1,
    "cut_clients_one_way": 2, "strand_clients": 1, "refuse": 1, "refuse_by_all": 1, "refuse_two": 1, "refuse_often": 1,
}  # fmt: skip
"""The relative frequency of each fault; those of damages.py have the weight 1, those of store_faults.py their own."""
LEADERS_MOVE = ("kill", "kill_controller", "kill_two", "freeze", "elect_preferred", "depose")
"""The faults that make leaders and controllers move."""
ROLL_BACK, RETIRE = "roll_back_store", "retire_broker"
"""The names of the faults that have rounds of their own."""
OF_CLIENTS = {"cut_clients_one_way", "strand_clients"}
"""The faults that need clients to go through the network."""
FAULTS = (*WEIGHTS, *store_faults.WEIGHTS, *DAMAGES, *moves.MOVES, ROLL_BACK, RETIRE)
OF_STORE = {*store_faults.WEIGHTS, "depose", "evict", *DAMAGES}
"""The faults that need all of the store's servers."""
FROM_STORE = {"cut_from_store", "cut_from_everybody", "cut_one_way", "strand_clients"}
"""The faults that may keep a broker from the store, and so from learning that its registration was deleted: until its
lease ends it answers with the end of a log that another broker leads."""
OUTCOMES = ("starts refused", "stopped early")
"""Outcomes of faults that are counted beside the faults."""
START_S_MAX = 180.0
STARTS_MAX = 3
"""Attempts to start a broker in a healthy cluster; the first may meet its own earlier session."""


class Disturbances:
    """The faults of one cluster, all called by one thread. `wrong` has the forbidden actions of brokers."""

    def __init__(
        self, cluster: Cluster, store: AnyStore, network: Network, chance: random.Random, damages: Damages,
        moves: Moves, only: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`only` has the names of the faults that may occur; empty for all."""
        self.cluster = cluster
        self.store = store
        self.servers = StoreFaults(store, chance)
        self.network = network
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self.wrong = damages.wrong
        self.on: dict[str, Fault] = {}
        self._stopping: set[int] = set()
        self._frozen: set[int] = set()
        self.kinds: dict[str, Callable[[], Fault]] = {
            **{name: getattr(self, name) for name in WEIGHTS},
            **self.servers.kinds(),
            **{name: partial(damages.damage, name) for name in DAMAGES},
            **moves.kinds(),
        }
        weights = {**WEIGHTS, **store_faults.WEIGHTS, **dict.fromkeys(DAMAGES, 1)}
        self._names = [name for name, weight in weights.items() for _ in range(weight) if not only or name in only]

    def begin(self, among: Collection[str] = ()) -> str:
        """Begin a fault that is not active and return its name, empty if there is none. `among`: one of these."""
        names = [name for name in among or self._names if self._possible(name)]
        if not names:
            return ""
        name = self.chance.choice(names)
        log.info("begin %s", name)
        fault = self.kinds[name]()
        with suppress(StopIteration):
            next(fault)
            self.on[name] = fault
        self.counts[name.replace("_", " ")] += 1
        return name

    def _possible(self, name: str) -> bool:
        """True if the fault can begin. Faults of the store's servers do not overlap, as a start needs them all. A
        broker is drained only while there is a fourth one: two replicas are too few for one to fail. No registration is
        deleted while a broker may not learn it."""
        if name == "evict" and FROM_STORE & self.on.keys():
            return False
        if (name == "add_broker" and not self.cluster.absent) or (name == "drain" and self.cluster.absent):
            return False
        if not self.servers.is_possible(name):
            return False
        return name not in self.on and not (name in OF_STORE and OF_STORE & self.on.keys())

    def undo_one(self) -> None:
        if self.on:
            self._undo(self.chance.choice(list(self.on)))

    def _undo(self, name: str) -> None:
        log.info("undo %s", name)
        for _ in self.on.pop(name):
            pass

    def heal(self) -> None:
        """Undo all faults, in any order; then all brokers run and serve."""
        while self.on:
            self.undo_one()
        self.network.heal()
        for number in list(self._stopping):
            self._wait_stopped(number)
        for _ in range(STARTS_MAX):
            for number in self.cluster.present:
                self._start(number)
            late = [number for number in self.cluster.present if not self._serves(number)]
            if not late:
                return
        self.wrong.append(f"brokers {late} do not start any more:\n{self.output(*late)}")
        raise AssertionError(self.wrong[-1])

    def output(self, *numbers: int) -> str:
        return "\n".join(f"-- broker {n}\n{self.cluster.brokers[n].output()[-6000:]}" for n in numbers)

    # -- brokers -----------------------------------------------------------------------------------------------------

    def any_broker(self) -> int:
        return self.chance.choice(self.cluster.present)

    def others(self, number: int) -> list[int]:
        return [each for each in self.cluster.present if each != number]

    def _kill(self, *numbers: int) -> Fault:
        """`kill -9` the running ones, one right after the other; brokers that stopped meanwhile are left alone."""
        log.info("kill %s", numbers)
        processes = [process for n in numbers if (process := self.cluster.brokers[n].process) and process.running]
        for process in processes:
            process.signal(signal.SIGKILL)
        for process in processes:
            process.wait(STOP_S_MAX)
        yield
        for number in numbers:
            self._start(number)

    def kill(self) -> Fault:
        return self._kill(self.any_broker())

    def kill_two(self) -> Fault:
        return self._kill(*self.chance.sample(self.cluster.present, 2))

    def kill_all(self) -> Fault:
        return self._kill(*self.cluster.present)

    def kill_controller(self) -> Fault:
        return self._kill(self._controller())

    def _controller(self) -> int:
        """The controller, or any broker if none is known."""
        with suppress(ck.KafkaException):
            if (number := self.cluster.controller(2)) in self.cluster.brokers:
                return number
        return self.any_broker()

    def stop(self) -> Fault:
        """Send SIGTERM, during any other faults."""
        number = self.any_broker()
        log.info("stop %s", number)
        broker = self.cluster.brokers[number]
        if broker.running and number not in self._frozen | self._stopping:
            self._stopping.add(number)
            self.cluster.signal(number, signal.SIGTERM)
        yield
        self._start(number)

    def _wait_stopped(self, number: int) -> None:
        process = self.cluster.brokers[number].process
        assert process is not None
        try:
            process.wait(STOP_S_MAX)
        except AssertionError as problem:
            self.wrong.append(f"broker {number} does not stop: {problem}")
            process.kill()
        self._start(number)

    def _start(self, number: int) -> None:
        """Start the broker again, unless it runs or is still stopping."""
        broker = self.cluster.brokers[number]
        if broker.running:
            return
        if broker.process is not None:
            self._bury(number)
        broker.begin()

    def _bury(self, number: int) -> None:
        """Check the exit code of a broker that has ended: by a signal that it was sent, or by a refused start."""
        broker = self.cluster.brokers[number]
        assert broker.process is not None
        lines = broker.process.lines
        code = broker.wait_end()
        early = not any("pybroker ready" in line for line in lines)
        if early and code == 1:
            self.counts["starts refused"] += 1
        elif early and code == -signal.SIGTERM and number in self._stopping:
            self.counts["stopped early"] += 1  # before its signal handlers were installed
        elif code != -signal.SIGKILL and (code or number not in self._stopping):
            self.wrong.append(f"broker {number} ended with {code}:\n{self.output(number)}")
        self._stopping.discard(number)

    def _serves(self, number: int) -> bool:
        broker = self.cluster.brokers[number]
        assert broker.process is not None
        try:
            broker.on_ready(broker.process.wait_line(broker.ready_line, START_S_MAX))
        except Ended:
            return False
        return True

    def _freeze(self, *numbers: int) -> Fault:
        """Freeze the running ones, until this is undone."""
        log.info("freeze %s", numbers)
        frozen = [n for n in numbers if self.cluster.brokers[n].running and n not in self._frozen]
        for number in frozen:
            self.cluster.brokers[number].process.signal(signal.SIGSTOP)  # type: ignore[union-attr]
        self._frozen.update(frozen)
        yield
        for number in frozen:
            self._frozen.discard(number)
            if self.cluster.brokers[number].running:
                self.cluster.signal(number, signal.SIGCONT)

    def freeze(self) -> Fault:
        return self._freeze(self.any_broker())

    def freeze_two(self) -> Fault:
        return self._freeze(*self.chance.sample(self.cluster.present, 2))

    # -- disks -------------------------------------------------------------------------------------------------------

    def _fill(self, *numbers: int) -> Fault:
        """Make every write of these brokers fail with ENOSPC, in their next lives too."""
        log.info("fill %s", numbers)
        for number in numbers:
            self.cluster.brokers[number].full.touch()
        yield
        for number in numbers:
            self.cluster.brokers[number].full.unlink(missing_ok=True)

    def fill_disk(self) -> Fault:
        return self._fill(self.any_broker())

    def fill_two(self) -> Fault:
        return self._fill(*self.chance.sample(self.cluster.present, 2))

    # -- the network -------------------------------------------------------------------------------------------------

    def _cut(self, cut: Callable[..., None], *ends: int) -> Fault:
        """Cut connections; undone with all other cuts of the same ends."""
        log.info("cut %s", ends)
        cut(*ends)
        yield
        self.network.heal(*ends)

    def cut_two_brokers(self) -> Fault:
        return self._cut(self.network.cut, *self.chance.sample(self.cluster.present, 2))

    def cut_from_brokers(self) -> Fault:
        number = self.any_broker()
        return self._cut(self.network.cut_off, number, *self.others(number))

    def cut_from_store(self) -> Fault:
        return self._cut(self.network.cut, self.any_broker(), STORE)

    def cut_from_everybody(self) -> Fault:
        number = self.any_broker()
        return self._cut(self.network.cut_off, number, STORE, *self.others(number))

    def cut_one_way(self) -> Fault:
        return self._cut(self.network.cut_one_way, *self.chance.sample([STORE, *self.cluster.present], 2))

    def cut_clients_one_way(self) -> Fault:
        """Hold back the requests of clients, or the answers to them."""
        numbers = self.chance.sample(self.cluster.present, self.chance.choice((1, 1, 2)))
        for number in numbers:
            self.network.cut_one_way(*self.chance.sample((CLIENTS, number), 2))
        log.info("cut clients of %s", numbers)
        yield
        for number in numbers:
            self.network.heal(CLIENTS, number)

    def strand_clients(self) -> Fault:
        """Leave clients only one broker, which reaches neither the store nor another broker."""
        number = self.any_broker()
        log.info("strand clients at %s", number)
        self.network.cut_off(number, STORE, *self.others(number))
        self.network.cut_off(CLIENTS, *self.others(number))
        yield
        self.network.heal(STORE, *self.cluster.present)
        self.network.heal(CLIENTS, *self.others(number))

    def _refuse(self, *numbers: int, by_all: bool = False) -> None:
        """Give the controller the false proof of a death: the broker is alive and has its session."""
        controller = self._controller()
        for number in numbers:
            log.info("refuse %s", number)
            others = self.others(number)
            self.network.refuse(number, *(others if by_all or number == controller else (controller,)))

    def _accept(self, *numbers: int) -> None:
        for number in numbers:
            self.network.accept(number)

    def refuse(self) -> Fault:
        """End and refuse the controller's connection; the followers' connections go on."""
        number = self.any_broker()
        self._refuse(number)
        yield
        self._accept(number)

    def refuse_by_all(self) -> Fault:
        number = self.any_broker()
        self._refuse(number, by_all=True)
        yield
        self._accept(number)

    def refuse_two(self) -> Fault:
        numbers = self.chance.sample(self.cluster.present, 2)
        self._refuse(*numbers)
        yield
        self._accept(*numbers)

    def refuse_often(self) -> Fault:
        """Refuse connections to a broker again, as soon as it may have registered again."""
        number = self.any_broker()
        for _ in range(3):
            self._refuse(number)
            time.sleep(self.chance.uniform(0.3, 1))
            self._accept(number)
            time.sleep(self.chance.uniform(0, 0.5))
        yield from ()

    def reset(self) -> Fault:
        self.network.reset(STORE, *self.cluster.present)
        yield from ()

    # -- the store -----------------------------------------------------------------------------------------------------

    def roll_back_store(self) -> None:
        """Restart the store on its copy. Sessions that have seen later transactions are refused. Brokers run meanwhile,
        or are down and are started by `heal`."""
        log.info("roll back the store")
        if self.chance.random() < 0.5:
            next(self._kill(*self.cluster.present))
        self.servers.roll_back()
        self.counts[ROLL_BACK.replace("_", " ")] += 1

    # -- leaders and controllers that move ---------------------------------------------------------------------------

    def _elect(self) -> None:
        self.cluster.admin.elect_leaders(ck.ElectionType.PREFERRED, None)  # with or without an answer

    def elect_preferred(self) -> Fault:
        self._elect()
        yield from ()

    def elect_and_kill(self) -> Fault:
        """Kill the controller during an election."""
        number = self._controller()
        self._elect()
        return self._kill(number)

    def depose(self) -> Fault:
        """Delete /controller, as an operator does: another broker, or the same one, is elected."""
        self._delete("/controller")
        yield from ()

    def evict(self) -> Fault:
        """Delete the registration of a live broker, as a false proof of death does."""
        self._delete(f"/brokers/ids/{self.any_broker()}")
        yield from ()

    def _delete(self, path: str) -> None:
        log.info("delete %s", path)
        with editing(self.store, self.cluster.chroot) as client, suppress(NoNodeError):
            client.delete(path)
