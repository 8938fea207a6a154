"""Offsets by time: requests and answers of ListOffsets, one for each leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

if TYPE_CHECKING:
    from pybroker.client.net.network import ClusterView

LATEST: Final = -1
EARLIEST: Final = -2
"""Times that stand for the ends of a partition."""


class OffsetAnswer(NamedTuple):
    """A leader's answer for one partition: the offset, -1 if there is none, or an error."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    error: KafkaError | None


def by_leader(view: ClusterView, times: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
    """The partitions by leader; -1 for those without a known leader."""
    asked: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp in times.items():
        asked.setdefault(view.leader(*tp), {})[tp] = timestamp
    return asked


def request(
    times: Mapping[TopicPartition, int],
    *,
    view: ClusterView | None = None,
    isolation_level: int = 0,
    timeout_ms: int = 0,
) -> m.ListOffsetsRequest:
    """The request for one leader, with the leader epochs of `view`. `timeout_ms` bounds a broker's reads from remote
    storage."""
    kind = m.ListOffsetsRequest.Topics
    topics: dict[str, m.ListOffsetsRequest.Topics] = {}
    for tp, timestamp in times.items():
        topic = topics.setdefault(tp.topic, kind(name=tp.topic))
        topic.partitions.append(
            kind.Partitions(
                partition_index=tp.partition,
                current_leader_epoch=-1 if view is None else view.leader_epoch(*tp),
                timestamp=timestamp,
            )
        )
    return m.ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation_level, topics=list(topics.values()), timeout_ms=timeout_ms
    )


def answers(answer: m.ListOffsetsResponse) -> dict[TopicPartition, OffsetAnswer]:
    found = {}
    for topic in answer.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            error = None
            if p.error_code:
                error = KafkaError(p.error_code, f"{tp}: {errors.lookup(p.error_code).meaning}")
            found[tp] = OffsetAnswer(p.offset, p.timestamp, p.leader_epoch, error)
    return found
