"""A fetch session with one broker (KIP-227): it remembers what is fetched, and is told only what changes.

none --full request, epoch 0--> answered with an id --incremental requests, epoch 1, 2, ...--> ...
  ^------------- any error, a lost connection, an id of 0 (the broker declines) -------------'
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

EPOCH_FULL: Final = 0
EPOCH_MAX: Final = 0x7FFFFFFF


class Wanted(NamedTuple):
    """What is fetched of a partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int
    """Of the record before `offset`, -1 where it is not known."""
    max_bytes: int


class FetchSession:
    """What a broker remembers of our fetches."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = EPOCH_FULL
        self.known: dict[TopicPartition, Wanted] = {}

    def reset(self) -> None:
        """Begin again with a full request."""
        self.id, self.epoch = 0, EPOCH_FULL
        self.known = {}

    def request(self, wanted: Mapping[TopicPartition, Wanted], **fields: Any) -> Any:
        """The request for all that is wanted, as difference to what the broker knows; `fields` are the rest of it."""
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


def _topics(wanted: Mapping[TopicPartition, Wanted]) -> list[Any]:
    kind = m.FetchRequest.Topics
    topics: dict[tuple[str, bytes], Any] = {}
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


def _forgotten(partitions: list[tuple[TopicPartition, bytes]]) -> list[Any]:
    kind = m.FetchRequest.ForgottenTopicsData
    topics: dict[tuple[str, bytes], Any] = {}
    for tp, topic_id in partitions:
        topic = topics.get((tp.topic, topic_id))
        if topic is None:
            topic = topics[tp.topic, topic_id] = kind(topic=tp.topic, topic_id=topic_id)
        topic.partitions.append(tp.partition)
    return list(topics.values())
