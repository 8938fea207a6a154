"""Servers for tests and development, of a store or a cluster, each a process of its own, on ports of this machine.

    down --start--> serving --pause--> frozen --resume--> serving --stop, kill--> down

A server keeps its port and its data when it is restarted; `empty` simulates a lost disk.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from pybroker import fork_safety
from pybroker.errors import StartError, why_not
from pybroker.replication.disks.lock_file import LOCK

HOST: Final = "127.0.0.1"
OTHERS: Final = 0o077
"""The mode bits of group and others, which get no access, as the data holds credentials."""
START_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0
LOOK_S: Final = 0.01
DIES_WITH_US: Final = "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,9);os.execv(sys.argv[1],sys.argv[1:])"
"""Sets PR_SET_PDEATHSIG to SIGKILL and executes the server, so that it is killed when the process that started it ends.
"""


class PortTaken(StartError):
    """Another program listens on a port of a server."""

    def __init__(self, program: str, port: int, reason: str) -> None:
        super().__init__(f"{program} could not listen on {HOST}:{port}: {reason}")
        self.port = port


class ServerProcess(ABC):
    """One server process."""

    program: str
    """The program's name, for messages; the log file has the same."""
    stop_s_max: float = STOP_S_MAX
    """Seconds that the server gets to stop."""

    def __init__(self, directory: Path, number: int, port: int) -> None:
        self.port = port
        self.ports: Sequence[int] = (port,)
        """All ports that the server listens on."""
        self.number = number
        self._directory = directory
        self._log = directory / f"{self.program.lower()}.log"
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

    def start(self) -> None:
        """Start the process; `serves` returns True once it serves. It is killed when the calling thread ends."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.data.mkdir(exist_ok=True, mode=0o700)
        command = self._prepared()
        with open(self._log, "ab", opener=private) as output:
            self._begun_at = output.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DIES_WITH_US, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C must only reach the starting process, which ends the server
                umask=OTHERS,
                env=self._environment(),
            )

    @abstractmethod
    def _prepared(self) -> Sequence[str]:
        """Write the server's files, and return its command line."""

    def _environment(self) -> Mapping[str, str] | None:
        """The environment of the process; None for ours."""
        return None

    def serves(self) -> bool:
        """True if the server responds as one that serves clients. Raises StartError if it has ended, PortTaken if one
        of its ports is in use."""
        if not self.running:
            self.check_free()
            said = self._log.read_bytes()[self._begun_at :]
            raise StartError(f"{self.program} ended: {self._reason(said.decode(errors='replace'))}")
        return self._answers()

    def check_free(self) -> None:
        """Raise PortTaken if a port of the server, which is down, is in use: what listens there would be taken for it.
        """
        for port in self.ports:
            if (problem := in_use(port)) is not None:
                raise PortTaken(self.program, port, why_not(problem))

    @abstractmethod
    def _answers(self) -> bool:
        """True if the running server responds as one that serves clients."""

    @abstractmethod
    def _reason(self, output: str) -> str:
        """The reason in the output of a server that ended."""

    def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        """Wait for the end of a server that was signalled to end; kill it after `stop_s_max`."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(self.stop_s_max)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S_MAX)

    def empty(self) -> None:
        """Delete all data of the server, which must be down."""
        shutil.rmtree(self.data, ignore_errors=True)


AnyServer = TypeVar("AnyServer", bound=ServerProcess)


class ServerGroup(Generic[AnyServer]):
    """Servers that are one whole, started on creation. Raises StartError."""

    start_s_max: float = START_S_MAX
    """Seconds that the servers get to serve."""

    def __init__(self, make: Callable[[Path], list[AnyServer]], program: str, data_dir: str | None) -> None:
        """`make`: returns the servers, given their directory. Without `data_dir` the data is deleted by `close`."""
        self._program = program
        self._kept = data_dir is not None
        self._home = Path(data_dir or tempfile.mkdtemp(prefix=f"pybroker-{program.lower()}-"))
        self._lock = _lock(self._home, program) if self._kept else -1
        self.servers = make(self._home)
        atexit.register(self.close)
        fork_safety.tell(self)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def connect(self) -> str:
        """The servers as HOST:PORT,..."""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *numbers: int) -> None:
        """Start servers that are down, of these numbers or all, and wait until they serve. Raises StartError."""
        chosen = self._chosen(numbers)
        for server in chosen:
            if not server.running:
                self._launch(server)
        deadline_s = time.monotonic() + self.start_s_max
        while not all(map(self._serves, chosen)):
            if time.monotonic() > deadline_s:
                late = f"does not serve {self.start_s_max:g} s after its start"
                raise StartError(f"{self._program} at {self.connect} {late}")
            time.sleep(LOOK_S)

    def _launch(self, server: AnyServer) -> None:
        """Start a server, on other ports if its own are taken and it may move."""
        while True:
            try:
                server.check_free()
            except PortTaken as taken:
                if not self._move(server, taken.port):
                    raise
            else:
                return server.start()

    def _serves(self, server: AnyServer) -> bool:
        try:
            return server.serves()
        except PortTaken as taken:  # another program was faster than the server
            if not self._move(server, taken.port):
                raise
            self._launch(server)
            return False

    def _move(self, server: AnyServer, taken: int) -> bool:
        """Give a server another port in place of a taken one; False if its ports may not change."""
        return False

    def stop(self, *numbers: int) -> None:
        """Stop servers with SIGTERM, as an operator does, all at the same time."""
        self._end(numbers, signal.SIGTERM)

    def kill(self, *numbers: int) -> None:
        """Kill servers with SIGKILL."""
        self._end(numbers, signal.SIGKILL)

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

    def _end(self, numbers: Sequence[int], signal_number: int) -> None:
        chosen = self._chosen(numbers)
        for server in chosen:
            server.signal(signal_number)
        for server in chosen:
            server.end()

    def _chosen(self, numbers: Sequence[int]) -> list[AnyServer]:
        return [server for server in self.servers if not numbers or server.number in numbers]


def private(path: str, flags: int) -> int:
    """Open a file that other users cannot read; an opener for `open`."""
    return os.open(path, flags, 0o600)


def _lock(directory: Path, program: str) -> int:
    """Lock a directory, as two servers would corrupt it; return the descriptor. Raises StartError, OSError."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise StartError(f"another {program} is using the data directory {directory}") from None
    return lock


def in_use(port: int) -> OSError | None:
    """Return the error with which a program could not listen on the port now; None if it could."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((HOST, port))
        except OSError as problem:
            return problem
    return None


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
