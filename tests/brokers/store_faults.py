"""The faults of the servers of a cluster's store: killed, frozen, cut off, full, compacted, and restored from an older
copy.

They do not overlap, as a start of a server needs the others.
"""

from __future__ import annotations

import base64
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from urllib.error import HTTPError

from pybroker.development.etcd_server import Etcd, EtcdOptions, EtcdServer
from pybroker.development.server_process import ServerProcess
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.errors import KafkaError
from tests.brokers.network import Network
from tests.stores import AnyStore

log = logging.getLogger(__name__)

Fault = Iterator[None]
WEIGHTS = {
    "kill_store_server": 2, "freeze_store_server": 1, "kill_store_leader": 1, "freeze_store_leader": 1,
    "cut_store_leader": 1, "freeze_store_quorum": 1, "kill_store": 1, "compact_store": 1, "fill_store": 1,
}  # fmt: skip
"""The relative frequency of each fault."""
OF_ETCD = {"kill_store_leader", "freeze_store_leader", "cut_store_leader", "compact_store", "fill_store"}
"""The faults that ZooKeeper does not have, or whose server is not found there."""
QUOTA_BYTES = 16 << 20
"""The quota of an etcd that a fault fills: a few fillings are enough."""
FILLING = base64.b64encode(b"x" * 1_000_000).decode()
FILLINGS_MAX = 200
FILLED = base64.b64encode(b"/filled").decode()
"""A key of another program."""
STARTS_MAX = 3
"""Attempts to start the servers: on a busy machine a start may time out."""


class NetworkedEtcd(Etcd):
    """Three servers with a small quota, and a network between them."""

    def __init__(self, data_dir: str) -> None:
        self.network = Network()
        self.network.pids = lambda: {server.number: server.pid for server in self.servers}
        ways: dict[int, int] = {}

        def way_to(number: int, port: int) -> int:
            if number not in ways:
                ways[number] = self.network.way_to(number, port)
            return ways[number]

        options = EtcdOptions(flags=["--quota-backend-bytes", str(QUOTA_BYTES)], way_to=way_to)
        super().__init__(servers=3, data_dir=data_dir, options=options)

    def close(self) -> None:
        super().close()
        self.network.close()


def start_store(kind: str, data_dir: str) -> AnyStore:
    """Start the three servers of a store: "zookeeper" or "etcd"."""
    if kind == "etcd":
        return NetworkedEtcd(data_dir)
    return ZooKeeper(servers=3, data_dir=data_dir)


def leader_of(etcd: Etcd) -> EtcdServer:
    """The server that leads; the first one if none is known."""
    for server in etcd.servers:
        status = server.ask("v3/maintenance/status")
        header = status["header"]
        assert isinstance(header, dict)
        if status.get("leader") == header.get("member_id"):
            return server
    return etcd.servers[0]


def fill(etcd: Etcd) -> None:
    """Write values of one key until etcd is full: alarm NOSPACE. Raises OSError."""
    for _ in range(FILLINGS_MAX):
        try:
            etcd.servers[0].ask("v3/kv/put", key=FILLED, value=FILLING)
        except HTTPError as refusal:
            if b"database space exceeded" in refusal.read():
                return
            raise
    raise AssertionError(f"etcd is not full after {FILLINGS_MAX} values of {len(FILLING)} bytes")


def make_room(etcd: Etcd) -> None:
    """Do as docs/etcd.md says to an operator: compact, defragment, disarm. Raises OSError."""
    etcd.compact()
    alarms = etcd.servers[0].ask("v3/maintenance/alarm", action="GET").get("alarms", [])
    assert isinstance(alarms, list)
    for alarm in alarms:
        etcd.servers[0].ask("v3/maintenance/alarm", action="DEACTIVATE", **alarm)


def copy_of(server: ServerProcess) -> str:
    """The directory that keeps a copy of a server's data."""
    return str(server.data.with_suffix(".copy"))


class StoreFaults:
    """The faults of one store, called by one thread."""

    def __init__(self, store: AnyStore, chance: random.Random) -> None:
        self.store = store
        self.chance = chance

    def kinds(self) -> dict[str, Callable[[], Fault]]:
        return {name: getattr(self, name) for name in WEIGHTS}

    def is_possible(self, name: str) -> bool:
        return name not in OF_ETCD or isinstance(self.store, Etcd)

    def _any(self) -> int:
        return self.chance.choice(self.store.servers).number

    def _leader(self) -> int:
        return leader_of(self._etcd).number

    @property
    def _etcd(self) -> Etcd:
        assert isinstance(self.store, Etcd)
        return self.store

    def _kill(self, *numbers: int) -> Fault:
        """Kill servers of these numbers, or all; they restart with the data on disk."""
        log.info("kill servers %s", numbers)
        self.store.kill(*numbers)
        yield
        self.start()

    def kill_store(self) -> Fault:
        return self._kill()

    def kill_store_server(self) -> Fault:
        return self._kill(self._any())

    def kill_store_leader(self) -> Fault:
        return self._kill(self._leader())

    def _freeze(self, *numbers: int) -> Fault:
        self.store.pause(*numbers)
        yield
        self.store.resume(*numbers)

    def freeze_store_server(self) -> Fault:
        return self._freeze(self._any())

    def freeze_store_leader(self) -> Fault:
        return self._freeze(self._leader())

    def cut_store_leader(self) -> Fault:
        """Cut the leader off from the other servers: brokers reach all of them."""
        assert isinstance(self.store, NetworkedEtcd)
        leader = self._leader()
        log.info("cut off server %s", leader)
        self.store.network.cut_off(leader, *(each.number for each in self.store.servers if each.number != leader))
        yield
        self.store.network.heal()

    def freeze_store_quorum(self) -> Fault:
        """Freeze two of three servers: the third, which may lead, is reached by brokers and by no other server."""
        return self._freeze(*(server.number for server in self.chance.sample(self.store.servers, 2)))

    def compact_store(self) -> Fault:
        """Have etcd forget its history, and defragment its servers, which stand still meanwhile."""
        self._etcd.compact()
        yield from ()

    def fill_store(self) -> Fault:
        """Have etcd refuse writes, until there is room again and its alarm is disarmed."""
        fill(self._etcd)
        yield
        make_room(self._etcd)

    def start(self) -> None:
        """Start the servers that are down."""
        for last in range(STARTS_MAX - 1, -1, -1):
            try:
                self.store.start()
                return
            except KafkaError:
                if not last:
                    raise

    def copy(self) -> None:
        """Copy the data of all servers while they are down."""
        self.store.stop()
        for server in self.store.servers:
            shutil.rmtree(copy_of(server), ignore_errors=True)
            shutil.copytree(server.data, copy_of(server))
        self.start()

    def roll_back(self) -> None:
        """Restart all servers on that copy, as an operator without a newer one does."""
        self.store.kill()
        for server in self.store.servers:
            shutil.rmtree(server.data)
            shutil.copytree(copy_of(server), server.data)
        self.start()
