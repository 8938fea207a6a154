"""Partition reassignments (KIP-455): replicas are moved to other brokers, added or removed while clients go on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, raise_for
from pybroker.client.net.connection import BrokerConnection
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m


class PartitionReassignment(NamedTuple):
    """A reassignment in progress: all present replicas by their broker ids, target first, and which of them are being
    added or removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReassignmentsAdmin(AdminBase):
    """Operations on reassignments."""

    def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move partitions to these brokers, preferred leader first; None cancels a partition's reassignment.

        Return the error of each partition, None if its reassignment was accepted: it goes on in the cluster, until
        `list_partition_reassignments` no longer has the partition. KafkaError(NO_REASSIGNMENT_IN_PROGRESS) where there
        is nothing to cancel. A new target replaces the one of a reassignment in progress."""
        kind = m.AlterPartitionReassignmentsRequest.Topics
        topics: dict[str, list[m.AlterPartitionReassignmentsRequest.Topics.Partitions]] = {}
        for tp, brokers in targets.items():
            topic, index = TopicPartition.of(tp)
            replicas = None if brokers is None else [arguments.whole(each, "a broker id") for each in brokers]
            topics.setdefault(topic, []).append(kind.Partitions(partition_index=index, replicas=replicas))
        request = m.AlterPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms, topics=[kind(name=name, partitions=each) for name, each in topics.items()]
        )

        def ask(controller: BrokerConnection) -> dict[TopicPartition, KafkaError | None]:
            answer = controller.request(request)
            raise_for(answer.error_code, "the reassignment", answer.error_message)
            return {
                TopicPartition(topic.name, p.partition_index): (
                    KafkaError(p.error_code, p.error_message or "") if p.error_code else None
                )
                for topic in answer.responses
                for p in topic.partitions
            }

        return self.cluster.ask_controller(ask)

    def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments in progress of these partitions, or of all. A partition without one is left out."""
        kind = m.ListPartitionReassignmentsRequest.Topics
        asked: dict[str, list[int]] = {}
        for tp in partitions or ():
            topic, index = TopicPartition.of(tp)
            asked.setdefault(topic, []).append(index)
        named = [kind(name=name, partition_indexes=indexes) for name, indexes in asked.items()]
        request = m.ListPartitionReassignmentsRequest(
            timeout_ms=self._timeout_ms, topics=None if partitions is None else named
        )

        def ask(controller: BrokerConnection) -> dict[TopicPartition, PartitionReassignment]:
            answer = controller.request(request)
            raise_for(answer.error_code, "the list of reassignments", answer.error_message)
            return {
                TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                    tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
                )
                for topic in answer.topics
                for p in topic.partitions
            }

        return self.cluster.ask_controller(ask)
