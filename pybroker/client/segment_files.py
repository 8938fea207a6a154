"""The segments of a partition's directory, by the names of their files."""

import contextlib
import os
import re
from pathlib import Path
from typing import Final

_LOG_NAME: Final = re.compile(r"(\d{20})\.log")


def bases(directory: Path) -> list[int]:
    """Return the base offsets of the segments that are there now, ascending. Raises OSError."""
    return sorted(int(found[1]) for name in os.listdir(directory) if (found := _LOG_NAME.fullmatch(name)))


def path_of(directory: Path, base: int, suffix: str) -> Path:
    return directory / f"{base:020}{suffix}"


def base_behind(directory: Path, base: int) -> int | None:
    """Return the base of the next segment with records. Call it after a file is open: compaction removes merged
    segments before it renames the new one."""
    for after in bases(directory):
        with contextlib.suppress(FileNotFoundError):
            if after > base and path_of(directory, after, ".log").stat().st_size:
                return after
    return None
