"""`pybroker pipeline` on a cluster, to be killed and started again: a Python, and the JVM that it starts."""

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
"""So long one half of a driver may outlive the other."""
PATIENCE: Final = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "8s",
}
LOST_AFTER_S: Final = 9.0
"""An executor that is not heard of for so long is given up, by these settings."""
_PROGRESS: Final = re.compile(r"records in ([\d,]+) batches")


class Driver:
    """One life of a pipeline of raw records; `home` has its table and its checkpoint."""

    def __init__(
        self, cluster: SparkCluster, bootstrap: str, topic: str, table_format: str, home: Path, *more: object
    ) -> None:
        named = ("-b", bootstrap, "-t", topic, "--format", "raw", *ledger.options(table_format, home))
        small = ("--compact-files", 4, "--max-records", 2000)
        command = ("-m", "pybroker", "pipeline", "--master", cluster.url, *named, *small, *cluster.conf(**PATIENCE))
        self.process = cluster.driver(*command, *more)
        self.started_s = time.monotonic()
        self.killed = ""
        """Which of its halves somebody has killed, and when."""
        self.killed_s = 0.0
        self._jvm: int | None = None

    @property
    def jvm(self) -> int | None:
        """The JVM, once it is there; it is remembered for when its parent is gone."""
        if self._jvm is None and self.process.running:
            self._jvm = next((pid for pid in below(self.process.pid) if name_of(pid) == "java"), None)
        return self._jvm

    @property
    def batches(self) -> int:
        """As many as its last line of progress says."""
        told = [found[1] for line in self.process.lines if (found := _PROGRESS.search(line))]
        return int(told[-1].replace(",", "")) if told else 0

    def kill(self, what: str) -> str:
        """SIGKILL to "python", "jvm" or "both"; what it was, as there may be no JVM yet."""
        jvm = self.jvm
        self.killed = what if jvm is not None else "python"
        self.killed_s = time.monotonic()
        if self.killed != "jvm":
            self.process.signal(signal.SIGKILL)
        if self.killed != "python" and jvm is not None:
            os.kill(jvm, signal.SIGKILL)
        return self.killed

    def last_words(self) -> str | None:
        """The sentence that it ended with; None where it ended in silence, or with a stack before it. What PySpark's
        daemons write of a broken pipe while the pipeline goes on is none of it."""
        lines = list(self.process.lines)
        said = [at for at, line in enumerate(lines) if _PROGRESS.search(line)]
        stacks = [line for line in lines[said[-1] :] if line.startswith(("Traceback", "\tat "))] if said else []
        return lines[-1] if lines and lines[-1].startswith("pybroker: ") and not stacks else None

    def close(self) -> None:
        """No process of it is left."""
        jvm = self.jvm
        rest = below(self.process.pid) if self.process.running else [] if jvm is None else [jvm, *below(jvm)]
        self.process.kill()
        for pid in rest:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    return name_of(pid) is not None


def name_of(pid: int) -> str | None:
    """Of a process that has not ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state = told.rpartition(")")[2].split()[0]
    return None if state in "ZX" else told.partition("(")[2].rpartition(")")[0]
