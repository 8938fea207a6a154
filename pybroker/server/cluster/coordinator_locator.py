"""Finds the coordinator of a group or a transactional id: the leader of its partition of an internal topic.

    LeaderAndIsr made this broker its leader  ──> its state is loaded, under that leader epoch
    ... which it was before                   ──> its state stays loaded, under the new leader epoch
    ... or a follower, or deleted it          ──> its state is unloaded: clients look for the next coordinator
    UpdateMetadata                            ──> number of partitions, and their leaders
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from pybroker import errors
from pybroker.decisions.image import Image, Node
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata.planning import NewTopic
from pybroker.replication.replica import Replica
from pybroker.state_log.log import StateLog
from pybroker.state_log.placement import partition_of

log = logging.getLogger(__name__)

MAKING_S = 1.0
"""Seconds that FindCoordinator waits for the topic to be created; after that the client has to retry."""


class LeadsPartitions(Protocol):
    """A coordinator on this broker."""

    topic: str
    partitions: int

    def take_lead(self, index: int, leader_epoch: int, replica: StateLog, *, led_on: bool = False) -> object: ...
    def resign(self, index: int, leader_epoch: int) -> None: ...
    def begin_anew(self) -> None: ...
    def is_lost(self, key: str) -> bool: ...
    async def loaded(self) -> None: ...


class CoordinatorLocator:
    """Loads and unloads state as this broker's role for the partitions changes, and finds coordinators."""

    def __init__(
        self,
        metadata: MetadataCache,
        coordinator: LeadsPartitions,
        new_topic: Callable[[], NewTopic],
        create: Callable[[NewTopic], Awaitable[object]],
    ) -> None:
        """`new_topic` returns the topic with its settings; `create` creates it, and raises KafkaError."""
        self._metadata = metadata
        self._coordinator = coordinator
        self._new_topic, self._create_topic = new_topic, create
        self._making: asyncio.Task[None] | None = None
        self._problem = ""
        """Why the last attempt to create the topic failed."""
        self._topic_id: bytes | None = None
        """The id of the topic whose partitions are, or were, led here."""

    @property
    def topic(self) -> str:
        return self._coordinator.topic

    def lead(self, replica: Replica, leads: bool, leader_epoch: int, led_on: bool) -> None:
        """Handle that this broker leads a partition from now on, or does not. `led_on`: it also led the partition
        before, and only the set of followers changed."""
        if replica.key.topic != self.topic:
            return
        if replica.topic_id != self._topic_id:
            if not leads and self._topic_id is not None:
                return  # a replica of an earlier, deleted topic stops
            self._coordinator.begin_anew()
            self._topic_id = replica.topic_id
        if leads:
            self.take_lead(replica, leader_epoch, led_on)
        else:
            self._coordinator.resign(replica.key.partition, leader_epoch)

    def take_lead(self, replica: Replica, leader_epoch: int, led_on: bool) -> None:
        """Coordinate the state in a partition."""
        self._coordinator.take_lead(replica.key.partition, leader_epoch, replica, led_on=led_on)

    def show(self, image: Image) -> None:
        """Handle a new metadata image: the number of partitions."""
        topic = image.topic(self.topic)
        self._coordinator.partitions = 0 if topic is None else len(topic.partitions)

    async def locate(self, key: str, listener: str) -> Node:
        """The coordinator of a key, with its address for clients of this listener. Raises COORDINATOR_NOT_AVAILABLE if
        there is none, or none with this listener."""
        leader = await self.leader(key)
        node = self._metadata.image.node(leader, listener)
        if node is None or self._coordinator.is_lost(key):
            raise self._not_available(key, f"has no leader, or its leader has no listener {listener}")
        return node

    async def leader(self, key: str) -> int:
        """The broker that coordinates a key; the topic is created if it does not exist. Raises
        COORDINATOR_NOT_AVAILABLE."""
        if self._metadata.image.topic(self.topic) is None and self._metadata.complete:
            await asyncio.wait([self._make()], timeout=MAKING_S)
        topic = self._metadata.image.topic(self.topic)
        if topic is None:
            reason = f"cannot be created: {self._problem}" if self._problem else "is being created: retry"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{self.topic} {reason}")
        leader = topic.partitions[partition_of(key, len(topic.partitions))].leader
        if leader not in self._metadata.image.brokers or self._metadata.suspects.is_doubted(leader):
            raise self._not_available(key, "has no leader")
        return leader

    def _not_available(self, key: str, why: str) -> KafkaError:
        index = partition_of(key, self._coordinator.partitions) if self._coordinator.partitions else 0
        return KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{self.topic}-{index} {why}")

    def _make(self) -> asyncio.Task[None]:
        """Begin to create the topic, unless it is being created."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._create())
        return self._making

    async def _create(self) -> None:
        try:
            await self._create_topic(self._new_topic())
            await self._coordinator.loaded()  # clients that get this broker as coordinator ask it at once
            self._problem = ""
        except (KafkaError, OSError) as problem:
            if getattr(problem, "code", None) == errors.TOPIC_ALREADY_EXISTS:
                self._problem = ""
            elif str(problem) != self._problem:  # clients keep asking: log each reason once
                event(log, logging.WARNING, "topic not created", topic=self.topic, reason=problem)
                self._problem = str(problem)
        finally:
            self._making = None
