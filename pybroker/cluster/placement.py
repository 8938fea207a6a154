"""Where a topic's replicas go: spread over the brokers as Kafka spreads them (KIP-36 for racks).

The caller draws `start` and `shift` at random, so that not every topic begins at the same broker; a topic that grows
passes its first partition's first replica as `start` (by its place among the brokers) and goes on counting partitions.
"""

from collections.abc import Collection, Mapping


def place(
    brokers: Collection[int], partitions: int, replication_factor: int, start: int, shift: int, first_partition: int = 0
) -> list[list[int]]:
    """The replicas of each new partition, the preferred leader first.

    Leaders go round the brokers; the followers follow at a distance that grows by one with every round, so that the
    partitions of a broker that dies are led by all the others. The factor must not exceed the number of brokers."""
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
    """As `place`, with each partition's replicas in as many racks as there are; `racks` has every broker's.

    A broker is passed over while another rack has no replica yet, or while another broker has none."""
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
    """The brokers with neighbours in different racks: the first of each rack, by the racks' names, then the second."""
    members: dict[str, list[int]] = {}
    for broker in sorted(racks):
        members.setdefault(racks[broker], []).append(broker)
    tallest = max(map(len, members.values()))
    return [members[rack][nth] for nth in range(tallest) for rack in sorted(members) if nth < len(members[rack])]


def _rounds(partition: int, first_partition: int, count: int) -> int:
    """How often a new round of the brokers began from the first new partition to this one, both included."""
    return partition // count - max(first_partition - 1, 0) // count


def _next(leader: int, gap: int, nth: int, count: int) -> int:
    """The place of a partition's nth follower: never the leader's, and of count - 1 in a row no two alike."""
    return (leader + 1 + (gap + nth) % (count - 1)) % count
