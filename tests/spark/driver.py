"""`pybroker pipeline` on a cluster, to be killed and started again: a Python process, and the JVM that it starts."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Final

from tests.spark import ledger
from tests.spark.cluster import SparkCluster, below

ENDS_S_MAX: Final = 60.0
"""The time that a driver's Python may outlive its JVM, or the JVM its Python."""
PATIENCE: Final = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "8s",
}
LOST_AFTER_S: Final = 9.0
"""With these settings an executor that is silent for this time is given up."""
_PROGRESS: Final = re.compile(r"records in ([\d,]+) batches")


class Driver:
    """One run of a pipeline of raw records; `home` has its table and its checkpoint."""

    def __init__(
        self, cluster: SparkCluster, bootstrap: str, topic: str, table_format: str, home: Path, *more: object
    ) -> None:
        named = ("-b", bootstrap, "-t", topic, "--format", "raw", *ledger.options(table_format, home))
        small = ("--compact-files", 4, "--max-records", 2000)
        command = ("-m", "pybroker", "pipeline", "--master", cluster.url, *named, *small, *cluster.conf(**PATIENCE))
        self.process = cluster.driver(*command, *more)
        self.started_s = time.monotonic()
        self.killed = ""
        """What was killed, "python", "jvm" or "both", and when."""
        self.killed_s = 0.0
        self._jvm: int | None = None

    @property
    def jvm(self) -> int | None:
        """The pid of the JVM once it runs; it is kept, as the JVM cannot be found after its parent has ended."""
        if self._jvm is None and self.process.running:
            self._jvm = next((pid for pid in below(self.process.pid) if name_of(pid) == "java"), None)
        return self._jvm

    @property
    def batches(self) -> int:
        """The number of batches in its last progress line."""
        told = [found[1] for line in self.process.lines if (found := _PROGRESS.search(line))]
        return int(told[-1].replace(",", "")) if told else 0

    def kill(self, what: str) -> str:
        """Send SIGKILL to "python", "jvm" or "both"; return what was killed, as the JVM may not have started yet."""
        jvm = self.jvm
        self.killed = what if jvm is not None else "python"
        self.killed_s = time.monotonic()
        if self.killed != "jvm":
            self.process.signal(signal.SIGKILL)
        if self.killed != "python" and jvm is not None:
            os.kill(jvm, signal.SIGKILL)
        return self.killed

    def last_words(self) -> str | None:
        """The sentence that it ended with, or None if there is none or a stack trace precedes it. Broken pipes that
        PySpark's daemons report while the pipeline runs do not count."""
        lines = list(self.process.lines)
        said = [at for at, line in enumerate(lines) if _PROGRESS.search(line)]
        stacks = [line for line in lines[said[-1] :] if line.startswith(("Traceback", "\tat "))] if said else []
        return lines[-1] if lines and lines[-1].startswith("pybroker: ") and not stacks else None

    def close(self) -> None:
        """Kill every process of this driver that still runs."""
        jvm = self.jvm
        rest = below(self.process.pid) if self.process.running else [] if jvm is None else [jvm, *below(jvm)]
        self.process.kill()
        for pid in rest:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    return name_of(pid) is not None


def name_of(pid: int) -> str | None:
    """The name of a process that has not ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state = told.rpartition(")")[2].split()[0]
    return None if state in "ZX" else told.partition("(")[2].rpartition(")")[0]
