"""A fetch session with one broker (KIP-227): the broker remembers the partitions, requests have only changes.

none --full request, epoch 0--> answered with an id --incremental requests, epoch 1, 2, ...--> ...
  ^------------- any error, a lost connection, an id of 0 (the broker declines) -------------'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypedDict, Unpack

from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

EPOCH_FULL: Final = 0
EPOCH_MAX: Final = 0x7FFFFFFF


class PartitionFetch(NamedTuple):
    """A partition in a fetch request."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int
    """The leader epoch of the record before `offset`, -1 if unknown."""
    max_bytes: int


class Rest(TypedDict, total=False):
    """The fields of a Fetch that are not of its session."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack_id: str


class FetchSession:
    """The state of a session: what the broker remembers of our fetches."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = EPOCH_FULL
        self.known: dict[TopicPartition, PartitionFetch] = {}

    def reset(self) -> None:
        """Begin again with a full request."""
        self.id, self.epoch = 0, EPOCH_FULL
        self.known = {}

    def request(self, wanted: Mapping[TopicPartition, PartitionFetch], **fields: Unpack[Rest]) -> m.FetchRequest:
        """The request for these partitions, as difference to what the broker remembers; `fields` are the others."""
        full = self.epoch == EPOCH_FULL
        forgotten = []
        if not full:
            for tp, known in self.known.items():
                now = wanted.get(tp)
                if now is None or now.topic_id != known.topic_id:
                    forgotten.append((tp, known.topic_id))
        changed = wanted if full else {tp: want for tp, want in wanted.items() if self.known.get(tp) != want}
        self.known = dict(wanted)
        return m.FetchRequest(
            session_id=self.id,
            session_epoch=self.epoch,
            topics=_topics(changed),
            forgotten_topics_data=_forgotten(forgotten),
            **fields,
        )

    def answered(self, session_id: int) -> None:
        """A request succeeded; the broker named its session, 0 if it keeps none."""
        if session_id == 0:
            self.reset()
            return
        self.id = session_id
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1


def _topics(wanted: Mapping[TopicPartition, PartitionFetch]) -> list[m.FetchRequest.Topics]:
    kind = m.FetchRequest.Topics
    topics: dict[tuple[str, bytes], m.FetchRequest.Topics] = {}
    for tp, want in wanted.items():
        topic = topics.get((tp.topic, want.topic_id))
        if topic is None:
            topic = topics[tp.topic, want.topic_id] = kind(topic=tp.topic, topic_id=want.topic_id)
        topic.partitions.append(
            kind.Partitions(
                partition=tp.partition,
                current_leader_epoch=want.leader_epoch,
                fetch_offset=want.offset,
                last_fetched_epoch=want.last_epoch,
                partition_max_bytes=want.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(partitions: list[tuple[TopicPartition, bytes]]) -> list[m.FetchRequest.ForgottenTopicsData]:
    kind = m.FetchRequest.ForgottenTopicsData
    topics: dict[tuple[str, bytes], m.FetchRequest.ForgottenTopicsData] = {}
    for tp, topic_id in partitions:
        topic = topics.get((tp.topic, topic_id))
        if topic is None:
            topic = topics[tp.topic, topic_id] = kind(topic=tp.topic, topic_id=topic_id)
        topic.partitions.append(tp.partition)
    return list(topics.values())
