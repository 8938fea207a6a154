"""Choose the files of a table to merge: those of one level, once a directory has enough of them.

    level 0: written by a batch         N of them become a file of level 1
    level 1                             N of those become a file of level 2, and so on

A file that is large enough has no level. So each row is rewritten at most log_N(batches) times, however few rows a
directory gets. A file's level is the number of merges, and is part of its name.
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
    """Return how often a file was merged. Names of earlier versions have no number."""
    found = _MERGED.search(path)
    return int(found[1] or 1) if found else 0


def due(files: Iterable[tuple[str, int]], files_min: int, file_bytes: int) -> list[Merge]:
    """Return the merges to do among (path, bytes), for files of about `file_bytes`."""
    levels: dict[tuple[str, int], list[tuple[str, int]]] = {}
    for path, size in files:
        if size < file_bytes // 2:
            levels.setdefault((path.rpartition("/")[0], level_of(path)), []).append((path, size))
    return [
        Merge(directory, level, tuple(path for path, _ in found), max(1, round(sum(n for _, n in found) / file_bytes)))
        for (directory, level), found in sorted(levels.items())
        if len(found) >= max(2, files_min)
    ]
