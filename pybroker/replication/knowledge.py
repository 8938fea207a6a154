"""The facts about this broker's replicas, for a controller whose store may have gone back in time.

The controller decides with them: decisions/rollback.py."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.decisions.image import NO_LEADER, Image
from pybroker.decisions.rollback import UNUSABLE, Known
from pybroker.model import TopicPartition
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas


def known_here(
    asked: Iterable[tuple[TopicPartition, bytes]], replicas: Replicas, image: Image, isr: IsrKeeper
) -> dict[TopicPartition, Known]:
    """The facts about partitions of topics with these ids; UNUSABLE for one that may be in a lost log dir."""
    found = dict[TopicPartition, Known]()
    for key, topic_id in asked:
        replica = replicas.get(*key)
        if replica is None and replicas.lacks_log_dir:
            found[key] = UNUSABLE
        elif replica is not None and replica.topic_id == topic_id:
            found[key] = known_of(replica, image, isr)
    return found


def known_of(replica: Replica, image: Image, isr: IsrKeeper) -> Known:
    """The epochs of a replica's latest role, the ISR of that leader epoch, and the end of its log.

    The leader knows its ISR before other brokers do."""
    if replica.log is None:
        return UNUSABLE
    role, epochs, key = replica.log.role, replica.log.epochs(), replica.key
    leader, partition_epoch, members = role.leader, role.partition_epoch, tuple[int, ...]()
    topic, state, led = image.topic(key.topic), image.partition(*key), isr.of(key)
    if led is not None and led.leader_epoch == role.leader_epoch:
        leader, partition_epoch, members = isr.broker_id, led.partition_epoch, led.isr
    elif (
        topic is not None and topic.id == replica.topic_id and state is not None
        and state.leader_epoch == role.leader_epoch and state.partition_epoch >= partition_epoch
    ):  # fmt: skip
        leader, partition_epoch, members = state.leader, state.partition_epoch, state.isr
    if leader != NO_LEADER and isr.broker_id in members:
        replica.power_lost = False  # it has caught up since
    log_epoch, end = epochs[-1][0] if epochs else -1, replica.log.log_end_offset
    return Known(role.leader_epoch, partition_epoch, leader, members, log_epoch, end, replica.power_lost)
