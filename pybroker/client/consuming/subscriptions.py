"""Subscriptions and assignments of group members, as bytes in Java's format; the coordinator passes them on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from struct import Struct as Layout
from struct import error as StructError
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.message import Bytes, Message

PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of groups whose members write these formats (Connect's groups have another)."""

SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 0  # later ones have the same fields
GENERATION_NONE: Final = -1

_I16: Final = Layout(">h")
_I32: Final = Layout(">i")


class SubscribedMember(NamedTuple):
    """A member as its leader sees it."""

    id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = GENERATION_NONE
    """The generation in which it owned `owned`."""

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id, as they keep their place over restarts (KIP-345)."""
        return self.instance_id is None, self.instance_id or self.id


Read = TypeVar("Read", bound=Message)
Owned = TypeVar(
    "Owned", "m.ConsumerProtocolSubscription.OwnedPartitions", "m.ConsumerProtocolAssignment.AssignedPartitions"
)
Assignments = dict[str, list[TopicPartition]]
"""By member id."""


def write_subscription(
    topics: Collection[str], owned: Iterable[TopicPartition], generation: int, user_data: bytes | None, rack: str | None
) -> bytes:
    kind = m.ConsumerProtocolSubscription
    message = kind(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_grouped(kind.OwnedPartitions, owned),
        generation_id=generation,
        rack_id=rack or None,
    )
    return _I16.pack(SUBSCRIPTION_VERSION) + codec.encode(message, SUBSCRIPTION_VERSION)


def read_subscription(data: Bytes) -> tuple[frozenset[str], frozenset[TopicPartition], int, bytes | None]:
    """(topics, owned partitions, their generation, user data).

    KafkaError(INCONSISTENT_GROUP_PROTOCOL) if it does not parse."""
    message = _read(m.ConsumerProtocolSubscription, data)
    owned = frozenset(TopicPartition(t.topic, p) for t in message.owned_partitions for p in t.partitions)
    user_data = None if message.user_data is None else bytes(message.user_data)
    return frozenset(message.topics), owned, message.generation_id, user_data


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    kind = m.ConsumerProtocolAssignment
    message = kind(assigned_partitions=_grouped(kind.AssignedPartitions, partitions), user_data=None)
    return _I16.pack(ASSIGNMENT_VERSION) + codec.encode(message, ASSIGNMENT_VERSION)


def read_assignment(data: Bytes) -> list[TopicPartition]:
    """The partitions of an assignment; none if the leader did not know the member.

    KafkaError(INCONSISTENT_GROUP_PROTOCOL) if it does not parse."""
    if not data:
        return []
    message = _read(m.ConsumerProtocolAssignment, data)
    return [TopicPartition(t.topic, p) for t in message.assigned_partitions for p in t.partitions]


def _read(kind: type[Read], data: Bytes) -> Read:
    """The message in `data`; a newer version is read as the last known one, as versions only add fields."""
    try:
        (version,) = _I16.unpack_from(data)
        return codec.decode(kind, min(max(version, 0), kind.SCHEMA.last), data, _I16.size)[0]
    except (StructError, codec.ProtocolError) as error:
        raise KafkaError(errors.INCONSISTENT_GROUP_PROTOCOL, f"a member sent a {kind.__name__}: {error}") from None


def _grouped(kind: type[Owned], partitions: Iterable[TopicPartition]) -> list[Owned]:
    topics: dict[str, Owned] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, kind(topic=tp.topic)).partitions.append(tp.partition)
    return list(topics.values())


# -- user data of sticky members ---------------------------------------------------------------------------------------


def write_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """User data of StickyAssignor, version 1: the owned partitions by topic, and their generation."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(owned):
        topics.setdefault(tp.topic, []).append(tp.partition)
    parts = [_I32.pack(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += [_I16.pack(len(name)), name, _I32.pack(len(partitions)), *map(_I32.pack, partitions)]
    return b"".join([*parts, _I32.pack(generation)])


def read_sticky(data: bytes | None) -> tuple[frozenset[TopicPartition], int]:
    """(owned, generation); version 0 had no generation. Bytes that do not parse mean no partitions, as in Java."""
    if not data:
        return frozenset(), GENERATION_NONE
    owned = []
    try:
        (count,) = _I32.unpack_from(data)
        position = _I32.size
        for _ in range(count):
            (size,) = _I16.unpack_from(data, position)
            position += _I16.size
            topic = data[position : position + size].decode()
            position += size
            (partitions,) = _I32.unpack_from(data, position)
            position += _I32.size
            for _ in range(partitions):
                owned.append(TopicPartition(topic, _I32.unpack_from(data, position)[0]))
                position += _I32.size
        generation = _I32.unpack_from(data, position)[0] if position + _I32.size <= len(data) else GENERATION_NONE
    except (StructError, UnicodeDecodeError):
        return frozenset(), GENERATION_NONE
    return frozenset(owned), generation


def write_cooperative(generation: int) -> bytes:
    """User data of CooperativeStickyAssignor: the generation, for members that cannot read it from the subscription."""
    return _I32.pack(generation)


def read_cooperative(data: bytes | None) -> int:
    return int(_I32.unpack_from(data)[0]) if data and len(data) >= _I32.size else GENERATION_NONE


def partitions_of(topics: Mapping[str, int], wanted: Iterable[str]) -> list[TopicPartition]:
    """All partitions of these topics, in order; a missing topic has none."""
    return [TopicPartition(topic, p) for topic in sorted(wanted) for p in range(topics.get(topic, 0))]
