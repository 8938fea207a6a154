"""Which replica a consumer is to fetch from (KIP-392): Kafka's RackAwareReplicaSelector as a function."""

from collections.abc import Iterable
from typing import NamedTuple

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_ONLY = "org.apache.kafka.common.replica.LeaderSelector"


class ReplicaView(NamedTuple):
    """An in-sync replica whose broker is alive, as its leader knows it."""

    broker: int
    rack: str | None
    log_end: int


def preferred_read_replica(rack: str, offset: int, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int:
    """The broker that a consumer in `rack` is to fetch `offset` from: the leader if it is there, else who is there and
    has the most; the leader where nobody has it."""
    there = [follower for follower in followers if follower.rack == rack and follower.log_end >= offset]
    if leader.rack == rack or not there:
        return leader.broker
    return max(there, key=lambda follower: follower.log_end).broker
