"""The judge of a campaign of random lives: compares what clients received with what the broker has.

A record is identified by its writer and number. The rules, for each partition:

    kept:      a record that was acknowledged at an offset is read there, with the content that was sent
    once:      no record of an idempotent writer is stored twice
    in order:  the numbers of a writer only grow
    whole:     no offset is missing from the start to the end
    constant:  an offset never changes its content, for any reader at any time
    committed: a group's committed offset is never below one that a client received, except after a lower commit
    end:       the end that consumers see never goes back, and is never below an acknowledged record
    position:  no reader is set back
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

log = logging.getLogger(__name__)

PAD = b"." * 80
PROBLEMS_MAX = 10
"""Problems kept for each rule."""


class Told(NamedTuple):
    """A record by its content: its writer and number."""

    writer: str
    number: int

    @property
    def content(self) -> bytes:
        return f"{self.writer} {self.number} ".encode() + PAD

    @staticmethod
    def of(content: bytes | None) -> Told:
        writer, number, pad = (content or b"").split(b" ", 2)
        if pad != PAD:
            raise ValueError(f"not the content of any writer: {content!r}")
        return Told(writer.decode(), int(number))


class Standing:
    """The committed offset of a group in a partition, as far as clients know."""

    def __init__(self) -> None:
        self.offset = 0
        self.maybe: set[int] = set()
        """Offsets of commits without a positive answer: any of them may be found."""
        self.version = 0
        """Changes with each commit."""


class History:
    """Everything that was acknowledged or read so far; may be used from any thread."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._acknowledged: dict[int, dict[int, Told]] = {}
        self._seen: dict[int, dict[int, Told]] = {}
        self._standing: defaultdict[tuple[str, int], Standing] = defaultdict(Standing)
        self._ends: Counter[int] = Counter()
        self.batch_of: Callable[[int, int], str] = lambda partition, offset: ""
        """A description of an offset's batch, for a record that is stored twice."""

    def accuse(self, rule: str, sentence: str) -> None:
        """Record a broken rule; keep the first cases of each rule, and repeated ones once."""
        problem = f"{rule}: {sentence}"
        with self._lock:
            self.counts[rule] += 1
            kept = sum(each.startswith(f"{rule}: ") for each in self.problems)
            if kept < PROBLEMS_MAX and problem not in self.problems:
                self.problems.append(problem)
                log.info("%s", problem)

    def acknowledged(self, partition: int, offset: int, told: Told) -> None:
        """Record that a writer's record was acknowledged."""
        with self._lock:
            self.counts["acknowledged"] += 1
            self.counts[f"acknowledged by {told.writer.rpartition('-')[0]}"] += 1
            other = self._acknowledged.setdefault(partition, {}).setdefault(offset, told)
            self._ends[partition] = max(offset + 1, self._ends[partition])
        if other != told:
            self.accuse("once", f"partition {partition} offset {offset} was given to {other} and to {told}")

    def read(self, partition: int, offset: int, content: bytes | None) -> None:
        """Record and check what a reader received."""
        try:
            told = Told.of(content)
        except ValueError as problem:
            self.accuse("constant", f"partition {partition} offset {offset}: {problem}")
            return
        with self._lock:
            self.counts["read"] += 1
            seen = self._seen.setdefault(partition, {}).setdefault(offset, told)
            self._ends[partition] = max(offset + 1, self._ends[partition])
            acknowledged = self._acknowledged.get(partition, {}).get(offset, told)
        if seen != told:
            self.accuse("constant", f"partition {partition} offset {offset} was {seen} and is {told}")
        if acknowledged != told:
            self.accuse("kept", f"partition {partition} offset {offset} has {told}, acknowledged was {acknowledged}")

    # -- committed offsets of groups ---------------------------------------------------------------------------------

    def committing(self, partition: int, offset: int, group: str = "group") -> None:
        """Record a commit that is about to be sent; until an answer comes, it may be stored."""
        with self._lock:
            standing = self._standing[group, partition]
            standing.maybe.add(offset)
            standing.version += 1

    def committed(self, partition: int, offset: int, group: str = "group") -> None:
        """Record a commit that was acknowledged."""
        with self._lock:
            self.counts["commits"] += 1
            self.counts[f"commits of {group}"] += 1
            standing = self._standing[group, partition]
            standing.maybe.discard(offset)
            standing.offset = offset
            standing.version += 1

    def stands(self, group: str, partition: int) -> tuple[int, int]:
        """(offset, version) for `check_committed`, to be read before a broker is asked: commits acknowledged while the
        answer is under way need not be in it."""
        with self._lock:
            standing = self._standing[group, partition]
            return standing.offset, standing.version

    def check_committed(
        self, partition: int, offset: int, group: str = "group", before: tuple[int, int] | None = None, by: str = ""
    ) -> None:
        """Check a broker's answer for the group's offset; later answers must not be below it."""
        told, version = before or self.stands(group, partition)
        with self._lock:
            standing = self._standing[group, partition]
            is_wrong = offset < told and offset not in standing.maybe
            if not is_wrong and version == standing.version:  # unless a commit was acknowledged meanwhile
                standing.offset = offset
        if is_wrong:
            self.accuse("committed", f"partition {partition}: {group} stands at {offset}{by}, committed was {told}")

    def check_position(self, partition: int, offset: int, floor: int, group: str = "group") -> None:
        """Check that a consumer reads on at `floor` or later, as it had read everything before."""
        with self._lock:
            is_wrong = offset < floor and offset not in self._standing[group, partition].maybe
        if is_wrong:
            self.accuse("position", f"partition {partition}: {group} was at {floor} and is set back to {offset}")

    # -- ends of partitions ------------------------------------------------------------------------------------------

    def end(self, partition: int) -> int:
        """The lowest end that the partition may have, as clients know; read it before asking a broker."""
        with self._lock:
            return self._ends[partition]

    def check_end(self, partition: int, offset: int, before: int, by: str = "") -> None:
        """Check a partition's end that a consumer received from a broker."""
        with self._lock:
            self.counts["ends seen"] += 1
            self._ends[partition] = max(offset, self._ends[partition])
        if offset < before:
            self.accuse("end", f"partition {partition} ends at {offset}{by}, and {before} was seen before")

    def check_log(self, partition: int, records: Iterable[tuple[int, bytes | None]], start: int, end: int) -> None:
        """Check all records of a partition, read at rest from its start to its end.

        An acknowledged record below `start` counts as lost, as these partitions have no retention.
        """
        numbers: dict[str, int] = {}
        places: dict[Told, int] = {}
        expected = start
        found: dict[int, Told | None] = {}
        for offset, content in records:
            if offset != expected:
                self.accuse("whole", f"partition {partition}: offset {offset} comes where {expected} should")
            expected = offset + 1
            found[offset] = None
            self.read(partition, offset, content)
            try:
                told = found[offset] = Told.of(content)
            except ValueError:
                continue
            last = numbers.get(told.writer, -1)
            if (first := places.setdefault(told, offset)) != offset:
                copies = " and ".join(f"{at}{self.batch_of(partition, at)}" for at in (first, offset))
                self.accuse("once", f"partition {partition}: {told} is at {copies}")
            elif told.number < last:
                self.accuse("in order", f"partition {partition} offset {offset}: {told} comes behind number {last}")
            numbers[told.writer] = max(last, told.number)
        if expected != end:
            self.accuse("whole", f"partition {partition} ends at {expected}, the broker says {end}")
        with self._lock:
            acknowledged = dict(self._acknowledged.get(partition, {}))
        gone = sorted(offset for offset in acknowledged if offset not in found)
        if gone:
            self.accuse("kept", f"partition {partition}: {len(gone)} acknowledged records are gone, first {gone[0]}")
        there = [told for told in found.values() if told is not None]
        self.counts["duplicated"] += len(there) - len(set(there))
        self.counts["lost"] += sum(found.get(offset) != told for offset, told in acknowledged.items())
