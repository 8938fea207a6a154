"""A standalone Spark cluster for tests: a master, and two workers of one core on two addresses.

    driver: this checkout's Python -- master 127.0.0.1 --+-- worker 127.0.0.1, its own directory -- executor -- Python
                                                         +-- worker 127.0.0.2, its own directory -- executor -- Python

The workers' Python is a separate environment, with pybroker installed from a wheel. Each process can be killed, stopped
and continued. None outlives the test run: the cluster's processes die with it, and executors with their workers.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.harness import HOST, ROOT, Process, free_port, until
from tests.spark.environments import WorkerPython, pack_wheel

READY_S_MAX: Final = 90.0
SMALL_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
# No other Spark runs beside these tests: Spark waits only ten seconds for a Python worker to start.
MARKS: Final = [
    pytest.mark.java,
    pytest.mark.spark_cluster,
    pytest.mark.xdist_group("spark"),
]
EXECUTOR: Final = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Executor(NamedTuple):
    """The JVM that runs tasks for one application on one worker."""

    pid: int
    worker: int

    @property
    def pythons(self) -> list[int]:
        """The pids of its Python processes: the daemon and the daemon's forks."""
        return below(self.pid)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @contextmanager
    def stopped(self, *, whole: bool = False) -> Iterator[None]:
        """Stop the JVM with SIGSTOP, and continue it at the end: it seems dead meanwhile, and does not notice.

        Its Python runs on unless `whole`. Processes that end meanwhile are ignored."""
        pids = [self.pid, *(self.pythons if whole else ())]
        _signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pids, signal.SIGCONT)


class SparkCluster:
    """`start` before use, `close` after it; `directory` has the workers' directories, their logs and environments."""

    def __init__(self, directory: Path, hosts: Sequence[str] = (HOST, "127.0.0.2")) -> None:
        import pyspark

        from pybroker.spark.java import use_java

        self.directory = directory
        self.hosts = hosts
        self.home = Path(pyspark.__file__).parent
        self._java = use_java() / "bin" / "java"
        self._wheel: Path | None = None
        self._pythons: dict[frozenset[str], WorkerPython] = {}
        self._ports = [free_port() for _ in hosts]
        self.port = free_port()
        self.master: Process | None = None
        self.workers: list[Process | None] = [None] * len(hosts)

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    # -- environments ----------------------------------------------------------------------------------------------

    @property
    def wheel(self) -> Path:
        if self._wheel is None:
            self._wheel = pack_wheel(self.directory)
        return self._wheel

    def environment(self, *lacks: str) -> WorkerPython:
        """A Python for workers: with pybroker, or without the named package, such as "pybroker" or "pyarrow"."""
        known = frozenset(lacks)
        if known not in self._pythons:
            name = "-".join(["python", *(f"without-{name}" for name in sorted(known))])
            made = WorkerPython(self.directory / name, known)
            if "pybroker" not in known:
                made.install(self.wheel)
            self._pythons[known] = made
        return self._pythons[known]

    def settings(self, python: Path | None = None) -> dict[str, str]:
        """The driver's settings: executors that fit into the workers, and the workers' Python."""
        return {
            "spark.driver.host": HOST,
            "spark.driver.bindAddress": HOST,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": SMALL_JVM,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SMALL_JVM,
            "spark.local.dir": str(self.directory / "driver"),
            "spark.pyspark.python": str(python or self.environment().python),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
        }

    def driver(self, *command: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
        """Start a process that starts Spark, with this Python: `cluster.driver("-m", "pybroker", "pipeline", ...)`."""
        return Process([sys.executable, *map(str, command)], {"SPARK_LOCAL_IP": HOST, **(env or {})}, cwd or ROOT)

    def conf(self, **more: str) -> list[str]:
        """The settings as options of the command line."""
        return [part for name, value in {**self.settings(), **more}.items() for part in ("--conf", f"{name}={value}")]

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self) -> SparkCluster:
        (self.directory / "driver").mkdir(parents=True, exist_ok=True)
        self.master = self._daemon(
            "org.apache.spark.deploy.master.Master", HOST, "--port", self.port, "--webui-port", free_port()
        )
        self.master.wait_line("New state: ALIVE", READY_S_MAX)
        for number in range(len(self.hosts)):
            self._begin(number)
        for worker in self.workers:
            assert worker is not None
            worker.wait_line("Successfully registered with master", READY_S_MAX)
        return self

    @property
    def running(self) -> bool:
        """True if the master and all workers run."""
        return all(process is not None and process.running for process in (self.master, *self.workers))

    def start_worker(self, number: int) -> None:
        """Start a worker that was killed, with its old port and directory."""
        self._begin(number).wait_line("Successfully registered with master", READY_S_MAX)

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker and its executors, as when a machine fails."""
        executors = [executor for executor in self.executors() if executor.worker == number]
        worker = self.workers[number]
        assert worker is not None, f"worker {number} is down"
        worker.kill()
        self.workers[number] = None
        _signal([executor.pid for executor in executors], signal.SIGKILL)

    def executors(self) -> list[Executor]:
        """The executors that run now, of all applications."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # the process has ended
            if EXECUTOR not in words:
                continue
            for number, (host, port) in enumerate(zip(self.hosts, self._ports, strict=True)):
                if f"spark://Worker@{host}:{port}" in words:
                    found.append(Executor(int(process.name), number))
        return sorted(found)

    def wait_executors(self, count: int, timeout_s: float = READY_S_MAX) -> list[Executor]:
        until(f"{count} executors run", lambda: len(self.executors()) == count, timeout_s)
        return self.executors()

    def work_directory(self, number: int) -> Path:
        """The directory in which a worker's executors run: APPLICATION/EXECUTOR, with their stdout and stderr."""
        return self.directory / f"worker-{number}"

    def close(self) -> None:
        executors = self.executors()
        for process in (*self.workers, self.master):
            if process is not None:
                process.kill()
        _signal([executor.pid for executor in executors], signal.SIGKILL)

    def _begin(self, number: int) -> Process:
        assert self.workers[number] is None, f"worker {number} runs"
        directory = self.work_directory(number)
        directory.mkdir(exist_ok=True)
        resources = ("--cores", 1, "--memory", "1g", "--work-dir", directory)
        ports = ("--port", self._ports[number], "--webui-port", free_port())
        worker = self._daemon("org.apache.spark.deploy.worker.Worker", self.hosts[number], *resources, *ports, self.url)
        self.workers[number] = worker
        return worker

    def _daemon(self, name: str, host: str, *arguments: object) -> Process:
        """The command that bin/spark-class would run, without starting the JVM that composes it."""
        rest = "-Dspark.master.rest.enabled=false"  # one web port for all
        java = [self._java, *SMALL_JVM.split(), "-Xmx256m", rest, "-cp", f"{self.home}/jars/*"]
        (core,) = (self.home / "jars").glob("spark-core_*.jar")
        environment = {
            "SPARK_HOME": str(self.home),
            "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.directory / f"local-{host}"),
            "PYTHONPATH": "",  # hides the checkout from the processes that the workers start
        }
        return Process([str(part) for part in (*java, name, "--host", host, *arguments)], environment, self.directory)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def below(pid: int) -> list[int]:
    """The children of a process, and their descendants."""
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in _parents().items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sorted(found - {pid})


def _parents() -> dict[int, int]:
    """The parent of each process (proc(5), field 4 of stat)."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found
