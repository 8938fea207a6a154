"""Metrics of a broker for Prometheus, read from its parts at each scrape, so nothing is counted unless it is scraped.

Only request times are measured as requests pass (`Metered`), and only if metrics are enabled. Label values are names
of topics, groups and log dirs, or come from fixed tables (APIs, causes); clients cannot choose others.
"""

from __future__ import annotations

import os
import platform
import resource
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from pybroker import __version__
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.replication.replicas import Replicas
from pybroker.server.api.quotas import QuotaManager
from pybroker.server.metrics.bounded import Chosen, SeriesLimits
from pybroker.server.metrics.damage import damage_metrics
from pybroker.server.metrics.groups import group_metrics
from pybroker.server.metrics.partitions import Partitions
from pybroker.server.metrics.plane import disk_metrics, plane_metrics, python_metrics
from pybroker.server.metrics.replication import Cluster, replication_metrics
from pybroker.server.metrics.requests import Requests
from pybroker.server.network.login import Logins

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

class BrokerMetrics(Collector):
    """The metrics of one broker; its parts are set as they are created. Collected on any thread."""

    def __init__(
        self, metadata: MetadataCache, connections: Callable[[], int], logins: Logins,
        certificates: Callable[[], Mapping[str, float]], limits: SeriesLimits,
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
        self._partitions = Partitions(limits)
        self._groups = Chosen(limits.groups)
        self._samples = self._partitions.samples()
        self._collecting = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        with self._collecting:
            self._samples = self._partitions.samples()
            return generate_latest(self._registry) + self._samples.text().encode()

    def detach(self) -> None:
        """Stop reading the parts, after a running scrape."""
        with self._collecting:
            self.replicas = self.groups = self.cluster = None

    def collect(self) -> Iterator[Metric]:
        built = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily("pybroker_build", "The version of the broker and of its Python; always 1.", built)
        yield from self._traffic()
        replicas, samples = self.replicas, self._samples
        if replicas is not None:
            yield from self._partitions.metrics(len(self._metadata.image), list(replicas), samples)
            yield from _disks(replicas)
            yield from damage_metrics(replicas)
            yield from replication_metrics(self.cluster, len(replicas), self._partitions.offline, samples)
        if self.groups is not None:
            yield from group_metrics(self.groups, replicas, self._groups, samples)
        yield GaugeMetricFamily(
            "pybroker_samples_left_out", "Samples of partitions left out: see metrics.partitions.max.", samples.left_out
        )
        yield CounterMetricFamily(
            "process_major_page_faults", "Page faults of the process that waited for the disk.",
            resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        )

    def describe(self) -> list[Metric]:
        return []

    def _traffic(self) -> Iterator[Metric]:
        yield from self.requests.metrics()
        served = {(api, "python"): count for api, count in self.requests.counts().items()}
        reactors = self.replicas.plane_stats() if self.replicas is not None else []
        for api in ("Produce", "Fetch") if reactors else ():
            served[api, "native"] = sum(reactor[api]["requests"] for reactor in reactors)
        requests = CounterMetricFamily(
            "pybroker_requests", "Requests executed, by the native plane or in Python.", labels=["api", "plane"]
        )
        for labels, count in served.items():
            requests.add_metric(labels, count)
        yield requests
        yield from plane_metrics(reactors)
        if self.replicas is not None:
            yield from python_metrics(self.replicas.queue_times(), reactors)
            yield from disk_metrics(self.replicas.disk_times())
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
