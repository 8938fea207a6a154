"""The offsets that a group commits, and the member that commits them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from pybroker.client import arguments
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the next record to read, and a note beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1

    def checked(self) -> OffsetAndMetadata:
        """The same, of numbers and text. Raises TypeError, and ValueError for a negative offset."""
        offset = arguments.whole(self.offset, "an offset")
        note = arguments.name(self.metadata, "the metadata of an offset")
        return OffsetAndMetadata(offset, note, arguments.whole(self.leader_epoch, "a leader epoch", -1))


class ConsumerGroupMetadata(NamedTuple):
    """A group, and the member that commits; without a member, a client outside of the group, which may commit while the
    group has no members."""

    group_id: str = ""
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


Topics = TypeVar("Topics", m.OffsetCommitRequest.Topics, m.TxnOffsetCommitRequest.Topics)


def by_topic(offsets: Mapping[TopicPartition, OffsetAndMetadata], kind: type[Topics]) -> list[Topics]:
    """The offsets as a request of this kind has them."""
    topics: dict[str, Topics] = {}
    for tp, at in offsets.items():
        part = kind.Partitions(
            partition_index=tp.partition,
            committed_offset=at.offset,
            committed_leader_epoch=at.leader_epoch,
            committed_metadata=at.metadata,
        )
        topics.setdefault(tp.topic, kind(name=tp.topic)).partitions.append(part)
    return list(topics.values())
