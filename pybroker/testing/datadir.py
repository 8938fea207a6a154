"""Where a broker of a test keeps its data: in memory where there is room, locked while it is used, removed after.

    BASE/pybroker-test-XXXXXXXX/     locked (flock) by the process that runs the tests, so that the lock ends with it
        data/                        the broker's log dir
        broker.log                   what a broker in a process of its own says

A test run that was killed leaves its directory behind, but not the lock: the next one finds it unlocked and removes it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from typing import Final

MEMORY: Final = "/dev/shm"
MEMORY_FREE_BYTES_MIN: Final = 256 << 20
"""With less room there (a container may have 64 MiB) the directory for temporary files is taken."""
PREFIX: Final = "pybroker-test-"
SWEEP_AGE_S: Final = 60.0
"""Younger directories may be about to be locked by those who made them."""

REMOVE_TRIES: Final = 20
"""At the end of an interpreter threads of the broker still run: a file that one makes keeps its directory."""


class DataDir:
    """One broker's directory; `log_dir` and `log_file` lie in it."""

    def __init__(self, path: str | None = None) -> None:
        """Make one, or use `path`, which is then left where it is by remove(). Raises OSError."""
        self.kept = path is not None
        if path is None:
            base = _base()
            _sweep(base)
            path = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        else:
            os.makedirs(path, exist_ok=True)
        self.path = path
        self.log_dir = os.path.join(path, "data")
        self.log_file = os.path.join(path, "broker.log")
        self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    def forked(self) -> None:
        """In a forked child: it is the parent's, and remove() does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove it, unless the test gave it; calling it again does nothing."""
        if self._lock < 0:
            return
        os.close(self._lock)
        self._lock = -1
        if not self.kept:
            remove_tree(self.path)


def remove_tree(path: str) -> None:
    """Remove a broker's directory, whose threads may still write into it."""
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return


def _base() -> str:
    """Memory, where fsync costs nothing, or the directory for temporary files; TMPDIR says that somebody chose."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= MEMORY_FREE_BYTES_MIN:
            return MEMORY
    return tempfile.gettempdir()


def _sweep(base: str) -> None:
    """Remove what test runs left that were killed."""
    with os.scandir(base) as entries:
        old = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in old:
        with contextlib.suppress(OSError):  # it is somebody else's, in use, or gone meanwhile
            if time.time() - entry.stat().st_mtime > SWEEP_AGE_S:
                _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Remove a directory that nobody uses. Raises OSError, BlockingIOError if it is in use."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(held)
