"""Kafka's data files as plain facts, for `pybroker dump`: ours or Kafka's, live or damaged.

The formats, except .log, which `batches` reads:

    .index           entries of 8 bytes: relative offset i32, position i32; both ascending
    .timeindex       entries of 12 bytes: timestamp i64, relative offset i32; both ascending
    .txnindex        entries of 34 bytes: version i16 = 0, producer id, first, last and last stable offset i64
    .snapshot        version i16 = 1, CRC-32C u32 of what follows it, count i32, entries of 46 bytes
    *-checkpoint     text: version 0, the number of lines, the lines

Offsets in index files are relative to the base offset, which is the file's name. Kafka preallocates the two index
files of the active segment with zeros, until it closes them.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct as Layout
from typing import Final, NamedTuple

from pybroker.cli.files.batches import Damage, Items, read_batches
from pybroker.core import crc32c

SHOWN_MAX: Final = 80
"""Characters shown of a malformed line of a checkpoint."""
_OFFSET_ENTRY: Final = Layout(">ii")
_TIME_ENTRY: Final = Layout(">qi")
_TRANSACTION_ENTRY: Final = Layout(">hqqqq")
_SNAPSHOT_HEAD: Final = Layout(">hIi")
_SNAPSHOT_ENTRY: Final = Layout(">qhiqiqiq")
_SNAPSHOT_CRC_FROM: Final = 6
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
_SNAPSHOT_FIELDS: Final = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp",
    "coordinator_epoch",
    "current_transaction_first_offset",
)


class Kind(NamedTuple):
    """A kind of file: its name in the output, and its reader."""

    name: str
    read: Callable[[Path, bool], Items]


def kind_of(path: Path) -> Kind | None:
    """Return how to read a file, by its name; None if the name is unknown. A file marked .deleted keeps its kind."""
    name = path.name.removesuffix(".deleted")
    if name.endswith("-checkpoint"):
        return Kind("checkpoint", _checkpoint)
    return KINDS.get(Path(name).suffix)


# -- entries of one size ----------------------------------------------------------------------------------------------


def _entries(path: Path, layout: Layout) -> Iterator[tuple[int, tuple[int, ...]] | Damage]:
    """Yield (position, fields) of each entry, up to the zeros that Kafka preallocates in a live index."""
    data = path.read_bytes()
    whole = len(data) - len(data) % layout.size
    for position in range(0, whole, layout.size):
        if not any(data[position : position + layout.size]) and (position or not any(data)):
            rest = data[position:].lstrip(b"\0")
            if rest:
                yield Damage(position, f"zeros, and {len(rest)} bytes of something else after them")
            return
        yield position, layout.unpack_from(data, position)
    if whole < len(data):
        yield Damage(whole, f"{len(data) - whole} bytes are left, but an entry has {layout.size}")


def base_offset_of(path: Path) -> int:
    """Return the base offset in the name of a segment's file; 0 if it was renamed."""
    stem = path.name.split(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else 0


def _offset_index(path: Path, _: bool) -> Items:
    base = base_offset_of(path)
    before = (-1, -1)
    for item in _entries(path, _OFFSET_ENTRY):
        if isinstance(item, Damage):
            yield item
            return
        at, (relative, position) = item
        yield {"offset": base + relative, "position": position}
        if at and (relative <= before[0] or position <= before[1]):
            yield Damage(
                at, f"offset {base + relative} at {position} does not follow {base + before[0]} at {before[1]}"
            )
        if relative < 0 or position < 0:
            yield Damage(at, f"relative offset {relative} and position {position} cannot be negative")
        before = (relative, position)


def _time_index(path: Path, _: bool) -> Items:
    base = base_offset_of(path)
    before: tuple[int, ...] = (-1, -1)
    for item in _entries(path, _TIME_ENTRY):
        if isinstance(item, Damage):
            yield item
            return
        at, (timestamp, relative) = item
        yield {"timestamp": timestamp, "offset": base + relative}
        if at and (timestamp <= before[0] or relative < before[1]):
            yield Damage(at, f"timestamp {timestamp} at offset {base + relative} does not follow {before[0]}")
        if relative < 0:
            yield Damage(at, f"relative offset {relative} cannot be negative")
        before = (timestamp, relative)


def _transaction_index(path: Path, _: bool) -> Items:
    for item in _entries(path, _TRANSACTION_ENTRY):
        if isinstance(item, Damage):
            yield item
            return
        at, (version, producer_id, first, last, stable) = item
        yield {"producer_id": producer_id, "first_offset": first, "last_offset": last, "last_stable_offset": stable}
        if version != 0 or last < first:
            yield Damage(at, f"version {version}, offsets {first} to {last}")


# -- snapshots and checkpoints ----------------------------------------------------------------------------------------


def _snapshot(path: Path, _: bool) -> Items:
    data = path.read_bytes()
    if len(data) < _SNAPSHOT_HEAD.size:
        yield Damage(0, f"{len(data)} bytes, but a snapshot has at least {_SNAPSHOT_HEAD.size}")
        return
    version, crc, count = _SNAPSHOT_HEAD.unpack_from(data)
    if version != 1:
        yield Damage(0, f"version {version} where 1 is expected")
        return
    counted = crc32c(data[_SNAPSHOT_CRC_FROM:])
    if counted != crc:
        yield Damage(2, f"CRC {crc:#010x} is written, {counted:#010x} is right")
    there = (len(data) - _SNAPSHOT_HEAD.size) // _SNAPSHOT_ENTRY.size
    for number in range(there):
        fields = _SNAPSHOT_ENTRY.unpack_from(data, _SNAPSHOT_HEAD.size + number * _SNAPSHOT_ENTRY.size)
        yield dict(zip(_SNAPSHOT_FIELDS, fields, strict=True))
    right = _SNAPSHOT_HEAD.size + count * _SNAPSHOT_ENTRY.size
    if right != len(data):
        yield Damage(_SNAPSHOT_HEAD.size, f"{count} entries would be {right} bytes, but the file has {len(data)}")


def _checkpoint(path: Path, _: bool) -> Items:
    """Read `epoch start_offset` lines in leader-epoch-checkpoint, `topic partition offset` in the others."""
    names = ("epoch", "start_offset") if path.name.startswith("leader-epoch") else ("topic", "partition", "offset")
    position = 0
    counts: list[int] = []  # the version, the number of lines promised, the number of lines seen
    for raw in path.read_bytes().splitlines(keepends=True):
        words = raw.decode(errors="replace").split()
        if len(counts) < 2:
            if len(words) != 1 or not _NUMBER.fullmatch(words[0]) or (not counts and words[0] != "0"):
                yield Damage(position, f"{_cut(words)} where {('version 0', 'a number of lines')[len(counts)]} belongs")
                return
            counts += [int(words[0])] if not counts else [int(words[0]), 0]
        elif len(words) != len(names) or not all(_NUMBER.fullmatch(word) for word in words[-2:]):
            yield Damage(position, f"{_cut(words)} where {' '.join(names)} belong")
        else:
            yield {name: word if name == "topic" else int(word) for name, word in zip(names, words, strict=True)}
            counts[2] += 1
        position += len(raw)
    if len(counts) < 2:
        yield Damage(position, "it ends before the number of lines")
    elif counts[1] != counts[2]:
        yield Damage(position, f"{counts[2]} lines where {counts[1]} are promised")


def _cut(words: list[str]) -> str:
    text = " ".join(words)
    return repr(text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "...")


KINDS: Final = {
    ".log": Kind("log", read_batches),
    ".index": Kind("index", _offset_index),
    ".timeindex": Kind("timeindex", _time_index),
    ".txnindex": Kind("txnindex", _transaction_index),
    ".snapshot": Kind("snapshot", _snapshot),
}
