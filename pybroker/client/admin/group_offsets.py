"""Committed offsets of groups: read, set and deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.admin.base import raise_for
from pybroker.client.admin.coordinators import CoordinatorOutcome, CoordinatorsAdmin
from pybroker.client.net.connection import BrokerConnection
from pybroker.model import TopicPartition
from pybroker.protocol import apis
from pybroker.protocol import messages as m

_BATCH_FROM_VERSION: Final = 8
_NAMES_UP_TO_VERSION: Final = 9  # the next one names topics by their ids
_GROUP: Final = "a group's id"
_NO_GENERATION: Final = -1  # of a commit from outside the group


if TYPE_CHECKING:
    Topics = Sequence[m.OffsetFetchResponse.Topics] | Sequence[m.OffsetFetchResponse.Groups.Topics]


class Committed(NamedTuple):
    """A committed offset, the next one to read; `leader_epoch` is -1 if unknown."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class GroupOffsetsAdmin(CoordinatorsAdmin):
    """Operations on committed offsets."""

    def group_offsets(self, ids: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """The committed offsets of each of these groups; none for a group that does not exist."""
        found = {}
        outcomes: Mapping[str, CoordinatorOutcome[Topics]] = self._ask_coordinators(arguments.names(ids, "ids"), _fetch)
        for group, outcome in outcomes.items():
            raise_for(outcome.code, f"offsets of group {group}", outcome.message)
            found[group] = dict(_positions(group, () if outcome.answer is None else outcome.answer))
        return found

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, Committed] | Mapping[tuple[str, int], Committed]
    ) -> None:
        """Set committed offsets of a group that has no members, or does not exist yet.

        KafkaError(UNKNOWN_MEMBER_ID) if it has members; after another error some partitions may have been set."""
        arguments.name(group, _GROUP)
        wanted = {TopicPartition.of(tp): _committed(at) for tp, at in offsets.items()}
        if not wanted:
            return
        kind = m.OffsetCommitRequest.Topics
        topics = [
            kind(
                name=topic,
                partitions=[
                    kind.Partitions(
                        partition_index=index,
                        committed_offset=wanted[TopicPartition(topic, index)].offset,
                        committed_leader_epoch=wanted[TopicPartition(topic, index)].leader_epoch,
                        committed_metadata=wanted[TopicPartition(topic, index)].metadata,
                    )
                    for index in indexes
                ],
            )
            for topic, indexes in _by_topic(wanted)
        ]
        request = m.OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=_NO_GENERATION, member_id="", topics=topics
        )

        def ask(coordinator: BrokerConnection) -> tuple[int, str | None]:
            answer = coordinator.request(request, version_max=_NAMES_UP_TO_VERSION)
            return _first_error(answer.topics)

        self._ask_coordinator(group, ask)

    def delete_group_offsets(
        self, group: str, partitions: Collection[TopicPartition] | Collection[tuple[str, int]]
    ) -> None:
        """Delete committed offsets. KafkaError(GROUP_SUBSCRIBED_TO_TOPIC) if a member subscribes to the topic."""
        arguments.name(group, _GROUP)
        gone = [TopicPartition.of(tp) for tp in partitions]
        kind = m.OffsetDeleteRequest.Topics
        request = m.OffsetDeleteRequest(
            group_id=group,
            topics=[
                kind(name=topic, partitions=[kind.Partitions(partition_index=index) for index in indexes])
                for topic, indexes in _by_topic(gone)
            ],
        )

        def ask(coordinator: BrokerConnection) -> tuple[int, str | None]:
            answer = coordinator.request(request)
            return (answer.error_code, None) if answer.error_code else _first_error(answer.topics)

        self._ask_coordinator(group, ask)


def _committed(given: Committed) -> Committed:
    """The offset itself. TypeError if it is no Committed, ValueError if it is negative."""
    if not isinstance(given, Committed):
        raise TypeError(f"a committed offset is a Committed, like Committed(7), not {given!r}")
    arguments.whole(given.offset, "an offset")
    arguments.whole(given.leader_epoch, "a leader epoch", -1)
    arguments.name(given.metadata, "the metadata of an offset")
    return given


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterable[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics.items()


def _first_error(
    topics: Iterable[m.OffsetCommitResponse.Topics] | Iterable[m.OffsetDeleteResponse.Topics]
) -> tuple[int, str | None]:
    for topic in topics:
        for p in topic.partitions:
            if p.error_code:
                meaning = errors.lookup(p.error_code).meaning
                return p.error_code, f"partition {topic.name}-{p.partition_index}: {meaning}"
    return errors.NONE, None


def _fetch(
    coordinator: BrokerConnection, groups: Sequence[str]
) -> Iterable[tuple[str, int, str | None, Topics | None]]:
    """All offsets of groups: of many at once, or from older brokers one by one."""
    api = apis.SPOKEN[m.OffsetFetchRequest.SCHEMA.key]
    if coordinator.version_of(api, _NAMES_UP_TO_VERSION) < _BATCH_FROM_VERSION:
        for group in groups:
            answer = coordinator.request(m.OffsetFetchRequest(group_id=group, topics=None))
            yield group, answer.error_code, None, answer.topics
        return
    kind = m.OffsetFetchRequest.Groups
    request = m.OffsetFetchRequest(groups=[kind(group_id=group, member_id=None, topics=None) for group in groups])
    for found in coordinator.request(request, version_max=_NAMES_UP_TO_VERSION).groups:
        yield found.group_id, found.error_code, None, found.topics


def _positions(group: str, topics: Topics) -> Iterable[tuple[TopicPartition, Committed]]:
    for topic in topics:
        for p in topic.partitions:
            raise_for(p.error_code, f"offset of group {group} in {topic.name}-{p.partition_index}")
            if p.committed_offset >= 0:
                partition = TopicPartition(topic.name, p.partition_index)
                yield partition, Committed(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
