"""The judge of transactions: compares the outcomes that clients got with the committed records that a reader finds.

The workload is list-append, as in Jepsen's tests of Kafka: each partition is a list, and each transaction appends to
several. The rules:

    kept:    each record of a transaction that was committed is found, once acknowledged at its offset
    nothing: no record of a transaction that was aborted is found
    atomic:  of a transaction whose outcome is unknown all records are found, or none
    once:    no record is found twice, and each was sent
    ordered: in a partition, a writer's records are in the order in which it sent them
    stable:  what a reader finds at an offset never changes, and no reader passes a committed record by
    copied:  each input record is in the output of committed transactions exactly once, in its partition's order
"""

from __future__ import annotations

import enum
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PROBLEMS_MAX = 10
"""Problems kept for each rule."""


class Outcome(enum.Enum):
    """The outcome of a transaction, as its writer knows it."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Element(NamedTuple):
    """A record by its content: its writer, the number of its transaction, and its place in that."""

    writer: str
    transaction: int
    place: int

    @property
    def content(self) -> bytes:
        return f"{self.writer} {self.transaction} {self.place}".encode()

    @staticmethod
    def of(content: bytes) -> Element:
        writer, transaction, place = content.decode().split(" ")
        return Element(writer, int(transaction), int(place))


@dataclass
class Transaction:
    """A transaction as its writer knows it."""

    writer: str
    number: int
    appends: list[tuple[int, Element]] = field(default_factory=list)
    """(partition, element) in the order of the sends."""
    offsets: dict[Element, int] = field(default_factory=dict)
    """Where appends were acknowledged."""
    outcome: Outcome = Outcome.OPEN

    def append(self, partition: int) -> Element:
        element = Element(self.writer, self.number, len(self.appends))
        self.appends.append((partition, element))
        return element


Found = Mapping[int, Sequence[tuple[int, bytes]]]
"""By partition, (offset, content) of the records that a reader of committed records found, in order."""


class TransactionHistory:
    """All transactions of a run, and what readers found meanwhile; may be used from any thread."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.transactions: list[Transaction] = []
        self._kept: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._read: dict[int, dict[int, bytes]] = defaultdict(dict)

    def begin(self, writer: str) -> Transaction:
        """A new transaction of a writer, whose outcome is set later."""
        with self._lock:
            transaction = Transaction(writer, self._numbers[writer])
            self._numbers[writer] += 1
            self.transactions.append(transaction)
            return transaction

    def count(self, outcome: Outcome) -> int:
        with self._lock:
            return sum(t.outcome is outcome for t in self.transactions)

    def read(self, partition: int, offset: int, content: bytes) -> None:
        """Note what a reader of committed records found while the run goes on."""
        with self._lock:
            before = self._read[partition].setdefault(offset, content)
        if before != content:
            self._accuse("stable", f"partition {partition} had {before!r} at {offset}, and then {content!r}")

    def _accuse(self, rule: str, sentence: str) -> None:
        with self._lock:
            self._kept[rule] += 1
            if self._kept[rule] <= PROBLEMS_MAX:
                self.problems.append(f"{rule}: {sentence}")

    def judge(self, found: Found) -> None:
        """Check the rules against what a reader finds once all transactions have ended."""
        at = self._once(found)
        for transaction in self.transactions:
            self._whole(transaction, at)
        for partition, records in found.items():
            self._in_order(partition, [Element.of(content) for _, content in records])
            offsets = dict(records)
            with self._lock:
                read = dict(self._read[partition])
            for offset, content in read.items():
                if offsets.get(offset) != content:
                    self._accuse("stable", f"a reader found {content!r} at {partition}:{offset}, where it is not")
            last = max(read, default=-1)
            for offset in offsets:
                if offset < last and offset not in read:
                    self._accuse("stable", f"a reader passed {partition}:{offset} by, and read {last}")

    def _once(self, found: Found) -> dict[Element, tuple[int, int]]:
        """(partition, offset) of each element."""
        sent = {element for t in self.transactions for _, element in t.appends}
        at: dict[Element, tuple[int, int]] = {}
        for partition, records in found.items():
            for offset, content in records:
                element = Element.of(content)
                if element not in sent:
                    self._accuse("once", f"{element} at {partition}:{offset} was never sent")
                if element in at:
                    self._accuse("once", f"{element} is at {partition}:{offset} and at {at[element]}")
                at[element] = (partition, offset)
        return at

    def _whole(self, t: Transaction, at: Mapping[Element, tuple[int, int]]) -> None:
        there = [element in at for _, element in t.appends]
        if t.outcome is Outcome.COMMITTED:
            for partition, element in t.appends:
                place = at.get(element)
                if place is None:
                    self._accuse("kept", f"{element} of a committed transaction is not there")
                elif element in t.offsets and place != (partition, t.offsets[element]):
                    self._accuse("kept", f"{element} was acknowledged at {partition}:{t.offsets[element]}: {place}")
        elif t.outcome is Outcome.ABORTED and any(there):
            self._accuse("nothing", f"transaction {t.number} of {t.writer} was aborted, and is there")
        elif any(there) and not all(there):
            missing = [element for _, element in t.appends if element not in at]
            self._accuse("atomic", f"transaction {t.number} of {t.writer} is torn: {missing} are not there")

    def _in_order(self, partition: int, elements: Sequence[Element]) -> None:
        last: dict[str, Element] = {}
        for element in elements:
            before = last.get(element.writer)
            if before is not None and element[1:] < before[1:]:
                self._accuse("ordered", f"partition {partition} has {element} behind {before}")
            last[element.writer] = element

    def judge_copies(self, inputs: Mapping[int, Sequence[bytes]], outputs: Found) -> None:
        """Check that each partition of the output has the input's records exactly once, in order."""
        for partition, given in inputs.items():
            made = [content for _, content in outputs.get(partition, ())]
            if made == list(given):
                continue
            counts = Counter(made)
            for content in given:
                if counts[content] != 1:
                    self._accuse("copied", f"{content!r} of partition {partition} was copied {counts[content]} times")
            if counts == Counter(given):
                self._accuse("copied", f"partition {partition} of the output has another order")
            for content in counts.keys() - set(given):
                self._accuse("copied", f"partition {partition} of the output has {content!r}, which was no input")
