"""The state of an unfinished plan: the replicas of each partition, and the load of each broker."""

from collections.abc import Collection, Mapping, Sequence

from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals, Holding, PlanBroker, Reassigned

BAND = 0.1
"""A broker's bytes, leaders and replicas are even if they are this close to its share."""
COUNT_WEIGHT = 0.1
"""The weight of a broker's number of replicas beside its bytes in the choice of a broker."""


class Draft:
    """The replicas of each partition, by its index in the snapshot, and each broker's bytes, replicas and leaders."""

    def __init__(self, snapshot: ClusterSnapshot, goals: Goals) -> None:
        self.goals = goals
        self.partitions = snapshot.partitions
        self.brokers = {broker.id: broker for broker in snapshot.brokers}
        for partition in snapshot.partitions:
            for unknown in partition.replicas:
                self.brokers.setdefault(unknown, PlanBroker(unknown, live=False))
        self.spared = goals.spared - goals.add - set(goals.successors.values())
        out = goals.drain | self.spared
        self.targets = sorted(b.id for b in self.brokers.values() if b.live and b.id not in out)
        self.pinned = {i for i, partition in enumerate(snapshot.partitions) if partition.partition in goals.pinned}
        self.original = [partition.replicas for partition in snapshot.partitions]
        self.replicas = [list(partition.replicas) for partition in snapshot.partitions]
        self.sizes = [partition.size_bytes for partition in snapshot.partitions]
        self.on: dict[int, set[int]] = {broker: set() for broker in self.brokers}
        self.load = dict.fromkeys(self.brokers, 0)
        self.incoming = dict.fromkeys(self.brokers, 0)
        self.led = dict.fromkeys(self.brokers, 0)
        for index, replicas in enumerate(self.replicas):
            for broker in replicas:
                self.on[broker].add(index)
                self.load[broker] += self.sizes[index]
            if replicas:
                self.led[replicas[0]] += 1
        live = [broker for broker in self.brokers.values() if broker.live]
        self._racks = {b.id: b.rack for b in live} if all(b.rack is not None for b in live) else {}
        self._hosts = {b.id: b.host for b in live}
        self._most_distinct = self.distinct(self.targets)
        self._room = {b.id: _room(b, goals.disk_limit) for b in live}
        self._largest = {b.id: _room(b, goals.disk_limit, largest=True) for b in live}
        known = all(self.brokers[b].total_bytes > 0 for b in self.targets)
        self.weight = {b: self.brokers[b].total_bytes if known else 1 for b in self.targets}
        self.weights = sum(self.weight.values())
        self._shared = goals.drain.union(self.targets)
        """The brokers whose replicas are shared out among the targets: what others hold stays where it is."""
        self.total = sum(self.load[b] for b in self.brokers if b in self._shared)
        self.count = sum(len(self.on[b]) for b in self.brokers if b in self._shared)

    # -- changes ------------------------------------------------------------------------------------------------------

    def move(self, index: int, source: int, target: int) -> None:
        """Replace a replica in its place in the list."""
        replicas = self.replicas[index]
        at = replicas.index(source)
        self._leave(index, source)
        replicas[at] = target
        self._enter(index, target)
        if at == 0:
            self.led[source] -= 1
            self.led[target] += 1

    def add(self, index: int, target: int) -> None:
        """Add a replica at the end of the list."""
        self.replicas[index].append(target)
        self._enter(index, target)

    def drop(self, index: int, source: int) -> None:
        """Remove a replica that is not the only one."""
        first = self.replicas[index][0]
        self.replicas[index].remove(source)
        self._leave(index, source)
        if first == source:
            self.led[source] -= 1
            self.led[self.replicas[index][0]] += 1

    def lead(self, index: int, leader: int) -> None:
        """Make a replica the preferred leader."""
        replicas = self.replicas[index]
        self.led[replicas[0]] -= 1
        self.led[leader] += 1
        replicas.remove(leader)
        replicas.insert(0, leader)

    def set_replicas(self, replicas: Sequence[Sequence[int]]) -> None:
        """Give all partitions these replicas, as many as they have."""
        for index, wanted in enumerate(replicas):
            if list(wanted) != self.replicas[index]:
                for broker in self.replicas[index]:
                    self._leave(index, broker)
                self.led[self.replicas[index][0]] -= 1
                self.replicas[index] = list(wanted)
                self.led[wanted[0]] += 1
                for broker in wanted:
                    self._enter(index, broker)

    def _enter(self, index: int, broker: int) -> None:
        self.on[broker].add(index)
        if broker in self._shared:
            self.count += 1
            self.total += self.sizes[index]
        self.load[broker] += self.sizes[index]
        if broker not in self.original[index]:
            self.incoming[broker] += self.sizes[index]

    def _leave(self, index: int, broker: int) -> None:
        self.on[broker].discard(index)
        if broker in self._shared:
            self.count -= 1
            self.total -= self.sizes[index]
        self.load[broker] -= self.sizes[index]
        if broker not in self.original[index]:
            self.incoming[broker] -= self.sizes[index]

    # -- rules --------------------------------------------------------------------------------------------------------

    def distinct(self, replicas: Collection[int]) -> tuple[int, int]:
        """The numbers of racks and of hosts that replicas are on; 0 racks unless each live broker has one."""
        racks, hosts = self._racks, self._hosts
        return len({racks[b] for b in replicas if b in racks}), len({hosts[b] for b in replicas if b in hosts})

    def best_distinct(self, factor: int) -> tuple[int, int]:
        """The numbers of racks and of hosts that `factor` replicas can be on."""
        racks, hosts = self._most_distinct
        return min(racks, factor), min(hosts, factor)

    def fits(self, index: int, broker: int) -> bool:
        """True if the broker's disks stay below the limit while it has this replica beside all that it has now."""
        room, size = self._room[broker], self.sizes[index]
        if room is None or broker in self.original[index] or not size:
            return True
        return self.incoming[broker] + size <= room and size <= (self._largest[broker] or 0)

    def keeps_apart(self, index: int, kept: Sequence[int], target: int, missing: int = 0) -> bool:
        """True if a partition with the replicas `kept`, `target` and `missing` further ones can be in as many racks
        and on as many hosts as the original."""
        if self.goals.fewer_racks:
            return True
        racks, hosts = self.distinct(self.original[index])
        now_racks, now_hosts = self.distinct((*kept, target))
        return now_racks + missing >= racks and now_hosts + missing >= hosts

    def may_move(self, index: int, source: int, target: int) -> bool:
        """True if the rules let a replica of a partition move from one broker to the other."""
        replicas = self.replicas[index]
        if index in self.pinned or source not in replicas or target in replicas or not self.fits(index, target):
            return False
        kept = [broker for broker in replicas if broker != source]
        if self.goals.fewer_racks:
            return True
        return all(a >= b for a, b in zip(self.distinct((*kept, target)), self.distinct(replicas), strict=True))

    def peak_share(self, broker: int, more_bytes: int = 0) -> float:
        """The share of a broker's disks in use while it has all that it gets and what it will give away; 0 if their
        size is unknown."""
        disk = self.brokers[broker]
        return (
            (disk.used_bytes + self.incoming[broker] + more_bytes) / disk.total_bytes if disk.total_bytes > 0 else 0.0
        )

    # -- choices ------------------------------------------------------------------------------------------------------

    def share(self, broker: int) -> float:
        """The bytes that are a broker's fair share, by the size of its disks where all are known."""
        return self.total * self.weight[broker] / self.weights

    def cost(self, index: int, broker: int) -> float:
        """Return how much less even the cluster gets by one more replica of a partition on a broker: the growth of the
        sum of squares of bytes, and of counts, each relative to the broker's share."""
        size, load = (n / max(1.0, self.share(broker)) for n in (self.sizes[index], self.load[broker]))
        count_share = max(1.0, self.count * self.weight[broker] / self.weights)
        return size * (2 * load + size) + COUNT_WEIGHT * (2 * len(self.on[broker]) + 1) / count_share**2

    def candidates(self, index: int, kept: Sequence[int], missing: int = 0) -> list[int]:
        """The brokers that may get a replica of a partition beside the replicas `kept`, best first: those that bring
        it into most racks, then onto most hosts, then those that make the cluster most even."""
        held = self.replicas[index]
        able = [b for b in self.targets if b not in held and self.fits(index, b)]
        able = [b for b in able if self.keeps_apart(index, kept, b, missing)]
        reached = {b: self.distinct((*kept, b)) for b in able}
        return sorted(able, key=lambda b: (*(-n for n in reached[b]), self.cost(index, b), b))

    # -- results ------------------------------------------------------------------------------------------------------

    def copied_bytes(self) -> int:
        return sum(self.incoming.values())

    def moves(self) -> tuple[Reassigned, ...]:
        """The partitions whose list of replicas has changed, the largest copies first, so that a batch keeps many
        brokers busy."""
        changed = [
            Reassigned(p.partition, self.original[index], tuple(self.replicas[index]), p.leader, p.size_bytes)
            for index, p in enumerate(self.partitions)
            if tuple(self.replicas[index]) != self.original[index]
        ]
        return tuple(sorted(changed, key=lambda move: (-move.copied_bytes, move.partition)))

    def holdings(self, before: Mapping[int, int] | None = None) -> dict[int, Holding]:
        """Return what each broker holds now; `before` are the bytes of its replicas when its disks were measured."""
        held = {}
        for broker in sorted(self.brokers):
            known = self.brokers[broker]
            used = known.used_bytes + self.load[broker] - (before or self.load)[broker]
            share = used / known.total_bytes if known.total_bytes > 0 else None
            held[broker] = Holding(self.load[broker], share, len(self.on[broker]), self.led[broker])
        return held


def _room(broker: PlanBroker, limit: float, *, largest: bool = False) -> int | None:
    """The bytes that fit on a broker's disks below the limit, or on the one with most room; None if unknown."""
    if not broker.volumes:
        return None
    rooms = [max(0, int(v.total_bytes * limit) - v.used_bytes) for v in broker.volumes]
    return max(rooms) if largest else sum(rooms)
