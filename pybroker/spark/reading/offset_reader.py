"""The driver's requests to the cluster: the partitions, and the offsets at their ends or at a time.

They need only Describe on the topics, join no group and commit nothing. After an error that may pass (a leader that
moves, a broker that starts) the request is repeated, as often as the options say.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.client.net import list_offsets
from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.client.net.metadata import ClusterConnections, TopicInfo
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.spark import offsets
from pybroker.spark.offsets import OffsetBound, Offsets, TopicIds
from pybroker.spark.options import SourceOptions

Answer = TypeVar("Answer")
logger: Final = logging.getLogger(__name__)
COUNTS_SHOWN_MAX: Final = 3
NO_OFFSET: Final = -1
"""The offset in ListOffsets' answer if no record is as late as the requested time."""

OUTAGE: Final = frozenset((errors.NETWORK_EXCEPTION, errors.REQUEST_TIMED_OUT, errors.LEADER_NOT_AVAILABLE))
OUTAGE_S_MAX: Final = 60.0
"""Seconds before a query fails; Kafka's clients call it default.api.timeout.ms."""


class PartitionLeader(NamedTuple):
    """The address of the broker that leads a partition, and the id of the topic."""

    host: str
    port: int
    topic_id: bytes


class OffsetReader:
    """The requests of one query; `cluster` keeps its connections for the life of the process."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.cluster = ClusterConnections(options.bootstrap, account=options.account, tls=options.tls)
        self._leaders: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._counts: dict[str, int] = {}
        self._reached = False

    def close(self) -> None:
        self.cluster.close()

    def partitions(self) -> frozenset[TopicPartition]:
        """Return the subscribed partitions that exist now. KafkaError if a named topic does not exist."""
        return self._patiently(self._partitions)

    def leader(self, tp: TopicPartition) -> PartitionLeader:
        """Return the leader of a partition that `partitions` found."""
        node = self.cluster.nodes[self._leaders[tp]]
        return PartitionLeader(node.host, node.port, self._topic_ids[tp[0]])

    def topic_ids(self) -> TopicIds:
        """The ids of the topics that `partitions` found."""
        texts = {topic: offsets.id_text(topic_id) for topic, topic_id in self._topic_ids.items()}
        return {topic: text for topic, text in texts.items() if text is not None}

    def earliest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        return self._list(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """Return the high watermarks, or with read_committed the last stable offsets."""
        return self._list(dict.fromkeys(partitions, LATEST))

    def at(self, bound: OffsetBound, partitions: frozenset[TopicPartition], option: str, *, is_end: bool) -> Offsets:
        """Return the offsets of a bound. KafkaError if it names too few or too many partitions, or a time after the
        last record."""
        self._check_named(bound, partitions, option)
        wanted = {tp: at for tp in partitions if (at := bound.of(tp)) is not None}
        if bound.kind == "offsets":
            asked = {tp: at for tp, at in wanted.items() if at < 0}
            return {**wanted, **(self._list(asked) if asked else {})}
        found = self._list(wanted)
        late = sorted(tp for tp, offset in found.items() if offset == NO_OFFSET)
        if late and not is_end and self.options.timestamp_strategy == "error":
            raise KafkaError(
                errors.INVALID_CONFIG,
                f"{option}: no record of {offsets.names(late)} is as late as the given time; "
                "startingOffsetsByTimestampStrategy=latest would start at the end there",
            )
        return {**found, **(self.latest(late) if late else {})}

    def _check_named(self, bound: OffsetBound, partitions: frozenset[TopicPartition], option: str) -> None:
        if unnamed := offsets.missing(bound, partitions):
            raise KafkaError(errors.INVALID_CONFIG, f"{option} lacks {offsets.names(unnamed)}")
        if surplus := sorted(set(bound.each) - partitions):
            why = self._why_none(surplus) or "which is not read"
            raise KafkaError(errors.INVALID_CONFIG, f"{option} names {offsets.names(surplus)}, {why}")

    def _why_none(self, partitions: list[TopicPartition]) -> str:
        """Return the partition counts of topics that lack some of these partitions; empty if none does."""
        topics = dict.fromkeys(tp.topic for tp in partitions if tp.partition >= self._counts.get(tp.topic, 1 << 31))
        counts = [(topic, self._counts[topic]) for topic in topics]
        told = [f"topic {topic} has {count} partition{'' if count == 1 else 's'}" for topic, count in counts]
        return f"but {' and '.join(told[:COUNTS_SHOWN_MAX])}" if told else ""

    def within(self, bound: OffsetBound, found: Offsets, option: str) -> Offsets:
        """Return the offsets of `at`, checked against the partitions' ends: a batch read would wait for records beyond
        them, or find none. KafkaError, or with failOnDataLoss=false a warning, and the end instead."""
        given = {tp: at for tp, at in found.items() if bound.kind == "offsets" and (bound.of(tp) or 0) > 0}
        ends = self._list(dict.fromkeys(given, LATEST), read_committed=False)
        beyond = sorted(tp for tp, at in given.items() if at > ends[tp])
        if not beyond:
            return found
        shown = "; ".join(f"{tp} is {given[tp]}, but it ends at {ends[tp]}" for tp in beyond[:COUNTS_SHOWN_MAX])
        more = f"; and {len(beyond) - COUNTS_SHOWN_MAX} more" if len(beyond) > COUNTS_SHOWN_MAX else ""
        if self.options.fail_on_data_loss:
            raise KafkaError(errors.INVALID_CONFIG, f"{option} of {shown}{more}")
        logger.warning("%s of %s%s: reading from the end", option, shown, more)
        return found | {tp: ends[tp] for tp in beyond}

    # -- asking ----------------------------------------------------------------------------------------------------

    def _partitions(self) -> frozenset[TopicPartition]:
        subscription = self.options.subscription
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            topics = [topic for topic in self.cluster.metadata() if matches(topic.name) and not topic.internal]
        else:
            names = sorted(subscription.topics or {topic for topic, _ in subscription.partitions})
            topics = self.cluster.metadata(names)
        found: set[TopicPartition] = set()
        for topic in topics:
            if topic.error == errors.UNKNOWN_TOPIC_OR_PARTITION and not self.options.fail_on_data_loss:
                continue  # the topic was deleted, or will be created: it has no partitions now
            found |= self._learn(topic)
        if not subscription.partitions:
            return frozenset(found)
        gone = sorted(subscription.partitions - found)
        if gone and self.options.fail_on_data_loss:
            why = f", {told}" if (told := self._why_none(gone)) else ""
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"assign: there is no {offsets.names(gone)}{why}")
        return subscription.partitions & found

    def _learn(self, topic: TopicInfo) -> set[TopicPartition]:
        """Store the leaders of a topic's partitions. KafkaError if the topic does not exist, or a partition has no
        leader."""
        if topic.error:
            raise KafkaError(topic.error, f"topic {topic.name}: {errors.lookup(topic.error).meaning}")
        self._topic_ids[topic.name] = topic.id
        self._counts[topic.name] = len(topic.partitions)
        for partition in topic.partitions:
            if partition.leader not in self.cluster.nodes:
                tp = TopicPartition(topic.name, partition.partition)
                raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"{tp} has no leader at the moment")
            self._leaders[TopicPartition(topic.name, partition.partition)] = partition.leader
        return {TopicPartition(topic.name, partition.partition) for partition in topic.partitions}

    def _list(self, wanted: Mapping[TopicPartition, int], read_committed: bool | None = None) -> Offsets:
        """Send ListOffsets for known partitions, each to its leader. read_committed: None uses the option."""
        committed = self.options.read_committed if read_committed is None else read_committed

        def ask() -> Offsets:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for tp, at in wanted.items():
                by_leader.setdefault(self._leaders[tp], {})[tp] = at
            found: Offsets = {}
            for leader, asked in by_leader.items():
                found.update(self._list_at(leader, asked, committed))
            return found

        return self._patiently(ask) if wanted else {}

    def _list_at(self, leader: int, wanted: Mapping[TopicPartition, int], committed: bool) -> Offsets:
        request = list_offsets.request(wanted, isolation_level=int(committed))
        found: Offsets = {}
        for tp, told in list_offsets.answers(self.cluster.node(leader).request(request)).items():
            if told.error is not None:
                raise told.error
            found[tp] = told.offset
        return found

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Call `ask`, again after failures that may pass; leaders are looked up again in between.

        A cluster that has answered before gets OUTAGE_S_MAX to come back, one that never has only the retries."""
        deadline = time.monotonic() + (OUTAGE_S_MAX if self._reached else 0.0)
        attempt = 0
        while True:
            try:
                if attempt and ask != self._partitions:
                    self._partitions()
                answer = ask()
                self._reached = True
                return answer
            except KafkaError as error:
                away = error.code in OUTAGE and time.monotonic() < deadline
                if not error.retriable or (attempt >= self.options.offset_retries and not away):
                    raise
            attempt += 1
            time.sleep(self.options.offset_retry_ms / 1000)
