"""Places the replicas that must be placed: of drained brokers, of a larger replication factor, in missing racks."""

from typing import Final, NamedTuple

from pybroker.decisions.planning.draft import Draft

TRIES_MAX: Final = 20_000
"""Placements that are tried where the first choice of a broker for each replica leaves one without a broker."""
SEARCHED_MAX: Final = 200
"""Replicas of drained brokers up to which such a search may succeed before TRIES_MAX."""


class Homeless(NamedTuple):
    """A replica for which no broker was found: a partition's, by its number in the snapshot, on a broker to be drained;
    or a new one, without a source."""

    number: int
    source: int | None = None


class Drain:
    """Moves each replica on a drained broker to another one. Replicas that have nowhere to go are in `homeless`.

    The largest go first, each to the broker that keeps the cluster most even: later, smaller ones fill the gaps."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._placed: dict[tuple[int, int], int] = {}
        todo = [(index, broker) for broker in sorted(draft.goals.drain) for index in draft.on.get(broker, ())]
        todo.sort(key=lambda each: (-draft.sizes[each[0]], each))
        homeless = [each for each in todo if not self._place(*each)]
        homeless = [each for each in homeless if not self._make_room(*each)]
        if homeless and len(todo) <= SEARCHED_MAX and self._place_all(todo):
            homeless = []
        self.homeless = [Homeless(*each) for each in homeless]

    def _choices(self, index: int, source: int) -> list[int]:
        """The brokers that may take over a replica, best first; the successor of its broker before all others."""
        leaving, replicas = self._draft.goals.drain, self._draft.replicas[index]
        kept = [broker for broker in replicas if broker not in leaving]
        found = self._draft.candidates(index, kept, missing=len(replicas) - len(kept) - 1)
        successor = self._draft.goals.successors.get(source)
        return sorted(found, key=lambda broker: broker != successor)

    def _put(self, index: int, source: int, target: int) -> None:
        self._draft.move(index, source, target)
        self._placed[index, source] = target

    def _take_back(self, index: int, source: int) -> None:
        self._draft.move(index, self._placed.pop((index, source)), source)

    def _place(self, index: int, source: int) -> bool:
        for target in self._choices(index, source)[:1]:
            self._put(index, source, target)
            return True
        return False

    def _make_room(self, index: int, source: int) -> bool:
        """Place a replica where one that was placed before can go to a third broker instead."""
        draft = self._draft
        placed = sorted(self._placed.items(), key=lambda item: (draft.sizes[item[0][0]], item))
        for (other, of), target in placed:
            if target in draft.replicas[index] or other == index:
                continue
            self._take_back(other, of)
            if target in self._choices(index, source):
                self._put(index, source, target)
                if self._place(other, of):
                    return True
                self._take_back(index, source)
            self._put(other, of, target)
        return False

    def _place_all(self, todo: list[tuple[int, int]]) -> bool:
        """Search for brokers for all these replicas together; False if TRIES_MAX placements found none."""
        before = dict(self._placed)
        for each in before:
            self._take_back(*each)
        untried = [iter(self._choices(*todo[0]))]
        tries = 0
        while untried and tries < TRIES_MAX:
            tries += 1
            here = todo[len(untried) - 1]
            if here in self._placed:
                self._take_back(*here)
            target = next(untried[-1], None)
            if target is None:
                untried.pop()
                continue
            self._put(*here, target)
            if len(untried) == len(todo):
                return True
            untried.append(iter(self._choices(*todo[len(untried)])))
        for each in list(self._placed):
            self._take_back(*each)
        for each, target in before.items():
            self._put(*each, target)
        return False


def set_factors(draft: Draft) -> list[Homeless]:
    """Add and drop replicas of topics whose replication factor is a goal; return each that no broker can take."""
    factors = draft.goals.factors
    if not factors:
        return []
    wanted = [(i, factors[p.partition.topic]) for i, p in enumerate(draft.partitions) if p.partition.topic in factors]
    homeless = []
    for index, factor in sorted(wanted, key=lambda each: (-draft.sizes[each[0]], each)):
        while len(draft.replicas[index]) > factor:
            draft.drop(index, _least_needed(draft, index))
        while len(draft.replicas[index]) < factor:
            kept = [broker for broker in draft.replicas[index] if broker not in draft.goals.drain]
            for target in draft.candidates(index, kept)[:1]:
                draft.add(index, target)
                break
            else:
                homeless.append(Homeless(index))
                break
    return homeless


def _least_needed(draft: Draft, index: int) -> int:
    """The replica that a partition can best do without: on a drained or dead broker, out of sync, one of several in a
    rack or on a host, not the leader; of equal ones, the one on the broker that is fullest."""
    replicas, known = draft.replicas[index], draft.partitions[index]

    def rank(broker: int) -> tuple[float, ...]:
        racks, hosts = draft.distinct([other for other in replicas if other != broker])
        there = broker in draft.weight
        fullness = draft.load[broker] / max(1.0, draft.share(broker)) if there else 0.0
        in_sync = broker in known.isr or not known.isr
        return (there, in_sync, -racks, -hosts, broker == known.leader, broker == replicas[0], -fullness, broker)

    return min(replicas, key=rank)


def mend_racks(draft: Draft) -> None:
    """Move replicas of partitions that are in fewer racks, or on fewer hosts, than they could be, as few as needed."""
    lacking = [
        index for index, replicas in enumerate(draft.replicas)
        if draft.distinct(replicas) < draft.best_distinct(len(replicas))
    ]  # fmt: skip
    for index in sorted(lacking, key=lambda index: (-draft.sizes[index], index)):
        while (better := _better(draft, index)) is not None:
            draft.move(index, *better)


def _better(draft: Draft, index: int) -> tuple[int, int] | None:
    """The (source, target) of the move that brings a partition into most racks, then onto most hosts; None if no move
    helps. Of equal ones, a follower's to the emptiest broker."""
    replicas = draft.replicas[index]
    best = None
    for source in replicas:
        kept = [broker for broker in replicas if broker != source]
        for target in draft.candidates(index, kept)[:1]:
            reached = draft.distinct((*kept, target))
            if reached > draft.distinct(replicas):
                leads = source == draft.partitions[index].leader
                rank = (*(-n for n in reached), leads, draft.cost(index, target), -draft.load[source], source, target)
                best = rank if best is None or rank < best else best
    return None if best is None else (int(best[-2]), int(best[-1]))
