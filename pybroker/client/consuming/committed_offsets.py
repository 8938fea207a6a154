"""Offsets that a group committed: written and read through its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pybroker import errors
from pybroker.client.net.find_coordinator import CoordinatorClient
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata, by_topic
from pybroker.client.net.requests import RequestOptions
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

COMMIT_VERSION_MAX: Final = 9  # later ones name topics by id alone
FETCH_VERSION_MAX: Final = 9

LOST_MEMBERSHIP: Final = frozenset(
    {errors.UNKNOWN_MEMBER_ID, errors.ILLEGAL_GENERATION, errors.FENCED_INSTANCE_ID, errors.STALE_MEMBER_EPOCH}
)
MOVED_ON: Final = LOST_MEMBERSHIP | {errors.REBALANCE_IN_PROGRESS}
"""The group has rebalanced since the member read these records: other members read them again."""


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
Fetched = dict[TopicPartition, OffsetAndMetadata | None]


def commit(
    coordinator: CoordinatorClient,
    identity: ConsumerGroupMetadata,
    offsets: Offsets,
    done: Callable[[KafkaError | None], object],
) -> None:
    """Commit offsets; `done` is called with the first failure, or None. For the loop's thread."""
    request = m.OffsetCommitRequest(
        group_id=coordinator.key,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=by_topic(offsets, m.OffsetCommitRequest.Topics),
    )

    def answered(answer: m.OffsetCommitResponse | None, error: KafkaError | None) -> None:
        if error is None:
            assert answer is not None
            error = _first_failure(answer)
            if error is not None:
                coordinator.moved(error.code)
        done(error)

    coordinator.send(request, answered, how=RequestOptions(version_max=COMMIT_VERSION_MAX))


def _first_failure(answer: m.OffsetCommitResponse) -> KafkaError | None:
    for topic in answer.topics:
        for p in topic.partitions:
            if p.error_code:
                where = TopicPartition(topic.name, p.partition_index)
                words = f"the offset of {where} was not committed: {errors.lookup(p.error_code).meaning}"
                return KafkaError(p.error_code, words)
    return None


def fetch(
    coordinator: CoordinatorClient,
    partitions: Iterable[TopicPartition],
    done: Callable[[Fetched, KafkaError | None], object],
) -> None:
    """The committed offsets of these partitions, None without one. For the loop's thread."""
    grouped: dict[str, list[int]] = {}
    for tp in partitions:
        grouped.setdefault(tp.topic, []).append(tp.partition)
    kind = m.OffsetFetchRequest.Groups
    named = [kind.Topics(name=topic, partition_indexes=indexes) for topic, indexes in grouped.items()]
    request = m.OffsetFetchRequest(
        group_id=coordinator.key,
        topics=[m.OffsetFetchRequest.Topics(name=t, partition_indexes=indexes) for t, indexes in grouped.items()],
        groups=[kind(group_id=coordinator.key, member_id=None, topics=named)],
        require_stable=True,
    )

    def answered(answer: m.OffsetFetchResponse | None, error: KafkaError | None) -> None:
        found: Fetched = {}
        if error is None:
            assert answer is not None
            told = answer.groups[0] if answer.groups else answer
            error = _read(told, found)
            if error is not None:
                coordinator.moved(error.code)
        done(found, error)

    coordinator.send(request, answered, how=RequestOptions(version_max=FETCH_VERSION_MAX))


def _read(told: m.OffsetFetchResponse | m.OffsetFetchResponse.Groups, found: Fetched) -> KafkaError | None:
    """Add the offsets of an answer to `found`, and return its first error, if any."""
    if told.error_code:
        return KafkaError(told.error_code)
    for topic in told.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            if p.error_code:
                return KafkaError(p.error_code, f"the committed offset of {tp}: {errors.lookup(p.error_code).meaning}")
            none = p.committed_offset < 0
            found[tp] = (
                None if none else OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
            )
    return None
