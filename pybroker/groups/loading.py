"""A partition of __consumer_offsets, read from its start: the groups that its records leave.

plain offset        counts at once
transactional one   pending ── COMMIT of its producer ──> counts, unless a later one does already
                           └── ABORT ──> never was
                           └── neither is in the log ──> unstable: the group stands where it stood before
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker import core
from pybroker.cluster.group import Group
from pybroker.cluster.offsets import Committed
from pybroker.errors import CORRUPT_MESSAGE, KafkaError
from pybroker.groups import records
from pybroker.groups.records import GroupRecord, OffsetRecord
from pybroker.groups.shard import Entry
from pybroker.groups.writer import OffsetsLog
from pybroker.model import TopicPartition
from pybroker.protocol.compression import open_batch

TRANSACTIONAL, CONTROL = 0x10, 0x20
COMMIT = (0).to_bytes(2, "big") + (1).to_bytes(2, "big")
"""The key of the control record that commits: its version, and its type."""


class _Place(NamedTuple):
    """Where a group stands in a partition."""

    group: str
    key: TopicPartition


class _Stored(NamedTuple):
    committed: Committed
    at: int  # the base offset of its batch


class Loaded(NamedTuple):
    """The groups of a partition, by name, how many of its records say nothing that can be understood, and the
    offset that it was read to."""

    entries: dict[str, Entry]
    records_lost: int
    end: int


def load(replica: OffsetsLog, read_bytes: int) -> Loaded:
    """Read all groups of a partition to the end of its log, what is not committed yet included: for who leads it.

    A damaged batch costs what it held. On a thread. Raises KafkaError, core.LogError, OSError."""
    log = replica.partition()
    replay = _Replay()
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        try:
            data = _read(log, offset, read_bytes)
            if data is None:
                break
            for position, header in core.iter_batches(data):
                replay.batch(memoryview(data)[position : position + header.size], header)
                offset = header.last_offset + 1
        except core.LogError as problem:
            if problem.code != CORRUPT_MESSAGE:
                raise
            offset = replica.pass_by(offset)
    return Loaded(replay.groups(), replay.lost, offset)


def _read(log: core.Partition, offset: int, read_bytes: int) -> bytes | None:
    piece = log.read(offset, read_bytes, to_log_end=True).slice
    if piece is None:
        return None
    try:
        return piece.tobytes()
    finally:
        piece.close()


class _Replay:
    """What the batches so far have left."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupRecord] = {}
        self._offsets: dict[_Place, _Stored] = {}
        self._in_transaction: dict[int, dict[_Place, _Stored]] = {}  # by producer id
        self.lost = 0  # records that could not be understood

    def batch(self, data: memoryview, header: core.BatchHeader) -> None:
        try:
            found = list(core.walk_records(open_batch(data, header), header))
        except (KafkaError, core.LogError):  # its CRC is right: who wrote it did it wrong
            self.lost += header.count
            return
        if header.attributes & CONTROL:
            offsets = self._in_transaction.pop(header.producer_id, {})
            if any(key == COMMIT for _, _, key, _, _ in found):
                self._commit(offsets)
            return
        for _, _, key, value, _ in found:
            try:
                record = records.parse(key, value)
            except KafkaError:
                self.lost += 1
                continue
            if isinstance(record, OffsetRecord):
                self._offset(record, header)
            elif isinstance(record, GroupRecord):
                self._groups[record.id] = record

    def _commit(self, offsets: dict[_Place, _Stored]) -> None:
        for place, stored in offsets.items():
            known = self._offsets.get(place)
            if known is None or known.at < stored.at:
                self._offsets[place] = stored

    def _offset(self, record: OffsetRecord, header: core.BatchHeader) -> None:
        place, in_transaction = _Place(record.group, record.key), self._in_transaction
        if record.committed is not None:
            transactional = header.attributes & TRANSACTIONAL
            offsets = in_transaction.setdefault(header.producer_id, {}) if transactional else self._offsets
            offsets[place] = _Stored(record.committed, header.base_offset)
        else:  # forgotten, with what would have counted later
            for offsets in (self._offsets, *in_transaction.values()):
                offsets.pop(place, None)

    def groups(self) -> dict[str, Entry]:
        """By name; what has neither members nor offsets any more is left out."""
        entries = {record.id: _entry(record) for record in self._groups.values() if record.group is not None}
        for place, stored in self._offsets.items():
            self._of(entries, place).offsets[place.key] = stored.committed
        for offsets in self._in_transaction.values():
            for place in offsets:
                self._of(entries, place).unstable.add(place.key)
        return {name: e for name, e in entries.items() if e.offsets or e.unstable or not e.group.is_simple()}

    @staticmethod
    def _of(entries: dict[str, Entry], place: _Place) -> Entry:
        return entries.setdefault(place.group, Entry(Group(place.group)))


def _entry(record: GroupRecord) -> Entry:
    return Entry(record.group or Group(record.id), since_ms=max(record.since_ms, 0))
