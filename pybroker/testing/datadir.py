"""A test broker's data directory: in memory if there is room, locked while it is used, removed afterwards.

    BASE/pybroker-test-XXXXXXXX/     flock held by the test run's process; it ends with the process
        data/                        the broker's log dir
        broker.log                   the log of a broker in a process of its own

A killed test run leaves its directory behind, but not the lock: the next run finds it unlocked and removes it.
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
"""Below this (a container may have 64 MiB) the directory for temporary files is used."""
PREFIX: Final = "pybroker-test-"
SWEEP_AGE_S: Final = 60.0
"""Younger directories may not have been locked yet."""

REMOVE_TRIES: Final = 20
"""Threads of the broker still run as the interpreter exits; a file that one of them creates keeps its directory."""


class DataDir:
    """One broker's directory; `log_dir` and `log_file` are in it."""

    def __init__(self, path: str | None = None) -> None:
        """Make a directory, or use `path`, which remove() then leaves in place. Raises OSError."""
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
        """Mark the directory as the parent's, in a forked child: remove() then does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove the directory, unless the test gave its path; calling it again does nothing."""
        if self._lock < 0:
            return
        os.close(self._lock)
        self._lock = -1
        if not self.kept:
            remove_tree(self.path)


def remove_tree(path: str) -> None:
    """Remove a broker's directory, into which threads of the broker may still write."""
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.exists(path):
            return


def _base() -> str:
    """The directory in memory, where fsync costs nothing, or the one for temporary files if TMPDIR is set."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK | os.X_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= MEMORY_FREE_BYTES_MIN:
            return MEMORY
    return tempfile.gettempdir()


def _sweep(base: str) -> None:
    """Remove the directories of killed test runs."""
    with os.scandir(base) as entries:
        old = [entry for entry in entries if entry.name.startswith(PREFIX)]
    for entry in old:
        with contextlib.suppress(OSError):  # another user's, in use, or already removed
            if time.time() - entry.stat().st_mtime > SWEEP_AGE_S:
                _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    """Remove a directory that is not locked. Raises OSError; BlockingIOError if it is in use."""
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(held)
