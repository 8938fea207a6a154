"""Files that a compaction or a deletion left in a partition's directory when it was cut short, for `pybroker doctor`.

What becomes of them is what a start makes of them (core's swap.pyx, and Kafka's LogLoader):

    .deleted, .cleaned, .tmp        removed: nobody reads them
    <base>.log.swap                 put in the place of the segments whose base lies in it: the compaction was decided
    <base>.log.swap, empty          removed, while the segment with its base is still there
    <base>.log.swap, not whole      put aside, while the segment with its base is still there (a start removes it)
    .swap behind a .cleaned         removed: one segment was becoming several, and not all of them were there
    .index.swap and others alone    removed: a compaction that was not decided, or one that is done
"""

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pybroker import core
from pybroker.cli.trouble import Trouble, put_aside, remove

USELESS: Final = (".deleted", ".cleaned", ".tmp")
SWAP: Final = ".swap"
_SEGMENT: Final = re.compile(r"0[0-8][0-9]{18}\..+")
KINDS: Final = (".timeindex", ".index", ".txnindex", ".log")
"""The data file goes last: its name decides."""


def troubles(directory: Path) -> Iterator[Trouble]:
    """What is left in a partition's directory, and the cure of each. Raises OSError."""
    paths = [path for path in sorted(directory.iterdir()) if _SEGMENT.fullmatch(path.name)]
    cleaned = min((_base(path) for path in paths if path.suffix == ".cleaned"), default="~")
    bases = [path.stem for path in paths if path.suffix == ".log"]
    for path in paths:
        if path.suffix in USELESS:
            what = "it is left from a deletion or a compaction that was cut short"
            yield Trouble(path, what, "remove it", partial(remove, path))
        elif path.suffix == SWAP:
            data = directory / f"{_base(path)}.log{SWAP}"
            if _base(path) >= cleaned or not data.exists():
                what = "it is left from a compaction that was cut short before it was decided"
                yield Trouble(path, what, "remove it", partial(remove, path))
            elif path == data:
                yield _of_swap(path, bases)


def _base(path: Path) -> str:
    """The offset that a file's name begins with, in twenty digits."""
    return path.name.partition(".")[0]


def _of_swap(path: Path, bases: list[str]) -> Trouble:
    scan = core.SegmentScan(str(path))
    bad = scan.step()
    base, end = scan.base_offset, scan.end_offset
    if base == end and _base(path) in bases:
        what = "it is left from a compaction that was cut short, and is empty"
        return Trouble(path, what, "remove it: what it would replace is there", partial(remove, path))
    if bad and _base(path) in bases:
        what = f"it is left from a compaction that was cut short, and is damaged at position {bad[0][0]}"
        return Trouble(path, what, "put it aside: what it would replace is there", partial(put_aside, path))
    replaced = [name for name in bases if base < int(name) < end]
    what = f"a compaction was cut short after it was decided: it holds what remains of the offsets {base}..{end - 1}"
    cure = "finish it: put the file in the place of the segments with these offsets, as the next start does"
    return Trouble(path, what, cure, partial(finish, path, replaced))


def finish(swap: Path, replaced: list[str]) -> None:
    """Remove the segments that a .swap replaces, and give it its name. Both are on disk at the end. Raises OSError."""
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
