"""Loads the groups of a partition of __consumer_offsets from its log.

plain offset           applied at once
transactional offset   pending ── COMMIT of its producer ──> applied, unless a later one already is
                              └── ABORT ──> dropped
                              └── neither is in the log ──> unstable: the group keeps its previous offset
"""

from __future__ import annotations

from typing import NamedTuple

from pybroker import core
from pybroker.decisions.group import Group
from pybroker.errors import KafkaError
from pybroker.groups import records
from pybroker.groups.records import GroupRecord, OffsetRecord
from pybroker.groups.shard import GroupEntry, PendingOffset
from pybroker.model import TopicPartition
from pybroker.protocol.compression import open_batch
from pybroker.state_log.log import StateLog, read_batches

TRANSACTIONAL, CONTROL = 0x10, 0x20
COMMIT = (0).to_bytes(2, "big") + (1).to_bytes(2, "big")
"""The key of the control record that commits: its version, and its type."""


class _Place(NamedTuple):
    """The key of a committed offset: group and partition."""

    group: str
    key: TopicPartition


class LoadedGroups(NamedTuple):
    """The groups of a partition by name, the number of unreadable records, and the offset up to which it was read."""

    entries: dict[str, GroupEntry]
    records_lost: int
    end: int


def load(replica: StateLog, read_bytes: int) -> LoadedGroups:
    """Read all groups of a partition to the end of its log, including records not committed yet: only for its leader.

    Records of a damaged batch are lost. Runs on a thread. Raises KafkaError, core.LogError, OSError."""
    replay = _Replay()
    end = read_batches(replica, read_bytes, replay.batch, pass_damage=True)
    return LoadedGroups(replay.groups(), replay.lost, end)


class _Replay:
    """The state after the batches read so far."""

    def __init__(self) -> None:
        self._groups: dict[str, GroupRecord] = {}
        self._offsets: dict[_Place, PendingOffset] = {}
        self._in_transaction: dict[int, dict[_Place, PendingOffset]] = {}  # by producer id
        self.lost = 0  # unreadable records

    def batch(self, data: memoryview, header: core.BatchHeader) -> None:
        try:
            found = list(core.walk_records(open_batch(data, header), header))
        except (KafkaError, core.LogError):  # its CRC is right: it was written wrongly
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

    def _commit(self, offsets: dict[_Place, PendingOffset]) -> None:
        for place, stored in offsets.items():
            known = self._offsets.get(place)
            if known is None or known.at < stored.at:
                self._offsets[place] = stored

    def _offset(self, record: OffsetRecord, header: core.BatchHeader) -> None:
        place, in_transaction = _Place(record.group, record.key), self._in_transaction
        if record.committed is not None:
            transactional = header.attributes & TRANSACTIONAL
            offsets = in_transaction.setdefault(header.producer_id, {}) if transactional else self._offsets
            offsets[place] = PendingOffset(record.committed, header.base_offset)
        else:  # a tombstone: also drops pending offsets
            for offsets in (self._offsets, *in_transaction.values()):
                offsets.pop(place, None)

    def groups(self) -> dict[str, GroupEntry]:
        """The groups by name, without those that have neither members nor offsets."""
        entries = {record.id: _entry(record) for record in self._groups.values() if record.group is not None}
        for place, stored in self._offsets.items():
            self._of(entries, place).offsets[place.key] = stored.committed
        for producer_id, offsets in self._in_transaction.items():
            for place, stored in offsets.items():
                known = self._offsets.get(place)
                if known is None or known.at < stored.at:
                    pending = self._of(entries, place).in_transaction.setdefault(producer_id, {})
                    pending[place.key] = stored
        return {name: e for name, e in entries.items() if e.offsets or e.in_transaction or not e.group.is_simple()}

    @staticmethod
    def _of(entries: dict[str, GroupEntry], place: _Place) -> GroupEntry:
        return entries.setdefault(place.group, GroupEntry(Group(place.group)))


def _entry(record: GroupRecord) -> GroupEntry:
    return GroupEntry(record.group or Group(record.id), since_ms=max(record.since_ms, 0))
