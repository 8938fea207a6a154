"""A finding of `pybroker doctor` about one file, and functions that move files out of the way."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.replication.disks.checkpoints import Spot

ASIDE: Final = ".damaged"


class Finding(NamedTuple):
    """A fault of a file, its cure, and the function that repairs it; None if a person must."""

    path: Path
    what: str
    cure: str
    mend: Callable[[], object] | None


def lost_offsets(spot: Spot, of: str = "") -> str:
    """Describe the offsets that a bad spot costs."""
    if spot.first == spot.next:
        return f"no offset{of} is lost"
    return f"the offsets {spot.first}..{spot.next - 1}{of} are lost"


def aside_of(path: Path | str) -> Path:
    """Return an unused name for keeping a copy of a file; earlier copies keep theirs."""
    found, number = Path(f"{path}{ASIDE}"), 2
    while os.path.lexists(found):
        found, number = Path(f"{path}.{number}{ASIDE}"), number + 1
    return found


def put_aside(path: Path) -> None:
    os.rename(path, aside_of(path))


def hand_over(path: Path) -> None:
    """Give a new file the log dir's owner, if root created it: the broker has to read it. Raises OSError."""
    directory = path.parent.stat()
    if os.geteuid() == 0 and (directory.st_uid, directory.st_gid) != (0, 0):
        os.chown(path, directory.st_uid, directory.st_gid, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a file, which an earlier repair may have removed already."""
    path.unlink(missing_ok=True)
