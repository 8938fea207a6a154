"""Backups made by hand: topics of given batches, with a manifest that fits them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pybroker.backup.batches import Transactions, checked
from pybroker.backup.manifest import (
    NAME,
    GroupOffset,
    LastBatch,
    Manifest,
    PartitionBackup,
    SegmentFile,
    TopicBackup,
    load,
)
from pybroker.core import check_batch, crc32c, iter_batches, rebuild_batch
from pybroker.protocol.records import CONTROL, TRANSACTIONAL, _write_record, build_batch
from tests.cli.conftest import Done

TIME_MS = 1_700_000_000_000
CLUSTER = "a-cluster"
ABORT, COMMIT = 0, 1
Headers = Sequence[tuple[str, bytes | None]]


def says(done: Done) -> Done:
    """Return a command that succeeded; its error is shown if it did not."""
    assert done.code == 0, done.err
    return done


Made = tuple[int, bytes | None, bytes | None, Headers]
"""A record, as build_batch takes it."""


def record(value: bytes | None, key: bytes | None = None, time_ms: int = TIME_MS) -> Made:
    return time_ms, key, value, []


def batch(base: int, *values: bytes, attributes: int = 0, producer_id: int = -1, epoch: int = 3) -> bytes:
    """A batch of these values; with a producer id it is part of a transaction of that producer."""
    sequenced = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0} if producer_id >= 0 else {}
    bits = attributes | (TRANSACTIONAL if producer_id >= 0 else 0)
    made = [record(value) for value in values]
    return build_batch(made, base_offset=base, attributes=bits, partition_leader_epoch=epoch, **sequenced)


def gapped(base: int, size: int, kept: Mapping[int, bytes]) -> bytes:
    """A batch that compaction has left: of `size` offsets only those of `kept`, by their delta."""
    data = build_batch([record(b"x", b"k") for _ in range(size)], base_offset=base)
    header = check_batch(data)
    payload = b"".join(_write_record(0, delta, b"k", value, []) for delta, value in kept.items())
    made = bytearray(rebuild_batch(data, payload, header.attributes))
    struct.pack_into(">i", made, 57, len(kept))
    struct.pack_into(">I", made, 17, crc32c(bytes(made[21:])))
    return bytes(made)


def marker(base: int, producer_id: int, kind: int) -> bytes:
    """The control batch that ends a transaction."""
    content = (TIME_MS, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 1), [])
    return build_batch([content], base_offset=base, attributes=TRANSACTIONAL | CONTROL, producer_id=producer_id)


def partition(
    home: Path, topic: str, number: int, *files: Sequence[bytes], start: int | None = None
) -> PartitionBackup:
    """Write the files of a partition, and return what the manifest says of it."""
    made = []
    transactions = Transactions()
    directory = home / f"{topic}-{number}"
    directory.mkdir(parents=True, exist_ok=True)
    last = None
    for batches in files:
        data = b"".join(batches)
        headers = [header for _, header in iter_batches(data)]
        last = headers[-1]
        transactions.note(checked(memoryview(data), "a test"))
        made.append(SegmentFile(headers[0].base_offset, last.last_offset, len(data), crc32c(data)))
        (directory / made[-1].name).write_bytes(data)
    end = last.last_offset + 1 if last else 0
    first = made[0].base_offset if made else 0
    return PartitionBackup(
        number, directory.name, first if start is None else start, end, TIME_MS,
        LastBatch(last.base_offset, last.partition_leader_epoch, last.crc) if last else None, tuple(made), (),
        tuple(transactions.aborted), transactions.open,
    )  # fmt: skip


_IDS = itertools.count(1)


def write(
    home: Path, topic: str, *partitions: PartitionBackup, configs: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[GroupOffset]] | None = None, cluster: str = CLUSTER,
) -> Manifest:
    """Write the manifest of a backup of one topic."""
    of_topic = TopicBackup(topic, f"{next(_IDS):032x}", 1, configs or {}, partitions)
    offsets = {name: tuple(each) for name, each in (groups or {}).items()}
    manifest = Manifest(cluster, TIME_MS, True, (of_topic,), offsets)
    (home / NAME).write_bytes(manifest.dump())
    return manifest


def rewrite(home: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Replace the manifest of a backup by a changed one."""
    path = home / NAME
    path.write_bytes(change(load(path.read_bytes(), "a test")).dump())


def of_first_partition(manifest: Manifest, **changes: object) -> Manifest:
    """A manifest with changes to the first partition of its first topic."""
    topic = manifest.topics[0]
    first = replace(topic.partitions[0], **changes)  # type: ignore[arg-type]
    return replace(manifest, topics=(replace(topic, partitions=(first, *topic.partitions[1:])), *manifest.topics[1:]))
