"""A real ZooKeeper for tests and development: one server, or an ensemble of them, each a process of its own.

    with ZooKeeper() as zookeeper:        # ZooKeeper(servers=3) is an ensemble.
        zookeeper.connect                 # 127.0.0.1:2181, for zookeeper.connect.

Java is found as Spark does.
"""

import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.logs import event
from pybroker.spark.java import find_java
from pybroker.spark.jvm import reason

from .server_process import HOST, OTHERS, ServerGroup, ServerProcess, free_ports, private
from .zookeeper_jars import find_jars

log = logging.getLogger(__name__)

TICK_MS: Final = 500
SMALL: Final = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss256k", "-XX:-UsePerfData", "-Xshare:auto",
)  # fmt: skip
MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The main class, also for a single server."""


class More(NamedTuple):
    """Further lines of zoo.cfg, by server number, and options of the JVM."""

    settings: Callable[[int], Sequence[str]]
    java: Sequence[str] = ()


class Server(ServerProcess):
    """One server process."""

    program = "ZooKeeper"

    def __init__(
        self, directory: Path, number: int, port: int, jars: Sequence[Path], tick_ms: int, peers: Sequence[str],
        more: More | None = None,
    ) -> None:  # fmt: skip
        """`peers`: all servers of the ensemble, as settings; empty for a single server."""
        super().__init__(directory, number, port)
        self._more = more
        self._jars = jars
        self._tick_ms = tick_ms
        self._peers = peers

    def close_to_others(self) -> None:
        """Remove access for other users to the directory of an earlier run, and log it if they had access."""
        opened, refused = 0, 0
        for path in (self._directory, *self._directory.rglob("*")) if self._directory.is_dir() else ():
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) or not mode & OTHERS:
                continue
            try:
                path.chmod(stat.S_IMODE(mode) & ~OTHERS)
                opened += 1
            except PermissionError:  # the file belongs to another user
                refused += 1
        if opened or refused:
            words, where = "ZooKeeper data was accessible to other users", self._directory
            event(log, logging.WARNING, words, directory=where, closed=opened, still_open=refused)

    def _prepared(self) -> Sequence[str]:
        settings = [
            f"tickTime={self._tick_ms}", "initLimit=20", "syncLimit=10", f"dataDir={self.data}",
            f"clientPort={self.port}", f"clientPortAddress={HOST}", "admin.enableServer=false", "maxClientCnxns=0",
            "4lw.commands.whitelist=srvr", *self._peers,
            *(self._more.settings(self.number) if self._more is not None else ()),
        ]  # fmt: skip
        configured = self._directory / "zoo.cfg"
        files = {configured: "\n".join([*settings, ""]), self.data / "myid": str(self.number)}
        for file, text in files.items():
            with open(file, "w", opener=private) as written:
                written.write(text)
        java = find_java(needs="ZooKeeper") / "bin" / "java"
        options = [*SMALL, *(self._more.java if self._more is not None else ())]
        return [str(java), *options, "-cp", os.pathsep.join(map(str, self._jars)), MAIN, str(configured)]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1) as asking:
            asking.sendall(b"srvr")
            return b"Mode:" in asking.recv(4096)
        return False

    def _reason(self, output: str) -> str:
        return reason(output)


class ZooKeeper(ServerGroup[Server]):
    """One server, or an ensemble of `servers`, started on creation. Raises StartError."""

    def __init__(
        self, servers: int = 1, *, ports: Sequence[int] = (), jars: str | None = None,
        data_dir: str | None = None, tick_ms: int = TICK_MS, more: More | None = None,
    ) -> None:  # fmt: skip
        """`ports`: one of each server; free ports without them. Without `data_dir` the data is deleted by `close`."""
        found = find_jars(jars, with_tls=more is not None)
        own = ports or free_ports(servers)
        quorum = free_ports(2 * servers) if servers > 1 else []
        peers = [f"server.{i + 1}={HOST}:{quorum[2 * i]}:{quorum[2 * i + 1]}" for i in range(len(quorum) // 2)]

        def make(home: Path) -> list[Server]:
            made = [Server(home / str(i + 1), i + 1, own[i], found, tick_ms, peers, more) for i in range(servers)]
            for server in made:
                server.ports = (server.port, *quorum[2 * server.number - 2 : 2 * server.number])
                server.close_to_others()
            return made

        super().__init__(make, Server.program, data_dir)

    def __enter__(self) -> "ZooKeeper":
        return self
