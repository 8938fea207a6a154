"""Which files of a table are to be merged: those of a level, when there are enough of them in a directory.

    level 0: what a batch wrote         N of them make a file of level 1
    level 1                             N of those make a file of level 2, and so on

A file that is large enough is in no level. So each row is written anew at most log_N(batches) times, however few rows
a directory gets: a level says how often a file was merged, and its name tells it.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_MERGED: Final = re.compile(r"-compact(\d*)-\d+-[0-9a-f]+\.parquet$")


class Merge(NamedTuple):
    """Files of one directory and one level that become `pieces` files of the next."""

    directory: str
    level: int
    paths: tuple[str, ...]
    pieces: int


def level_of(path: str) -> int:
    """How often a file was merged. A name without a number is of a time when all that were merged were alike."""
    found = _MERGED.search(path)
    return int(found[1] or 1) if found else 0


def due(files: Iterable[tuple[str, int]], files_min: int, file_bytes: int) -> list[Merge]:
    """The merges to be made of (path, bytes), for files of about `file_bytes`."""
    levels: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for path, size in files:
        if size < file_bytes // 2:
            levels.setdefault((path.rpartition("/")[0], level_of(path)), []).append((path, size))
    return [
        Merge(directory, level, tuple(path for path, _ in found), max(1, round(sum(n for _, n in found) / file_bytes)))
        for (directory, level), found in sorted(levels.items())
        if len(found) >= max(2, files_min)
    ]
