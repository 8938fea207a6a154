"""The .lock of a log dir: whose the directory is while it is open, and in which boot of the machine it was written to.

While the boot lasts that is named there, all that was below the recorded high watermarks is in the files, on disk or
not. So it is named only once they are recorded: after a loss of power they tell of more than is there.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from pybroker import forks

LOCK = ".lock"
FILE_MODE = 0o600


class LockFile:
    """The lock of one log dir, held from take() to close()."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LOCK)
        self._descriptor = -1
        self._named = False  # the boot, by this life

    def take(self) -> bool:
        """False if another has it. Raises OSError. Two kinds of lock: flock also holds brokers of one process apart,
        lockf is the one that Kafka takes."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        forks.tell(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        return True

    def names_this_boot(self) -> bool:
        boot = _boot_id()
        return bool(boot) and os.pread(self._descriptor, len(boot) + 1, 0) == boot

    def name_boot(self) -> None:
        if self._named:
            return
        with contextlib.suppress(OSError):  # a full disk: the next start knows less
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _boot_id(), 0)
            self._named = True

    def close(self) -> None:
        """Let go of it, also for a process that was forked from this one and has the file open, too."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forked()

    def forked(self) -> None:
        """In a forked child: the lock is the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _boot_id() -> bytes:
    """What names this boot of the machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return b""
