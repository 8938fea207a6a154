"""Consumers of real clients, each in its own process, started, killed and observed by the stories of groups."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.harness import Process, Server, until
from tests.java import driver, peers

PATIENCE_S = 90.0
SILENT_S_MAX = 8.0
TOLD = 4  # the number of last workers shown when a story fails
JAVA_MEMBER = Path(peers.__file__).with_name("Member.java")


@dataclass(frozen=True)
class Options:
    """The options of a worker: it leaves after `limit` records; `protocol` is Java's group.protocol."""

    topic: str = "work"
    group: str = "team"
    instance: str | None = None
    cooperative: bool = False
    commit: str = "sync"
    limit: int | None = None
    session_ms: int = 3_000
    protocol: str | None = None


class Worker:
    """One consumer, and its output so far."""

    def __init__(self, client: str, bootstrap: str, options: Options) -> None:
        self.options = options
        self.hangs = client == "kafka-python"  # see Team._tend
        told = json.dumps(asdict(options))
        if client.startswith("java-"):
            version = client.removeprefix("java-")
            try:
                at = driver.compiled(version, JAVA_MEMBER)
                command = peers.java(version, "Member", bootstrap, told, classpath=[at])
            except peers.MissingJava as missing:
                pytest.skip(str(missing))
        else:
            command = [sys.executable, "-m", "tests.groups.worker", client, bootstrap, told]
        self._process = Process(command)
        self._heard, self._heard_at = 0, time.monotonic()

    def _said(self, what: str) -> Iterator[list[str]]:
        for line in list(self._process.lines):
            word, *values = line.split()
            if word == what:
                yield values

    @property
    def assigned(self) -> set[int]:
        last = [{int(p) for p in values} for values in self._said("assigned")]
        return last[-1] if last and self._process.running else set()

    @property
    def read(self) -> list[tuple[int, int]]:
        """(partition, value) of every record that it read."""
        return [(int(p), int(v)) for (pair,) in self._said("read") for p, v in [pair.split(":")]]

    @property
    def kept(self) -> dict[int, int]:
        """{partition: the offset that it committed last}."""
        return {int(p): int(offset) for (pair,) in self._said("kept") for p, offset in [pair.split(":")]}

    def says(self, pattern: str, timeout_s: float = PATIENCE_S) -> None:
        self._process.wait_line(pattern, timeout_s)

    @property
    def running(self) -> bool:
        return self._process.running

    def check(self) -> None:
        """Check that it runs, or was to leave after a number of records."""
        assert self.running or self.options.limit is not None, f"the worker ended:\n{self._process.output()}"

    def silent_s(self) -> float:
        """Seconds without output, as far as it was checked."""
        if len(self._process.lines) != self._heard:
            self._heard, self._heard_at = len(self._process.lines), time.monotonic()
        return time.monotonic() - self._heard_at

    def end(self) -> None:
        """Wait until it has read its records and left; all its output is known then."""
        assert self._process.wait(PATIENCE_S) == 0, self.output()

    def leave(self) -> None:
        """End it cleanly: its client leaves the group."""
        self._process.signal(signal.SIGTERM)
        try:
            self.says("^left$", 4 * SILENT_S_MAX if self.hangs else PATIENCE_S)
        except AssertionError:
            if not self.hangs:
                raise
            self.kill()
        self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        self._process.kill()

    def output(self) -> str:
        return "\n".join(line for line in self._process.output().splitlines() if line != "alive")


class Team:
    """The workers of one story, also those that have ended."""

    def __init__(self, client: str, broker: Server) -> None:
        self.client, self.broker = client, broker
        self.here: list[Worker] = []
        self.all: list[Worker] = []

    def hire(self, **options: object) -> Worker:
        worker = Worker(self.client, self.broker.bootstrap, Options(**options))  # type: ignore[arg-type]
        self.here.append(worker)
        self.all.append(worker)
        return worker

    def share(self, partitions: int) -> None:
        """Wait until each partition has exactly one owner here, and each worker has a partition."""

        def shared() -> bool:
            owned = [worker.assigned for worker in self.here]
            return sorted(p for some in owned for p in some) == list(range(partitions)) and all(owned)

        self.until(f"{len(self.here)} share", shared)

    def until(self, what: str, probe: Callable[[], bool]) -> None:
        def tended() -> bool:
            self._tend()
            return probe()

        try:
            until(what, tended, PATIENCE_S)
        except AssertionError as late:
            said = "\n".join(f"-- a worker:\n{worker.output()}" for worker in self.all[-TOLD:])
            raise AssertionError(f"{late}\n{said}\n-- the broker:\n{self.broker.output()}") from None

    def _tend(self) -> None:
        """Check all workers, and replace one that hangs.

        kafka-python (3.0.12) sometimes hangs: its I/O thread sleeps on its work, and poll() never returns. An operator
        would replace such a process too."""
        for at, worker in enumerate(self.here):
            worker.check()
            if worker.hangs and worker.running and worker.silent_s() > SILENT_S_MAX:
                worker.kill()
                self.here[at] = Worker(self.client, self.broker.bootstrap, worker.options)
                self.all.append(self.here[at])

    def seen(self) -> Counter[tuple[int, int]]:
        """The number of times that each record was read, by any worker."""
        return Counter(record for worker in self.all for record in worker.read)

    def kept(self) -> dict[int, int]:
        """{partition: the highest offset that the group committed}."""
        ends: dict[int, int] = {}
        for worker in self.all:
            for partition, offset in worker.kept.items():
                ends[partition] = max(offset, ends.get(partition, 0))
        return ends

    def close(self) -> None:
        for worker in self.all:
            worker.kill()
