"""What a new topic, and one that grows, will be: judged by the rules, placed on the brokers that are alive."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from pybroker import errors
from pybroker.cluster import topics as rules
from pybroker.cluster.image import INTERNAL_TOPICS, OFFSETS_TOPIC, LiveBroker
from pybroker.cluster.placement import place, place_in_racks
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.controller import nodes
from pybroker.errors import KafkaError

FROM_CONFIG = -1
"""As a number of partitions or a replication factor (KIP-464)."""
RESERVED = "__cluster_metadata"


class NewTopic(NamedTuple):
    """What a client asks for: counts of -1 for the broker's defaults, or an assignment {partition: brokers}."""

    name: str
    partitions: int = FROM_CONFIG
    replication_factor: int = FROM_CONFIG
    assignment: Mapping[int, Sequence[int]] = {}
    config: Mapping[str, str | None] = {}


def mentioned_topic(name: str, offsets: Callable[[], NewTopic]) -> NewTopic:
    """A topic that a client mentions, with the broker's defaults, or the offsets topic. Raises INVALID_TOPIC_EXCEPTION
    for another internal topic: with the defaults it would not be what its name says."""
    if name == OFFSETS_TOPIC:
        return offsets()
    if name in INTERNAL_TOPICS:
        raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")
    return NewTopic(name)


def offsets_topic(config: BrokerConfig, replication_factor: int) -> NewTopic:
    """The offsets topic with its settings of `offsets.topic.*`."""
    own = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config["offsets.topic.segment.bytes"]),
    }
    return NewTopic(OFFSETS_TOPIC, config["offsets.topic.num.partitions"], replication_factor, config=own)


class Planned(NamedTuple):
    """A topic as it will be."""

    id: bytes
    assignment: rules.Assignment
    config: Mapping[str, str]


class Planner:
    """Plans for one cluster; `random` draws topic ids and the brokers where assignments begin."""

    def __init__(self, config: BrokerConfig, random: Random) -> None:
        self._config = config
        self._random = random

    def topic(self, new: NewTopic, known: Iterable[str], brokers: Mapping[int, LiveBroker]) -> Planned:
        """A new topic beside those that are known. Raises KafkaError: 17, 36, 37, 38, 39, 40, 42."""
        known = list(known)
        rules.check_name(new.name)
        if new.name == RESERVED:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{RESERVED} is Kafka's own")
        if new.name in known:
            raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"topic {new.name} exists already")
        twin = rules.collision(new.name, known)
        if twin is not None:
            problem = f"{new.name} and the topic {twin} would be one in metrics, where '.' and '_' are the same"
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, problem)
        config = TopicConfig(self._config, new.config).overrides
        return Planned(nodes.draw_id(self._random), self._assign(new, brokers), config)

    def _assign(self, new: NewTopic, brokers: Mapping[int, LiveBroker]) -> rules.Assignment:
        if new.assignment:
            if new.partitions != FROM_CONFIG or new.replication_factor != FROM_CONFIG:
                raise KafkaError(errors.INVALID_REQUEST, "with an assignment, both counts must be -1")
            return rules.check_assignment(new.assignment, sorted(brokers))
        partitions = self._config["num.partitions"] if new.partitions == FROM_CONFIG else new.partitions
        factor = new.replication_factor
        if factor == FROM_CONFIG:
            factor = self._config["default.replication.factor"]
        rules.check_counts(partitions, factor, len(brokers))
        start, shift = self._random.randrange(len(brokers)), self._random.randrange(len(brokers))
        return self._place(brokers, partitions, factor, start, shift, 0)

    def _place(
        self, brokers: Mapping[int, LiveBroker], partitions: int, factor: int, start: int, shift: int, first: int
    ) -> rules.Assignment:
        """Replicas in different racks, if every broker has one."""
        racks = {broker.id: broker.rack for broker in brokers.values() if broker.rack is not None}
        if len(racks) == len(brokers):
            return place_in_racks(racks, partitions, factor, start, shift, first)
        return place(brokers, partitions, factor, start, shift, first)

    def growth(
        self, name: str, has: Sequence[Sequence[int]], count: int, given: rules.Assignment | None,
        brokers: Mapping[int, LiveBroker],
    ) -> rules.Assignment:  # fmt: skip
        """The replicas of the partitions that a topic gets, which `has` these and is to have `count` in all. Raises
        KafkaError: 37, 38, 39."""
        if count <= len(has):
            problem = f"topic {name} has {len(has)} partitions already, and {count} were asked for"
            raise KafkaError(errors.INVALID_PARTITIONS, problem)
        live = sorted(brokers)
        factor = len(has[0])
        rules.check_counts(count, factor if given is None else 1, len(live))
        if given is None:
            leader = has[0][0]
            start = live.index(leader) if leader in live else 0
            shift = self._random.randrange(len(live))
            return self._place(brokers, count - len(has), factor, start, shift, len(has))
        if len(given) != count - len(has):
            problem = f"{count - len(has)} partitions are added, and the assignment is of {len(given)}"
            raise KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, problem)
        return rules.check_replicas(given, factor, live)
