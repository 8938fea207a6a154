"""The facts about this broker's replicas, for a controller whose store may have gone back in time.

The controller decides with them: decisions/rollback.py."""

from __future__ import annotations

from collections.abc import Iterable

from pybroker.decisions.image import NO_LEADER, Image
from pybroker.decisions.rollback import NOTHING, UNUSABLE, Known
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
    known, epochs, key = role_of(replica, isr), replica.log.epochs(), replica.key
    topic, state = image.topic(key.topic), image.partition(*key)
    if (
        not known.isr and topic is not None and topic.id == replica.topic_id and state is not None
        and state.leader_epoch == known.leader_epoch and state.partition_epoch >= known.partition_epoch
    ):  # fmt: skip
        known = known._replace(leader=state.leader, partition_epoch=state.partition_epoch, isr=state.isr)
    if known.leader != NO_LEADER and isr.broker_id in known.isr:
        replica.power_lost = False  # it has caught up since
    log_epoch, end = epochs[-1][0] if epochs else -1, replica.log.log_end_offset
    return known._replace(log_epoch=log_epoch, log_end=end, power_lost=replica.power_lost)


def role_of(replica: Replica, isr: IsrKeeper) -> Known:
    """The epochs of a replica's latest role and its leader; if this broker leads, also the ISR."""
    if replica.log is None:
        return NOTHING
    role, led = replica.log.role, isr.of(replica.key)
    if led is not None and led.leader_epoch == role.leader_epoch:
        return NOTHING._replace(
            leader_epoch=led.leader_epoch, partition_epoch=led.partition_epoch, leader=isr.broker_id, isr=led.isr
        )
    return NOTHING._replace(leader_epoch=role.leader_epoch, partition_epoch=role.partition_epoch, leader=role.leader)
