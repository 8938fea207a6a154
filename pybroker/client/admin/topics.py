"""Topics created, described, grown and deleted; the offsets that they hold, and their records cut off at the front."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments, list_offsets
from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.client.connection import Connection
from pybroker.client.metadata import TopicInfo
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

BROKER_DEFAULT: Final = -1
"""As a number of partitions or a replication factor: what the broker's own configuration says (KIP-464)."""

HIGH_WATERMARK: Final = -1
"""As an offset to delete records before: all that are there."""


_NAME: Final = "a topic's name"


def absent(topic: TopicInfo) -> str | None:
    """The sentence for a topic that is not there."""
    return f"topic {topic.name} does not exist" if topic.error == errors.UNKNOWN_TOPIC_OR_PARTITION else None


def _problem(code: int, message: str | None) -> KafkaError | None:
    return KafkaError(code, message or "") if code else None


class CreatedTopic(NamedTuple):
    """What a broker made of a request to create a topic; -1 from brokers that do not say (before 2.4)."""

    name: str
    partitions: int
    replication_factor: int


class TopicsAdmin(AdminBase):
    """Operations on topics and on what is in them."""

    def topics(self, names: Sequence[str] | None = None) -> list[TopicInfo]:
        """These topics, or all of them. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if one of those named is not there."""
        found = self.cluster.metadata(None if names is None else arguments.names(names, "names"))
        if names is not None:
            for topic in found:
                raise_for(topic.error, f"topic {topic.name}", absent(topic))
        return found

    def exists(self, name: str) -> bool:
        """Whether there is such a topic."""
        return any(not topic.error for topic in self.cluster.metadata([arguments.name(name, _NAME)]))

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
        given = arguments.texts(configs or {}, "configs")
        wanted = m.CreateTopicsRequest.Topics(
            name=arguments.name(name, _NAME),
            num_partitions=arguments.whole(partitions, "partitions", BROKER_DEFAULT),
            replication_factor=arguments.whole(replication_factor, "replication_factor", BROKER_DEFAULT),
            configs=[m.CreateTopicsRequest.Topics.Configs(name=k, value=v) for k, v in given.items()],
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
        """Have the preferred replica of each partition lead, or of all partitions that it does not lead; what became of
        each, None where it was elected (KIP-460). KafkaError(ELECTION_NOT_NEEDED) is for one that has that leader.

        `unclean`: where nobody leads, a replica that is alive, though it was not in sync: records that it has not got
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

        def ask(controller: Connection) -> dict[TopicPartition, KafkaError | None]:
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
        """The offset of each partition at `timestamp` (EARLIEST, LATEST or milliseconds); None where no leader could
        tell it, or where no record is that late."""
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
        """Cut off the records of each partition that lie before an offset (HIGH_WATERMARK: all of them); the offset
        that it begins with then. KafkaError(OFFSET_OUT_OF_RANGE) for one past the end: the others may be done."""
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
