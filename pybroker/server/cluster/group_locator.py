"""Finds the coordinator of a group, and has it forget the offsets of deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Protocol

from pybroker.decisions.image import OFFSETS_TOPIC, Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.groups.coordinator import Coordinator
from pybroker.metadata.planning import NewTopic
from pybroker.replication.replica import Replica
from pybroker.server.cluster.coordinator_locator import CoordinatorLocator


class OffsetsTopicCreator(Protocol):
    """Creates the offsets topic."""

    def offsets_topic(self) -> NewTopic:
        """The offsets topic, with its settings."""

    def create(self, new: NewTopic, validate_only: bool = False) -> Awaitable[object]:
        """Create a topic. Raises KafkaError."""


class GroupLocator(CoordinatorLocator):
    """Loads and unloads groups as this broker's role for their partitions changes, and finds coordinators."""

    def __init__(
        self, metadata: MetadataCache, admin: OffsetsTopicCreator, groups: Coordinator, deleted: Collection[str] = ()
    ) -> None:
        """`deleted`: topics whose deletion an earlier run of this broker began, and this one finishes."""
        super().__init__(metadata, groups, lambda: admin.offsets_topic(), lambda new: admin.create(new))
        self._deleted = deleted
        self._groups = groups
        self._topics: dict[str, bytes] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    def take_lead(self, replica: Replica, leader_epoch: int, led_on: bool) -> None:
        gone = [name for name in self._deleted if self._metadata.image.topic(name) is None]
        self._groups.lead(replica.key.partition, leader_epoch, replica, gone, led_on=led_on)

    def show(self, image: Image) -> None:
        """Handle a new metadata image: the number of offsets partitions, and deleted topics."""
        super().show(image)
        topics = {topic.name: topic.id for topic in image.by_name.values()}
        gone = [name for name, topic_id in self._topics.items() if topics.get(name) != topic_id]
        for name in gone:  # a new topic may have the name already
            if name != OFFSETS_TOPIC:
                task = asyncio.get_running_loop().create_task(self._groups.forget_topic(name))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)
        self._topics = topics
