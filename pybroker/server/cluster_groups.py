"""Groups in a cluster: who leads a partition of __consumer_offsets coordinates its groups.

    LeaderAndIsr made this broker its leader  ──> its groups are loaded, under that leader epoch
    ... which it was before                   ──> its groups go on, under the new leader epoch
    ... or a follower, or it is deleted       ──> its groups are resigned: members look for the next coordinator
    UpdateMetadata                            ──> how many partitions there are, who leads each, which topics are gone
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Protocol

from pybroker import errors
from pybroker.cluster.image import OFFSETS_TOPIC, Image, Node
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.controller.planning import NewTopic
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator, partition_of
from pybroker.logs import event
from pybroker.replication.replica import Replica

log = logging.getLogger(__name__)


class Creator(Protocol):
    """Who makes topics."""

    def offsets_topic(self) -> NewTopic:
        """The offsets topic with its settings."""

    def create(self, new: NewTopic, validate_only: bool = False) -> Awaitable[object]:
        """Make a topic. Raises KafkaError."""


class ClusterGroups:
    """Leads and resigns the coordinator's partitions as this broker is told, and names the coordinator of a group."""

    def __init__(self, metadata: MetadataCache, admin: Creator, groups: Coordinator) -> None:
        self._metadata = metadata
        self._admin = admin
        self._groups = groups
        self._making: asyncio.Task[None] | None = None
        self._problem = ""
        """Why the offsets topic could not be made when it was tried last."""
        self._topics: dict[str, bytes] = {}
        self._topic_id: bytes | None = None
        """Of the offsets topic whose partitions are led here, or were."""
        self._forgetting: set[asyncio.Task[None]] = set()

    def lead(self, replica: Replica, leads: bool, leader_epoch: int, led_on: bool) -> None:
        """This broker leads a partition from now on, or does not. `led_on`: it has led it until now: a follower came or
        went."""
        if replica.key.topic != OFFSETS_TOPIC:
            return
        if replica.topic_id != self._topic_id:
            if not leads and self._topic_id is not None:
                return  # a replica of the topic that was deleted stops
            self._groups.begin_anew()
            self._topic_id = replica.topic_id
        if leads:
            self._groups.lead(replica.key.partition, leader_epoch, replica, led_on=led_on)
        else:
            self._groups.resign(replica.key.partition, leader_epoch)

    def show(self, image: Image) -> None:
        """What the brokers were told has changed."""
        offsets = image.topic(OFFSETS_TOPIC)
        self._groups.partitions = 0 if offsets is None else len(offsets.partitions)
        topics = {topic.name: topic.id for topic in image.by_name.values()}
        gone = [name for name, topic_id in self._topics.items() if topics.get(name) != topic_id]
        for name in gone:  # another may have the name already
            if name != OFFSETS_TOPIC:
                task = asyncio.get_running_loop().create_task(self._groups.forget_topic(name))
                self._forgetting.add(task)
                task.add_done_callback(self._forgetting.discard)
        self._topics = topics

    async def locate(self, group_id: str, listener: str) -> Node:
        """The broker that coordinates a group, as clients of a listener see it. Raises COORDINATOR_NOT_AVAILABLE while
        there is none, or none that has this listener."""
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            if self._metadata.complete:
                self._make()
            reason = f"cannot be made: {self._problem}" if self._problem else "is being made"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} {reason}")
        index = partition_of(group_id, len(topic.partitions))
        leader = topic.partitions[index].leader
        node = image.node(leader, listener)
        if node is None or self._metadata.suspects.is_doubted(leader):
            problem = f"{OFFSETS_TOPIC}-{index} has no leader, or none with the listener {listener}"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, problem)
        return node

    def _make(self) -> None:
        """Begin to make the offsets topic, if nobody does; whoever asks for a coordinator asks again."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._create())

    async def _create(self) -> None:
        try:
            await self._admin.create(self._admin.offsets_topic())
            self._problem = ""
        except (KafkaError, OSError) as problem:
            if getattr(problem, "code", None) == errors.TOPIC_ALREADY_EXISTS:
                self._problem = ""
            elif str(problem) != self._problem:  # clients ask again and again
                event(log, logging.WARNING, "topic not created", topic=OFFSETS_TOPIC, reason=problem)
                self._problem = str(problem)
        finally:
            self._making = None
