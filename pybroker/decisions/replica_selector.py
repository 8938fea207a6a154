"""Selects the replica that a consumer fetches from (KIP-392): Kafka's RackAwareReplicaSelector as a function."""

from collections.abc import Iterable
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ReplicaView(NamedTuple):
    """An in-sync replica on a live broker, as known to its leader."""

    broker: int
    rack: str | None
    log_end: int


def preferred_read_replica(rack: str, offset: int, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int:
    """The broker from which a consumer in `rack` should fetch `offset`: the leader if it is in that rack, otherwise the
    follower there with the highest log end; the leader if none there has the offset."""
    there = [follower for follower in followers if follower.rack == rack and follower.log_end >= offset]
    if leader.rack == rack or not there:
        return leader.broker
    return max(there, key=lambda follower: follower.log_end).broker
