"""The offsets that a group commits, and the member that commits them."""

from __future__ import annotations

from typing import NamedTuple

from pybroker.client import arguments


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
