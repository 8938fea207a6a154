"""The servers measured side by side: our broker, the limit and Apache Kafka, each a process on the first core."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pybroker.cli.bench.load import READ_BATCH_RECORDS, Bench, Prepared, Workload, prepare
from tests.harness import ROOT, BrokerProcess, Process, cpu_s, free_port
from tests.java import peers

OURS, LIMIT, KAFKA = "pybroker", "limit", "Kafka 3.9.1"
READ_BYTES = 256 << 20  # of the logs to read
THREADS = {"num.network.threads": 3, "num.io.threads": 8}  # Kafka's own defaults; its tests use fewer


def with_kafka() -> bool:
    """True if Kafka and Spark's connector to it take part: they need two minutes, Java and Maven."""
    return os.environ.get("PYBROKER_BENCH_KAFKA") == "yes"


class Kafka(peers.Kafka391):
    """Kafka as its own scripts start it, with a heap of 1 GiB and its default threads."""

    jvm = peers.SERVER

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, THREADS)


class Peer:
    """A server in a process of its own on the first core."""

    def __init__(self, name: str, pid: int, address: tuple[str, int]) -> None:
        self.name = name
        self.pid = pid
        self.address = address
        if (os.cpu_count() or 1) > 1:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {0})

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def prepared(self, workload: Workload, stack: ExitStack, **configs: str) -> Prepared:
        """Return the workload, on a topic with these configs (`_` for `.`)."""
        bench = stack.enter_context(Bench("{}:{}".format(*self.address), read_bytes=READ_BYTES))
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        return stack.enter_context(bench.prepared(workload, settings))


class Limit(Peer):
    """The limit's server, which has no topics: every partition exists."""

    def prepared(self, workload: Workload, stack: ExitStack, **_: str) -> Prepared:
        every = {self.address: list(range(workload.partitions))}
        if workload.fetch_bytes:
            with ExitStack() as filling:
                fill = Workload("fill", "", workload.partitions, 2, 4, READ_BATCH_RECORDS, 1024)
                prepare(fill, "limit", every, filling).run(30, bytes_max=READ_BYTES)
        return prepare(workload, "limit", every, stack)


@contextmanager
def limit(directory: Path) -> Iterator[Limit]:
    process = Process([sys.executable, "-m", "bench.serve_limit", str(directory)], cwd=ROOT)
    try:
        port = int(process.wait_line(r"limit on (\d+)", 120)[1])
        yield Limit(LIMIT, process.pid, ("127.0.0.1", port))
    finally:
        process.kill()


@contextmanager
def brokers(directory: Path) -> Iterator[list[Peer]]:
    """Yield our broker, and Kafka with PYBROKER_BENCH_KAFKA=yes if available; this process stays off their core."""
    own = os.sched_getaffinity(0)
    if len(own) > 1:
        os.sched_setaffinity(0, {max(own)})  # the generator's threads inherit it
    with ExitStack() as stack:
        started: list[Any] = [stack.enter_context(BrokerProcess(directory / "ours", free_port()))]
        if with_kafka():
            try:
                started.append(stack.enter_context(Kafka(directory / "kafka")))
            except peers.MissingJava as missing:
                print(f"\n  without Kafka: {missing}")
        named = zip((OURS, KAFKA), started, strict=False)
        yield [Peer(name, server.process.pid, ("127.0.0.1", server.port)) for name, server in named]
    os.sched_setaffinity(0, own)
