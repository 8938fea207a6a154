"""Judges the nodes of one topic together: the result is the topic, or one reason why it is damaged.

    its node    name, id, replicas of each partition ──judge_node──> TopicNode
    its states  leader, epochs and ISR of each ──judge──> Topic
    all topics  if two have the same id, the topic with the older node keeps it ──strangers──> the others

Pure: the caller reads the nodes and passes their bytes. Each refusal is a StoreDamaged with one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pybroker.coordination.store import StoreDamaged
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.decisions.topics import PARTITIONS_MAX, Topic, check_name
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.node_json import DAMAGED

REPLICAS_MAX: Final = (1 << 15) - 1
"""The most replicas of a partition: a replication factor is an int16."""
RESERVED_IDS: Final = (bytes(16), bytes(15) + b"\x01")
"""Kafka's Uuid.ZERO_UUID, which means no id, and Uuid.METADATA_TOPIC_ID."""
NOT_WRITTEN: Final = -1
"""The leader epoch and partition epoch of a partition that has no state node yet."""


class StateNode(NamedTuple):
    """The state node of a partition, and its version."""

    data: bytes
    version: int


def judge_node(name: str, data: bytes) -> nodes.TopicNode:
    """The topic's node, decoded and checked. Raises StoreDamaged."""
    try:
        check_name(name)
    except KafkaError as problem:
        raise StoreDamaged(detail=problem.message) from None
    node = nodes.load_topic(data)
    if node.id in RESERVED_IDS:
        raise StoreDamaged(detail=f"{nodes.id_text(node.id)} is a reserved id")
    if not 1 <= len(node.replicas) <= PARTITIONS_MAX:
        raise StoreDamaged(detail=f"it has {len(node.replicas)} partitions; a topic has 1 to {PARTITIONS_MAX}")
    most = max(map(len, node.replicas))
    if most > REPLICAS_MAX:
        raise StoreDamaged(detail=f"a partition has {most} replicas; the limit is {REPLICAS_MAX}")
    return node


def judge(name: str, node: nodes.TopicNode, states: Sequence[StateNode | None], *, alone: bool = False) -> Topic:
    """The topic with the states of its partitions. Raises StoreDamaged.

    `states` has one entry a partition, in order; None for a state that is not written yet. `alone`: a lone broker leads
    all partitions, even if it is not in the ISR."""
    assert len(states) == len(node.replicas)
    each = enumerate(states)
    partitions = tuple(judge_partition(index, node.partition(index), held, alone=alone) for index, held in each)
    return Topic(name, node.id, partitions, directories=node.directories)


def judge_partition(
    index: int, assigned: PartitionState, held: StateNode | None, *, alone: bool = False
) -> PartitionState:
    """The state of a partition with the replicas of `assigned`; the other parameters are those of `judge`. Raises
    StoreDamaged."""
    replicas = assigned.replicas
    if held is None:
        return assigned._replace(
            leader=NO_LEADER, leader_epoch=NOT_WRITTEN, isr=(), controller_epoch=NOT_WRITTEN,
            partition_epoch=NOT_WRITTEN,
        )  # fmt: skip
    try:
        found = nodes.load_state(held.data, replicas, held.version)
    except StoreDamaged as problem:
        raise _damaged(index, problem.detail.removeprefix(DAMAGED)) from None
    state = found.with_replicas_of(assigned)
    if state.leader_epoch < 0 or state.controller_epoch < 0:
        raise _damaged(index, f"an epoch is negative: leader {state.leader_epoch}, controller {state.controller_epoch}")
    if not state.isr and not alone:
        raise _damaged(index, "its ISR is empty")
    if not set(state.isr) <= set(replicas):
        raise _damaged(index, f"its ISR {state.isr[:20]} is not within its replicas {replicas[:20]}")
    if state.leader != NO_LEADER and state.leader not in replicas:
        raise _damaged(index, f"its leader {state.leader} is not one of its replicas {replicas[:20]}")
    return state


def strangers(ids: Mapping[str, tuple[bytes, int]]) -> dict[str, str]:
    """{topic: name of an older topic with the same id}; `ids` has (id, czxid of the node) of all topics."""
    owners: dict[bytes, str] = {}
    for name in sorted(ids, key=lambda each: (ids[each][1], each)):
        owners.setdefault(ids[name][0], name)
    return {name: owners[topic_id] for name, (topic_id, _) in ids.items() if owners[topic_id] != name}


def _damaged(index: int, why: str) -> StoreDamaged:
    return StoreDamaged(detail=f"partition {index}: {why}")
