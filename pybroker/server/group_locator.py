"""Who coordinates a group: who leads its partition of __consumer_offsets, which is made when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pybroker import errors
from pybroker.cluster.image import OFFSETS_TOPIC, Node
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.controller.topics import TopicAdmin
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.replication.replicas import Replicas


class Locator:
    """Makes the offsets topic, hands its partitions to the coordinator, and names the broker for a group."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        replicas: Replicas,
        admin: TopicAdmin,
        groups: Coordinator,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._replicas = replicas
        self._admin = admin
        self._groups = groups
        self._making: asyncio.Task[None] | None = None

    async def lead(self, deleted: Iterable[str] = ()) -> None:
        """Take over the groups that are here; nothing if there are none yet. `deleted`: as Coordinator.lead."""
        topic = self._metadata.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return
        self._groups.partitions = len(topic.partitions)
        for index, state in enumerate(topic.partitions):
            replica = self._replicas.get(OFFSETS_TOPIC, index)
            if replica is not None:
                self._groups.lead(index, state.leader_epoch, replica, deleted)
        await self._groups.loaded()
        self._groups.resign_failed()  # what failed meanwhile

    async def topic_deleted(self, topic: str) -> None:
        """A topic is gone, and what groups committed in it; with the offsets topic all of them."""
        if topic == OFFSETS_TOPIC:
            self._groups.resign_all()
            self._making = None
        else:
            await self._groups.forget_topic(topic)

    async def locate(self, group_id: str, listener: str) -> Node:
        """The broker that coordinates a group, as clients of a listener see it. Raises COORDINATOR_NOT_AVAILABLE while
        there is none, or none that has this listener."""
        if self._metadata.image.topic(OFFSETS_TOPIC) is None:
            await self._make()
        if self._groups.is_lost(group_id):
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"the partition of {OFFSETS_TOPIC} is offline")
        node = self._metadata.image.node(self._broker_id, listener)
        if node is None:
            problem = f"broker {self._broker_id} is not registered yet, or not with the listener {listener}"
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, problem)
        return node

    async def _make(self) -> None:
        """Make the offsets topic once, however many ask at the same time."""
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._create())
        task = self._making
        try:
            await asyncio.shield(task)
        except (KafkaError, OSError) as problem:
            if self._making is task:
                self._making = None
            raise KafkaError(errors.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC} cannot be made: {problem}") from None

    async def _create(self) -> None:
        await self._admin.create(self._admin.offsets_topic())
        await self.lead()
