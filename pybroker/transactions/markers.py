"""Sends the markers of decided transactions to the leaders of their partitions, and retries each until it is written.

    decided --> queue of the leader's broker --WriteTxnMarkers--> written --the last one--> the completion is stored
                  ^       |                         |
                  |       +--the broker is gone-----+--not written--> put off
                  +----------a moment later, or when the metadata changes--+

A marker is never given up because its leader is unknown: this broker may have been started a moment ago. Only a
partition that the cluster's store no longer has is struck off, as its records are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.decisions.image import Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.transaction import Transaction
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.retries import Pauses, keep_up

BATCH: Final = 1000
"""Markers in one request."""
IN_FLIGHT: Final = 4
"""Requests to one broker at a time, so that one partition without its followers does not hold up the others."""
AGAIN_S: Final = 0.1
"""Seconds after which markers that were put off are sent again."""
LOOK_UP_S: Final = 1.0
"""Seconds that the store has to say whether a partition exists; meanwhile other markers wait."""
STRUCK: Final = frozenset({
    errors.NONE, errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, errors.UNSUPPORTED_VERSION,
})  # fmt: skip
SUPERSEDED: Final = frozenset({errors.INVALID_PRODUCER_EPOCH, errors.TRANSACTION_COORDINATOR_FENCED})
"""A later decision of this transactional id has reached the partition. If another coordinator made it, the completion
will not be stored here; otherwise waiting longer would not help."""
AGAIN: Final = frozenset({
    errors.UNKNOWN_TOPIC_OR_PARTITION, errors.NOT_LEADER_OR_FOLLOWER, errors.NOT_ENOUGH_REPLICAS,
    errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND, errors.REQUEST_TIMED_OUT, errors.KAFKA_STORAGE_ERROR,
})  # fmt: skip
"""Temporary errors. Any other error is retried as well, and logged."""

Ask = Callable[[int, m.WriteTxnMarkersRequest], Awaitable[m.WriteTxnMarkersResponse]]

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class Decision:
    """A decided transaction, and its partitions without a marker."""

    tx: Transaction
    coordinator_epoch: Callable[[], int]
    is_over: Callable[[], bool]
    """True if another broker is the coordinator by now: nothing more is sent."""
    on_written: Callable[[], object]
    """Called once all markers are written."""
    left: set[TopicPartition] = field(default_factory=set)

    def strike_off(self, key: TopicPartition) -> None:
        """Note that a partition needs no marker any more."""
        self.left.discard(key)
        if not self.left and not self.is_over():
            self.on_written()


class _Marker(NamedTuple):
    """The marker for one partition."""

    decision: Decision
    key: TopicPartition


class MarkerQueues:
    """The markers to send, in a queue for each broker."""

    def __init__(
        self, metadata: MetadataCache, ask: Ask, exists: Callable[[TopicPartition], Awaitable[bool]]
    ) -> None:
        """`ask` sends a request to a broker, this one included; it raises OSError. `exists` is True if the cluster's
        store has a partition; it raises KafkaError."""
        self._metadata = metadata
        self._ask = ask
        self._exists = exists
        self._queues: dict[int, deque[_Marker]] = {}
        self._sending: dict[int, set[asyncio.Task[None]]] = {}
        self._put_off: list[_Marker] = []
        self._retrying: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._pauses = Pauses()
        metadata.watch(self._look)

    def __len__(self) -> int:
        return len(self._put_off) + sum(map(len, self._queues.values()))

    @property
    def unknown_destinations(self) -> int:
        """The markers whose partition had no leader, or whose broker did not write them."""
        return len(self._put_off)

    def send(self, decision: Decision) -> None:
        """Send the markers of a transaction."""
        decision.left = set(decision.tx.partitions)
        if not decision.left:
            decision.on_written()
        for key in sorted(decision.left):
            self._place(_Marker(decision, key))

    def _place(self, marker: _Marker) -> None:
        """Put a marker into the queue of its leader's broker."""
        image = self._metadata.image
        state = image.partition(*marker.key)
        if state is None or state.leader not in image.brokers:
            self._later([marker])
            return
        broker = state.leader
        self._queues.setdefault(broker, deque()).append(marker)
        tasks = self._sending.setdefault(broker, set())
        if len(tasks) < IN_FLIGHT:
            task = asyncio.get_running_loop().create_task(keep_up(lambda: self._serve(broker), "transaction markers"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def _later(self, markers: Collection[_Marker]) -> None:
        self._put_off.extend(markers)
        if markers and self._retrying is None:
            work = keep_up(self._retry, "transaction markers put off")
            self._retrying = asyncio.get_running_loop().create_task(work)

    def _look(self, image: Image) -> None:
        """Handle new metadata: markers for brokers that are gone find their new leaders."""
        for broker in [each for each in self._sending if each not in image.brokers]:
            for task in list(self._sending.pop(broker)):
                task.cancel()
            self._later(self._queues.pop(broker, ()))
        self._news.set()

    async def _serve(self, broker: int) -> None:
        """Send the markers in the queue of a broker until it is empty."""
        queue = self._queues[broker]
        while queue:
            some = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
            some = [marker for marker in some if not marker.decision.is_over()]
            if not some:
                continue
            try:
                codes = await self._write(broker, some)
            except asyncio.CancelledError:
                if broker not in self._sending:  # it is gone; otherwise this broker stops
                    self._later(some)
                raise
            except Exception as problem:
                self._later(some)
                if not isinstance(problem, OSError):
                    raise
                if self._pauses.is_news(problem):
                    event(log, logging.WARNING, "transaction markers not sent", broker=broker, reason=problem)
                continue
            for marker in some:
                producer_id = marker.decision.tx.producer.id
                self._heed(marker, codes.get((producer_id, marker.key), errors.UNKNOWN_SERVER_ERROR))

    async def _write(self, broker: int, some: Collection[_Marker]) -> Mapping[tuple[int, TopicPartition], int]:
        kind = m.WriteTxnMarkersRequest.Markers
        by_decision: dict[int, tuple[Decision, dict[str, list[int]]]] = {}
        for decision, key in some:
            _, topics = by_decision.setdefault(id(decision), (decision, {}))
            topics.setdefault(key.topic, []).append(key.partition)
        request = m.WriteTxnMarkersRequest(
            markers=[
                kind(
                    producer_id=decision.tx.producer.id,
                    producer_epoch=decision.tx.producer.epoch,
                    transaction_result=decision.tx.commits,
                    topics=[kind.Topics(name=name, partition_indexes=found) for name, found in topics.items()],
                    coordinator_epoch=decision.coordinator_epoch(),
                )
                for decision, topics in by_decision.values()
            ]
        )
        response = await self._ask(broker, request)
        return {
            (marker.producer_id, TopicPartition(topic.name, p.partition_index)): p.error_code
            for marker in response.markers
            for topic in marker.topics
            for p in topic.partitions
        }

    def _heed(self, marker: _Marker, code: int) -> None:
        """Handle the answer for a partition."""
        decision, key = marker
        if code in SUPERSEDED:
            event(
                log, logging.WARNING, "transaction marker superseded", partition=key,
                transactional_id=shown(decision.tx.id), producer_id=decision.tx.producer.id,
                epoch=decision.tx.producer.epoch, code=errors.lookup(code).name,
            )  # fmt: skip
        elif code not in STRUCK:
            if code not in AGAIN and self._pauses.is_news(f"{key} {code}"):
                event(
                    log, logging.WARNING, "transaction marker refused", partition=key,
                    transactional_id=shown(decision.tx.id), code=errors.lookup(code).name,
                )  # fmt: skip
            self._later([marker])
            return
        decision.strike_off(key)

    async def _retry(self) -> None:
        """Place the markers that were put off, until there are none."""
        while self._put_off:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._news.wait()
            self._news.clear()
            markers, self._put_off = [each for each in self._put_off if not each.decision.is_over()], []
            gone = await self._gone({marker.key for marker in markers})
            for marker in markers:
                if marker.key in gone and self._metadata.image.partition(*marker.key) is None:
                    event(log, logging.INFO, "transaction marker without a partition", partition=marker.key,
                          transactional_id=shown(marker.decision.tx.id))  # fmt: skip
                    marker.decision.strike_off(marker.key)
                else:
                    self._place(marker)
        self._retrying = None

    async def _gone(self, keys: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """The partitions that are neither in complete metadata nor in the cluster's store: they were deleted."""
        if not self._metadata.complete:
            return ()
        gone = []
        for key in keys:
            if self._metadata.image.partition(*key) is None:
                with contextlib.suppress(KafkaError, TimeoutError):
                    async with asyncio.timeout(LOOK_UP_S):
                        if not await self._exists(key):
                            gone.append(key)
        return gone

    def close(self) -> None:
        """Stop sending; the next coordinators send what is left."""
        self._metadata.unwatch(self._look)
        for task in [task for tasks in self._sending.values() for task in tasks]:
            task.cancel()
        if self._retrying is not None:
            self._retrying.cancel()
