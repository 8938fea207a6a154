"""Requests between brokers: LeaderAndIsr, StopReplica and UpdateMetadata from the controller, and ControlledShutdown,
AlterPartition and AllocateProducerIds to the controller.

They are accepted only on the inter-broker listener of a cluster; other listeners answer CLUSTER_AUTHORIZATION_FAILED.
The controller of a lone broker calls these functions directly (server/cluster/loopback.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import FULL, TopicStates
from pybroker.decisions.orders import (
    AlteredTopic,
    AskedIsr,
    AskedTopic,
    LeaderAndIsr,
    MetadataOrder,
    Role,
    Stopped,
    StopReplica,
    UncheckedBroker,
    UncheckedEndpoint,
)
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

EPOCHS_VERSION = 3
"""The first version in which AlterPartition has the broker epoch of each ISR member."""
IDS_VERSION = 2

if TYPE_CHECKING:
    from pybroker.controller.controller import Controller
    from pybroker.replication.manager import ReplicaManager

    State = (
        m.LeaderAndIsrRequest.TopicStates.PartitionStates | m.UpdateMetadataRequest.TopicStates.PartitionStates
    )


class Peers(NamedTuple):
    """The parts of a broker that execute requests of other brokers, and the listener that accepts these."""

    listener: str
    manager: ReplicaManager
    controller: Callable[[], Controller | None]
    """Returns the controller of this broker; None while there is no session."""
    allocate: Callable[[], Awaitable[tuple[int, int]]]
    """Allocates a block of producer ids: returns (first, count)."""


class Control:
    """The handlers. Without `peers`, at a lone broker, every request is refused."""

    def __init__(self, peers: Peers | None) -> None:
        self._peers = peers

    def _of(self, call: Call) -> Peers:
        """Return the parts that execute a call. Raises CLUSTER_AUTHORIZATION_FAILED."""
        if self._peers is None or call.caller.listener != self._peers.listener:
            words = f"requests between brokers are not allowed on listener {call.caller.listener}"
            raise KafkaError(errors.CLUSTER_AUTHORIZATION_FAILED, words)
        return self._peers

    def _controller(self, call: Call) -> Controller:
        """Return the controller of this broker. Raises CLUSTER_AUTHORIZATION_FAILED, NOT_CONTROLLER."""
        controller = self._of(call).controller()
        if controller is None:
            raise KafkaError(errors.NOT_CONTROLLER, "this broker is not the controller")
        return controller

    async def leader_and_isr(self, request: m.LeaderAndIsrRequest, call: Call) -> m.LeaderAndIsrResponse:
        manager = self._of(call).manager
        order = roles_of(request)
        answer = _leader_and_isr_answer(request, await manager.leader_and_isr(order))
        asked = {
            TopicPartition(topic.topic_name, index): topic.topic_id
            for topic in request.asked_about
            for index in topic.partition_indexes
        }
        asked |= {role.key: role.topic_id for role in order.roles if manager.is_ahead(role.key, role.state)}
        if asked:
            known, kind = await manager.known(asked.items()), m.LeaderAndIsrResponse.Known
            answer.known = [
                kind(topic_name=key.topic, partition_index=key.partition, **{**each._asdict(), "isr": list(each.isr)})
                for key, each in known.items()
            ]
            answer.latest_broker_epoch = manager.latest_epoch
        return answer

    async def stop_replica(self, request: m.StopReplicaRequest, call: Call) -> m.StopReplicaResponse:
        codes = await self._of(call).manager.stop_replica(stops_of(request))
        kind = m.StopReplicaResponse.PartitionErrors
        found = [kind(topic_name=k.topic, partition_index=k.partition, error_code=code) for k, code in codes.items()]
        return m.StopReplicaResponse(partition_errors=found)

    async def update_metadata(self, request: m.UpdateMetadataRequest, call: Call) -> m.UpdateMetadataResponse:
        await self._of(call).manager.update_metadata(metadata_of(request))
        return m.UpdateMetadataResponse()

    async def controlled_shutdown(
        self, request: m.ControlledShutdownRequest, call: Call
    ) -> m.ControlledShutdownResponse:
        controller = self._controller(call)
        from pybroker.controller.requests import controlled_shutdown

        left = await controlled_shutdown(controller, request.broker_id, request.broker_epoch)
        kind = m.ControlledShutdownResponse.RemainingPartitions
        return m.ControlledShutdownResponse(
            remaining_partitions=[kind(topic_name=key.topic, partition_index=key.partition) for key in left]
        )

    async def alter_partition(self, request: m.AlterPartitionRequest, call: Call) -> m.AlterPartitionResponse:
        controller = self._controller(call)
        from pybroker.controller.requests import alter_partition

        asked = isr_of(request, call.version)
        altered = await alter_partition(controller, request.broker_id, request.broker_epoch, asked)
        return _altered_answer(request, altered)

    async def allocate_producer_ids(
        self, request: m.AllocateProducerIdsRequest, call: Call
    ) -> m.AllocateProducerIdsResponse:
        controller = self._controller(call)
        from pybroker.controller.requests import check_asker

        check_asker(controller, request.broker_id, request.broker_epoch)
        first, count = await self._of(call).allocate()
        return m.AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=count)


def leader_and_isr_failed(request: m.LeaderAndIsrRequest, code: int, message: str) -> m.LeaderAndIsrResponse:
    return _leader_and_isr_answer(request, {}, code)


def stop_replica_failed(request: m.StopReplicaRequest, code: int, message: str) -> m.StopReplicaResponse:
    return m.StopReplicaResponse(error_code=code, partition_errors=[])


def update_metadata_failed(request: m.UpdateMetadataRequest, code: int, message: str) -> m.UpdateMetadataResponse:
    return m.UpdateMetadataResponse(error_code=code)


def controlled_shutdown_failed(
    request: m.ControlledShutdownRequest, code: int, message: str
) -> m.ControlledShutdownResponse:
    return m.ControlledShutdownResponse(error_code=code, remaining_partitions=[])


def alter_partition_failed(request: m.AlterPartitionRequest, code: int, message: str) -> m.AlterPartitionResponse:
    return m.AlterPartitionResponse(error_code=code, topics=[])


def allocate_failed(request: m.AllocateProducerIdsRequest, code: int, message: str) -> m.AllocateProducerIdsResponse:
    return m.AllocateProducerIdsResponse(error_code=code, producer_id_start=-1, producer_id_len=0)


# -- decoding of requests, and responses -----------------------------------------------------------------------------


def roles_of(request: m.LeaderAndIsrRequest) -> LeaderAndIsr:
    """The roles that a LeaderAndIsr assigns, in its order."""
    roles = [
        Role(
            TopicPartition(topic.topic_name, p.partition_index),
            topic.topic_id,
            _state(p, p.partition_epoch)._replace(
                adding=tuple(p.adding_replicas), removing=tuple(p.removing_replicas)
            ),
            p.is_new,
        )
        for topic in request.topic_states
        for p in topic.partition_states
    ]
    return LeaderAndIsr(request.controller_id, request.controller_epoch, request.broker_epoch, roles)


def stops_of(request: m.StopReplicaRequest) -> StopReplica:
    """The replicas that a StopReplica names, in its order."""
    stops = [
        Stopped(TopicPartition(topic.topic_name, p.partition_index), p.leader_epoch, p.delete_partition)
        for topic in request.topic_states
        for p in topic.partition_states
    ]
    return StopReplica(request.controller_id, request.controller_epoch, request.broker_epoch, stops)


def metadata_of(request: m.UpdateMetadataRequest) -> MetadataOrder:
    """The brokers and partitions of an UpdateMetadata; offline replicas only at brokers that it lists as alive."""
    alive = {broker.id for broker in request.live_brokers}
    brokers = [
        UncheckedBroker(
            b.id, [UncheckedEndpoint(e.listener, e.host, e.port, e.security_protocol) for e in b.endpoints], b.rack
        )
        for b in request.live_brokers
    ]
    topics = [
        TopicStates(
            topic.topic_name,
            topic.topic_id,
            {
                p.partition_index: _state(p, p.zk_version, tuple(b for b in p.offline_replicas if b in alive))
                for p in topic.partition_states
            },
        )
        for topic in request.topic_states
    ]
    head = request.controller_id, request.controller_epoch, request.broker_epoch
    return MetadataOrder(*head, brokers, topics, request.type == FULL)


def _state(p: State, partition_epoch: int, offline: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(
        tuple(p.replicas), p.leader, p.leader_epoch, tuple(p.isr), p.controller_epoch, partition_epoch, offline
    )


def isr_of(request: m.AlterPartitionRequest, version: int) -> list[AskedTopic]:
    """The ISRs that an AlterPartition of this version requests."""
    topics = []
    for topic in request.topics:
        asked = []
        for p in topic.partitions:
            epochs, isr = None, tuple(p.new_isr)
            if version >= EPOCHS_VERSION:
                epochs = {each.broker_id: each.broker_epoch for each in p.new_isr_with_epochs}
                isr = tuple(each.broker_id for each in p.new_isr_with_epochs)
            recovering = bool(p.leader_recovery_state)
            asked.append(AskedIsr(p.partition_index, p.leader_epoch, p.partition_epoch, isr, epochs, recovering))
        topics.append(AskedTopic(topic.topic_id if version >= IDS_VERSION else None, topic.topic_name, asked))
    return topics


def _altered_answer(request: m.AlterPartitionRequest, altered: Sequence[AlteredTopic]) -> m.AlterPartitionResponse:
    kind = m.AlterPartitionResponse.Topics
    response = m.AlterPartitionResponse()
    for asked, topic in zip(request.topics, altered, strict=True):
        told = kind(topic_id=asked.topic_id, topic_name=topic.name)
        for each in topic.partitions:
            answer = kind.Partitions(partition_index=each.partition, error_code=each.error_code)
            if each.now is not None:
                answer.leader_id, answer.leader_epoch = each.now.leader, each.now.leader_epoch
                answer.isr, answer.partition_epoch = list(each.now.isr), each.now.partition_epoch
            told.partitions.append(answer)
        response.topics.append(told)
    return response


def _leader_and_isr_answer(
    request: m.LeaderAndIsrRequest, codes: Mapping[TopicPartition, int], code: int = errors.NONE
) -> m.LeaderAndIsrResponse:
    """The response to LeaderAndIsr: by topic id from version 5 on, before that in one list."""
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
