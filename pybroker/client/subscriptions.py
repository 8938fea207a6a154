"""What members of a group tell each other through the coordinator: subscriptions and assignments, as Java has them."""

from collections.abc import Collection, Iterable, Mapping
from struct import Struct as Layout
from struct import error as StructError
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m

PROTOCOL_TYPE: Final = "consumer"
"""Of groups whose members' bytes are these (others are Connect's, say)."""

SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 0  # later ones have the same fields
GENERATION_NONE: Final = -1

_I16: Final = Layout(">h")
_I32: Final = Layout(">i")


class Member(NamedTuple):
    """A member as its leader sees it."""

    id: str
    instance_id: str | None
    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = GENERATION_NONE
    """Of which it owns what it owns."""

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id, as they keep their place over restarts (KIP-345)."""
        return self.instance_id is None, self.instance_id or self.id


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


def read_subscription(data: Any) -> tuple[frozenset[str], frozenset[TopicPartition], int, bytes | None]:
    """(topics, owned partitions, their generation, user data). KafkaError(23) where it does not parse."""
    message = _read(m.ConsumerProtocolSubscription, data)
    owned = frozenset(TopicPartition(t.topic, p) for t in message.owned_partitions for p in t.partitions)
    user_data = None if message.user_data is None else bytes(message.user_data)
    return frozenset(message.topics), owned, message.generation_id, user_data


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    kind = m.ConsumerProtocolAssignment
    message = kind(assigned_partitions=_grouped(kind.AssignedPartitions, partitions), user_data=None)
    return _I16.pack(ASSIGNMENT_VERSION) + codec.encode(message, ASSIGNMENT_VERSION)


def read_assignment(data: Any) -> list[TopicPartition]:
    """What a member is assigned; nothing if the leader did not know it. KafkaError(23) where it does not parse."""
    if not data:
        return []
    message = _read(m.ConsumerProtocolAssignment, data)
    return [TopicPartition(t.topic, p) for t in message.assigned_partitions for p in t.partitions]


def _read(kind: Any, data: Any) -> Any:
    """A newer version is read as the last one that is known: later ones only add fields."""
    try:
        (version,) = _I16.unpack_from(data)
        return codec.decode(kind, min(max(version, 0), kind.SCHEMA.last), data, _I16.size)[0]
    except (StructError, codec.ProtocolError) as error:
        raise KafkaError(errors.INCONSISTENT_GROUP_PROTOCOL, f"a member sent a {kind.__name__}: {error}") from None


def _grouped(kind: Any, partitions: Iterable[TopicPartition]) -> list[Any]:
    topics: dict[str, Any] = {}
    for tp in sorted(partitions):
        topics.setdefault(tp.topic, kind(topic=tp.topic)).partitions.append(tp.partition)
    return list(topics.values())


# -- what sticky members remember, in their user data ------------------------------------------------------------------


def write_sticky(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """StickyAssignor's, version 1: what was owned, by topic, and its generation."""
    topics: dict[str, list[int]] = {}
    for tp in sorted(owned):
        topics.setdefault(tp.topic, []).append(tp.partition)
    parts = [_I32.pack(len(topics))]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += [_I16.pack(len(name)), name, _I32.pack(len(partitions)), *map(_I32.pack, partitions)]
    return b"".join([*parts, _I32.pack(generation)])


def read_sticky(data: bytes | None) -> tuple[frozenset[TopicPartition], int]:
    """(owned, generation); version 0 had no generation. What does not parse owned nothing, as for Java."""
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
    """CooperativeStickyAssignor's: the generation, for members too old to read it from the subscription."""
    return _I32.pack(generation)


def read_cooperative(data: bytes | None) -> int:
    return int(_I32.unpack_from(data)[0]) if data and len(data) >= _I32.size else GENERATION_NONE


def partitions_of(topics: Mapping[str, int], wanted: Iterable[str]) -> list[TopicPartition]:
    """All partitions of some topics, in order; topics that are not there have none."""
    return [TopicPartition(topic, p) for topic in sorted(wanted) for p in range(topics.get(topic, 0))]
