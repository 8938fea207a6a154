"""What `pybroker doctor` says of one file, and how a file is put out of the way."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

ASIDE: Final = ".damaged"


class Trouble(NamedTuple):
    """What is wrong with a file, and what mends it; None where a person has to."""

    path: Path
    what: str
    cure: str
    mend: Callable[[], object] | None


def put_aside(path: Path) -> None:
    os.replace(path, f"{path}{ASIDE}")


def remove(path: Path) -> None:
    """Remove a file that may be gone already, with another one that was mended."""
    path.unlink(missing_ok=True)
