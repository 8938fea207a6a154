"""A broker in a test: a real process on a real socket, that can be killed and started again.

    started --kill (SIGKILL)--> down --restart--> started
       |                          ^
       +--stop (SIGTERM, exit 0)--+

A `Server` keeps its data dir and its port over restarts, so that a client finds the broker at the same address. However
the test run ends, the process ends too: fixtures close it, `atexit` kills processes that they missed, and the kernel
(PR_SET_PDEATHSIG) kills those of a killed test run.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import inspect
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
READY_S_MAX = 150.0
STOP_S_MAX = 90.0
LOG_LINES_SHOWN = 200
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
LIVE: list[Server] = []
"""The open servers of this test process, in the order of their start."""
_given: set[int] = set()
"""The ports that this test process has got from `free_port`."""


def free_port() -> int:
    """A port that is free, that no other worker of these tests gets, and that the kernel never picks by itself.

    A port may be taken between its choice and its use, or while a broker that was killed is down.
    The kernel picks the ports of `bind(0)` for a client's own end, too: a client that retries while its broker is down
    might connect to itself, or keep the broker from binding again.
    """
    picked_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    worker, workers = (os.environ.get(name, "0") for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"))
    step = max(1, int(workers))
    while True:
        port = random.SystemRandom().randrange(10_000 + int(worker.removeprefix("gw")), picked_from, step)
        if port in _given:
            continue
        with socket.socket() as s:
            try:
                s.bind((HOST, port))
            except OSError:
                continue
            _given.add(port)
            return port


def until(what: str, probe: Callable[[], object], timeout_s: float = 60.0, every_s: float = 0.01) -> None:
    """Return when `probe` is true; fail with `what` after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not probe():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(every_s)


CLOCK_REALTIME_COARSE = 5
"""The clock of the kernel's file timestamps, which Python does not name."""


def settle(path: Path) -> None:
    """Wait until a further change of the file would get a later timestamp than its last one: a younger file is not
    mapped."""

    def is_settled() -> bool:
        return path.stat().st_ctime_ns + 10_000_000 < time.clock_gettime_ns(CLOCK_REALTIME_COARSE)

    until("the file is settled", is_settled, every_s=0.001)


async def eventually(what: str, probe: Callable[[], object], timeout_s: float = 30.0, every_s: float = 0.01) -> None:
    """Wait as `until` does, on the event loop; the result of `probe` may be awaitable."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = probe()
        if await found if inspect.isawaitable(found) else found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(every_s)


async def looked(times: int = 20) -> None:
    """Let the event loop poll all its sockets `times` times, and run their callbacks. Work that it has not done by then
    it will not do; work of threads is not included."""
    for _ in range(times):
        await asyncio.sleep(0)


def cpu_s(pid: int) -> float:
    """The CPU time of a process, in seconds (proc(5), fields 14 and 15)."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[14 - 3]) + int(after_name[15 - 3])) / os.sysconf("SC_CLK_TCK")


def die_with_parent() -> None:
    """Run in the child between fork and exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Ended(AssertionError):
    """A process ended while a test waited for its output."""


class Process:
    """A child whose output is read continuously, so that it never blocks on a full pipe and can be waited for."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._ended = False
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,  # pytest handles Ctrl-C; its fixtures then stop the child
            preexec_fn=die_with_parent,
        )
        self.pid = self._popen.pid
        self._reader = threading.Thread(target=self._read, name=f"output of {self.pid}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as pipe:
            for raw in pipe:
                with self._more:
                    self.lines.append(raw.decode(errors="replace").rstrip("\n"))
                    self._more.notify_all()
        with self._more:
            self._ended = True
            self._more.notify_all()

    def wait_line(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Return the first line that matches the pattern; fail with the output if the process ends first, or after the
        timeout."""
        seen, deadline = 0, time.monotonic() + timeout_s
        with self._more:
            while True:
                for line in self.lines[seen:]:
                    if found := re.search(pattern, line):
                        return found
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if self._ended:
                    raise Ended(f"it ended without a line like {pattern!r}:\n{self.output()}")
                if left <= 0:
                    raise AssertionError(f"{timeout_s} s passed without a line like {pattern!r}:\n{self.output()}")
                self._more.wait(left)

    def output(self) -> str:
        return "\n".join(self.lines[-LOG_LINES_SHOWN:])

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code (negative: the signal); `lines` then has all output."""
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} still runs after {timeout_s} s:\n{self.output()}") from None
        self._reader.join(5)
        return code

    def kill(self) -> None:
        if self.running:
            self.signal(signal.SIGKILL)
        self.wait(STOP_S_MAX)


class Server:
    """The interface of any broker in these tests; `BrokerProcess` is ours, and tests/java has Apache Kafka's."""

    name = "server"
    ready_line = ""
    stop_codes: tuple[int, ...] = (0,)

    def __init__(self, data_dir: Path, port: int) -> None:
        self.data_dir = data_dir
        self.port = port
        self.process: Process | None = None
        self.log: list[str] = []
        """The output of this server's earlier runs; `output` includes the present one's."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return {}

    def on_ready(self, line: re.Match[str]) -> None:
        """Use the ready line, for example to learn the port."""

    def begin(self) -> None:
        """Start the process; `wait_ready` waits until it serves. Call it on a thread that stays: the process dies with
        the thread."""
        assert not self.running, f"{self.name} already runs"
        if self not in LIVE:
            LIVE.append(self)
        self.process = Process(self.command(), self.environment())

    def wait_ready(self) -> None:
        """Return when it serves. Raises Ended."""
        assert self.process is not None
        self.on_ready(self.process.wait_line(self.ready_line, READY_S_MAX))

    def start(self) -> Server:
        self.begin()
        self.wait_ready()
        return self

    restart = start

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def ports(self) -> list[int]:
        """The ports of all brokers in the cluster's metadata."""
        return [self.port]

    def port_of(self, topic: str, partition: int = 0) -> int:
        """The port of a partition's leader."""
        return self.port

    def coordinator_port(self, group: str) -> int:
        """The port of a group's coordinator."""
        return self.port

    def count(self, words: str) -> int:
        """The number of output lines, over all its runs, that contain these words."""
        return sum(words in line for line in [*self.log, *(self.process.lines if self.process else ())])

    def output(self) -> str:
        now = self.process.lines if self.process else []
        return "\n".join([*self.log, *now][-LOG_LINES_SHOWN:])

    def _bury(self) -> int:
        """Reap the process, keeping its output."""
        assert self.process is not None
        code = self.process.wait(STOP_S_MAX)
        self.log += [*self.process.lines, f"--- process {self.process.pid} ended with {code}"]
        self.process = None
        return code

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone."""
        assert self.process is not None and self.process.running, f"{self.name} is already down:\n{self.output()}"
        self.process.signal(signal.SIGKILL)
        self._bury()

    def stop(self) -> None:
        """Send SIGTERM, and check that the process ends cleanly."""
        assert self.process is not None and self.process.running, f"{self.name} is already down:\n{self.output()}"
        self.process.signal(signal.SIGTERM)
        code = self._bury()
        assert code in self.stop_codes, f"{self.name} ended with {code} on SIGTERM:\n{self.output()}"

    def wait_end(self, timeout_s: float = STOP_S_MAX) -> int:
        """Wait for a process that is expected to end on its own, and return its exit code (negative: the signal)."""
        assert self.process is not None
        self.process.wait(timeout_s)
        return self._bury()

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self.process is not None:
            self.process.kill()
            self._bury()
        if self in LIVE:
            LIVE.remove(self)

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """The only directory of this partition, in the data directory or in a log dir directly below. Deeper
        directories may disappear during the search, when a topic is deleted."""
        name = f"{topic}-{partition}"
        found = [p for pattern in (name, f"*/{name}") for p in self.data_dir.glob(pattern) if p.is_dir()]
        assert len(found) == 1, f"{topic}-{partition} in {self.data_dir}: {found}"
        return found[0]

    def __enter__(self) -> Server:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerProcess(Server):
    """`pybroker serve` on `data_dir`; `sets` are its `--set name=value`, and `failpoints` arms faults in its file
    calls."""

    name = "pybroker"
    ready_line = r"pybroker ready on (\S+):(\d+)"

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        sets: Mapping[str, object] | None = None,
        failpoints: str = "",
    ) -> None:
        super().__init__(data_dir, port)
        self.sets = dict(sets or {})
        self.failpoints = failpoints

    def command(self) -> list[str]:
        sets = [f"--set={name}={value}" for name, value in self.sets.items()]
        serve = ["serve", "--data-dir", str(self.data_dir), "--port", str(self.port), *sets]
        return [sys.executable, "-m", "pybroker", *serve]

    def environment(self) -> Mapping[str, str]:
        return {"PYTHONUNBUFFERED": "1", "PYBROKER_FAILPOINTS": self.failpoints}

    def on_ready(self, line: re.Match[str]) -> None:
        told = int(line[2])
        assert self.port in (0, told), f"asked for port {self.port}, got {told}"
        self.port = told


@atexit.register
def close_all() -> None:
    for server in list(LIVE):
        server.close()
