"""The writes that add a whole topic from the log dirs to the store: its settings, its node, its states."""

from __future__ import annotations

from pybroker.coordination.store import Create, Op, Set
from pybroker.decisions.topics import Topic
from pybroker.metadata import nodes


def creation(topic: Topic) -> list[Op]:
    """The operations that create a topic with the states of its partitions."""
    return [
        Create(nodes.topic_config(topic.name), nodes.dump_config(topic.config)),
        Create(nodes.topic(topic.name), nodes.dump_topic(topic)),
        Create(f"{nodes.topic(topic.name)}/partitions"),
        *_state_ops(topic, 0),
    ]


def growth(grown: Topic, first: int) -> list[Op]:
    """The operations that add a topic's partitions from `first` on."""
    return [topic_op(grown), *_state_ops(grown, first)]


def topic_op(topic: Topic) -> Op:
    """The operation that writes a topic's node: its id, replicas and log dirs."""
    return Set(nodes.topic(topic.name), nodes.dump_topic(topic))


def _state_ops(topic: Topic, first: int) -> list[Op]:
    ops: list[Op] = []
    for index in range(first, len(topic.partitions)):
        state = nodes.dump_state(topic.partitions[index])
        ops += [Create(nodes.partition(topic.name, index)), Create(nodes.state(topic.name, index), state)]
    return ops
