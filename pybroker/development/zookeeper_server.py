"""A real ZooKeeper for tests and development: one server, or an ensemble of them, each a process of its own.

    with ZooKeeper() as zookeeper:        # ZooKeeper(servers=3) is an ensemble.
        zookeeper.connect                 # 127.0.0.1:2181, for zookeeper.connect.

    down --start--> serving --pause--> frozen --resume--> serving --stop, kill--> down.

The jars come from PySpark, which includes the five of a server, or from a given directory; Java is found as Spark does.
A server keeps its port and its data when it is restarted; `empty` simulates a lost disk.
"""

import atexit
import contextlib
import fcntl
import importlib.util
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pybroker import fork_safety
from pybroker.errors import StartError, why_not
from pybroker.logs import event
from pybroker.replication.disks.lock_file import LOCK
from pybroker.spark.java import find_java
from pybroker.spark.jvm import reason

log = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
TICK_MS: Final = 500
OTHERS: Final = 0o077
"""The mode bits of group and others, which get no access, as the data holds credentials."""
START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0
LOOK_S: Final = 0.01
LOG: Final = "zookeeper.log"
JARS: Final = (
    "zookeeper-[0-9]*.jar", "zookeeper-jute-[0-9]*.jar", "slf4j-api-[0-9]*.jar", "metrics-core-[0-9]*.jar",
    "snappy-java-[0-9]*.jar",
)  # fmt: skip
"""The jars of a server: without metrics-core it does not start, without snappy-java it listens but never serves."""
NETTY: Final = "netty-*.Final.jar"
"""Further jars for TLS."""
SMALL: Final = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss256k", "-XX:-UsePerfData", "-Xshare:auto",
)  # fmt: skip
DIES_WITH_US: Final = "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9);os.execv(sys.argv[1],sys.argv[1:])"
"""Sets PR_SET_PDEATHSIG to SIGKILL and executes Java, so that a server is killed when the process that started it ends.
"""
MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The main class, also for a single server."""


def find_jars(directory: str | None = None, *, with_tls: bool = False) -> list[Path]:
    """Find the jars of a server, in a directory or where PySpark is installed. Raises StartError."""
    if directory is None:
        spark = importlib.util.find_spec("pyspark")
        if spark is None or spark.origin is None:
            raise StartError("ZooKeeper not found: pip install pyspark includes it, or give the directory of its jars")
        directory = str(Path(spark.origin).parent / "jars")
    found = []
    for pattern in JARS:
        jar = max(Path(directory).glob(pattern), default=None)
        if jar is None and pattern.startswith(("zookeeper", "slf4j")):
            raise StartError(f"ZooKeeper not found: {directory} has no {pattern}")
        if jar is not None:
            found.append(jar)
    if with_tls:
        found += sorted(Path(directory).glob(NETTY))
    return found


class More(NamedTuple):
    """Further lines of zoo.cfg, by server number, and options of the JVM."""

    settings: Callable[[int], Sequence[str]]
    java: Sequence[str] = ()


class Server:
    """One server process."""

    def __init__(
        self, directory: Path, number: int, port: int, jars: Sequence[Path], tick_ms: int, more: More | None = None
    ) -> None:
        self.port = port
        self._more = more
        self.number = number
        self._directory = directory
        self._jars = jars
        self._tick_ms = tick_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._begun_at = 0
        """The position in the log file where the output of the current process begins."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def data(self) -> Path:
        """The directory of the server's snapshots and logs."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        """The process id; -1 while the server is down."""
        return -1 if self._process is None else self._process.pid

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

    def start(self, peers: Sequence[str] = ()) -> None:
        """Start the process; `serves` returns True once it serves. It is killed when the calling thread ends.
        `peers`: all servers of the ensemble; empty for a single server."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.data.mkdir(exist_ok=True, mode=0o700)
        settings = [
            f"tickTime={self._tick_ms}", "initLimit=20", "syncLimit=10", f"dataDir={self.data}",
            f"clientPort={self.port}", f"clientPortAddress={HOST}", "admin.enableServer=false", "maxClientCnxns=0",
            "4lw.commands.whitelist=srvr", *peers,
            *(self._more.settings(self.number) if self._more is not None else ()),
        ]  # fmt: skip
        files = {self._directory / "zoo.cfg": "\n".join([*settings, ""]), self.data / "myid": str(self.number)}
        for file, text in files.items():
            with open(file, "w", opener=_private) as written:
                written.write(text)
        java = find_java(needs="ZooKeeper") / "bin" / "java"
        options = [*SMALL, *(self._more.java if self._more is not None else ())]
        start = [sys.executable, "-I", "-S", "-c", DIES_WITH_US, str(java), *options]
        path = os.pathsep.join(map(str, self._jars))
        with open(self._directory / LOG, "ab", opener=_private) as output:
            self._begun_at = output.tell()
            self._process = subprocess.Popen(
                [*start, "-cp", path, MAIN, str(self._directory / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must only reach the starting process, which ends the server
                umask=OTHERS,
            )

    def serves(self) -> bool:
        """True if the server responds, as a single server, leader or follower. Raises StartError if it has ended."""
        if not self.running:
            said = (self._directory / LOG).read_bytes()[self._begun_at :]
            raise StartError(f"ZooKeeper ended: {reason(said.decode(errors='replace'))}")
        with contextlib.suppress(OSError), socket.create_connection((HOST, self.port), timeout=1) as asking:
            asking.sendall(b"srvr")
            return b"Mode:" in asking.recv(4096)
        return False

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self, number: int) -> None:
        """End the server with a signal, and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)

    def empty(self) -> None:
        """Delete all data of the server, which must be down."""
        shutil.rmtree(self.data, ignore_errors=True)


class ZooKeeper:
    """One server, or an ensemble of `servers`, started on creation. Raises StartError."""

    def __init__(
        self, servers: int = 1, *, port: int = 0, jars: str | None = None, data_dir: str | None = None,
        tick_ms: int = TICK_MS, more: More | None = None,
    ) -> None:  # fmt: skip
        """`port` is the first server's port, the others use the next ones; 0 for free ports. Without `data_dir` the
        data is deleted by `close`."""
        found = find_jars(jars, with_tls=more is not None)
        self._kept = data_dir is not None
        self._home = Path(data_dir or tempfile.mkdtemp(prefix="pybroker-zookeeper-"))
        self._lock = _lock(self._home) if self._kept else -1
        ports = [port + i for i in range(servers)] if port else free_ports(servers)
        quorum = free_ports(2 * servers) if servers > 1 else []
        self._peers = [f"server.{i + 1}={HOST}:{quorum[2 * i]}:{quorum[2 * i + 1]}" for i in range(len(quorum) // 2)]
        self.servers = [Server(self._home / str(i + 1), i + 1, ports[i], found, tick_ms, more) for i in range(servers)]
        atexit.register(self.close)
        fork_safety.tell(self)
        try:
            for server in self.servers:
                server.close_to_others()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def connect(self) -> str:
        """The value for zookeeper.connect: HOST:PORT,..."""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def __enter__(self) -> "ZooKeeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *numbers: int) -> None:
        """Start servers that are down, of these numbers or all, and wait until they serve. Raises StartError."""
        chosen = self._chosen(numbers)
        for server in chosen:
            if not server.running:
                _check_free(server.port)  # or another program that listens there would be taken for ours
                server.start(self._peers)
        deadline_s = time.monotonic() + START_S_MAX
        while not all(server.serves() for server in chosen):
            if time.monotonic() > deadline_s:
                raise StartError(f"ZooKeeper at {self.connect} does not serve {START_S_MAX:g} s after its start")
            time.sleep(LOOK_S)

    def stop(self, *numbers: int) -> None:
        """Stop servers with SIGTERM, as an operator does."""
        for server in self._chosen(numbers):
            server.end(signal.SIGTERM)

    def kill(self, *numbers: int) -> None:
        """Kill servers with SIGKILL."""
        for server in self._chosen(numbers):
            server.end(signal.SIGKILL)

    def pause(self, *numbers: int) -> None:
        """Freeze servers: connections stay open, but nothing responds."""
        for server in self._chosen(numbers):
            server.signal(signal.SIGSTOP)

    def resume(self, *numbers: int) -> None:
        for server in self._chosen(numbers):
            server.signal(signal.SIGCONT)

    def empty(self) -> None:
        """Delete the data of all servers, which must be down."""
        for server in self.servers:
            server.empty()

    def close(self) -> None:
        """Kill all servers, and delete the data unless `data_dir` was given. Again does nothing."""
        self.kill()
        atexit.unregister(self.close)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if not self._kept:
            shutil.rmtree(self._home, ignore_errors=True)

    def forked(self) -> None:
        """Forget the servers, in a forked child, as they belong to the parent."""
        atexit.unregister(self.close)
        self.servers, self._kept = [], True

    def _chosen(self, numbers: Sequence[int]) -> list[Server]:
        return [server for server in self.servers if not numbers or server.number in numbers]


def _private(path: str, flags: int) -> int:
    """Open a file that other users cannot read; an opener for `open`."""
    return os.open(path, flags, 0o600)


def _lock(directory: Path) -> int:
    """Lock a directory, as two servers would corrupt it; return the descriptor. Raises StartError, OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StartError(f"another ZooKeeper is using the data directory {directory}") from None
    return lock


def _check_free(port: int) -> None:
    """Raise StartError if the port is in use."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as problem:
            raise StartError(f"ZooKeeper could not listen on {HOST}:{port}: {why_not(problem)}") from None


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind((HOST, 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
