"""The records of __consumer_offsets: groups and committed offsets, in the formats that Kafka 3.9 writes and reads.

    key    version i16 (0, 1: an offset; 2: a group), then the key of that type
    value  version i16, then the value; null: the key is deleted

Records with other key versions (3 to 8: groups of KIP-848) are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pybroker.decisions.group import Group, Member, State
from pybroker.decisions.offsets import Committed
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message
from pybroker.state_log.log import Pair

OFFSET_KEY_VERSION, GROUP_KEY_VERSION = 1, 2
OFFSET_VALUE_VERSION, OFFSET_VALUE_EXPIRING, GROUP_VALUE_VERSION = 3, 1, 3


class OffsetRecord(NamedTuple):
    """A committed offset from the log; None: deleted."""

    group: str
    key: TopicPartition
    committed: Committed | None


class GroupRecord(NamedTuple):
    """A group from the log; None: deleted. `since_ms`: the time when it entered its state."""

    id: str
    group: Group | None
    since_ms: int = -1


def _versioned(message: Message, version: int) -> bytes:
    return version.to_bytes(2, "big") + codec.encode(message, version)


def offset_record(group: str, key: TopicPartition, committed: Committed | None) -> Pair:
    """The record of a committed offset; with None a tombstone."""
    name = _versioned(m.OffsetCommitKey(group=group, topic=key.topic, partition=key.partition), OFFSET_KEY_VERSION)
    if committed is None:
        return name, None
    value = m.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_ms,
        expire_timestamp=committed.expire_ms,
    )
    return name, _versioned(value, OFFSET_VALUE_VERSION if committed.expire_ms < 0 else OFFSET_VALUE_EXPIRING)


def group_record(group: Group, since_ms: int) -> Pair:
    """The record of a group's current state."""
    members = [
        m.GroupMetadataValue.Members(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol),
            assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    value = m.GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=since_ms,
        members=members,
    )
    return group_key(group.id), _versioned(value, GROUP_VALUE_VERSION)


def group_key(group_id: str) -> bytes:
    """The key of a group's record."""
    return _versioned(m.GroupMetadataKey(group=group_id), GROUP_KEY_VERSION)


def parse(key: bytes | None, value: bytes | None) -> OffsetRecord | GroupRecord | None:
    """The parsed record; None for a key version that is not used here. Raises ProtocolError."""
    if key is None or len(key) < 2:
        return None
    version = int.from_bytes(key[:2], "big", signed=True)
    if version in (0, OFFSET_KEY_VERSION):
        name, _ = codec.decode(m.OffsetCommitKey, version, key, 2)
        return OffsetRecord(name.group, TopicPartition(name.topic, name.partition), _committed(value))
    if version == GROUP_KEY_VERSION:
        group, _ = codec.decode(m.GroupMetadataKey, version, key, 2)
        return _group(group.group, value)
    return None


def _committed(value: bytes | None) -> Committed | None:
    if value is None:
        return None
    body, _ = codec.decode(m.OffsetCommitValue, int.from_bytes(value[:2], "big", signed=True), value, 2)
    return Committed(body.offset, body.leader_epoch, body.metadata, body.commit_timestamp, body.expire_timestamp)


def _group(group_id: str, value: bytes | None) -> GroupRecord:
    if value is None:
        return GroupRecord(group_id, None)
    body, _ = codec.decode(m.GroupMetadataValue, int.from_bytes(value[:2], "big", signed=True), value, 2)
    group = Group(
        id=group_id,
        state=State.STABLE if body.members else State.EMPTY,
        generation=body.generation,
        protocol_type=body.protocol_type or None,
        protocol=body.protocol,
        leader=body.leader,
    )
    for member in _members(body.members, body.protocol):
        group.members[member.id] = member
        if member.instance_id is not None:
            group.static[member.instance_id] = member.id
    return GroupRecord(group_id, group, body.current_state_timestamp)


def _members(stored: Iterable[m.GroupMetadataValue.Members], protocol: str | None) -> Iterable[Member]:
    for member in stored:
        yield Member(
            id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout,
            rebalance_timeout_ms=member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout,
            protocols=((protocol or "", bytes(member.subscription)),),
            assignment=bytes(member.assignment),
            synced=True,
        )


def subscribed_topics(group: Group) -> set[str] | None:
    """The topics that the members of a consumer group subscribe to; None if unknown."""
    if group.protocol_type != "consumer":
        return None
    topics: set[str] = set()
    for member in group.members.values():
        data = member.metadata(group.protocol)
        try:
            version = max(0, min(int.from_bytes(data[:2], "big", signed=True), 3))
            body, _ = codec.decode(m.ConsumerProtocolSubscription, version, data, 2)
        except codec.ProtocolError:
            return None
        topics.update(body.topics)
    return topics
