"""Moves of replicas between brokers of this machine: bytes a second, and what clients of other partitions wait.

A topic of PARTITIONS partitions is filled on broker 1 and moved to broker 2, without a throttle; meanwhile a producer
with acks=all writes to another topic, led by broker 3. Three brokers of Kafka 3.9.1 take turns with ours with
PYBROKER_BENCH_KAFKA=yes. The limit beside them is a copy of the same files on the same disk.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.figures import show, warm_memory
from bench.peers import KAFKA, OURS
from bench.test_cluster import clusters, led_by
from pybroker import Admin
from pybroker.cli.bench.load import Measurement, Prepared, Workload, prepare
from tests.brokers.kit import Cluster
from tests.harness import HOST, until

__all__ = ["clusters"]

SIZE = int(os.environ.get("PYBROKER_BENCH_MOVE_MB", "2000")) * 1_000_000
PARTITIONS = 8
ROUNDS = 3
FILL = Workload("fill", "1 KiB records", PARTITIONS, 2, 4, 250, 1024, acks=1)
BESIDE = Workload("beside", "500 requests/s of one record", PARTITIONS, 4, 5, 1, rate=500, acks=-1)
OF_KAFKA, P99_OF_QUIET_MAX, OF_LIMIT_MIN = 3, 2, 0.9
PIECE_S, PIECE_BYTES, COPIED_S, WRITTEN_MAX = 0.005, 1 << 18, 8, 4 << 30


def test_a_move_between_brokers(clusters: Mapping[str, Cluster], tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {name: [] for name in clusters}
    quiet: dict[str, list[float]] = {name: [] for name in clusters}
    busy: dict[str, list[float]] = {name: [] for name in clusters}
    copies: list[float] = []
    beside_copies: list[float] = []
    with ExitStack() as stack:
        beside = {}
        for name, cluster in clusters.items():
            topic = led_by(cluster, "beside", leader=3, partitions=PARTITIONS)
            beside[name] = prepare(BESIDE, topic, {(HOST, cluster.brokers[3].port): list(range(PARTITIONS))}, stack)
            beside[name].run(3)
        for turn in range(ROUNDS):
            for name, cluster in clusters.items():
                moved = filled(cluster, f"moved-{turn}")
                os.sync()
                warm_memory(2 * SIZE)
                quiet[name].append(beside[name].run(5).p99_us)
                seconds, p99_us = move(cluster, moved, beside[name])
                rates[name].append(SIZE / seconds / 1e6)
                busy[name].append(p99_us)
                if name == OURS:
                    source = next(Path(cluster.brokers[2].data_dir).glob(f"{moved}-0/*.log"))
                    beside_copies.append(statistics.median(beside_a_copy(beside[name], source, tmp_path / "copy")))
                    copies.append(copied(cluster, moved, tmp_path))
                with Admin(cluster.bootstrap) as admin:
                    admin.delete_topic(moved)
    texts = {
        name: f"{max(rates[name]):,.0f} MB/s, p99 of others {min(busy[name]):,.0f} us, quiet {min(quiet[name]):,.0f}"
        for name in clusters
    }
    times = min(busy[OURS]) / min(quiet[OURS])
    most = max(P99_OF_QUIET_MAX, min(beside_copies) / min(quiet[OURS]) / OF_LIMIT_MIN)
    share, met = f"p99 {times:.1f}x quiet (<= {most:.1f})", None
    if KAFKA in clusters:
        more = max(rates[OURS]) / max(rates[KAFKA])
        share, met = f"{more:.1f}x Kafka (>= {OF_KAFKA}), {share}", more >= OF_KAFKA and times <= most
    beside_it = f"{texts.pop(KAFKA, '-')}; a copy of the files {max(copies):,.0f} MB/s; "
    beside_it += f"p99 beside two processes that send and write {min(beside_copies):,.0f} us"
    show("a move between brokers", f"{SIZE / 1e9:.0f} GB", texts[OURS], beside_it, share, met)


def filled(cluster: Cluster, name: str, size: int = SIZE) -> str:
    """Create a topic on broker 1 alone, and fill it with this many bytes."""
    cluster.create(name, replicas=[[1]] * PARTITIONS, min_insync_replicas="1", segment_bytes=str(256 << 20))
    cluster.until_in_sync(name, PARTITIONS, 1)
    with ExitStack() as stack:
        load = prepare(FILL, name, {(HOST, cluster.brokers[1].port): list(range(PARTITIONS))}, stack)
        done = 0
        while done < size:
            done += load.run(60, bytes_max=min(size - done, 1 << 30)).bytes
    return name


def move(cluster: Cluster, name: str, beside: Prepared) -> tuple[float, float]:
    """Move a topic to broker 2. Return the seconds that this takes, and the p99 of a producer beside it in us."""
    ended = threading.Event()
    waits: list[Measurement] = []

    def write() -> None:
        while not ended.is_set():
            waits.append(beside.run(1))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Admin(cluster.bootstrap) as admin:
            began_s = time.monotonic()
            refused = admin.alter_partition_reassignments({(name, index): [2] for index in range(PARTITIONS)})
            assert not any(refused.values()), refused
            until("it is moved", lambda: not admin.list_partition_reassignments(), timeout_s=600, every_s=0.02)
            seconds = time.monotonic() - began_s
    finally:
        ended.set()
        writer.join()
    return seconds, max(each.p99_us for each in waits)


def beside_a_copy(beside: Prepared, source: Path, to: Path, rate: int | None = None) -> list[float]:
    """Return the p99s of a producer, second by second, while one process sends a file to another one, which writes it:
    at a rate in bytes a second, or as fast as it can."""
    sending, receiving = socket.socketpair()
    copy = [multiprocessing.get_context("spawn").Process(target=each, args=arguments, daemon=True)
            for each, arguments in ((send, (sending, source, rate)), (receive, (receiving, to)))]  # fmt: skip
    for process in copy:
        process.start()
    sending.close()
    receiving.close()
    waits = []
    while copy[0].is_alive():
        waits.append(beside.run(1).p99_us)
    copy[1].join()
    to.unlink()
    return waits


def send(over: socket.socket, source: Path, rate: int | None) -> None:
    """Send pieces of a file, again from its start when it has ended, for COPIED_S."""
    with source.open("rb") as file:
        size, due_s = os.fstat(file.fileno()).st_size, time.monotonic()
        end_s, piece, at = due_s + COPIED_S, int(rate * PIECE_S) if rate else PIECE_BYTES, 0
        while time.monotonic() < end_s:
            over.sendfile(file, at, piece)
            at = at + piece if at + 2 * piece <= size else 0
            if rate:
                due_s += PIECE_S
                time.sleep(max(0, due_s - time.monotonic()))
    over.close()


def receive(over: socket.socket, to: Path) -> None:
    with to.open("wb", buffering=0) as file:
        while piece := over.recv(PIECE_BYTES):
            file.write(piece)
            if file.tell() >= WRITTEN_MAX:
                file.seek(0)


def copied(cluster: Cluster, name: str, to: Path) -> float:
    """Return the MB/s of a copy of the moved files."""
    source = Path(cluster.brokers[2].data_dir)
    began_s = time.monotonic()
    for index in range(PARTITIONS):
        for log in (source / f"{name}-{index}").glob("*.log"):
            shutil.copyfile(log, to / f"{index}-{log.name}")
    rate = SIZE / (time.monotonic() - began_s) / 1e6
    for path in to.iterdir():
        path.unlink()
    return rate
