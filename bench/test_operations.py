"""Measurements of what operators do to a cluster, and of what clients notice: a throttled move, a rolling restart, the
death of a broker with thousands of partitions; and twenty brokers at rest."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.figures import show, warm_memory
from bench.peers import OURS
from bench.test_cluster import clusters, judge, led_by, pids
from bench.test_reassignment import BESIDE, PARTITIONS, beside_a_copy, filled
from bench.test_start import resident
from pybroker import Admin
from pybroker.cli.bench.load import Measurement, prepare
from pybroker.cli.reassign.throttle import remove_throttle, set_throttle
from pybroker.development.zookeeper_server import ZooKeeper
from pybroker.model import TopicPartition
from tests.brokers.kit import Cluster
from tests.brokers.system.test_rolling import Load, Operator
from tests.cli.conftest import run_process
from tests.harness import HOST, cpu_s, until

__all__ = ["clusters"]

THROTTLE = 20_000_000
SETTLING_S, THROTTLED_S = 5, 60
OFF_BY_MAX, P99_OF_QUIET_MAX, OF_LIMIT_MIN = 0.1, 1.2, 0.9
MANY, GAP_MS_MAX = 1000, 300
LED, LED_S_MAX = 3000, 0.7
AT_REST, AT_REST_PARTITIONS, SETTLED_S, REST_S = 20, 2000, 30, 20
CORE_MAX, RESIDENT_MB_MAX = 0.02, 60


def test_a_throttled_move(clusters: Mapping[str, Cluster], log_dir: Path) -> None:
    """The bytes that broker 2 writes over a minute; the p99 of a producer to partitions that do not move, beside its
    p99 while a plain copy writes as many bytes a second."""
    cluster = clusters[OURS]
    size = (THROTTLED_S + 3 * SETTLING_S) * THROTTLE
    with ExitStack() as stack:
        topic = led_by(cluster, "beside-throttled", leader=3, partitions=PARTITIONS)
        address = HOST, cluster.brokers[3].port
        beside = prepare(BESIDE, topic, {address: list(range(PARTITIONS))}, stack)
        beside.run(3)
        moved = filled(cluster, "throttled", size)
        os.sync()
        warm_memory(2 * size)
        quiet = [beside.run(1).p99_us for _ in range(10)]
        source = next(Path(cluster.brokers[1].data_dir).glob(f"{moved}-0/*.log"))
        limit = beside_a_copy(beside, source, log_dir / "copy", THROTTLE)
        moves = {TopicPartition(moved, index): ([1], [2]) for index in range(PARTITIONS)}
        admin = stack.enter_context(Admin(cluster.bootstrap))
        set_throttle(admin, THROTTLE, cluster.brokers, moves)
        admin.alter_partition_reassignments({tuple(key): after for key, (_, after) in moves.items()})
        waits: list[Measurement] = []
        end_s = time.monotonic() + SETTLING_S
        while time.monotonic() < end_s:
            beside.run(1)
        began_s, before = time.monotonic(), held(cluster, 2, moved)
        while time.monotonic() < began_s + THROTTLED_S:
            waits.append(beside.run(1))
        rate = (held(cluster, 2, moved) - before) / (time.monotonic() - began_s)
        admin.alter_partition_reassignments(dict.fromkeys(map(tuple, moves)))
        until("it is cancelled", lambda: not admin.list_partition_reassignments(), timeout_s=60)
        assert remove_throttle(admin) == THROTTLE
        admin.delete_topic(moved)
    busy, calm, copying = (statistics.median_high(each) for each in ([wait.p99_us for wait in waits], quiet, limit))
    times, most = busy / calm, max(P99_OF_QUIET_MAX, copying / calm / OF_LIMIT_MIN)
    off_by = abs(rate / THROTTLE - 1)
    show(
        "a throttled move", f"{THROTTLE / 1e6:.0f} MB/s for {THROTTLED_S} s",
        f"{rate / 1e6:.2f} MB/s, p99 {busy:.0f} us",
        f"p99 quiet {calm:.0f} us, beside a plain copy {copying:.0f} us",
        f"off by {off_by:.0%} (<= {OFF_BY_MAX:.0%}), median p99 {times:.2f}x quiet (<= {most:.2f}x)",
        off_by <= OFF_BY_MAX and times <= most,
    )  # fmt: skip


def held(cluster: Cluster, number: int, topic: str) -> int:
    """Return the bytes of a topic's logs on a broker."""
    home = Path(cluster.brokers[number].data_dir)
    return sum(log.stat().st_size for log in home.glob(f"{topic}-*/*.log"))


@pytest.mark.parametrize("rate", [5_000, 20_000])
def test_a_rolling_restart(log_dir: Path, rate: int) -> None:
    """`pybroker cluster restart` of three brokers, while one producer writes one record after another to all
    partitions; each record must be there once, at its offset. Beside it: the longest gap of the same load while a
    broker of another cluster is restarted three times, which takes as much cpu and moves no leader."""
    with (
        ZooKeeper() as zookeeper, Cluster(log_dir / "other", zookeeper, 1) as other,
        Cluster(log_dir, zookeeper) as cluster,
    ):  # fmt: skip
        topic = cluster.create("t", MANY)
        until_all_led(cluster, topic, MANY, 3)
        until_all_led(other, other.create("t", replicas=[[1]] * MANY, min_insync_replicas="1"), MANY, 1)
        operator = Operator(cluster, log_dir)
        with Load(cluster, topic, MANY, rate) as load:
            until("records are acknowledged", lambda: len(load.acked) > 5 * MANY)
            time.sleep(SETTLING_S)
            quiet_ms = load.longest_ms(time.monotonic() - SETTLING_S + 1)
            began_s = time.monotonic()
            for _ in cluster.brokers:
                other.brokers[1].stop()
                other.brokers[1].start()
            limit_ms = load.longest_ms(began_s)
            other.close()
            time.sleep(SETTLING_S)
            began_s = time.monotonic()
            done = run_process("cluster", "restart", "-b", cluster.bootstrap, "--yes", "--run", operator.command)
            assert done.code == 0, done
            took_s, gap_ms = time.monotonic() - began_s, load.longest_ms(began_s)
            load.judge()
    most_ms = max(GAP_MS_MAX, limit_ms / OF_LIMIT_MIN)
    show(
        "a rolling restart",
        f"{MANY:,} partitions, {len(load.acked) / 1e3:,.0f} k records at {rate / 1e3:.0f} k/s",
        f"longest gap {gap_ms:.0f} ms in {took_s:.0f} s",
        f"quiet {quiet_ms:.0f} ms, beside restarts of another broker {limit_ms:.0f} ms", f"<= {most_ms:.0f} ms",
        gap_ms <= most_ms,
    )  # fmt: skip


def until_all_led(cluster: Cluster, topic: str, partitions: int, in_sync: int) -> None:
    """Return once each live broker knows a live leader and this many in-sync replicas of all partitions."""
    live = [number for number, broker in cluster.brokers.items() if broker.running]

    def known(number: int) -> bool:
        told = cluster.told_by(number, topic).values()
        return len(told) == partitions and all(len(isr) == in_sync and leader in live for leader, isr in told)

    until(f"{partitions} partitions are led", lambda: all(map(known, live)), timeout_s=120, every_s=0.01)


@pytest.mark.parametrize("whom", ["controller", "other"])
def test_a_broker_of_thousands_is_killed(log_dir: Path, whom: str) -> None:
    """From the line that says that the broker is dead until both others know a leader of each partition."""
    with ZooKeeper() as zookeeper, Cluster(log_dir, zookeeper) as cluster:
        topic = cluster.create("t", LED)
        until_all_led(cluster, topic, LED, 3)
        took_s, since_s = killed_s(cluster, topic, LED, whom)
    judge(f"{LED:,} partitions, the {whom} killed", f"led again, {since_s:.2f} s after the kill", took_s, LED_S_MAX)


def killed_s(cluster: Cluster, topic: str, partitions: int, whom: str) -> tuple[float, float]:
    """Kill the controller, or another broker. Return the seconds until both others know a leader of each partition:
    since the line that says that the broker is dead, or another is the controller, and since the kill."""
    controller = cluster.controller()
    killed = controller if whom == "controller" else next(n for n in cluster.brokers if n != controller)
    proof = "controller elected" if whom == "controller" else "broker is dead"
    others = [broker for number, broker in cluster.brokers.items() if number != killed]
    before = sum(broker.count(proof) for broker in others)
    seen: list[float] = []

    def watch() -> None:
        until(proof, lambda: sum(broker.count(proof) for broker in others) > before, timeout_s=60, every_s=0.005)
        seen.append(time.monotonic())

    watching = threading.Thread(target=watch)
    watching.start()
    began_s = time.monotonic()
    cluster.kill(killed)
    until_all_led(cluster, topic, partitions, 2)
    ended_s = time.monotonic()
    watching.join()
    return ended_s - seen[0], ended_s - began_s


def test_twenty_brokers_at_rest(log_dir: Path) -> None:
    """The share of a core and the memory of each, the most of all brokers."""
    with ZooKeeper() as zookeeper, Cluster(log_dir, zookeeper, AT_REST) as cluster:
        topic = cluster.create("t", AT_REST_PARTITIONS)
        until_all_led(cluster, topic, AT_REST_PARTITIONS, 3)
        time.sleep(SETTLED_S)
        processes = pids(cluster)
        before = [cpu_s(pid) for pid in processes]
        time.sleep(REST_S)
        shares = [(cpu_s(pid) - earlier) / REST_S for pid, earlier in zip(processes, before, strict=True)]
        memory_mb = [resident(pid) / 1e6 for pid in processes]
    show(
        f"{AT_REST} brokers at rest", f"{AT_REST_PARTITIONS:,} partitions, RF 3",
        f"{min(shares):.2%} to {max(shares):.2%} of a core, {min(memory_mb):.0f} to {max(memory_mb):.0f} MB each", "-",
        f"<= {CORE_MAX:.0%} and {RESIDENT_MB_MAX} MB", max(shares) <= CORE_MAX and max(memory_mb) <= RESIDENT_MB_MAX,
    )  # fmt: skip
