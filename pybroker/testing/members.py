"""The brokers of a cluster and what is between them: where they live, their store, their network.

The network is in front of each broker for each of the others, and in front of a ZooKeeper. ZooKeeper starts beside the
brokers, which connect at once and are let through when it serves.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Literal, get_args

from pybroker.testing.datadir import DataDir
from pybroker.testing.handle import Mode
from pybroker.testing.life import HOST, START_S_MAX, BrokerFailed, Inherited, Life, Plan, hold_port
from pybroker.testing.network import STORE, Network
from pybroker.testing.process import Subprocess
from pybroker.testing.security import Security

if TYPE_CHECKING:
    from pybroker.server.zookeeper_server import ZooKeeper
    from pybroker.testing.together import Together

StoreKind = Literal["memory", "zookeeper"]
STORES: Final[tuple[StoreKind, ...]] = get_args(StoreKind)
AGAIN_S: Final = 0.1
"""Between two attempts to kill a broker that is about to begin."""


class Members:
    """Made, they are down: `start` begins their lives. `lives` and ports are by number: clients come by `ports`, the
    kit by `own_ports`."""

    def __init__(
        self, count: int, mode: Mode, store: StoreKind, settings: Mapping[str, str], security: Security | None = None
    ) -> None:
        self.zookeeper: ZooKeeper | None = None
        self.network = Network()
        self.lives: dict[int, Life] = {}
        self.inherited = False  # by a forked child
        self._directory = DataDir()
        self._security = security
        self._held: list[socket.socket] = []
        self.ports = self._hold_ports(count)
        self.own_ports = self.ports if security is None else self._hold_ports(count)
        self._peer_ports = self.ports if security is None else self._hold_ports(count)
        self._together: Together | None = None
        self._starting: Future[ZooKeeper] | None = None
        self._store_port = 0
        if store == "zookeeper":
            (self._store_port,) = self._hold_ports(1).values()
        if mode == "inprocess":
            from pybroker.testing import together

            self._together = together.Together(in_memory=store == "memory")
        for number in self.ports:
            self.lives[number] = self._life(number, settings)
        if self._store_port:
            self._begin_zookeeper()

    def _hold_ports(self, count: int) -> dict[int, int]:
        """By number, from 1 on."""
        held = [hold_port() for _ in range(count)]
        self._held += held
        return {number: each.getsockname()[1] for number, each in enumerate(held, 1)}

    @property
    def directory(self) -> str:
        """Where all of their files are."""
        return self._directory.path

    def _begin_zookeeper(self) -> None:
        """On the thread of the network, which lives as long as ZooKeeper is to, and after all else that is done there:
        nothing passes until it serves, so that who connects meanwhile waits."""
        from pybroker.server.zookeeper_server import ZooKeeper

        home = os.path.join(self.directory, "zookeeper")
        self._starting = self.network.thread.begin(lambda: ZooKeeper(port=self._store_port, data_dir=home))

    def _life(self, number: int, settings: Mapping[str, str]) -> Life:
        ways = {str(to): self.network.way_to(to, port, number) for to, port in self._peer_ports.items() if to != number}
        own = {"broker.id": str(number)}
        if self._store_port:
            own["zookeeper.connect"] = f"{HOST}:{self.network.way_to(STORE, self._store_port, number)}"
        home = os.path.join(self.directory, f"broker-{number}")
        given = {**settings, **own}
        if self._security is not None:
            local, peers = self.own_ports[number], self._peer_ports[number]
            given = self._security.settings(self.ports[number], local, given, peers)
        plan = Plan(home, self.ports[number], given, ways)
        if self._together is not None:
            return self._together.life(number, plan)
        return Subprocess(plan, f"{home}.log", self.directory)

    def process(self, number: int) -> Subprocess:
        """A broker's, where each has one."""
        life = self.lives[number]
        assert isinstance(life, Subprocess)
        return life

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, numbers: Sequence[int]) -> None:
        """Start these beside each other. Raises BrokerFailed."""
        for number in numbers:
            life = self.lives[number]
            if isinstance(life, Inherited):
                life.start()  # which says whose it is
            self.network.born(number)
        with ThreadPoolExecutor(max(1, len(numbers))) as pool:
            started = {number: pool.submit(self.lives[number].start) for number in numbers}
            self._wait_for_zookeeper(started)
        for number, each in started.items():
            if problem := each.exception():
                raise BrokerFailed(f"broker {number}: {problem}") from problem

    def _wait_for_zookeeper(self, brokers: Mapping[int, Future[None]]) -> None:
        """If it is about to start, as `brokers` are. Raises BrokerFailed."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            self.zookeeper = starting.result(START_S_MAX)
        except Exception as problem:
            for number, begun in brokers.items():
                while not begun.done():  # it would wait for long, and may have no process yet
                    self.lives[number].kill()
                    wait([begun], AGAIN_S)
            raise BrokerFailed(f"ZooKeeper did not start: {problem}") from problem

    def kill(self, number: int) -> None:
        """As SIGKILL: its connections end first, so that in a process that lives on it says goodbye to nobody."""
        if isinstance(self.lives[number], Inherited):
            return
        self.network.died(number)
        self.lives[number].kill()

    def cut_store(self, numbers: Collection[int]) -> None:
        """Cut these from the store, and nobody else, where the network does not: in memory."""
        if self._together is not None:
            self._together.cut_store(numbers)

    def close(self) -> None:
        """Nothing is left; calling it again does nothing."""
        try:
            if self.network.thread.runs:  # who is killed now is missed by nobody
                self.network.cut(STORE, *self.ports)
                self.cut_store(self.ports)
                for number in self.lives:
                    self.kill(number)
        finally:
            self._end_zookeeper()
            if self._together is not None:
                self._together.close()
            self.network.close()
            for held in self._held:
                held.close()
            self._directory.remove()

    def forked(self) -> None:
        """In a forked child: all is the parent's, and nothing here ends it."""
        self.inherited = True
        self.lives = {number: Inherited(os.getppid()) for number in self.lives}
        self._together, self.zookeeper, self._starting = None, None, None
        self.network.forked()
        for held in self._held:
            held.close()
        self._directory.forked()

    def discard(self) -> None:
        """The interpreter ends, and its threads with it: leave nothing else."""
        for life in self.lives.values():
            life.discard()
        if self.zookeeper is not None:
            self.zookeeper.close()
        self._directory.remove()

    def _end_zookeeper(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:  # nobody waited for it
            with contextlib.suppress(Exception):
                self.zookeeper = starting.result(START_S_MAX)
        if self.zookeeper is not None:
            self.zookeeper.close()
