"""What `pybroker doctor` says of one file, and how a file is put out of the way."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pybroker.replication.checkpoints import Spot

ASIDE: Final = ".damaged"


class Trouble(NamedTuple):
    """What is wrong with a file, and what mends it; None where a person has to."""

    path: Path
    what: str
    cure: str
    mend: Callable[[], object] | None


def lost(spot: Spot, of: str = "") -> str:
    """Which offsets a bad spot costs."""
    if spot.first == spot.next:
        return f"no offset{of} is lost"
    return f"the offsets {spot.first}..{spot.next - 1}{of} are lost"


def aside_of(path: Path | str) -> Path:
    """A name for what is kept of a file; what was kept of it earlier has another one."""
    found, number = Path(f"{path}{ASIDE}"), 2
    while os.path.lexists(found):
        found, number = Path(f"{path}.{number}{ASIDE}"), number + 1
    return found


def put_aside(path: Path) -> None:
    os.rename(path, aside_of(path))


def hand_over(path: Path) -> None:
    """Make a new file that of the log dir's owner, if root made it: the broker has to read it. Raises OSError."""
    directory = path.parent.stat()
    if os.geteuid() == 0 and (directory.st_uid, directory.st_gid) != (0, 0):
        os.chown(path, directory.st_uid, directory.st_gid, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a file that may be gone already, with another one that was mended."""
    path.unlink(missing_ok=True)
