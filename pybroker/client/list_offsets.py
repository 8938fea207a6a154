"""Offsets by time: what ListOffsets is asked, broker by broker, and what it answers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

if TYPE_CHECKING:
    from pybroker.client.network import View

LATEST: Final = -1
EARLIEST: Final = -2
"""As times: the ends of a partition."""


class Found(NamedTuple):
    """What a leader answers of one partition: the offset, -1 if there is none; or why it does not."""

    offset: int
    timestamp_ms: int
    leader_epoch: int
    error: KafkaError | None


def by_leader(view: "View", times: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
    """Whom to ask for which partitions; -1 for those without a leader that is known."""
    asked: dict[int, dict[TopicPartition, int]] = {}
    for tp, timestamp in times.items():
        asked.setdefault(view.leader(*tp), {})[tp] = timestamp
    return asked


def request(
    times: Mapping[TopicPartition, int], *, view: "View | None" = None, isolation_level: int = 0, timeout_ms: int = 0
) -> Any:
    """The request for one leader; with a view it tells the leader epochs that are known. `timeout_ms` is for what a
    broker has to read elsewhere."""
    kind = m.ListOffsetsRequest.Topics
    topics: dict[str, Any] = {}
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


def answers(answer: Any) -> dict[TopicPartition, Found]:
    found = {}
    for topic in answer.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            error = None
            if p.error_code:
                error = KafkaError(p.error_code, f"{tp}: {errors.lookup(p.error_code).meaning}")
            found[tp] = Found(p.offset, p.timestamp, p.leader_epoch, error)
    return found
