"""Reset the offsets of a group: the new offset of each partition, as a plan that is shown before it is carried out."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client.admin import EARLIEST, LATEST, Admin, Committed
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

INACTIVE: Final = ("Empty", "Dead")
TO_EARLIEST, TO_LATEST, TO_CURRENT = "to_earliest", "to_latest", "to_current"
TO_OFFSET, TO_TIME, SHIFT_BY = "to_offset", "to_time", "shift_by"

NewOffsets = dict[TopicPartition, int | None]
"""The new offset of each partition; None is its end."""


class OffsetMove(NamedTuple):
    """The change of one partition; `asked` differs from `new` if it was out of the partition's range."""

    partition: TopicPartition
    old: int | None
    new: int
    asked: int


def check_inactive(admin: Admin, group: str) -> None:
    """KafkaError if the group has members: they would read on, and commit over the new offsets."""
    try:
        (found,) = admin.describe_groups([group])
    except KafkaError as error:
        if error.code != errors.GROUP_ID_NOT_FOUND:
            raise
        return
    if found.state not in INACTIVE:
        count = len(found.members)
        members = f"{count} member{'s' if count != 1 else ''}"
        words = f"group {group} is {found.state} with {members}: stop its members before you reset its offsets"
        raise KafkaError(errors.NON_EMPTY_GROUP, words)


def new_offsets(
    admin: Admin,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, Committed],
    kind: str,
    value: int,
) -> NewOffsets:
    """Return each partition's new offset; `value` is the offset, the time or the shift that some kinds need."""
    if kind in (TO_EARLIEST, TO_LATEST, TO_TIME):
        timestamp = {TO_EARLIEST: EARLIEST, TO_LATEST: LATEST}.get(kind, value)
        found = _offsets(admin, partitions, timestamp)
        return {partition: found[partition] for partition in partitions}
    if kind == TO_OFFSET:
        return dict.fromkeys(partitions, value)
    if kind == TO_CURRENT:
        return {partition: committed[partition].offset if partition in committed else None for partition in partitions}
    strangers = [partition for partition in partitions if partition not in committed]
    if strangers:
        words = f"nothing is committed for {strangers[0]}, so there is no offset to shift"
        raise KafkaError(errors.INVALID_REQUEST, words)
    return {partition: committed[partition].offset + value for partition in partitions}


def moves(
    admin: Admin, partitions: Sequence[TopicPartition], committed: Mapping[TopicPartition, Committed],
    wanted: NewOffsets,
) -> list[OffsetMove]:  # fmt: skip
    """Return the moves, each clamped to its partition's range."""
    first, last = _offsets(admin, partitions, EARLIEST), _offsets(admin, partitions, LATEST)
    found = []
    for partition in partitions:
        low, high, asked = first[partition], last[partition], wanted[partition]
        if low is None or high is None:
            words = f"partition {partition} has no leader, so its offsets are unknown"
            raise KafkaError(errors.LEADER_NOT_AVAILABLE, words)
        asked = high if asked is None else asked
        old = committed[partition].offset if partition in committed else None
        found.append(OffsetMove(partition, old, min(max(asked, low), high), asked))
    return found


def _offsets(admin: Admin, partitions: Sequence[TopicPartition], timestamp: int) -> Mapping[TopicPartition, int | None]:
    return admin.offsets(admin.cluster.metadata(sorted({partition.topic for partition in partitions})), timestamp)
