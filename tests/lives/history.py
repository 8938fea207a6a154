"""What clients were told, held against what the broker has: the judge of a campaign of random lives.

A record is known by its writer and number. The rules, for each partition:

    kept       a record that was acknowledged at an offset is read there, with the content that was sent
    once       no record of an idempotent writer is there twice
    in order   the numbers of a writer only grow
    whole      every offset from the start to the end is there
    constant   an offset never changes its content, whoever reads it and whenever
    committed  a group's committed offset is never behind one that it was told is committed
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

PAD = b"." * 80


class Told(NamedTuple):
    """A record as its content says it: which writer's, and its number."""

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


class History:
    """Everything that was acknowledged or read so far; from any thread."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._acknowledged: dict[int, dict[int, Told]] = {}
        self._seen: dict[int, dict[int, Told]] = {}
        self._committed: dict[tuple[str, int], int] = {}

    def accuse(self, rule: str, sentence: str) -> None:
        with self._lock:
            self.counts[rule] += 1
            if len(self.problems) < 50:
                self.problems.append(f"{rule}: {sentence}")

    def acknowledged(self, partition: int, offset: int, told: Told) -> None:
        """A writer was told that its record is stored."""
        with self._lock:
            self.counts["acknowledged"] += 1
            self.counts[f"acknowledged by {told.writer.rpartition('-')[0]}"] += 1
            other = self._acknowledged.setdefault(partition, {}).setdefault(offset, told)
        if other != told:
            self.accuse("once", f"partition {partition} offset {offset} was given to {other} and to {told}")

    def read(self, partition: int, offset: int, content: bytes | None) -> None:
        """A reader got this."""
        try:
            told = Told.of(content)
        except ValueError as problem:
            self.accuse("constant", f"partition {partition} offset {offset}: {problem}")
            return
        with self._lock:
            self.counts["read"] += 1
            seen = self._seen.setdefault(partition, {}).setdefault(offset, told)
            acknowledged = self._acknowledged.get(partition, {}).get(offset, told)
        if seen != told:
            self.accuse("constant", f"partition {partition} offset {offset} was {seen} and is {told}")
        if acknowledged != told:
            self.accuse("kept", f"partition {partition} offset {offset} has {told}, acknowledged was {acknowledged}")

    def committed(self, partition: int, offset: int, group: str = "group") -> None:
        """A group was told that it stands here."""
        with self._lock:
            self.counts["commits"] += 1
            self.counts[f"commits of {group}"] += 1
            self._committed[group, partition] = max(offset, self._committed.get((group, partition), 0))

    def check_committed(self, partition: int, offset: int, group: str = "group") -> None:
        """The broker says that the group stands here."""
        with self._lock:
            told = self._committed.get((group, partition), 0)
        if offset < told:
            self.accuse("committed", f"partition {partition}: {group} stands at {offset}, committed was {told}")

    def check_log(self, partition: int, records: Iterable[tuple[int, bytes | None]], start: int, end: int) -> None:
        """All that a partition has from its start to its end, read at rest. What was acknowledged before `start` went
        by retention, which these partitions do not have: it counts as lost."""
        numbers: dict[str, int] = {}
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
            if told.number == last:
                self.accuse("once", f"partition {partition} offset {offset}: {told} is there again")
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
