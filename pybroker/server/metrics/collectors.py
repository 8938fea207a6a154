"""Metrics of a broker for Prometheus, read from its parts at each scrape, so nothing is counted unless it is scraped.

Only request times are measured as requests pass (`Metered`), and only if metrics are enabled. Label values are names
of topics, groups and log dirs, or come from fixed tables (APIs, causes); clients cannot choose others.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pybroker import __version__
from pybroker.decisions.caller import Caller
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.protocol.apis import KNOWN
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.server.api.quotas import QuotaManager
from pybroker.server.api.responder import Answer, Responder, Waiting
from pybroker.server.metrics.damage import damage_metrics
from pybroker.server.metrics.plane import flush_metrics, plane_metrics, traffic_metrics
from pybroker.server.metrics.replication import Cluster, replication_metrics
from pybroker.server.metrics.request_times import Requests
from pybroker.server.network.login import Logins

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

NAMES = {key: api.name for key, api in KNOWN.items()}
PARTITION = ["topic", "partition"]


class Metered:
    """A responder that measures the time of each request that it passes on, from its frame to its response."""

    def __init__(self, responder: Responder, requests: Requests) -> None:
        self._responder = responder
        self._requests = requests

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        begun = time.perf_counter()
        answer = self._responder.respond(frame, caller)
        name = NAMES.get(int.from_bytes(frame[:2], "big"), "unknown")
        if isinstance(answer, Waiting):
            return Waiting(self._later(answer, name, begun), answer.abandon)
        self._requests.add(name, time.perf_counter() - begun)
        return answer

    async def _later(self, waiting: Waiting, name: str, begun: float) -> Answer:
        answer = await waiting.answer
        self._requests.add(name, time.perf_counter() - begun)
        return answer


class BrokerMetrics(Collector):
    """The metrics of one broker; its parts are set as they are created. Collected on any thread."""

    def __init__(
        self, metadata: MetadataCache, connections: Callable[[], int], logins: Logins,
        certificates: Callable[[], Mapping[str, float]],
    ) -> None:  # fmt: skip
        """`certificates`: returns the expiry of each TLS listener's certificates, in seconds since 1970."""
        self.requests = Requests()
        self.replicas: Replicas | None = None
        self.groups: Coordinator | None = None
        self.cluster: Cluster | None = None  # None at a lone broker
        self.quotas: QuotaManager | None = None
        self._metadata = metadata
        self._connections = connections
        self._logins = logins
        self._certificates = certificates
        self._collecting = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        with self._collecting:
            return generate_latest(self._registry)

    def detach(self) -> None:
        """Stop reading the parts, after a running scrape."""
        with self._collecting:
            self.replicas = self.groups = self.cluster = None

    def collect(self) -> Iterator[Metric]:
        built = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("pybroker_build", "The version of the broker and of its Python; always 1.", built)
        yield from self._traffic()
        if self.replicas is not None:
            yield from _partitions(len(self._metadata.image), list(self.replicas))
            yield from _disks(self.replicas)
            yield from damage_metrics(self.replicas)
            yield from replication_metrics(self.cluster, self.replicas)
        if self.groups is not None:
            yield from _groups(self.groups, self.replicas)

    def describe(self) -> list[Metric]:
        return []

    def _traffic(self) -> Iterator[Metric]:
        times = HistogramMetricFamily(
            "pybroker_request_seconds", "Time from a request to its response, if Python executes it.", labels=["api"]
        )
        served: Counter[tuple[str, str]] = Counter()
        for api, taken in list(self.requests.times.items()):
            steps = taken.cumulated()
            served[api, "python"] += steps[-1][1]
            buckets = [("+Inf" if bound is None else str(bound), float(count)) for bound, count in steps]
            times.add_metric([api], buckets, taken.sum_seconds)
        reactors = self.replicas.plane_stats() if self.replicas is not None else []
        for reactor in reactors:
            served["Produce", "native"] += reactor["Produce"]["requests"]
            served["Fetch", "native"] += reactor["Fetch"]["requests"]
        yield times
        requests = CounterMetricFamily(
            "pybroker_requests", "Requests executed, by the native plane or in Python.", labels=["api", "plane"]
        )
        for labels, count in served.items():
            requests.add_metric(labels, count)
        yield requests
        yield from plane_metrics(reactors)
        if self.replicas is not None:
            yield from flush_metrics(self.replicas.flush_times())
        yield GaugeMetricFamily("pybroker_connections", "Open connections of clients.", self._connections())
        failed, expired = "Logins that were refused.", "Connections closed because their login had expired."
        yield CounterMetricFamily("pybroker_failed_authentications", failed, self._logins.failed)
        refused = "Logins whose password, proof or token was refused."
        yield CounterMetricFamily("pybroker_refused_credentials", refused, self._logins.credentials)
        yield CounterMetricFamily("pybroker_expired_connections_killed", expired, self._logins.expired)
        what = "First expiry of a listener's certificates, or of the last that it trusts, in seconds since 1970."
        ends = GaugeMetricFamily("pybroker_certificate_end_timestamp_seconds", what, labels=["listener"])
        for listener, seconds in self._certificates().items():
            ends.add_metric([listener], seconds)
        yield ends
        if self.quotas is not None:
            yield from _throttles(self.quotas)


def _throttles(quotas: QuotaManager) -> Iterator[Metric]:
    times = CounterMetricFamily(
        "pybroker_quota_throttles", "Requests that were throttled.", labels=["quota"]
    )
    told = "Time for which requests were throttled: Kafka's throttle-time."
    seconds = CounterMetricFamily("pybroker_quota_throttle_seconds", told, labels=["quota"])
    for quota, (count, ms) in quotas.throttled.items():
        times.add_metric([quota], count)
        seconds.add_metric([quota], ms / 1000)
    yield from (seconds, times)


def _partitions(topics: int, replicas: list[Replica]) -> Iterator[Metric]:
    start = GaugeMetricFamily("pybroker_log_start_offset", "The first offset of a partition.", labels=PARTITION)
    end = GaugeMetricFamily("pybroker_log_end_offset", "The offset of a partition's next record.", labels=PARTITION)
    size = GaugeMetricFamily("pybroker_log_bytes", "Size of a partition's data files.", labels=PARTITION)
    written: Counter[str] = Counter()
    offline = 0
    for replica in replicas:
        log = replica.log
        if log is None or log.offline:
            offline += 1
            continue
        labels = [replica.key.topic, str(replica.key.partition)]
        start.add_metric(labels, log.log_start_offset)
        end.add_metric(labels, log.log_end_offset)
        size.add_metric(labels, log.size)
        written[replica.key.topic] += log.log_end_offset
    messages = CounterMetricFamily(
        "pybroker_topic_messages_in", "Records ever appended to the partitions of a topic.", labels=["topic"]
    )
    for topic, count in written.items():
        messages.add_metric([topic], count)
    yield from (messages, start, end, size)
    yield from traffic_metrics((r.key.topic, r.log.traffic) for r in replicas if r.log is not None)
    yield GaugeMetricFamily("pybroker_topics", "Topics of the cluster.", topics)
    yield GaugeMetricFamily("pybroker_partitions", "Partitions that this broker holds.", len(replicas))
    yield GaugeMetricFamily("pybroker_partitions_offline", "Partitions of this broker that are offline.", offline)


def _disks(replicas: Replicas) -> Iterator[Metric]:
    total = GaugeMetricFamily("pybroker_log_dir_bytes", "Size of the disk of a log dir.", labels=["dir"])
    free = GaugeMetricFamily("pybroker_log_dir_free_bytes", "Free bytes on the disk of a log dir.", labels=["dir"])
    failed = GaugeMetricFamily("pybroker_log_dir_offline", "1 while a log dir is offline, or else 0.", labels=["dir"])
    full = GaugeMetricFamily("pybroker_log_dir_full", "1 while a log dir takes no appends, or else 0.", labels=["dir"])
    errors = CounterMetricFamily("pybroker_log_dir_read_errors", "Reads that ended in a disk error.", labels=["dir"])
    for log_dir in replicas.log_dirs:
        path = os.path.abspath(log_dir.path)
        errors.add_metric([path], log_dir.read_errors)
        usable = not log_dir.failure
        if usable:
            try:
                disk = os.statvfs(path)
            except OSError:
                usable = False
            else:
                total.add_metric([path], disk.f_blocks * disk.f_frsize)
                free.add_metric([path], disk.f_bavail * disk.f_frsize)
        failed.add_metric([path], not usable)
        full.add_metric([path], bool(log_dir.space.lack))
    yield from (total, free, failed, full, errors)
    files, most = replicas.open_files()
    yield GaugeMetricFamily("pybroker_open_segment_files", "File descriptors that segments use.", files)
    yield GaugeMetricFamily(
        "pybroker_open_segment_files_max", "The most file descriptors that segments may use; 0: no limit.", most
    )
    count = sum(log_dir.failure is not None for log_dir in replicas.log_dirs)
    yield GaugeMetricFamily(
        "pybroker_offline_log_directory_count", "Log dirs that are offline: Kafka's OfflineLogDirectoryCount.", count
    )


def _groups(groups: Coordinator, replicas: Replicas | None) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "pybroker_group_lag",
        "Records between a group's committed offset and the high watermark.",
        labels=["group", *PARTITION],
    )
    members = GaugeMetricFamily("pybroker_group_members", "Members of a group.", labels=["group"])
    states: Counter[str] = Counter()
    for entry in groups.entries():
        name = entry.group.id
        states[entry.group.state.value] += 1
        members.add_metric([name], len(entry.group.members))
        for key, committed in list(entry.offsets.items()):
            replica = replicas.get(*key) if replicas is not None else None
            if replica is not None and replica.log is not None:
                behind = max(replica.log.high_watermark - committed.offset, 0)
                lag.add_metric([name, key.topic, str(key.partition)], behind)
    yield from (lag, members)
    by_state = GaugeMetricFamily("pybroker_groups", "Groups in each state.", labels=["state"])
    for state, count in states.items():
        by_state.add_metric([state], count)
    yield by_state
    rebalances = CounterMetricFamily("pybroker_rebalances", "Rebalances that began, by their cause.", labels=["cause"])
    for cause, count in list(groups.rebalances.items()):
        rebalances.add_metric([cause.value], count)
    yield rebalances
