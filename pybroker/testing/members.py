"""The brokers of a cluster, their store and the network between them.

A proxy stands before each broker for each of the other brokers, and before a ZooKeeper or etcd. These start at the same
time as the brokers, which connect to the proxy at once, and wait there until the store serves.
"""

import contextlib
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Literal, get_args

from pybroker.testing.datadir import DataDir
from pybroker.testing.handle import Mode
from pybroker.testing.lifecycle import HOST, START_S_MAX, BrokerFailed, BrokerPlan, InheritedBroker, Life, hold_port
from pybroker.testing.network import STORE, ClusterNetwork
from pybroker.testing.process import Subprocess
from pybroker.testing.security import Security

if TYPE_CHECKING:
    from pybroker.development.etcd_server import Etcd
    from pybroker.development.zookeeper_server import ZooKeeper
    from pybroker.testing.cluster_inprocess import Together

StoreKind = Literal["memory", "zookeeper", "etcd"]
STORES: Final[tuple[StoreKind, ...]] = get_args(StoreKind)
NAMES: Final = {"zookeeper": "ZooKeeper", "etcd": "etcd"}
AGAIN_S: Final = 0.1
"""Between two attempts to kill a broker that is starting."""


class ClusterMembers:
    """The brokers by id, down until `start`. Clients use the listeners on `ports`, the kit those on `own_ports`."""

    def __init__(
        self, count: int, mode: Mode, store: StoreKind, settings: Mapping[str, str], security: Security | None = None
    ) -> None:
        self.server: ZooKeeper | Etcd | None = None
        self.network = ClusterNetwork()
        self.lives: dict[int, Life] = {}
        self.inherited = False  # True in a forked child
        self._directory = DataDir()
        self._security = security
        self._held: list[socket.socket] = []
        self.ports = self._hold_ports(count)
        self.own_ports = self.ports if security is None else self._hold_ports(count)
        self._peer_ports = self.ports if security is None else self._hold_ports(count)
        self._together: Together | None = None
        self._starting: Future[ZooKeeper | Etcd] | None = None
        self._store = store
        self._store_ports = [] if store == "memory" else list(self._hold_ports(2).values())
        if mode == "inprocess":
            from pybroker.testing import cluster_inprocess

            self._together = cluster_inprocess.Together(in_memory=store == "memory")
        for number in self.ports:
            self.lives[number] = self._life(number, settings)
        if self._store_ports:
            self._begin_store()

    def _hold_ports(self, count: int) -> dict[int, int]:
        """Hold this many ports; return them by broker id, from 1 on."""
        held = [hold_port() for _ in range(count)]
        self._held += held
        return {number: each.getsockname()[1] for number, each in enumerate(held, 1)}

    @property
    def directory(self) -> str:
        """The directory of all brokers' files."""
        return self._directory.path

    def _begin_store(self) -> None:
        """Start ZooKeeper or etcd on the network's thread, which lives as long as they must. The proxies pass nothing
        until it serves, so brokers that connect meanwhile wait."""
        home = os.path.join(self.directory, self._store)
        if self._store == "etcd":
            from pybroker.development.etcd_server import Etcd

            self._starting = self.network.thread.begin(lambda: Etcd(ports=self._store_ports, data_dir=home))
        else:
            from pybroker.development.zookeeper_server import ZooKeeper

            self._starting = self.network.thread.begin(lambda: ZooKeeper(ports=self._store_ports[:1], data_dir=home))

    def _life(self, number: int, settings: Mapping[str, str]) -> Life:
        ways = {str(to): self.network.way_to(to, port, number) for to, port in self._peer_ports.items() if to != number}
        own = {"broker.id": str(number)}
        if self._store_ports:
            way = f"{HOST}:{self.network.way_to(STORE, self._store_ports[0], number)}"
            own |= {"etcd.connect": f"http://{way}"} if self._store == "etcd" else {"zookeeper.connect": way}
        home = os.path.join(self.directory, f"broker-{number}")
        given = {**settings, **own}
        if self._security is not None:
            local, peers = self.own_ports[number], self._peer_ports[number]
            given = self._security.settings(self.ports[number], local, given, peers)
        plan = BrokerPlan(home, self.ports[number], given, ways)
        if self._together is not None:
            return self._together.life(number, plan)
        return Subprocess(plan, f"{home}.log", self.directory)

    def process(self, number: int) -> Subprocess:
        """The process of a broker, in a cluster whose brokers have processes."""
        life = self.lives[number]
        assert isinstance(life, Subprocess)
        return life

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, numbers: Sequence[int]) -> None:
        """Start these brokers in parallel. Raises BrokerFailed."""
        for number in numbers:
            life = self.lives[number]
            if isinstance(life, InheritedBroker):
                life.start()  # raises the sentence that names the parent
            self.network.born(number)
        with ThreadPoolExecutor(max(1, len(numbers))) as pool:
            started = {number: pool.submit(self.lives[number].start) for number in numbers}
            self._wait_for_store(started)
        for number, each in started.items():
            if problem := each.exception():
                raise BrokerFailed(f"broker {number}: {problem}") from problem

    def _wait_for_store(self, brokers: Mapping[int, Future[None]]) -> None:
        """Wait for the store, if it is starting; if that fails, kill `brokers`, which are starting too. Raises
        BrokerFailed."""
        starting, self._starting = self._starting, None
        if starting is None:
            return
        try:
            self.server = starting.result(START_S_MAX)
        except Exception as problem:
            for number, begun in brokers.items():
                while not begun.done():  # a broker would wait for the store for long, and may have no process yet
                    self.lives[number].kill()
                    wait([begun], AGAIN_S)
            raise BrokerFailed(f"{NAMES[self._store]} did not start: {problem}") from problem

    def kill(self, number: int) -> None:
        """Kill a broker as SIGKILL does: cut its connections first, so that a broker in this process cannot close its
        session."""
        if isinstance(self.lives[number], InheritedBroker):
            return
        self.network.died(number)
        self.lives[number].kill()

    def cut_store(self, numbers: Collection[int]) -> None:
        """Cut only these brokers from a store in memory, which has no network."""
        if self._together is not None:
            self._together.cut_store(numbers)

    def close(self) -> None:
        """Kill all brokers and remove everything; calling it again does nothing."""
        try:
            if self.network.thread.runs:  # cut all first, so that no broker reacts to another's end
                self.network.cut(STORE, *self.ports)
                self.cut_store(self.ports)
                for number in self.lives:
                    self.kill(number)
        finally:
            self._end_store()
            if self._together is not None:
                self._together.close()
            self.network.close()
            for held in self._held:
                held.close()
            self._directory.remove()

    def forked(self) -> None:
        """Mark everything as the parent's, in a forked child: nothing here ends it."""
        self.inherited = True
        self.lives = {number: InheritedBroker(os.getppid()) for number in self.lives}
        self._together, self.server, self._starting = None, None, None
        self.network.forked()
        for held in self._held:
            held.close()
        self._directory.forked()

    def discard(self) -> None:
        """Remove processes and files as the interpreter exits; the threads end with the interpreter."""
        for life in self.lives.values():
            life.discard()
        if self.server is not None:
            self.server.close()
        self._directory.remove()

    def _end_store(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:  # the start was never waited for
            with contextlib.suppress(Exception):
                self.server = starting.result(START_S_MAX)
        if self.server is not None:
            self.server.close()
