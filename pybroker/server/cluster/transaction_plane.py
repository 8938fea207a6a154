"""The parts of a broker for transactions: coordinator, markers and verification, and their links to other brokers.

Requests to this broker itself are function calls, without a link.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from pybroker.config import BrokerConfig
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.interbroker.links import BrokerLinks
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.protocol import messages as m
from pybroker.replication.replicas import Replicas
from pybroker.server.api.handlers.transaction_markers import WriteTxnMarkers
from pybroker.server.api.handlers.transactions import AddPartitionsToTxn
from pybroker.server.cluster.coordinator_locator import CoordinatorLocator
from pybroker.transactions.coordinator import TransactionCoordinator
from pybroker.transactions.markers import MarkerQueues
from pybroker.transactions.verification import Verification

if TYPE_CHECKING:
    from pybroker.interbroker.link import Link

VERIFICATION_VERSION, VERIFICATION_TIMEOUT_S = 4, 10.0
MARKERS_VERSION = 1
MARKERS_TIMEOUT_S = 40.0
"""Longer than the other broker waits for the replicas of a partition."""


class TransactionPlane:
    """The parts for transactions, made complete."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        metadata: MetadataCache,
        replicas: Replicas,
        topics: TopicAdmin,
        groups: Coordinator,
        workers: Executor,
        draw_producer_id: Callable[[], Awaitable[int]],
        connect: Callable[[int], Awaitable[Link]],
        wall_ms: Callable[[], int],
    ) -> None:
        """`connect` opens a link to another broker; it raises OSError."""
        self._broker_id = broker_id
        self._links = BrokerLinks(connect)
        self._markers = MarkerQueues(metadata, self._send_markers, topics.has_partition)
        self.coordinator = TransactionCoordinator(config, workers, draw_producer_id, self._markers, wall_ms=wall_ms)
        self.locator = CoordinatorLocator(metadata, self.coordinator, topics.transaction_topic, topics.create)
        self.verification = Verification(self.locator.leader, self._ask_partitions)
        self._write_here = WriteTxnMarkers(replicas, groups.write_marker)
        self._verify_here = AddPartitionsToTxn(self.coordinator, metadata)
        metadata.watch(self.locator.show)

    async def _send_markers(self, broker: int, request: m.WriteTxnMarkersRequest) -> m.WriteTxnMarkersResponse:
        """Send markers to a broker. Raises OSError."""
        if broker == self._broker_id:
            return await self._write_here(request)
        return await self._links.ask(broker, request, MARKERS_VERSION, timeout_s=MARKERS_TIMEOUT_S)

    async def _ask_partitions(
        self, broker: int, request: m.AddPartitionsToTxnRequest
    ) -> m.AddPartitionsToTxnResponse:
        """Ask the coordinator of transactions about partitions. Raises OSError."""
        if broker == self._broker_id:
            return await self._verify_here.batched(request)
        return await self._links.ask(broker, request, VERIFICATION_VERSION, timeout_s=VERIFICATION_TIMEOUT_S)

    def close(self) -> None:
        """Stop sending and asking; the next coordinators send what is left."""
        self._markers.close()
        self.verification.close()
        self._links.close()
