"""What an operator asks of a cluster: topics created, described, grown and deleted, and the offsets that they hold."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.client.connection import Connection
from pybroker.client.metadata import Cluster, TopicInfo
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m

LATEST: Final = -1
EARLIEST: Final = -2
BROKER_DEFAULT: Final = -1
"""As a number of partitions or a replication factor: what the broker's own configuration says (KIP-464)."""

_BROKER_SHARE: Final = 0.9
"""The broker is told to give up a little earlier than we do, so that its answer says what did not get done."""


class ResourceType(IntEnum):
    """What a config belongs to, by its code on the wire."""

    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a config value comes from, by its code on the wire."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigEntry(NamedTuple):
    """One config of a topic or broker; `value` is None where it is sensitive or not set."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool


class CreatedTopic(NamedTuple):
    """What a broker made of a request to create a topic; -1 from brokers that do not say (before 2.4)."""

    name: str
    partitions: int
    replication_factor: int


class Admin:
    """Operations on the topics of one cluster; each raises KafkaError with a sentence for a person."""

    def __init__(self, bootstrap: str, *, timeout_s: float = 30.0) -> None:
        self.cluster = Cluster(bootstrap, timeout_s=timeout_s)
        self.timeout_s = timeout_s

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    @property
    def _timeout_ms(self) -> int:
        return max(1, int(self.timeout_s * _BROKER_SHARE * 1000))

    def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """These topics, or all of them. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if one of those named is not there."""
        found = self.cluster.metadata(names)
        if names is not None:
            for topic in found:
                _raise_for(topic.error, f"topic {topic.name}")
        return found

    def exists(self, name: str) -> bool:
        return any(not topic.error for topic in self.cluster.metadata([name]))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic and wait until its partitions have leaders; `validate_only` stops before that."""
        wanted = m.CreateTopicsRequest.Topics(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[m.CreateTopicsRequest.Topics.Configs(name=k, value=v) for k, v in (configs or {}).items()],
        )
        request = m.CreateTopicsRequest(topics=[wanted], timeout_ms=self._timeout_ms, validate_only=validate_only)
        (answer,) = self._change(request, "topics")
        return CreatedTopic(answer.name, answer.num_partitions, answer.replication_factor)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it."""
        request = m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.Topics(name=name)], topic_names=[name], timeout_ms=self._timeout_ms
        )
        self._change(request, "responses")

    def create_partitions(self, name: str, count: int) -> None:
        """Grow a topic to `count` partitions in all."""
        wanted = m.CreatePartitionsRequest.Topics(name=name, count=count, assignments=None)
        self._change(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=self._timeout_ms), "results")

    def _change(self, request: Any, field: str) -> list[Any]:
        """Send a request for the controller; the results in `field`, none of which failed."""

        def ask(controller: Connection) -> list[Any]:
            results: list[Any] = getattr(controller.request(request), field)
            for result in results:
                _raise_for(result.error_code, f"topic {result.name}", getattr(result, "error_message", None))
            return results

        return self.cluster.ask_controller(ask)

    def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        """The configs of each of these topics, by name, as the broker answers them."""
        resources = [
            m.DescribeConfigsRequest.Resources(
                resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None
            )
            for name in names
        ]
        if not resources:
            return {}
        answer = self.cluster.any().request(m.DescribeConfigsRequest(resources=resources))
        found = {}
        for result in answer.results:
            _raise_for(result.error_code, f"configs of topic {result.resource_name}", result.error_message)
            found[result.resource_name] = [
                ConfigEntry(c.name, c.value, c.config_source, c.read_only, c.is_sensitive) for c in result.configs
            ]
        return found

    def offsets(self, topics: Iterable[TopicInfo], timestamp: int) -> dict[tuple[str, int], int | None]:
        """(topic, partition) to the offset at `timestamp` (EARLIEST, LATEST or milliseconds); None where no leader
        could tell it, or where no record is that late."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        found: dict[tuple[str, int], int | None] = {}
        for topic in topics:
            for partition in topic.partitions:
                found[topic.name, partition.partition] = None
                if partition.leader >= 0:
                    by_leader.setdefault(partition.leader, {}).setdefault(topic.name, []).append(partition.partition)
        for leader, partitions in by_leader.items():
            found.update(self._offsets_of(leader, partitions, timestamp))
        return found

    def _offsets_of(
        self, leader: int, topics: Mapping[str, Sequence[int]], timestamp: int
    ) -> dict[tuple[str, int], int | None]:
        """What one leader says of its partitions."""
        asked = m.ListOffsetsRequest.Topics
        request = m.ListOffsetsRequest(
            replica_id=-1,
            topics=[
                asked(name=name, partitions=[asked.Partitions(partition_index=p, timestamp=timestamp) for p in indexes])
                for name, indexes in topics.items()
            ],
        )
        answer = self.cluster.node(leader).request(request)
        return {
            (topic.name, p.partition_index): p.offset if p.error_code == errors.NONE and p.offset >= 0 else None
            for topic in answer.topics
            for p in topic.partitions
        }


def _raise_for(code: int, what: str, message: str | None = None) -> None:
    """KafkaError of a code that is not 0: the broker's own sentence if it gave one, else what the code means."""
    if code == errors.NONE:
        return
    raise KafkaError(code, message or f"{what}: {errors.lookup(code).meaning}")
