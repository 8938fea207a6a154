"""Topics created, described, grown and deleted; the offsets that they hold, and their records cut off at the front."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.client.foreign import renamed
from pybroker.client.net import list_offsets
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import TopicInfo
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

BROKER_DEFAULT: Final = -1
"""A number of partitions or a replication factor: the broker's default (KIP-464)."""

HIGH_WATERMARK: Final = -1
"""The offset for `delete_records` that deletes all records."""


_NAME: Final = "a topic's name"


def absent(topic: TopicInfo) -> str | None:
    """The error sentence for a topic that does not exist, else None."""
    return f"topic {topic.name} does not exist" if topic.error == errors.UNKNOWN_TOPIC_OR_PARTITION else None


def _problem(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(code, message or "") if code else None


class CreatedTopic(NamedTuple):
    """A topic as the broker created it; numbers are -1 from brokers before 2.4, which do not send them."""

    name: str
    partitions: int
    replication_factor: int


class TopicsAdmin(AdminBase):
    """Operations on topics and their records."""

    def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """These topics, or all of them. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if a named one is missing."""
        found = self.cluster.metadata(None if names is None else arguments.names(names, "names"))
        if names is not None:
            for topic in found:
                raise_for(topic.error, f"topic {topic.name}", absent(topic))
        return found

    def exists(self, name: str) -> bool:
        """True if the topic exists."""
        return any(not topic.error for topic in self.cluster.metadata([arguments.name(name, _NAME)]))

    @renamed(num_partitions="partitions", topic_configs="configs", config="configs")
    def create_topic(
        self,
        name: str,
        *,
        partitions: int = BROKER_DEFAULT,
        replication_factor: int = BROKER_DEFAULT,
        configs: Mapping[str, str] | None = None,
        replica_assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create a topic and wait until its partitions have leaders; `validate_only` stops before that.

        `replica_assignments` has the broker ids of each partition's replicas, preferred leader first, in place of both
        numbers."""
        given = arguments.texts(configs or {}, "configs")
        wanted = m.CreateTopicsRequest.Topics(
            name=arguments.name(name, _NAME),
            num_partitions=arguments.whole(partitions, "partitions", BROKER_DEFAULT),
            replication_factor=arguments.whole(replication_factor, "replication_factor", BROKER_DEFAULT),
            configs=[m.CreateTopicsRequest.Topics.Configs(name=k, value=v) for k, v in given.items()],
            assignments=[
                m.CreateTopicsRequest.Topics.Assignments(
                    partition_index=arguments.whole(partition, "a partition"),
                    broker_ids=[arguments.whole(broker, "a broker id") for broker in brokers],
                )
                for partition, brokers in (replica_assignments or {}).items()
            ],
        )
        request = m.CreateTopicsRequest(topics=[wanted], timeout_ms=self._timeout_ms, validate_only=validate_only)
        answer = only(self._change(request, "topics"), f"topic {name}")
        if not validate_only:
            self._until_shown(lambda: self._led(name) > 0)
        return CreatedTopic(answer.name, answer.num_partitions, answer.replication_factor)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it."""
        arguments.name(name, _NAME)
        request = m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.Topics(name=name)], topic_names=[name], timeout_ms=self._timeout_ms
        )
        self._change(request, "responses")
        self._until_shown(lambda: not self.exists(name))

    def create_partitions(self, name: str, count: int) -> None:
        """Grow a topic to `count` partitions in all."""
        arguments.name(name, _NAME)
        arguments.whole(count, "count", 1)
        wanted = m.CreatePartitionsRequest.Topics(name=name, count=count, assignments=None)
        self._change(m.CreatePartitionsRequest(topics=[wanted], timeout_ms=self._timeout_ms), "results")
        self._until_shown(lambda: self._led(name) >= count)

    def _led(self, name: str) -> int:
        """The number of a topic's partitions; 0 while the topic is not shown, or one of them has no leader."""
        topic = only(self.cluster.metadata([name]), f"topic {name}")
        return len(topic.partitions) if all(p.leader >= 0 for p in topic.partitions) else 0

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elect the preferred replica of these partitions as leader, or of all (KIP-460); the error of each partition,
        None if it was elected. KafkaError(ELECTION_NOT_NEEDED) if it leads already.

        `unclean`: elect a live replica for partitions without a leader, in sync or not; records that it does not have
        are lost."""
        asked: dict[str, list[int]] = {}
        for tp in partitions or ():
            topic, index = TopicPartition.of(tp)
            asked.setdefault(topic, []).append(index)
        kind = m.ElectLeadersRequest.TopicPartitions
        request = m.ElectLeadersRequest(
            election_type=int(unclean), timeout_ms=self._timeout_ms,
            topic_partitions=None if partitions is None else [kind(topic=t, partitions=p) for t, p in asked.items()],
        )  # fmt: skip

        def ask(controller: BrokerConnection) -> dict[TopicPartition, KafkaError | None]:
            answer = controller.request(request)
            raise_for(answer.error_code, "the election")
            return {
                TopicPartition(topic.topic, p.partition_id): _problem(p.error_code, p.error_message)
                for topic in answer.replica_election_results
                for p in topic.partition_result
            }

        return self.cluster.ask_controller(ask)

    # -- offsets and records ------------------------------------------------------------------------------------------

    def offsets(self, topics: Iterable[TopicInfo], timestamp: int) -> dict[TopicPartition, int | None]:
        """The offset of each partition at `timestamp` (EARLIEST, LATEST or milliseconds); None if no leader answered,
        or no record is that late."""
        arguments.whole(timestamp, "timestamp", None)
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        found: dict[TopicPartition, int | None] = {}
        for topic in topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                found[tp] = None
                if partition.leader >= 0:
                    by_leader.setdefault(partition.leader, {})[tp] = timestamp
        for leader, times in by_leader.items():
            answer = self.cluster.node(leader).request(list_offsets.request(times))
            for tp, told in list_offsets.answers(answer).items():
                found[tp] = None if told.error is not None or told.offset < 0 else told.offset
        return found

    def delete_records(
        self, before: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records of each partition before an offset (HIGH_WATERMARK: all); return the new first offsets.
        KafkaError(OFFSET_OUT_OF_RANGE) for an offset past the end; other partitions may be done by then."""
        cuts = {
            TopicPartition.of(tp): arguments.whole(offset, "an offset", HIGH_WATERMARK) for tp, offset in before.items()
        }
        leaders = {
            TopicPartition(topic.name, p.partition): p.leader
            for topic in self.topics(sorted({tp.topic for tp in cuts}))
            for p in topic.partitions
        }
        by_leader: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for (topic, index), offset in cuts.items():
            leader = leaders.get(TopicPartition(topic, index))
            if leader is None:
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no partition {index}")
            raise_for(errors.LEADER_NOT_AVAILABLE if leader < 0 else errors.NONE, f"partition {topic}-{index}")
            by_leader.setdefault(leader, {}).setdefault(topic, []).append((index, offset))
        done = {}
        for leader, topics in by_leader.items():
            done.update(self._delete_records(leader, topics))
        return done

    def _delete_records(
        self, leader: int, topics: Mapping[str, Sequence[tuple[int, int]]]
    ) -> dict[TopicPartition, int]:
        asked = m.DeleteRecordsRequest.Topics
        request = m.DeleteRecordsRequest(
            topics=[
                asked(name=name, partitions=[asked.Partitions(partition_index=p, offset=o) for p, o in partitions])
                for name, partitions in topics.items()
            ],
            timeout_ms=self._timeout_ms,
        )
        done = {}
        for topic in self.cluster.node(leader).request(request).topics:
            for p in topic.partitions:
                partition = TopicPartition(topic.name, p.partition_index)
                raise_for(p.error_code, f"partition {partition}")
                done[partition] = p.low_watermark
        return done
