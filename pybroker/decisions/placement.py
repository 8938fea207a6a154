"""Assigns a topic's replicas to brokers, spread as by Kafka (KIP-36 for racks).

The caller draws `start` and `shift` at random, so that topics begin at different brokers. For a topic that grows,
`start` is the index of its first partition's first replica among the brokers, and partition numbers continue.
"""

from collections.abc import Collection, Mapping


def place(
    brokers: Collection[int], partitions: int, replication_factor: int, start: int, shift: int, first_partition: int = 0
) -> list[list[int]]:
    """The replicas of each new partition, preferred leader first.

    Leaders go round-robin. The followers' distance from the leader grows by one each round, so that leadership of a
    dead broker's partitions is spread over all others. The factor must not exceed the number of brokers."""
    assert 1 <= replication_factor <= len(brokers)
    ring, count = sorted(brokers), len(brokers)
    assignment = []
    for partition in range(first_partition, first_partition + partitions):
        leader = (partition + start) % count
        gap = shift + _rounds(partition, first_partition, count)
        followers = [_next(leader, gap, nth, count) for nth in range(replication_factor - 1)]
        assignment.append([ring[index] for index in (leader, *followers)])
    return assignment


def place_in_racks(
    racks: Mapping[int, str],
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[list[int]]:
    """The replicas as by `place`, but with each partition spread over as many racks as possible; `racks` has every
    broker's rack.

    A broker is skipped if its rack has a replica and another rack has none, or if it has one itself."""
    assert 1 <= replication_factor <= len(racks)
    ring, count, rack_count = alternate(racks), len(racks), len(set(racks.values()))
    assignment = []
    for partition in range(first_partition, first_partition + partitions):
        leader = (partition + start) % count
        gap = (shift + _rounds(partition, first_partition, count)) * rack_count
        replicas = [ring[leader]]
        nth = 0
        while len(replicas) < replication_factor:
            broker = ring[_next(leader, gap, nth, count)]
            nth += 1
            taken = {racks[replica] for replica in replicas}
            if (racks[broker] not in taken or len(taken) == rack_count) and broker not in replicas:
                replicas.append(broker)
        assignment.append(replicas)
    return assignment


def alternate(racks: Mapping[int, str]) -> list[int]:
    """The brokers ordered by alternating racks: the first of each rack, sorted by rack name, then the second."""
    members: dict[str, list[int]] = {}
    for broker in sorted(racks):
        members.setdefault(racks[broker], []).append(broker)
    tallest = max(map(len, members.values()))
    return [members[rack][nth] for nth in range(tallest) for rack in sorted(members) if nth < len(members[rack])]


def _rounds(partition: int, first_partition: int, count: int) -> int:
    """The number of round-robin rounds begun from the first new partition to this one, both included."""
    return partition // count - max(first_partition - 1, 0) // count


def _next(leader: int, gap: int, nth: int, count: int) -> int:
    """The index of a partition's nth follower: never the leader's, and distinct for any count - 1 successive n."""
    return (leader + 1 + (gap + nth) % (count - 1)) % count
