"""A loaded broker: idle connections, waiting requests, partitions, readers and writers at once; and a broker at
rest."""

from __future__ import annotations

import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from bench.figures import show
from bench.peers import Peer
from pybroker.cli.bench.load import WORKLOADS, Bench, Measurement, Prepared
from pybroker.client.admin import Admin
from tests.core.stage import Client, Stage, batch
from tests.harness import HOST, BrokerProcess, free_port, until
from tests.wire import FETCH, Wire, array, string

CONNECTIONS = 10_000
CONNECTION_BYTES_MAX = 8 << 10
P99_GROWS_MAX = 1.5
COLD_BYTES = 4 << 30
COLD_ROUNDS = 10  # a second each: most of them differ by the machine's own pauses
COLD_BATCH_BYTES = 1_000_000
COLD_PIECE_BYTES = 64 << 10  # dropped by its reader in one system call, which the kernel may not interrupt
PARTITIONS = 10_000
TOPIC_PARTITIONS = 500
SCRAPES = 10
SCRAPE_MS_MAX = 100
SCRAPE_BYTES_MAX = 5_000_000
START_S_MAX = 10.0
SPREAD_SHARE_MIN = 0.6
IDLE_S = 3.0
IDLE_SHARE_MAX = 0.01
ROUNDS = 3
ROUND_S = 0.5
ROUND_BYTES_MAX = 512 << 20
DESCRIPTORS = 2 * CONNECTIONS + 4096
SESSION_PARTITIONS = 2000
SESSION_CYCLES = 400
SESSION_US_MAX = 40


@pytest.fixture
def broker(log_dir: Path) -> Iterator[BrokerProcess]:
    """A broker; it and this process may open as many files as the hard limit allows."""
    cores = os.sched_getaffinity(0)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
    sets = {"socket.listen.backlog.size": 4096}
    with BrokerProcess(log_dir / "data", free_port(), sets=sets) as started:
        yield started
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.sched_setaffinity(0, cores)  # `peer` has narrowed them, and the next broker would inherit that


def peer(broker: BrokerProcess) -> Peer:
    """Pin the broker to the first core, and the generator, which is this thread, to the last."""
    assert broker.process is not None
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    return Peer("pybroker", broker.process.pid, (HOST, broker.port))


def own_bytes(broker: BrokerProcess) -> int:
    """Return the process's own memory: RssAnon of proc(5), without the mapped page cache."""
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


def in_turns(runs: dict[str, Callable[[], Measurement]]) -> dict[str, list[Measurement]]:
    """Run one after the other, after one round that does not count."""
    found: dict[str, list[Measurement]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        os.sync()
        for name, run in runs.items():
            outcome = run()
            assert not outcome.errors, outcome
            if number:
                found[name].append(outcome)
    return found


def connected(broker: BrokerProcess, stack: ExitStack) -> list[socket.socket]:
    assert broker.process is not None
    sockets = [stack.enter_context(socket.create_connection((HOST, broker.port), 10)) for _ in range(CONNECTIONS)]
    files = f"/proc/{broker.process.pid}/fd"
    until("the broker has them all", lambda: len(os.listdir(files)) >= CONNECTIONS, 30)
    return sockets


def test_connections(broker: BrokerProcess) -> None:
    """10,000 idle connections, then 10,000 with a waiting fetch: bytes of each, and the effect on others."""
    fixed = WORKLOADS["W6"]
    peer(broker)
    with ExitStack() as stack, Wire(broker.port) as wire:
        bench = stack.enter_context(Bench(broker.bootstrap))
        assert wire.create_topic("waited-for") == 0
        alone = stack.enter_context(bench.prepared(fixed))
        before = [alone.run(ROUND_S) for _ in range(2 * ROUNDS)]
        empty_bytes = own_bytes(broker)
        sockets = connected(broker, stack)
        idle_bytes = own_bytes(broker) - empty_bytes
        among = [alone.run(ROUND_S) for _ in range(2 * ROUNDS)]
        asked = array([string("waited-for") + array([struct.pack(">iqi", 0, 0, 1 << 20)])])
        frame = wire.frame(FETCH, 4, struct.pack(">iiiib", -1, 600_000, 1, 1 << 20, 0) + asked)
        idle_and_run = own_bytes(broker)
        for sock in sockets:
            sock.sendall(frame)
        assert wire.api_versions()
        time.sleep(1)
        parked_bytes = own_bytes(broker) - idle_and_run
        p99 = min(o.p99_us for o in before), min(o.p99_us for o in among)
    share = p99[1] / p99[0]
    show(
        f"{CONNECTIONS:,} idle connections",
        fixed.shows,
        f"{idle_bytes / CONNECTIONS:,.0f} B each, p99 {p99[1]:.0f} us; "
        f"{parked_bytes / CONNECTIONS:,.0f} B a parked fetch",
        f"p99 {p99[0]:.0f} us without them",
        f"<= {CONNECTION_BYTES_MAX} B, p99 {share:.2f}x (<= {P99_GROWS_MAX}x)",
        idle_bytes / CONNECTIONS <= CONNECTION_BYTES_MAX and share <= P99_GROWS_MAX,
    )


def test_partitions(broker: BrokerProcess) -> None:
    """10,000 with data: bytes of each, W1 spread over all of them, and the start after a clean stop."""
    four = WORKLOADS["W1"]
    empty_bytes = own_bytes(broker)
    peer(broker)
    with ExitStack() as stack:
        bench = stack.enter_context(Bench(broker.bootstrap, timeout_s=120))
        narrow = bounded(stack.enter_context(bench.prepared(four)))
        spread = bounded(stack.enter_context(bench.prepared(four._replace(partitions=PARTITIONS))))
        each_bytes = (own_bytes(broker) - empty_bytes) / PARTITIONS
        rates = {n: max(o.records_s for o in f) for n, f in in_turns({"narrow": narrow, "spread": spread}).items()}
        broker.stop()
        started_s = time.monotonic()
        broker.restart()
        with Wire(broker.port) as wire:
            assert sorted(map(len, wire.metadata()[1].values())) == [four.partitions, PARTITIONS]
        start_s = time.monotonic() - started_s
    share = rates["spread"] / rates["narrow"]
    show(
        f"{PARTITIONS:,} partitions",
        four.shows,
        f"{rates['spread'] / 1e6:.2f} M rec/s, start {start_s:.1f} s, {each_bytes:,.0f} B each",
        f"{rates['narrow'] / 1e6:.2f} M rec/s on {four.partitions}",
        f"{share:.0%} (>= {SPREAD_SHARE_MIN:.0%}), start <= {START_S_MAX:.0f} s",
        share >= SPREAD_SHARE_MIN and start_s <= START_S_MAX,
    )


def test_metrics_of_many_partitions(log_dir: Path) -> None:
    """The time and the size of /metrics."""
    port, most = free_port(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, most[1]), most[1]))
    with BrokerProcess(log_dir / "data", free_port(), sets={"metrics.listener": f"{HOST}:{port}"}) as broker:
        with Admin(broker.bootstrap) as admin:
            for number in range(PARTITIONS // TOPIC_PARTITIONS):
                admin.create_topic(f"topic-{number:05}", partitions=TOPIC_PARTITIONS)
        taken_ms, size = [], 0
        for _ in range(SCRAPES):
            began = time.perf_counter()
            with urlopen(f"http://{HOST}:{port}/metrics") as answer:
                size = len(answer.read())
            taken_ms.append((time.perf_counter() - began) * 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, most)
    met = min(taken_ms) <= SCRAPE_MS_MAX and size <= SCRAPE_BYTES_MAX
    value = f"{min(taken_ms):.0f} ms, {size / 1e6:.1f} MB"
    limit = f"<= {SCRAPE_MS_MAX} ms, {SCRAPE_BYTES_MAX / 1e6:.0f} MB"
    show("a scrape of metrics", f"{PARTITIONS:,} partitions", value, "-", limit, met)


def bounded(prepared: Prepared) -> Callable[[], Measurement]:
    return lambda: prepared.run(ROUND_S, bytes_max=ROUND_BYTES_MAX)


def test_readers_beside_writers(broker: BrokerProcess) -> None:
    """W1 and F1 at once, on two reactors and wherever the kernel puts them, compared with each alone."""
    with ExitStack() as stack, ThreadPoolExecutor(1) as aside:
        bench = stack.enter_context(Bench(broker.bootstrap))
        write, read = (bounded(stack.enter_context(bench.prepared(WORKLOADS[name]))) for name in ("W1", "F1"))
        alone = in_turns({"W1": write, "F1": read})
        both: dict[str, list[Measurement]] = {"W1": [], "F1": []}
        for _ in range(ROUNDS):
            os.sync()
            reading = aside.submit(read)
            both["W1"].append(write())
            both["F1"].append(reading.result())

    def told(found: dict[str, list[Measurement]]) -> str:
        return "; ".join(f"{name} {max(o.mb_s for o in outcomes):,.0f} MB/s" for name, outcomes in found.items())

    show("W1 and F1 at once", f"unpinned, {os.cpu_count()} cores", told(both), f"{told(alone)} alone")


class ColdReader:
    """A consumer that reads a topic of COLD_BYTES, none of which is in the page cache, from its start, again and again.

    It drops the data (MSG_TRUNC): copying would take the broker's core, one of two, for milliseconds."""

    def __init__(self, broker: BrokerProcess) -> None:
        value = os.urandom(COLD_BATCH_BYTES)
        self.batch = batch(value)
        with Wire(broker.port) as wire:
            assert wire.create_topic("cold", config={"segment.bytes": str(256 << 20)}) == 0
            for _ in range(COLD_BYTES // COLD_BATCH_BYTES):
                assert wire.produce("cold", self.batch).error == 0
        self.files = sorted(broker.partition_dir("cold").glob("*.log"))
        self.wire = Wire(broker.port)
        self.wire.socket.settimeout(None)  # otherwise a call does not wait for all data
        self.bytes = 0
        self.ended = threading.Event()

    def chill(self) -> None:
        for path in self.files:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self) -> None:
        # This thread uses the rest of the broker's core: the generator never sleeps, and would block it.
        os.sched_setaffinity(0, {0})
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        offset, view = 0, memoryview(bytearray(2 * COLD_BATCH_BYTES))
        while not self.ended.is_set():
            asked = array([string("cold") + array([struct.pack(">iqi", 0, offset, COLD_BATCH_BYTES)])])
            self.wire.socket.sendall(self.wire.frame(FETCH, 4, struct.pack(">iiiib", -1, 1000, 1, 1 << 21, 0) + asked))
            size = int.from_bytes(self.wire.socket.recv(4, socket.MSG_WAITALL), "big")
            for at in range(0, size, COLD_PIECE_BYTES):
                n = min(COLD_PIECE_BYTES, size - at)
                assert self.wire.socket.recv_into(view[at:], n, socket.MSG_TRUNC | socket.MSG_WAITALL) == n
            count = size // len(self.batch)
            self.bytes += size
            offset = offset + count if count else 0


def test_a_cold_read_beside_writers(broker: BrokerProcess) -> None:
    """W6 while another client reads 4 GB from the disk: waiting for the disk delays no other client."""
    fixed = WORKLOADS["W6"]
    quiet: list[Measurement] = []
    beside: list[Measurement] = []
    peer(broker)
    with ExitStack() as stack, ThreadPoolExecutor(1) as aside:
        bench = stack.enter_context(Bench(broker.bootstrap))
        reader = ColdReader(broker)
        stack.callback(reader.wire.socket.close)
        run = stack.enter_context(bench.prepared(fixed))
        rate_s = 0.0
        for number in range(COLD_ROUNDS + 1):
            reader.chill()
            found = [run.run(1.0)]
            reader.ended.clear()
            before, began_s = reader.bytes, time.monotonic()
            reading = aside.submit(reader.read)
            found.append(run.run(1.0))
            rate_s = max(rate_s, (reader.bytes - before) / (time.monotonic() - began_s))
            reader.ended.set()
            reading.result()
            if number:
                quiet.append(found[0])
                beside.append(found[1])
    p99 = min(o.p99_us for o in quiet), min(o.p99_us for o in beside)
    share = p99[1] / p99[0]
    show(
        "W6 beside a cold read", f"{fixed.shows}; 4 GB from the disk at {rate_s / 1e9:.2f} GB/s",
        f"p99 {p99[1]:.0f} us", f"{p99[0]:.0f} us quiet",
        f"{share:.2f}x (<= {P99_GROWS_MAX}x)", share <= P99_GROWS_MAX,
    )  # fmt: skip


def test_at_rest(broker: BrokerProcess) -> None:
    """The share of a core that a broker with a topic and a client uses while there are no requests."""
    measured = peer(broker)
    with Wire(broker.port) as wire:
        assert wire.create_topic("quiet", 100) == 0
        time.sleep(1)
        before_s = measured.cpu_s()
        time.sleep(IDLE_S)
        share = (measured.cpu_s() - before_s) / IDLE_S
    limit = f"<= {IDLE_SHARE_MAX:.0%}"
    show("at rest", "100 partitions", f"{share:.2%} of a core", "-", limit, share <= IDLE_SHARE_MAX)


def test_a_fetch_of_many_partitions(log_dir: Path) -> None:
    """The network thread's time, socket calls included, for a Fetch that waits on 2,000 partitions, as a follower's
    does: an append to one partition wakes it, it is answered, and the next one waits."""
    stage = Stage(log_dir, partitions=SESSION_PARTITIONS)
    client, value = Client(stage), batch(b"x")
    client.fetch_in((0, 0), dict.fromkeys(range(SESSION_PARTITIONS), 0))
    stage.step()
    session, epoch = client.receive(FETCH, 12)[1].session_id, 1
    client.fetch_in((session, epoch), {}, max_wait_ms=60_000)
    stage.step()
    cycles_us = []
    for _ in range(ROUNDS):
        began_ns = stage.plane.stats()[0]["busy_ns"]
        for cycle in range(SESSION_CYCLES):
            index = cycle * 7 % SESSION_PARTITIONS
            end = stage.partitions[index].append(value, now_ms=1).last_offset + 1
            stage.plane.step(0)
            assert len(client.receive(FETCH, 12)[1].responses) == 1
            epoch += 1
            client.fetch_in((session, epoch), {index: end}, max_wait_ms=60_000)
            stage.plane.step(0)
        cycles_us.append((stage.plane.stats()[0]["busy_ns"] - began_ns) / SESSION_CYCLES / 1000)
    stage.close()
    took_us = min(cycles_us)
    show(
        "a Fetch of 2,000 partitions: woken, answered, waiting again", "one append", f"{took_us:.1f} us",
        f"a target of {SESSION_US_MAX} us", f"{took_us / SESSION_US_MAX:.0%}", took_us <= SESSION_US_MAX,
    )  # fmt: skip
