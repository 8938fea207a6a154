"""What brokers of a cluster say to each other: LeaderAndIsr, StopReplica and UpdateMetadata from the controller, and
ControlledShutdown, AlterPartition and AllocateProducerIds to it.

They are taken on the inter-broker listener of a cluster alone: elsewhere CLUSTER_AUTHORIZATION_FAILED answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

if TYPE_CHECKING:  # a lone broker starts without them
    from pybroker.controller.controller import Controller
    from pybroker.replication.manager import ReplicaManager


class Peers(NamedTuple):
    """Of a broker of a cluster: who does what others ask, and the listener that they come by."""

    listener: str
    manager: ReplicaManager
    controller: Callable[[], Controller | None]
    """The present one; None while there is no session."""
    allocate: Callable[[], Awaitable[tuple[int, int]]]
    """A block of producer ids: the first, and how many."""


class Control:
    """The handlers; without `peers`, of a lone broker, all is refused."""

    def __init__(self, peers: Peers | None) -> None:
        self._peers = peers

    def _of(self, call: Call) -> Peers:
        """Raises CLUSTER_AUTHORIZATION_FAILED."""
        if self._peers is None or call.caller.listener != self._peers.listener:
            raise KafkaError(errors.CLUSTER_AUTHORIZATION_FAILED, "this listener is not for brokers of a cluster")
        return self._peers

    def _controller(self, call: Call) -> Controller:
        """Raises CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER."""
        controller = self._of(call).controller()
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        return controller

    async def leader_and_isr(self, request: Any, call: Call) -> Any:
        manager = self._of(call).manager
        answer = _leader_and_isr_answer(request, await manager.leader_and_isr(request))
        asked = {
            TopicPartition(topic.topic_name, index): topic.topic_id
            for topic in request.asked_about
            for index in topic.partition_indexes
        }
        for topic in request.topic_states:
            for p in topic.partition_states:
                key = TopicPartition(topic.topic_name, p.partition_index)
                if manager.is_ahead(key, p.leader_epoch, p.partition_epoch):
                    asked[key] = topic.topic_id
        if asked:
            known, kind = await manager.known(asked.items()), m.LeaderAndIsrResponse.Known
            answer.known = [
                kind(topic_name=key.topic, partition_index=key.partition, **{**each._asdict(), "isr": list(each.isr)})
                for key, each in known.items()
            ]
            answer.latest_broker_epoch = manager.latest_epoch
        return answer

    async def stop_replica(self, request: Any, call: Call) -> Any:
        codes = await self._of(call).manager.stop_replica(request)
        kind = m.StopReplicaResponse.PartitionErrors
        found = [kind(topic_name=k.topic, partition_index=k.partition, error_code=code) for k, code in codes.items()]
        return m.StopReplicaResponse(partition_errors=found)

    async def update_metadata(self, request: Any, call: Call) -> Any:
        await self._of(call).manager.update_metadata(request)
        return m.UpdateMetadataResponse()

    async def controlled_shutdown(self, request: Any, call: Call) -> Any:
        controller = self._controller(call)
        from pybroker.controller.requests import controlled_shutdown

        return await controlled_shutdown(controller, request)

    async def alter_partition(self, request: Any, call: Call) -> Any:
        controller = self._controller(call)
        from pybroker.controller.requests import alter_partition

        return await alter_partition(controller, request, call.version)

    async def allocate_producer_ids(self, request: Any, call: Call) -> Any:
        controller = self._controller(call)
        from pybroker.controller.requests import check_asker

        check_asker(controller, request.broker_id, request.broker_epoch)
        first, count = await self._of(call).allocate()
        return m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)


def leader_and_isr_failed(request: Any, code: int, message: str) -> Any:
    return _leader_and_isr_answer(request, {}, code)


def stop_replica_failed(request: Any, code: int, message: str) -> Any:
    return m.StopReplicaResponse(error_code=code, partition_errors=[])


def update_metadata_failed(request: Any, code: int, message: str) -> Any:
    return m.UpdateMetadataResponse(error_code=code)


def controlled_shutdown_failed(request: Any, code: int, message: str) -> Any:
    return m.ControlledShutdownResponse(error_code=code, remaining_partitions=[])


def alter_partition_failed(request: Any, code: int, message: str) -> Any:
    return m.AlterPartitionResponse(error_code=code, topics=[])


def allocate_failed(request: Any, code: int, message: str) -> Any:
    return m.AllocateProducerIdsResponse(error_code=code, producer_id_start=-1, producer_id_len=0)

def _leader_and_isr_answer(request: Any, codes: Mapping[TopicPartition, int], code: int = errors.NONE) -> Any:
    """The answer to LeaderAndIsr: by topic id from version 5 on, in one list before."""
    kind = m.LeaderAndIsrResponse
    topics, flat = [], []
    for topic in request.topic_states:
        found = []
        for p in topic.partition_states:
            key = TopicPartition(topic.topic_name, p.partition_index)
            wrong = codes.get(key, code)
            found.append(kind.Topics.PartitionErrors(partition_index=p.partition_index, error_code=wrong))
            flat.append(
                kind.PartitionErrors(topic_name=key.topic, partition_index=key.partition, error_code=wrong)
            )
        topics.append(kind.Topics(topic_id=topic.topic_id, partition_errors=found))
    return kind(error_code=code, partition_errors=flat, topics=topics)
