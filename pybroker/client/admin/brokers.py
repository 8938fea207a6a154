"""The brokers of a cluster, and the replicas in their log directories."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, raise_for
from pybroker.client.admin.topics import absent
from pybroker.client.net.metadata import Node
from pybroker.decisions.planning.measuring import LogDir, log_dirs_of
from pybroker.protocol import messages as m


class ClusterDescription(NamedTuple):
    """A cluster; `id` is None if the broker sends none, `controller` is -1 while there is none."""

    id: str | None
    controller: int
    nodes: tuple[Node, ...]


class BrokersAdmin(AdminBase):
    """Operations on the brokers of a cluster."""

    def describe_cluster(self) -> ClusterDescription:
        """The id, controller and brokers of the cluster, from the metadata of one broker."""
        self.cluster.metadata([])
        nodes = tuple(node for _, node in sorted(self.cluster.nodes.items()))
        return ClusterDescription(self.cluster.id, self.cluster.controller_id, nodes)

    def log_dirs(self, brokers: Iterable[int] | None = None, topics: Sequence[str] | None = None) -> list[LogDir]:
        """The log directories of these brokers (all, if None) with the replicas of these topics (all, if None)."""
        found = self._partitions_of(arguments.names(topics, "topics")) if topics is not None else None
        if brokers is not None:
            brokers = [arguments.whole(broker, "a broker's id") for broker in brokers]
        else:
            brokers = [node.id for node in self.describe_cluster().nodes]
        return [log_dir for broker in brokers for log_dir in self._log_dirs(broker, found)]

    def alter_replica_log_dirs(self, broker: int, log_dirs: Mapping[tuple[str, int], str]) -> None:
        """Move replicas of a broker to other log directories of it, by the paths of `log_dirs()`; this does not wait.

        `log_dirs` shows a replica on its way as `future`, with its lag. The directory that it is in cancels a move. A
        broker that has no replica of a partition yet creates it there later, and answers with an error. KafkaError of
        the first partition that was refused: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE,
        UNKNOWN_TOPIC_OR_PARTITION; the others move."""
        asked = m.AlterReplicaLogDirsRequest.Dirs
        dirs: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), path in log_dirs.items():
            name = arguments.name(topic, "a topic's name")
            dirs.setdefault(path, {}).setdefault(name, []).append(arguments.whole(partition, "a partition"))
        request = m.AlterReplicaLogDirsRequest(
            dirs=[
                asked(path=path, topics=[asked.Topics(name=name, partitions=its) for name, its in topics.items()])
                for path, topics in dirs.items()
            ]
        )
        answer = self.cluster.node(arguments.whole(broker, "a broker's id")).request(request)
        for told in answer.results:
            for p in told.partitions:
                raise_for(p.error_code, f"replica of {told.topic_name}-{p.partition_index} on broker {broker}")

    def _partitions_of(self, names: Sequence[str]) -> dict[str, list[int]]:
        """The partitions of these topics, by name. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if one is not there."""
        found = {}
        for topic in self.cluster.metadata(names):
            raise_for(topic.error, f"topic {topic.name}", absent(topic))
            found[topic.name] = [p.partition for p in topic.partitions]
        return found

    def _log_dirs(self, broker: int, topics: dict[str, list[int]] | None) -> list[LogDir]:
        asked = m.DescribeLogDirsRequest.Topics
        named = None if topics is None else [asked(topic=name, partitions=ps) for name, ps in topics.items()]
        answer = self.cluster.node(broker).request(m.DescribeLogDirsRequest(topics=named))
        raise_for(answer.error_code, f"log directories of broker {broker}")
        return log_dirs_of(broker, answer)
