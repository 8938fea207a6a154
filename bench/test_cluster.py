"""Three brokers and a ZooKeeper on this machine: the cost of acks=all, and the outage after a broker's death.

Replication factor 3, min.insync.replicas 2, a session of two seconds. All processes share the machine's cores with the
generator. Three brokers of Kafka 3.9.1 take turns with ours with PYBROKER_BENCH_KAFKA=yes; each is judged by its best
round.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient

from bench.figures import show, warm_memory
from bench.peers import KAFKA, OURS, THREADS, with_kafka
from pybroker.cli.bench.load import Measurement, Workload, prepare
from pybroker.development.zookeeper_server import ZooKeeper
from tests.brokers.kit import QUIET, Cluster
from tests.harness import HOST, cpu_s, until
from tests.java import peers
from tests.java.mixed import KafkaMember
from tests.protocol.oracle import kafka

SESSION_MS = 2000
ROUNDS, ROUND_S, WARM_S = 8, 1.5, 5.0
ROUND_BYTES_MAX = 1 << 30
PARTITIONS = 4
KILLS, FREEZES, STOPS = 5, 3, 5
WITH_A_FROZEN_BROKER = {
    "socket.timeout.ms": 500, "request.timeout.ms": 500, "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 200,
}  # fmt: skip
"""Producer settings. After a broker falls silent, a producer waits this long before it sends those records, or asks for
metadata, elsewhere: a minute by default, and two seconds make a gap of two or four."""
WORKLOADS = (
    Workload("A1", "16 KiB batches, 4 connections, 5 deep", PARTITIONS, 4, 5, 150, acks=-1),
    Workload("A2", "one record a request, 16 connections", PARTITIONS, 16, 1, 1, acks=-1),
    Workload("A3", "500 requests/s of one record", PARTITIONS, 4, 5, 1, rate=500, acks=-1),
)
RECORDS_OF_KAFKA = {"A1": 8, "A2": 6}  # at least this many times Kafka's records
CPU_OF_KAFKA_MAX, P50_OF_KAFKA_MAX, P99_OF_KAFKA_MAX = 0.12, 0.4, 0.5
GAP_S_MAX, SILENT_GAP_S_MAX, TOLD_GAP_S_MAX, STOP_GAP_S_MAX = 0.5, 2.6, 0.2, 0.5
MANY = 1000
CREATED_S_MAX, BACK_S_MAX, TOLD_S_MAX = 3.0, 4.0, 1.0


class FastKafkaMember(KafkaMember):
    """Kafka as its scripts start it, with a heap of half a GiB, so that three fit."""

    jvm = tuple(each.replace("1g", "512m") for each in peers.SERVER)


class KafkaCluster(Cluster):
    """Three brokers of Kafka 3.9.1."""

    def __init__(self, home: Path, zookeeper: ZooKeeper, **sets: object) -> None:
        super().__init__(home, zookeeper, **sets)
        for number, ours in self.brokers.items():
            given = {name: value for name, value in ours.sets.items() if name not in ("broker.id", "zookeeper.connect")}
            connect = zookeeper.connect + self.chroot
            member = FastKafkaMember(home / f"kafka-{number}", connect, given | THREADS, number)
            self.brokers[number] = member  # type: ignore[assignment]


@pytest.fixture(scope="module")
def clusters(shared_log_dir: Path) -> Iterator[Mapping[str, Cluster]]:
    sets = {"zookeeper_session_timeout_ms": SESSION_MS, "auto_leader_rebalance_enable": "false"}
    sets["replica_lag_time_max_ms"] = 10_000
    with ExitStack() as stack:
        zookeeper = stack.enter_context(ZooKeeper())
        found = {OURS: stack.enter_context(Cluster(shared_log_dir / "ours", zookeeper, **sets))}
        if with_kafka():
            try:
                peers.jars(peers.Kafka391.version)
                found[KAFKA] = stack.enter_context(KafkaCluster(shared_log_dir / "kafka", zookeeper, **sets))
            except peers.MissingJava as missing:
                print(f"\n  without Kafka: {missing}")
        yield found


def led_by(cluster: Cluster, name: str, leader: int = 1, partitions: int = PARTITIONS) -> str:
    """Create a topic that one broker leads and all replicate."""
    others = [number for number in cluster.brokers if number != leader]
    cluster.create(name, replicas=[[leader, *others]] * partitions, segment_bytes=str(1 << 30))
    cluster.until_in_sync(name, partitions)
    return name


def pids(cluster: Cluster) -> list[int]:
    return [broker.process.pid for broker in cluster.brokers.values() if broker.process is not None]


# -- the cost of acks=all -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_acks_all(clusters: Mapping[str, Cluster], workload: Workload) -> None:
    """One broker leads all partitions, so that one generator drives one leader."""
    rounds: dict[str, list[tuple[Measurement, float]]] = {name: [] for name in clusters}
    with ExitStack() as stack:
        ready = {}
        for name, cluster in clusters.items():
            topic = led_by(cluster, workload.name)
            leader = {(HOST, cluster.brokers[1].port): list(range(PARTITIONS))}
            ready[name] = prepare(workload, topic, leader, stack)
            ready[name].run(WARM_S if name == OURS else 3 * WARM_S, bytes_max=ROUND_BYTES_MAX)
        for _ in range(ROUNDS):
            for name, cluster in clusters.items():
                os.sync()  # dirty pages of earlier rounds, and memory that the host took, are not part of the round
                warm_memory(len(cluster.brokers) * ROUND_BYTES_MAX)
                before = sum(map(cpu_s, pids(cluster)))
                outcome = ready[name].run(ROUND_S, bytes_max=ROUND_BYTES_MAX)
                rounds[name].append((outcome, sum(map(cpu_s, pids(cluster))) - before))
    told = {name: figures(each) for name, each in rounds.items()}
    texts = {name: text(workload, *each) for name, each in told.items()}
    share, met = against(workload, told)
    show(f"{workload.name}, acks=all", workload.shows, texts.pop(OURS), "; ".join(texts.values()) or "-", share, met)


def figures(rounds: list[tuple[Measurement, float]]) -> tuple[float, float, float, float]:
    """Return the best records a second, cpu-s a GB, p50 and p99 in us."""
    assert not any(outcome.errors for outcome, _ in rounds), rounds
    return (
        max(outcome.records_s for outcome, _ in rounds),
        min(cpu / (outcome.bytes / 1e9) for outcome, cpu in rounds),
        min(outcome.p50_us for outcome, _ in rounds),
        min(outcome.p99_us for outcome, _ in rounds),
    )


def text(workload: Workload, records_s: float, cpu_s_gb: float, p50_us: float, p99_us: float) -> str:
    if workload.rate:
        return f"p50/p99 {p50_us:.0f}/{p99_us:.0f} us"
    return f"{records_s / 1e3:,.1f} k rec/s, {cpu_s_gb:.1f} cpu-s/GB"


def against(workload: Workload, told: Mapping[str, tuple[float, float, float, float]]) -> tuple[str, bool | None]:
    if KAFKA not in told:
        return "", None
    rate, cpu, p50, p99 = (ours / kafka for ours, kafka in zip(told[OURS], told[KAFKA], strict=True))
    if workload.rate:
        share = f"p50 {p50:.2f}x, p99 {p99:.2f}x of Kafka (<= {P50_OF_KAFKA_MAX}x, {P99_OF_KAFKA_MAX}x)"
        return share, p50 <= P50_OF_KAFKA_MAX and p99 <= P99_OF_KAFKA_MAX
    least = RECORDS_OF_KAFKA[workload.name]
    share = f"{rate:.1f}x Kafka (>= {least}x), cpu {cpu:.2f}x"
    return share, rate >= least and (workload.name != "A1" or cpu <= CPU_OF_KAFKA_MAX)


# -- the outage after a broker's death ----------------------------------------------------------------------------


class Sender:
    """Sends one record after the other from an idempotent producer with acks=all, and notes each acknowledgement's
    time."""

    def __init__(self) -> None:
        self.acked_s: list[float] = []
        self.failed: list[str] = []

    def send(self, topic: str) -> None:
        """Send one record, and pause for at most five milliseconds."""
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def longest_gap_s(self) -> float:
        assert not self.failed, self.failed
        return max(later - earlier for earlier, later in pairwise(self.acked_s))

    def _acked(self, *_: object) -> None:
        self.acked_s.append(time.monotonic())


class Librdkafka(Sender):
    """A client with KIP-951: NOT_LEADER_OR_FOLLOWER comes with the current leader."""

    def __init__(self, bootstrap: str, **config: object) -> None:
        super().__init__()
        given = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        self._producer = ck.Producer({**given, **QUIET, **config})

    def send(self, topic: str) -> None:
        self._producer.produce(topic, b"x", on_delivery=self._delivered)
        self._producer.poll(0.005)

    def _delivered(self, error: object, _: object) -> None:
        if error is None:
            self._acked()
        else:
            self.failed.append(str(error))

    def finish(self) -> None:
        assert self._producer.flush(60) == 0


class KafkaPython(Sender):
    """A client without KIP-951: after NOT_LEADER_OR_FOLLOWER it asks for metadata."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)

    def send(self, topic: str) -> None:
        sent = self._producer.send(topic, b"x")
        sent.add_callback(self._acked)
        sent.add_errback(lambda error: self.failed.append(str(error)))
        time.sleep(0.005)

    def finish(self) -> None:
        self._producer.flush(60)
        self._producer.close()


def longest_gap_s(cluster: Cluster, topic: str, strike: signal.Signals, sender: Sender) -> float:
    """Return the longest time without an acknowledgement while the leader dies, falls silent or stops."""
    leader = cluster.leader(topic)
    killed = strike == signal.SIGKILL
    timer = threading.Timer(2, lambda: cluster.kill(leader) if killed else cluster.signal(leader, strike))
    timer.start()
    end_s = time.monotonic() + (7 if strike == signal.SIGSTOP else 4)
    while time.monotonic() < end_s:
        sender.send(topic)
    sender.finish()
    timer.join()
    if strike == signal.SIGSTOP:
        cluster.signal(leader, signal.SIGCONT)
    else:
        if not killed:
            cluster.brokers[leader].wait_end(60)
        cluster.start(leader)
    cluster.until_in_sync(topic)
    return sender.longest_gap_s()


@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_leader_dies(clusters: Mapping[str, Cluster], strike: signal.Signals) -> None:
    """The median of several deaths. Kafka is measured once: it waits for the session either way."""
    killed = strike == signal.SIGKILL
    config = {} if killed else WITH_A_FROZEN_BROKER
    most_s, times = (GAP_S_MAX, KILLS) if killed else (SILENT_GAP_S_MAX, FREEZES)
    judge_gaps(clusters, "dies-" + strike.name.lower(), strike, lambda at: Librdkafka(at, **config), most_s, times, 1)


@pytest.mark.parametrize("client", [Librdkafka, KafkaPython])
def test_a_leader_stops(clusters: Mapping[str, Cluster], client: Callable[[str], Sender]) -> None:
    """A controlled shutdown."""
    most_s = TOLD_GAP_S_MAX if client is Librdkafka else STOP_GAP_S_MAX
    judge_gaps(clusters, "stops-" + client.__name__.lower(), signal.SIGTERM, client, most_s, STOPS, STOPS)


def judge_gaps(
    clusters: Mapping[str, Cluster], topic: str, strike: signal.Signals, client: Callable[[str], Sender],
    most_s: float, times: int, times_of_kafka: int,
) -> None:  # fmt: skip
    gaps: dict[str, list[float]] = {}
    for name, cluster in clusters.items():
        led_by(cluster, topic, partitions=1)
        rounds = range(times if name == OURS else times_of_kafka)
        gaps[name] = sorted(longest_gap_s(cluster, topic, strike, client(cluster.bootstrap)) for _ in rounds)
    texts = {name: " ".join(f"{gap:.2f}" for gap in each) + " s" for name, each in gaps.items()}
    median = gaps[OURS][len(gaps[OURS]) // 2]
    ours, beside = texts.pop(OURS), "; ".join(texts.values()) or "-"
    share = f"median {median:.2f} s (<= {most_s} s)"
    show(f"a leader gets {strike.name}", f"longest gap of {topic}", ours, beside, share, median <= most_s)


# -- many partitions ---------------------------------------------------------------------------------------------------


def test_many_partitions(log_dir: Path) -> None:
    """1,000 are created; a broker that has them comes back; the controller of 2,000 dies."""
    with ZooKeeper() as zookeeper, Cluster(log_dir, zookeeper, zookeeper_session_timeout_ms=SESSION_MS) as cluster:
        until("three brokers", lambda: len(cluster.admin.list_topics(timeout=10).brokers) == 3)
        began = time.monotonic()
        cluster.create("first", MANY)
        until_led(cluster, ["first"], MANY, 3)
        judge("1,000 partitions", "created, led and in sync", time.monotonic() - began, CREATED_S_MAX)
        controller = cluster.controller()
        other = next(number for number in cluster.brokers if number != controller)
        cluster.kill(other)
        until_led(cluster, ["first"], MANY, 2)
        began = time.monotonic()
        cluster.start(other)
        until_led(cluster, ["first"], MANY, 3)
        judge("a killed broker with 1,000", "from its start until in all ISRs", time.monotonic() - began, BACK_S_MAX)
        cluster.create("second", MANY)
        until_led(cluster, ["first", "second"], 2 * MANY, 3)
        began = time.monotonic()
        cluster.kill(controller)
        until_led(cluster, ["first", "second"], 2 * MANY, 2)
        judge("the controller of 2,000 killed", "until all know the leaders", time.monotonic() - began, TOLD_S_MAX)


def until_led(cluster: Cluster, topics: list[str], partitions: int, replicas: int) -> None:
    """Return once every live broker reports a leader and this many in-sync replicas for all partitions."""
    live = [broker for broker in cluster.brokers.values() if broker.running]

    def all_say() -> bool:
        for broker in live:
            admin = AdminClient({"bootstrap.servers": f"{HOST}:{broker.port}", **QUIET})
            told = admin.list_topics(timeout=10).topics
            found = [p for name in topics if name in told for p in told[name].partitions.values()]
            if len(found) != partitions or any(len(p.isrs) != replicas or p.leader not in p.isrs for p in found):
                return False
        return True

    until(f"{replicas} of each partition in sync", all_say, timeout_s=60, every_s=0.02)


def judge(what: str, payload: str, took_s: float, most_s: float) -> None:
    show(what, payload, f"{took_s:.2f} s", "-", f"<= {most_s:g} s", took_s <= most_s)
