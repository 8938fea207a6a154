"""Plans new topics and partitions: checks them against the rules, and places replicas on the live brokers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from pybroker import errors
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.decisions import topics as rules
from pybroker.decisions.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, LiveBroker
from pybroker.decisions.placement import place, place_in_racks
from pybroker.errors import KafkaError
from pybroker.metadata import nodes

FROM_CONFIG = -1
"""A number of partitions or a replication factor that stands for the broker's default (KIP-464)."""
RESERVED = "__cluster_metadata"


class NewTopic(NamedTuple):
    """The topic that a client asks for: counts, -1 for the broker's defaults, or an assignment {partition: brokers}."""

    name: str
    partitions: int = FROM_CONFIG
    replication_factor: int = FROM_CONFIG
    assignment: Mapping[int, Sequence[int]] = {}
    config: Mapping[str, str | None] = {}


def mentioned_topic(name: str, internal: Mapping[str, Callable[[], NewTopic]]) -> NewTopic:
    """The topic to create automatically: an internal one with its own settings, or one with the broker's defaults."""
    return internal[name]() if name in internal else NewTopic(name)


def offsets_topic(config: BrokerConfig, replication_factor: int) -> NewTopic:
    """The offsets topic with the settings of `offsets.topic.*`."""
    own = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config["offsets.topic.segment.bytes"]),
    }
    return NewTopic(OFFSETS_TOPIC, config["offsets.topic.num.partitions"], replication_factor, config=own)


def transaction_topic(config: BrokerConfig, replication_factor: int) -> NewTopic:
    """The topic of transactional ids with the settings of `transaction.state.log.*`. A decision must not be lost: no
    replica out of sync becomes its leader."""
    own = {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": str(min(config["transaction.state.log.min.isr"], replication_factor)),
        "segment.bytes": str(config["transaction.state.log.segment.bytes"]),
        "unclean.leader.election.enable": "false",
    }
    count = config["transaction.state.log.num.partitions"]
    return NewTopic(TRANSACTION_TOPIC, count, replication_factor, config=own)


class Planned(NamedTuple):
    """A planned topic."""

    id: bytes
    assignment: rules.Assignment
    config: Mapping[str, str]


class Planner:
    """Plans topics of one cluster; `random` draws topic ids and the brokers where assignments begin."""

    def __init__(self, config: BrokerConfig, random: Random) -> None:
        self._config = config
        self._random = random

    def topic(self, new: NewTopic, known: Iterable[str], brokers: Mapping[int, LiveBroker]) -> Planned:
        """The plan of a new topic; `known` are the names in use. Raises INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS,
        INVALID_CONFIG, INVALID_REQUEST and the errors of the counts and the assignment."""
        known = list(known)
        rules.check_name(new.name)
        if new.name == RESERVED:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{RESERVED} is reserved for Kafka")
        if new.name in known:
            raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"topic {new.name} exists already")
        twin = rules.collision(new.name, known)
        if twin is not None:
            problem = f"{new.name} collides with the topic {twin} in metrics, where '.' and '_' are the same"
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
        """Place replicas in different racks, if every broker has a rack."""
        racks = {broker.id: broker.rack for broker in brokers.values() if broker.rack is not None}
        if len(racks) == len(brokers):
            return place_in_racks(racks, partitions, factor, start, shift, first)
        return place(brokers, partitions, factor, start, shift, first)

    def growth(
        self, name: str, has: Sequence[Sequence[int]], count: int, given: rules.Assignment | None,
        brokers: Mapping[int, LiveBroker],
    ) -> rules.Assignment:  # fmt: skip
        """The replicas of a topic's new partitions; `has` are those of its present ones, `count` the total. Raises
        INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT."""
        if count <= len(has):
            problem = f"topic {name} already has {len(has)} partitions, and {count} were requested"
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
            problem = f"{count - len(has)} partitions are added, but the assignment has {len(given)}"
            raise KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, problem)
        return rules.check_replicas(given, factor, live)
