"""Finds the coordinator of a group: the leader of the group's partition of __consumer_offsets.

    LeaderAndIsr made this broker its leader  ──> its groups are loaded, under that leader epoch
    ... which it was before                   ──> its groups stay loaded, under the new leader epoch
    ... or a follower, or deleted it          ──> its groups are unloaded: members look for the next coordinator
    UpdateMetadata                            ──> number of partitions, their leaders, deleted topics
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection
from typing import Protocol

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC, Image, Node
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.logs import event
from pybroker.metadata.planning import NewTopic
from pybroker.replication.replica import Replica
from pybroker.state_log.placement import partition_of

log = logging.getLogger(__name__)

MAKING_S = 1.0
"""Seconds that FindCoordinator waits for the offsets topic to be created; after that the client has to retry."""


class OffsetsTopicCreator(Protocol):
    """Creates the offsets topic."""

    def offsets_topic(self) -> NewTopic:
        """The offsets topic, with its settings."""

    def create(self, new: NewTopic, validate_only: bool = False) -> Awaitable[object]:
        """Create a topic. Raises KafkaError."""


class GroupLocator:
    """Loads and unloads groups as this broker's role for their partitions changes, and finds coordinators."""

    def __init__(
        self, metadata: MetadataCache, admin: OffsetsTopicCreator, groups: Coordinator, deleted: Collection[str] = ()
    ) -> None:
        """`deleted`: topics whose deletion an earlier run of this broker began, and this one finishes."""
        self._deleted = deleted
        self._metadata = metadata
        self._admin = admin
        self._groups = groups
        self._making: asyncio.Task[None] | None = None
        self._problem = ""
        """Why the last attempt to create the offsets topic failed."""
        self._topics: dict[str, bytes] = {}
        self._topic_id: bytes | None = None
        """The id of the offsets topic whose partitions are, or were, led here."""
        self._forgetting: set[asyncio.Task[None]] = set()

    def lead(self, replica: Replica, leads: bool, leader_epoch: int, led_on: bool) -> None:
        """Handle that this broker leads a partition from now on, or does not. `led_on`: it also led the partition
        before, and only the set of followers changed."""
        if replica.key.topic != OFFSETS_TOPIC:
            return
        if replica.topic_id != self._topic_id:
            if not leads and self._topic_id is not None:
                return  # a replica of an earlier, deleted offsets topic stops
            self._groups.begin_anew()
            self._topic_id = replica.topic_id
        if leads:
            gone = [name for name in self._deleted if self._metadata.image.topic(name) is None]
            self._groups.lead(replica.key.partition, leader_epoch, replica, gone, led_on=led_on)
        else:
            self._groups.resign(replica.key.partition, leader_epoch)

    def show(self, image: Image) -> None:
        """Handle a new metadata image: the number of offsets partitions, and deleted topics."""
        offsets = image.topic(OFFSETS_TOPIC)
        self._groups.partitions = 0 if offsets is None else len(offsets.partitions)
        topics = {topic.name: topic.id for topic in image.by_name.values()}
        gone = [name for name, topic_id in self._topics.items() if topics.get(name) != topic_id]
        for name in gone:  # a new topic may have the name already
            if name != OFFSETS_TOPIC:
                task = asyncio.get_running_loop().create_task(self._groups.forget_topic(name))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)
        self._topics = topics

    async def locate(self, group_id: str, listener: str) -> Node:
        """The coordinator of a group, with its address for clients of this listener. Raises COORDINATOR_NOT_AVAILABLE
        if there is none, or none with this listener."""
        if self._metadata.image.topic(OFFSETS_TOPIC) is None and self._metadata.complete:
            await asyncio.wait([self._make()], timeout=MAKING_S)
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            reason = f"cannot be created: {self._problem}" if self._problem else "is being created: retry"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} {reason}")
        index = partition_of(group_id, len(topic.partitions))
        leader = topic.partitions[index].leader
        node = image.node(leader, listener)
        if node is None or self._metadata.suspects.is_doubted(leader) or self._groups.is_lost(group_id):
            problem = f"{OFFSETS_TOPIC}-{index} has no leader, or its leader has no listener {listener}"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, problem)
        return node

    def _make(self) -> asyncio.Task[None]:
        """Begin to create the offsets topic, unless it is being created."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._create())
        return self._making

    async def _create(self) -> None:
        try:
            await self._admin.create(self._admin.offsets_topic())
            await self._groups.loaded()  # clients that get this broker as coordinator ask it at once
            self._problem = ""
        except (KafkaError, OSError) as problem:
            if getattr(problem, "code", None) == errors.TOPIC_ALREADY_EXISTS:
                self._problem = ""
            elif str(problem) != self._problem:  # clients keep asking: log each reason once
                event(log, logging.WARNING, "topic not created", topic=OFFSETS_TOPIC, reason=problem)
                self._problem = str(problem)
        finally:
            self._making = None
