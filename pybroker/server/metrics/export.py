"""Starts and stops the metrics endpoint of one broker.

starting --watch()--> serving --detach()--> stopping --close()--> gone
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import StartError, why_not
from pybroker.groups.coordinator import Coordinator
from pybroker.logs import event
from pybroker.model import HostPort
from pybroker.replication.replicas import Replicas
from pybroker.server.api.quotas import QuotaManager
from pybroker.server.api.responder import Responder
from pybroker.server.metrics.bounded import SeriesLimits
from pybroker.server.metrics.collectors import BrokerMetrics
from pybroker.server.metrics.http import MetricsServer
from pybroker.server.metrics.replication import Cluster, changes_text, epochs_text
from pybroker.server.metrics.requests import Metered
from pybroker.server.network.login import Logins

log = logging.getLogger(__name__)


class Exporter:
    """The metrics of a broker and their HTTP server; `port` is the bound port."""

    def __init__(
        self, metadata: MetadataCache, connections: Callable[[], int], logins: Logins,
        certificates: Callable[[], Mapping[str, float]], limits: SeriesLimits,
    ) -> None:  # fmt: skip
        self._metrics = BrokerMetrics(metadata, connections, logins, certificates, limits)
        self._server = MetricsServer(
            self._metrics.text, self._health, self._ready, self._full, self._changes, self._epochs
        )
        self._waits_for = "it is starting"
        self.port = 0

    async def open(self, where: HostPort) -> None:
        """Listen. Raises StartError."""
        try:
            self.port = await self._server.start(where.host, where.port)
        except (OSError, ValueError) as problem:
            raise StartError(f"metrics.listener = {where}: cannot listen there: {why_not(problem)}") from problem
        event(log, logging.INFO, "metrics served", host=where.host, port=self.port)

    def watch(
        self, replicas: Replicas, groups: Coordinator, quotas: QuotaManager, responder: Responder
    ) -> Responder:
        """Begin to read these parts; return a responder that also measures request times."""
        self._metrics.replicas, self._metrics.groups, self._metrics.quotas = replicas, groups, quotas
        self._waits_for = ""
        return Metered(responder, self._metrics.requests)

    def show_cluster(self, cluster: Cluster) -> None:
        """Add the metrics of the cluster."""
        self._metrics.cluster = cluster

    def _changes(self, partition: str) -> bytes:
        return changes_text(self._metrics.cluster, partition)

    def _epochs(self) -> bytes:
        return epochs_text(self._metrics.cluster, self._metrics.replicas)

    async def detach(self) -> None:
        """Stop reading the broker's parts, which are about to close."""
        self._waits_for = "it is stopping"
        await asyncio.to_thread(self._metrics.detach)

    async def close(self) -> None:
        await self._server.close()

    def _health(self) -> str:
        replicas = self._metrics.replicas
        if replicas is not None and all(log_dir.failure for log_dir in replicas.log_dirs):
            return "all log directories have failed"
        return ""

    def _ready(self) -> str:
        groups = self._metrics.groups
        if self._waits_for or groups is None:
            return self._waits_for
        cluster = self._metrics.cluster
        no_member = cluster.no_member() if cluster is not None else ""
        return no_member or ("groups are being loaded" if groups.loading() else self._health() or self._offline())

    def _full(self) -> str:
        """The log dirs that are full: they serve reads, and other brokers lead their partitions where possible."""
        log_dirs = self._metrics.replicas.log_dirs if self._metrics.replicas is not None else ()
        return "; ".join(f"{d.path} takes no writes: {d.space.lack}" for d in log_dirs if d.space.lack)

    def _offline(self) -> str:
        """The log dirs that are offline, so that their partitions are not served."""
        log_dirs = self._metrics.replicas.log_dirs if self._metrics.replicas is not None else ()
        offline = [f"{d.path}: {d.failure}" for d in log_dirs if d.failure]
        return f"log directories are offline ({'; '.join(offline)})" if offline else ""
