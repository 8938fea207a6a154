"""Files left in a partition's directory by an interrupted compaction or deletion, for `pybroker doctor`.

The command does with them what a start does (core/compact/replace_segments.pyx, and Kafka's LogLoader):

    .deleted, .cleaned, .tmp        removed: nothing reads them
    <base>.log.swap                 replaces the segments whose base is in its range: the compaction was committed
    <base>.log.swap, empty          removed, while the segment with its base still exists
    <base>.log.swap, damaged        put aside, while the segment with its base still exists (a start removes it)
    .swap behind a .cleaned         removed: one segment was being split, and not all parts were there
    .index.swap and others alone    removed: the compaction was not committed, or is complete
"""

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pybroker import core
from pybroker.cli.files.finding import Finding, put_aside, remove

USELESS: Final = (".deleted", ".cleaned", ".tmp")
SWAP: Final = ".swap"
_SEGMENT: Final = re.compile(r"0[0-8][0-9]{18}\..+")
KINDS: Final = (".timeindex", ".index", ".txnindex", ".log")
"""The data file comes last: its name commits the replacement."""


def findings(directory: Path) -> Iterator[Finding]:
    """Yield the files left in a partition's directory, with their cures. Raises OSError."""
    paths = [path for path in sorted(directory.iterdir()) if _SEGMENT.fullmatch(path.name)]
    cleaned = min((_base(path) for path in paths if path.suffix == ".cleaned"), default="~")
    bases = [path.stem for path in paths if path.suffix == ".log"]
    for path in paths:
        if path.suffix in USELESS:
            what = "it is left from an interrupted deletion or compaction"
            yield Finding(path, what, "remove it", partial(remove, path))
        elif path.suffix == SWAP:
            data = directory / f"{_base(path)}.log{SWAP}"
            if _base(path) >= cleaned or not data.exists():
                what = "it is left from a compaction that was interrupted before its commit"
                yield Finding(path, what, "remove it", partial(remove, path))
            elif path == data:
                yield _of_swap(path, bases)


def _base(path: Path) -> str:
    """Return the offset at the start of a file's name, in twenty digits."""
    return path.name.partition(".")[0]


def _of_swap(path: Path, bases: list[str]) -> Finding:
    scan = core.SegmentScan(str(path))
    bad = scan.step()
    base, end = scan.base_offset, scan.end_offset
    if base == end and _base(path) in bases:
        what = "it is left from an interrupted compaction, and is empty"
        return Finding(path, what, "remove it: the segment that it would replace exists", partial(remove, path))
    if bad and _base(path) in bases:
        what = f"it is left from an interrupted compaction, and is damaged at position {bad[0][0]}"
        return Finding(path, what, "put it aside: the segment that it would replace exists", partial(put_aside, path))
    replaced = [name for name in bases if base < int(name) < end]
    what = f"a compaction was interrupted after its commit: this file has the remaining records of {base}..{end - 1}"
    cure = "finish it: replace the segments with these offsets by this file, as the next start does"
    return Finding(path, what, cure, partial(finish, path, replaced))


def finish(swap: Path, replaced: list[str]) -> None:
    """Remove the segments that a .swap replaces, and rename the file. Both are synced to disk. Raises OSError."""
    for name in replaced:
        for kind in KINDS:
            remove(swap.with_name(f"{name}{kind}"))
    for kind in KINDS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(swap.with_name(f"{_base(swap)}{kind}{SWAP}"), swap.with_name(f"{_base(swap)}{kind}"))
    names = os.open(swap.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(names)
    finally:
        os.close(names)
