"""The .lock of a log dir: it excludes other brokers, and names the boot of the machine in which the dir was written to.

Until the machine reboots, all records below the recorded high watermarks are in the files, synced or not. After a loss
of power, records below them may be missing. The boot id is therefore written after the high watermarks.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from pybroker import fork_safety

LOCK = ".lock"
FILE_MODE = 0o600


class LockFile:
    """The lock of one log dir, held from take() to close()."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LOCK)
        self._descriptor = -1
        self._named = False  # True once this process has written the boot id

    def take(self) -> bool:
        """Take the lock; False if another broker has it. Raises OSError.

        Two kinds of lock: flock also separates brokers in one process, lockf is the one that Kafka takes."""
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        fork_safety.tell(self)
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
        with contextlib.suppress(OSError):  # a full disk: the next start will not trust the high watermarks
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, _boot_id(), 0)
            self._named = True

    def close(self) -> None:
        """Release the lock, also for forked processes that have the file open."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            self.forked()

    def forked(self) -> None:
        """Close the file in a forked child, without a release: the lock is the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _boot_id() -> bytes:
    """The id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return b""
