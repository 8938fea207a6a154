"""WriteTxnMarkers: ends transactions on partitions that this broker leads, for their coordinator or an administrator.

A marker is answered once it is committed. On a partition of __consumer_offsets the group coordinator writes it, in turn
with its own records, so that the offsets of the transaction are in effect before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.decisions.caller import Call
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.replication.replicas import Replicas
from pybroker.tasks import in_shares

TIMEOUT_S = 30.0
"""Seconds until a marker that is not replicated gets REQUEST_TIMED_OUT; the coordinator sends it again."""

AT_ONCE = 1_000
"""Markers of one request that are written at a time."""

OfOffsets = Callable[[int, m.WriteTxnMarkersRequest.Markers], Awaitable[int]]
"""Writes a marker to a partition of __consumer_offsets; returns its error code."""


class WriteTxnMarkers:
    def __init__(self, replicas: Replicas, of_offsets: OfOffsets) -> None:
        self._replicas = replicas
        self._of_offsets = of_offsets

    async def __call__(
        self, request: m.WriteTxnMarkersRequest, call: Call | None = None
    ) -> m.WriteTxnMarkersResponse:
        """Write the markers. Those of one producer are in one part of the response, as in Kafka."""
        asked = {
            (marker.producer_id, topic.name, index): marker
            for marker in request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        }
        codes: dict[tuple[int, str, int], int] = {}
        async for share in in_shares(asked.items(), AT_ONCE):
            work = (self._write(marker, topic, index) for (_, topic, index), marker in share)
            codes.update(zip((key for key, _ in share), await asyncio.gather(*work), strict=True))
        return answered(request, lambda *key: codes[key])

    async def _write(self, marker: m.WriteTxnMarkersRequest.Markers, topic: str, index: int) -> int:
        """Write one marker; return its error code."""
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            return errors.INVALID_PRODUCER_EPOCH
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if topic == OFFSETS_TOPIC:
                    self._replicas.leader(topic, index)
                    return await self._of_offsets(index, marker)
                return await self._append(marker, topic, index)
        except TimeoutError:
            return errors.REQUEST_TIMED_OUT
        except OSError:
            return errors.KAFKA_STORAGE_ERROR
        except (KafkaError, core.LogError) as problem:
            return _EPOCHS.get(problem.code, problem.code)

    async def _append(self, marker: m.WriteTxnMarkersRequest.Markers, topic: str, index: int) -> int:
        replica = self._replicas.leader(topic, index)
        epoch = replica.leader_epoch
        appended = await replica.append_marker(
            marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.transaction_result, wall_ms()
        )
        await replica.committed(appended.last_offset + 1, epoch, lambda: self._replicas.lease_lost)
        return errors.NONE


_EPOCHS = {
    errors.FENCED_LEADER_EPOCH: errors.NOT_LEADER_OR_FOLLOWER,
    errors.UNKNOWN_LEADER_EPOCH: errors.NOT_LEADER_OR_FOLLOWER,
}
"""The request has no leader epoch, so these errors mean that the leader has changed."""


def answered(
    request: m.WriteTxnMarkersRequest, code_of: Callable[[int, str, int], int]
) -> m.WriteTxnMarkersResponse:
    """The response with the code of each producer id, topic and partition."""
    found: dict[int, dict[str, dict[int, int]]] = {}
    for marker in request.markers:
        topics = found.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            codes = topics.setdefault(topic.name, {})
            codes.update((index, code_of(marker.producer_id, topic.name, index)) for index in topic.partition_indexes)
    kind = m.WriteTxnMarkersResponse.Markers
    return m.WriteTxnMarkersResponse(
        markers=[
            kind(
                producer_id=producer_id,
                topics=[
                    kind.Topics(
                        name=name,
                        partitions=[
                            kind.Topics.Partitions(partition_index=index, error_code=code)
                            for index, code in codes.items()
                        ],
                    )
                    for name, codes in topics.items()
                ],
            )
            for producer_id, topics in found.items()
        ]
    )


def failed(request: m.WriteTxnMarkersRequest, code: int, message: str) -> m.WriteTxnMarkersResponse:
    return answered(request, lambda producer_id, topic, index: code)
