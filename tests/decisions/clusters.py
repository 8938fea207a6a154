"""Random clusters for the planner's tests, and the least bytes that any plan copies, found by trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random

from pybroker.decisions.placement import place, place_in_racks
from pybroker.decisions.planning.draft import BAND
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanBroker, PlanPartition, Volume
from pybroker.model import TopicPartition

PER_TOPIC = 50
LARGE = 10**15


def random_cluster(
    seed: int,
    brokers: int,
    partitions: int,
    factor: int,
    *,
    racks: int = 0,
    empty: int = 0,
    disk_bytes: int = LARGE,
    size_max: int | None = None,
) -> ClusterSnapshot:
    """A cluster whose topics were placed as by Kafka before its last `empty` brokers joined; sizes are lognormal, or
    uniform up to `size_max`."""
    random = Random(seed)
    rack_of = {b: f"rack{b % racks}" for b in range(brokers)} if racks else {}
    old = range(brokers - empty)
    start, shift = random.randrange(1000), random.randrange(1000)
    if racks:
        placed = place_in_racks({b: rack_of[b] for b in old}, partitions, factor, start, shift)
    else:
        placed = place(old, partitions, factor, start, shift)
    sizes = [random.randrange(1, size_max) if size_max else int(random.lognormvariate(20, 1.5)) for _ in placed]
    load = dict.fromkeys(range(brokers), 0)
    for replicas, size in zip(placed, sizes, strict=True):
        for broker in replicas:
            load[broker] += size
    return ClusterSnapshot(
        tuple(PlanBroker(b, f"host{b}", rack_of.get(b), (Volume(disk_bytes, load[b]),)) for b in range(brokers)),
        tuple(
            PlanPartition(TopicPartition(f"t{i // PER_TOPIC}", i % PER_TOPIC), tuple(p), p[0], size, tuple(p))
            for i, (p, size) in enumerate(zip(placed, sizes, strict=True))
        ),
    )


def every_layout(snapshot: ClusterSnapshot, holders: list[int]) -> Iterator[tuple[int, dict[int, int]]]:
    """The (bytes copied, bytes by broker) of each way to place all partitions on `holders`."""
    options = [
        [
            (frozenset(chosen), p.size_bytes * len(set(chosen) - set(p.replicas)))
            for chosen in itertools.combinations(holders, len(p.replicas))
        ]
        for p in snapshot.partitions
    ]
    for layout in itertools.product(*options):
        load = dict.fromkeys(holders, 0)
        for partition, (replicas, _) in zip(snapshot.partitions, layout, strict=True):
            for broker in replicas:
                load[broker] += partition.size_bytes
        yield sum(copied for _, copied in layout), load


def least_even(snapshot: ClusterSnapshot) -> int | None:
    """The least bytes copied by a layout in which the brokers' bytes are within BAND of their mean; None if there is
    no such layout."""
    holders = [broker.id for broker in snapshot.brokers]
    mean = sum(p.size_bytes * len(p.replicas) for p in snapshot.partitions) / len(holders)
    return min(
        (
            copied
            for copied, load in every_layout(snapshot, holders)
            if all(mean * (1 - BAND) <= n <= mean * (1 + BAND) for n in load.values())
        ),
        default=None,
    )


def can_drain(snapshot: ClusterSnapshot, drained: int, limit: float) -> bool:
    """True if the replicas on a broker can go to others, without another move, so that all disks stay below the
    limit."""
    others = [broker for broker in snapshot.brokers if broker.id != drained]
    rooms = {b.id: int(b.total_bytes * limit) - b.used_bytes for b in others}
    moving = [p for p in snapshot.partitions if drained in p.replicas]
    for chosen in itertools.product(*([b.id for b in others if b.id not in p.replicas] for p in moving)):
        added = dict.fromkeys(rooms, 0)
        for partition, broker in zip(moving, chosen, strict=True):
            added[broker] += partition.size_bytes
        if all(added[b] == 0 or added[b] <= max(0, rooms[b]) for b in rooms):
            return True
    return False
