"""Verifies a backup: every file that the manifest names is there, whole, and every batch in it is sound."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pybroker.backup.batches import Advance, WholeBatches, pieces
from pybroker.backup.manifest import Manifest, PartitionBackup, SegmentFile, damaged, load
from pybroker.backup.targets import Target, manifest_bytes
from pybroker.errors import KafkaError, system_words


class Verified(NamedTuple):
    """The result: `damage` has a sentence for each file that cannot be restored."""

    manifest: Manifest
    files: int
    batches: int
    damage: list[str]


def read_backup(target: Target) -> Manifest:
    """Read the manifest. KafkaError(CORRUPT_MESSAGE) if there is none, or it is not sound; OSError."""
    return load(manifest_bytes(target), target.name)


def file_pieces(target: Target, partition: PartitionBackup, file: SegmentFile) -> Iterator[WholeBatches]:
    """Yield the batches of a file, checked; its size is compared before it is read. KafkaError, OSError."""
    name = f"{partition.directory}/{file.name}"
    where = f"{target.name.rstrip('/')}/{name}"
    size = target.size(name)
    if size is None:
        raise damaged(f"{where} is missing")
    if size != file.size:
        raise damaged(f"{where} has {size} bytes, the manifest says {file.size}")
    with contextlib.closing(target.open(name)) as stream:
        yield from pieces(stream, file, where)


def verify(target: Target, begin: Callable[[int], Advance]) -> Verified:
    """Read all of a backup; damage does not end it. KafkaError if the manifest cannot be used; OSError."""
    manifest = read_backup(target)
    advance = begin(manifest.size)
    files = batches = 0
    damage = []
    for topic in manifest.topics:
        for partition in topic.partitions:
            for file in partition.files:
                files += 1
                try:
                    for piece in file_pieces(target, partition, file):
                        batches += len(piece.batches)
                        advance(len(piece.data), len(piece.data))
                except KafkaError as error:
                    damage.append(error.message)
                except OSError as error:
                    damage.append(f"{target.name}/{partition.directory}/{file.name}: {system_words(error)}")
    return Verified(manifest, files, batches, damage)
