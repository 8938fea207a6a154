"""A cluster on this machine: brokers and their store, each a process of its own, as `pybroker cluster start` runs it.

    with LocalCluster() as cluster:       # three brokers and a ZooKeeper
        cluster.bootstrap_servers         # 127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094

    DIR/cluster.json                      the store, and the ports of each process, which stay the same at every start
    DIR/store/N/                          a server of the store: its data and its log
    DIR/brokers/N/broker.properties       a broker: its settings, its data and its log
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import javaproperties

from pybroker.client.admin import Admin
from pybroker.errors import StartError
from pybroker.model import PORT_MAX

from .etcd_server import Etcd
from .server_process import HOST, PortTaken, ServerGroup, ServerProcess, free_ports, in_use, private
from .zookeeper_server import ZooKeeper

ZOOKEEPER: Final = "zookeeper"
ETCD: Final = "etcd"
PORTS_OF: Final = {ZOOKEEPER: 1, ETCD: 2}
"""How many ports a server of each store uses."""
PORT: Final = 9092
METRICS_PORT: Final = 9404
REPLICAS: Final = 3
PARTITIONS: Final = 3
ALL_PORTS: Final = range(PORT_MAX + 1)
MOVES_MAX: Final = 10
"""Ports that are replaced, because another program listens there, before a start gives up."""
STATE: Final = "cluster.json"
STATE_BYTES_MAX: Final = 65_536
CONFIG: Final = "broker.properties"
ANSWER_S_MAX: Final = 5.0
LOOK_S: Final = 0.05


@dataclass(frozen=True)
class Places:
    """The store of a cluster and the ports of its processes, as they are in its directory."""

    store: str
    store_ports: list[int]
    ports: list[int]
    metrics_ports: list[int]

    @classmethod
    def read(cls, file: Path) -> Places | None:
        """Read the file of an earlier start; None if there is none. Raises StartError."""
        try:
            with open(file, "rb") as content:
                said = json.loads(content.read(STATE_BYTES_MAX))
            read = cls(**said)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as problem:
            raise StartError(f"{file} is not that of a cluster ({problem}): choose another directory") from None
        lists = (read.store_ports, read.ports, read.metrics_ports)
        if read.store not in (ZOOKEEPER, ETCD) or not all(map(_is_ports, lists)) or len(lists[1]) != len(lists[2]):
            raise StartError(f"{file} is not that of a cluster: choose another directory")
        return read

    def write(self, file: Path) -> None:
        with open(scratch := file.with_suffix(".new"), "w", opener=private) as written:
            json.dump(asdict(self), written)
        os.replace(scratch, file)


class BrokerProcess(ServerProcess):
    """One broker."""

    program = "broker"
    stop_s_max = 60.0

    def __init__(self, directory: Path, number: int, places: Places, connect: str) -> None:
        super().__init__(directory, number, places.ports[number - 1])
        self.config = directory / CONFIG
        self._replicas = min(REPLICAS, len(places.ports))
        self._connect = {f"{places.store}.connect": connect}
        self.listen(self.port, places.metrics_ports[number - 1])

    def listen(self, port: int, metrics_port: int) -> None:
        """Listen on these ports from the next start on."""
        self.port, self.metrics_port = self.ports = port, metrics_port

    def _prepared(self) -> Sequence[str]:
        settings = {
            "broker.id": str(self.number),
            "listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "metrics.listener": f"{HOST}:{self.metrics_port}",
            "log.dirs": str(self.data),
            **self._connect,
            "default.replication.factor": str(self._replicas),
            "offsets.topic.replication.factor": str(self._replicas),
            "transaction.state.log.replication.factor": str(self._replicas),
            "min.insync.replicas": str(max(1, self._replicas - 1)),
            "num.partitions": str(PARTITIONS),
        }
        with open(self.config, "w", opener=private) as written:
            javaproperties.dump(settings, written, timestamp=False)
        return [sys.executable, "-m", "pybroker", "serve", "--config", str(self.config)]

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = f"http://{HOST}:{self.metrics_port}/readyz"
        try:
            with opener.open(url, timeout=ANSWER_S_MAX) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as answer:  # 503 while it is not registered
            answer.close()
        except OSError:
            pass
        return False

    def _reason(self, output: str) -> str:
        said = [line.partition("pybroker: ")[2] for line in output.splitlines() if line.startswith("pybroker: ")]
        return said[-1] if said else (output.splitlines() or ["it wrote nothing"])[-1]


class Brokers(ServerGroup[BrokerProcess]):
    """The brokers of a cluster whose store serves."""

    start_s_max = 120.0

    def __init__(self, directory: Path, places: Places, connect: str, fixed: Container[int]) -> None:
        """`fixed`: the ports that stay, also if other programs listen there."""
        self._fixed, self._moves_left = fixed, MOVES_MAX

        def make(home: Path) -> list[BrokerProcess]:
            return [
                BrokerProcess(home / str(number), number, places, connect) for number in range(1, len(places.ports) + 1)
            ]

        super().__init__(make, BrokerProcess.program, str(directory))
        self._fixed = ALL_PORTS  # which clients know from now on

    def _move(self, server: BrokerProcess, taken: int) -> bool:
        if taken in self._fixed or not self._moves_left:
            return False
        self._moves_left -= 1
        (free,) = free_ports(1)
        server.listen(*(free if port == taken else port for port in server.ports))
        return True


class LocalCluster:
    """A cluster, started on creation. Raises StartError."""

    def __init__(
        self, brokers: int | None = None, *, store: str | None = None, servers: int | None = None,
        port: int | None = None, data_dir: str | None = None, jars: str | None = None,
    ) -> None:  # fmt: skip
        """Three brokers and one ZooKeeper, or so many `brokers` and `servers` of another `store`. The brokers listen
        on `port` and the ports after it; without `port` on 9092 and so on, or on free ones where these are in use.

        In a `data_dir` of an earlier start the cluster is the same: it has the brokers, store and ports of then.
        Without `data_dir` its data is deleted by `close`."""
        self._kept = data_dir is not None
        self.directory = Path(data_dir or tempfile.mkdtemp(prefix="pybroker-cluster-")).resolve()
        self._running = contextlib.ExitStack()
        try:
            if "," in str(self.directory):
                raise StartError(f"{self.directory} has a comma, which log.dirs takes for the end of a path")
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._start(*self._places(brokers, store, servers, port), jars)
        except BaseException:
            self.close()
            raise

    def _start(self, places: Places, fixed: Container[int], jars: str | None) -> None:
        """Start the store and the brokers, on other ports than in `places` where another program is faster; `fixed`
        ports stay."""
        self.store = places.store
        places = self._start_store(places, fixed, jars)
        places.write(self.directory / STATE)
        self.brokers = Brokers(self.directory / "brokers", places, self.connect, fixed)
        self._running.callback(self.brokers.close)
        listening = [(server.port, server.metrics_port) for server in self.brokers.servers]
        ports, metrics_ports = map(list, zip(*listening, strict=True))
        replace(places, ports=ports, metrics_ports=metrics_ports).write(self.directory / STATE)
        self._wait_until_known()

    def _start_store(self, places: Places, fixed: Container[int], jars: str | None) -> Places:
        home = self.directory / "store"
        is_new, moves_left = not home.exists(), MOVES_MAX
        while True:
            ports = places.store_ports
            try:
                if places.store == ETCD:
                    etcd = Etcd(len(ports) // PORTS_OF[ETCD], ports=ports, data_dir=str(home))
                    self.connect = self._running.enter_context(etcd).url
                else:
                    zookeeper = ZooKeeper(len(ports), ports=ports, data_dir=str(home), jars=jars)
                    self.connect = self._running.enter_context(zookeeper).connect
                return places
            except PortTaken as taken:
                if taken.port in fixed or not is_new or not moves_left:
                    raise
            moves_left -= 1
            shutil.rmtree(home)  # its servers know each other by the old ports, and it was made just now
            places = replace(places, store_ports=free_ports(len(ports)))

    def _wait_until_known(self) -> None:
        """Wait until each broker's metadata has all brokers, as it serves before it knows the others. Raises
        StartError."""
        wanted, deadline_s = len(self.brokers.servers), time.monotonic() + Brokers.start_s_max
        for server in self.brokers.servers:
            with Admin(bootstrap_servers=f"{HOST}:{server.port}") as admin:
                while (known := len(admin.describe_cluster().nodes)) < wanted:
                    if time.monotonic() > deadline_s:
                        raise StartError(f"broker {server.number} knows of {known} brokers, of {wanted}")
                    time.sleep(LOOK_S)

    def _places(
        self, brokers: int | None, store: str | None, servers: int | None, port: int | None
    ) -> tuple[Places, Container[int]]:
        """Return the places of an earlier start, if they are what is asked for, or new ones; and the ports of these
        that must stay. Raises StartError."""
        held = Places.read(self.directory / STATE)
        if held is None:
            count, kind = brokers or REPLICAS, store or ZOOKEEPER
            store_ports = free_ports((servers or 1) * PORTS_OF[kind])
            ports = list(range(port, port + count)) if port else list(_ports(PORT, count))
            return Places(kind, store_ports, ports, list(_ports(METRICS_PORT, count))), ports if port else ()
        asked = {
            "-n": (brokers, len(held.ports)), "--store": (store, held.store), "--port": (port, held.ports[0]),
            "--store-servers": (servers, len(held.store_ports) // PORTS_OF[held.store]),
        }  # fmt: skip
        for option, (wanted, there) in asked.items():
            if wanted is not None and wanted != there:
                raise StartError(f"{self.directory} has a cluster with {option} {there}: leave {option} out")
        return held, ALL_PORTS

    @property
    def bootstrap_servers(self) -> str:
        return self.brokers.connect

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the brokers cleanly, then close. Again does nothing."""
        try:
            self.brokers.stop()
        finally:
            self.close()

    def close(self) -> None:
        """Kill all processes, and delete the data unless `data_dir` was given. Again does nothing."""
        self._running.close()
        if not self._kept:
            shutil.rmtree(self.directory, ignore_errors=True)


def _ports(first: int, count: int) -> Iterator[int]:
    """Yield `count` ports from `first` on, with a free one in place of each that is in use."""
    spare = iter(free_ports(count))
    for port in range(first, first + count):
        yield next(spare) if in_use(port) else port


def _is_ports(value: object) -> bool:
    """True for a list of ports as it is in a cluster's file, which a person may have edited."""
    return isinstance(value, list) and bool(value) and all(type(port) is int and 0 < port < 65_536 for port in value)
