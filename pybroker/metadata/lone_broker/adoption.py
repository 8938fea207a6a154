"""Adds topics to the store that only the log dirs hold: those of an earlier Kafka, and those that the store has lost.

first start                  Every partition in the log dirs is adopted; other partitions of these topics are unknown.
                             The topics' settings come from KRaft's metadata log, if a log dir holds it.
damaged store                The same, but the settings of the topics are lost.
store without its latest     Topics with unknown topic ids are adopted, and partitions beyond the known count. Deleted
writes                       topics are not: the store keeps their ids.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Delete, Op, Session
from pybroker.decisions.image import INTERNAL_TOPICS, PartitionState
from pybroker.decisions.topics import PARTITIONS_MAX, Topic
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, write
from pybroker.metadata.lone_broker.loading import LoadedTopics
from pybroker.metadata.lone_broker.topic_nodes import creation, growth
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

KEPT = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings added to topics that do not have them: keep all records."""
NAMES_SHOWN = 20
Settings = Mapping[bytes, Mapping[str, str]]
"""The own settings of topics, by topic id."""


class Remains(Protocol):
    """The state that a log dir holds of a partition: topic id, if any, and last leader epoch, -1 for none."""

    @property
    def topic_id(self) -> bytes | None: ...
    @property
    def leader_epoch(self) -> int: ...


class Adoption(NamedTuple):
    """Adopts topics with this session, fence, broker and randomness."""

    session: Session
    fence: Fence
    broker_id: int
    random: Random

    async def all(
        self, found: Mapping[TopicPartition, Remains], loaded: LoadedTopics, settings: Callable[[], Settings], *,
        lost: bool,
    ) -> None:  # fmt: skip
        """Adopt every topic that the store does not know. Raises KafkaError.

        `lost`: the settings were in a store that is lost; otherwise `settings` returns those in the log dirs. A topic
        without an id gets one. Gaps in the partition numbers become empty partitions."""
        known = _names(loaded)
        by_id = {} if lost else settings()
        taken, kept = [], []
        for name, partitions in _topics(found).items():
            ids = [remains.topic_id for remains in partitions.values() if remains.topic_id is not None]
            config = _settings(name, by_id.get(ids[0]) if ids else None)
            if name not in known and await self._take(name, partitions, config):
                taken.append(name)
                if KEPT.items() & config.items():
                    kept.append(name)
        if lost and taken:
            self._tell("topics adopted from log dirs, settings lost, retention off", taken)
        elif kept:
            shown = ",".join(sorted(kept)[:NAMES_SHOWN])
            todo = "set retention.ms and retention.bytes, and cleanup.policy of those that were compacted"
            event(log, logging.WARNING, "adopted topics keep all records", count=len(kept), topics=shown, todo=todo)

    async def strays(self, found: Mapping[TopicPartition, Remains], loaded: LoadedTopics) -> bool:
        """Adopt topics and partitions that the store has lost. True if there was any. Raises KafkaError."""
        deleted = {nodes.id_bytes(text) for text in await self._remembered()}
        known, ids = _names(loaded), {topic.id for topic in loaded.topics}
        taken: list[str] = []
        for name, partitions in _topics(found).items():
            theirs = {remains.topic_id for remains in partitions.values()}
            topic = next((topic for topic in loaded.topics if topic.name == name), None)
            if topic is not None:
                taken += [name] if await self._grow(topic, partitions) else []
            elif name not in known and None not in theirs and not theirs & (ids | deleted):
                taken += [name] if await self._take(name, partitions, _settings(name, None)) else []
        if taken:
            self._tell("topics lost by the store adopted from log dirs, retention off", taken)
        return bool(taken)

    async def forget_deleted(self, found: Mapping[TopicPartition, Remains]) -> None:
        """Forget the ids of deleted topics that no log dir holds. Call it only when every log dir was read."""
        left = {remains.topic_id for remains in found.values()}
        names = [name for name in await self._remembered() if nodes.id_bytes(name) not in left]
        if names:
            ops: list[Op] = [Delete(f"{nodes.DELETED}/{name}") for name in names]
            await write(self.session, self.fence, ops)

    async def _remembered(self) -> list[str]:
        """The ids of topics that were deleted."""
        names, _ = await until_answered(lambda: self.session.children(nodes.DELETED))
        return names

    def _state(self, remains: Remains | None) -> PartitionState:
        epoch = 0 if remains is None else max(0, remains.leader_epoch)
        return PartitionState((self.broker_id,), self.broker_id, epoch, (self.broker_id,), self.fence.epoch, 0)

    async def _take(self, name: str, partitions: Mapping[int, Remains], config: dict[str, str]) -> bool:
        ids = {remains.topic_id for remains in partitions.values() if remains.topic_id is not None}
        if len(ids) > 1:
            event(log, logging.ERROR, "topic not adopted", topic=name, reason="its partitions have different topic ids")
            return False
        if max(partitions) >= PARTITIONS_MAX:
            reason = f"a topic has at most {PARTITIONS_MAX} partitions, and a directory is of number {max(partitions)}"
            event(log, logging.ERROR, "topic not adopted", topic=name, reason=reason)
            return False
        states = tuple(self._state(partitions.get(index)) for index in range(max(partitions) + 1))
        topic_id = ids.pop() if ids else nodes.draw_id(self.random)
        await write(self.session, self.fence, creation(Topic(name, topic_id, states, config)))
        event(log, logging.INFO, "topic adopted", topic=name, partitions=len(states))
        return True

    async def _grow(self, topic: Topic, partitions: Mapping[int, Remains]) -> bool:
        count, most = len(topic.partitions), max(partitions) + 1
        more = [partitions[index] for index in partitions if index >= count]
        if topic.internal or most > PARTITIONS_MAX or not more or any(p.topic_id != topic.id for p in more):
            return False
        added = [self._state(partitions.get(index)) for index in range(count, most)]
        await write(self.session, self.fence, growth(replace(topic, partitions=(*topic.partitions, *added)), count))
        return True

    @staticmethod
    def _tell(what: str, names: Collection[str]) -> None:
        shown = ",".join(sorted(names)[:NAMES_SHOWN])
        event(log, logging.ERROR, what, count=len(names), topics=shown)


def _settings(name: str, own: Mapping[str, str] | None) -> dict[str, str]:
    """The settings of an adopted topic; `own`: its known settings, None if they are unknown."""
    if name in INTERNAL_TOPICS:
        return {"cleanup.policy": "compact", **(own or {})}
    if own is not None and own.get("cleanup.policy") == "compact":  # retention does not apply
        return dict(own)
    return {**KEPT, **(own or {})}


def _names(loaded: LoadedTopics) -> set[str]:
    return {topic.name for topic in (*loaded.topics, *loaded.deleted)}


def _topics(found: Mapping[TopicPartition, Remains]) -> dict[str, dict[int, Remains]]:
    by_name: dict[str, dict[int, Remains]] = {}
    for name, index in sorted(found):
        by_name.setdefault(name, {})[index] = found[TopicPartition(name, index)]
    return by_name
