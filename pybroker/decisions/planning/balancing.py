"""Evens out the brokers' bytes, then their numbers of replicas, with few bytes moved."""

from bisect import bisect_right, insort
from collections.abc import Iterator
from math import ceil, floor

from pybroker.decisions.planning.draft import BAND, Draft


class LoadBalance:
    """Moves replicas until each broker's bytes are within BAND of its share, or no move of one replica helps.

    With `receivers`, only these get replicas, until each has its share; the others need not come down to theirs."""

    def __init__(self, draft: Draft, receivers: frozenset[int] | None = None) -> None:
        self.draft = draft
        self._receivers = sorted(draft.targets if receivers is None else receivers & set(draft.targets))
        self._bounded = receivers is None
        self._low = {broker: draft.share(broker) * (1 - BAND) for broker in draft.targets}
        self._high = {broker: draft.share(broker) * (1 + BAND) for broker in draft.targets}

        self._by_size = {
            broker: sorted((draft.sizes[index], index) for index in draft.on[broker]) for broker in draft.targets
        }

    # -- how far it is ------------------------------------------------------------------------------------------------

    def under(self, broker: int) -> float:
        """The bytes that a broker has too few."""
        return max(0.0, self._low[broker] - self.draft.load[broker])

    def over(self, broker: int) -> float:
        """The bytes that a broker has too many."""
        return max(0.0, self.draft.load[broker] - self._high[broker])

    def least_bytes(self) -> float:
        """The bytes that must be copied at least from here, because each copy fills one broker and empties one."""
        return max(self.totals())

    def totals(self) -> tuple[float, float]:
        """The bytes that all brokers together have too many, and too few."""
        over = sum(map(self.over, self.draft.targets)) if self._bounded else 0.0
        return over, sum(map(self.under, self._receivers))

    def moves(self) -> Iterator[tuple[int, int, int]]:
        """Yield each (partition, source, target) that the rules allow now."""
        for source in self.draft.targets:
            for index in sorted(self.draft.on[source]):
                for target in self._receivers:
                    if self.draft.may_move(index, source, target):
                        yield index, source, target

    # -- bytes --------------------------------------------------------------------------------------------------------

    def even_bytes(self) -> None:
        """Fill the brokers that have too little from those that have most, then take from those that have too much."""
        done: list[tuple[int, int, int]] = []
        stuck: set[int] = set()
        while lacking := [b for b in self._receivers if b not in stuck and self.under(b) > 0]:
            target = max(lacking, key=lambda broker: (self.under(broker), broker))
            sources = sorted(self.draft.targets, key=lambda broker: (-self._fullness(broker), broker))
            move = next((m for source in sources if source != target and (m := self._best(source, target))), None)
            self._carry_out(move, target, stuck, done)
        stuck.clear()
        while full := [b for b in self.draft.targets if self._bounded and b not in stuck and self.over(b) > 0]:
            source = max(full, key=lambda broker: (self.over(broker), broker))
            targets = sorted(self._receivers, key=lambda broker: (self._fullness(broker), broker))
            move = next((m for target in targets if target != source and (m := self._best(source, target))), None)
            self._carry_out(move, source, stuck, done)
        self._undo_needless(done)

    def _carry_out(
        self, move: tuple[int, int, int] | None, broker: int, stuck: set[int], done: list[tuple[int, int, int]]
    ) -> None:
        if move is None:
            stuck.add(broker)
        else:
            self._apply(*move)
            done.append(move)

    def _apply(self, index: int, source: int, target: int) -> None:
        entry = self.draft.sizes[index], index
        self._by_size[source].remove(entry)
        insort(self._by_size[target], entry)
        self.draft.move(index, source, target)

    def _fullness(self, broker: int) -> float:
        return self.draft.load[broker] / max(1.0, self.draft.share(broker))

    def _best(self, source: int, target: int) -> tuple[int, int, int] | None:
        """The move of the replica that brings most for its bytes: the largest that both brokers can make full use of,
        else the smallest larger one that still helps."""
        over, under = self.over(source), self.under(target)
        give = over or self.draft.load[source] - self._low[source]
        take = under or self._high[target] - self.draft.load[target]
        if give <= 0 or take <= 0 or not (over or under):
            return None
        sizes = self._by_size[source]
        at = bisect_right(sizes, (min(give, take), len(self.draft.sizes)))
        for size, index in reversed(sizes[:at]):
            if size and self.draft.may_move(index, source, target):
                return index, source, target
        for size, index in sizes[at:]:
            if self._gain(size, source, target) < 1:  # byte: by a rounding error it would move back and forth for ever
                return None  # nor does a larger one
            if self.draft.may_move(index, source, target):
                return index, source, target
        return None

    def _gain(self, size: int, source: int, target: int) -> float:
        """By how much the bytes that brokers have too many or too few become less."""
        load = self.draft.load
        before = self.over(source) + self.under(target) + self.over(target) + self.under(source)
        after = max(0.0, load[source] - size - self._high[source]) + max(0.0, self._low[source] - load[source] + size)
        after += max(0.0, load[target] + size - self._high[target]) + max(0.0, self._low[target] - load[target] - size)
        return before - after

    def _undo_needless(self, done: list[tuple[int, int, int]]) -> None:
        """Take back moves, the largest first, without which the brokers are no less even."""
        for index, source, target in sorted(done, key=lambda move: (-self.draft.sizes[move[0]], move)):
            if source in self.draft.replicas[index] or target not in self.draft.replicas[index]:
                continue
            if self._gain(self.draft.sizes[index], target, source) >= 0 and self.draft.may_move(index, target, source):
                self._apply(index, target, source)

    # -- numbers of replicas ------------------------------------------------------------------------------------------

    def even_counts(self) -> None:
        """Move small replicas until each broker's number of replicas is within BAND of its share, where that leaves
        the brokers' bytes as even as they are."""
        draft = self.draft
        shares = {b: draft.count * draft.weight[b] / draft.weights for b in draft.targets}
        low = {b: floor(share * (1 - BAND)) for b, share in shares.items()}
        high = {b: ceil(share * (1 + BAND)) for b, share in shares.items()}
        for target in sorted(self._receivers, key=lambda broker: (len(draft.on[broker]), broker)):
            gave = True
            while gave and len(draft.on[target]) < low[target]:  # each round takes one replica of each fuller broker
                gave = False
                for source in sorted(draft.targets, key=lambda broker: (low[broker] - len(draft.on[broker]), broker)):
                    if len(draft.on[source]) > low[source] and len(draft.on[target]) < low[target]:
                        gave |= self._move_small(source, target)
        for source in sorted(draft.targets, key=lambda broker: (-len(draft.on[broker]), broker)):
            took = self._bounded
            while took and len(draft.on[source]) > high[source]:
                took = False
                for target in sorted(draft.targets, key=lambda broker: (len(draft.on[broker]) - high[broker], broker)):
                    if len(draft.on[target]) < high[target] and len(draft.on[source]) > high[source]:
                        took |= self._move_small(source, target)

    def _move_small(self, source: int, target: int) -> bool:
        for size, index in self._by_size[source]:
            if self._gain(size, source, target) < 0:
                return False  # nor do larger ones
            if self.draft.may_move(index, source, target):
                self._apply(index, source, target)
                return True
        return False
