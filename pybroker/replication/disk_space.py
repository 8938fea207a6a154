"""The room that a log dir has: whether it takes appends, and what is set aside for what makes room.

    takes appends ──a call found no space or no right, and a look finds none either──> full
          ^                                                                              │
          └── HOLD_S later at the earliest, a look once a second finds room ─────────────┘

    takes appends   RESERVE, a file of RESERVE_BYTES, holds that much of the disk
    full            appends are refused, of clients, leaders and coordinators alike. A checkpoint or a write of the
                    coordination store that does not fit is given a part of RESERVE: deletions and settings go on, and
                    no other program takes what they do not need yet. Reads and retention go on

A look writes RESERVE anew, beside the old one, and asks for `margin` more: there is room only where a call just found
some, whatever statvfs says of quotas and inodes. A call that did not fit on a disk that has room leaves the state as it
is. Appends are refused before a part of RESERVE is given up, or they would take it.

Full are ENOSPC and EDQUOT, and what looks alike to clients and passes likewise: EACCES and EPERM. A disk that failed
(EIO, EROFS) is offline instead, for good (core/storage/log_dir.pyx). EMFILE, ENFILE and ENOMEM are lacks of the process
or the machine: they say nothing of a log dir, and pass with what the process does just then.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from pybroker import core
from pybroker.logs import event

log = logging.getLogger(__name__)

RESERVE: Final = "full-disk-reserve"
RESERVE_BYTES: Final = 4 << 20
"""The journal of the coordination store grows no larger, as a rule, before it is written back."""
PART_BYTES: Final = 1 << 20
"""Given up at a time."""
MARGIN_BYTES_MAX: Final = 64 << 20
"""As much as a segment reserves ahead."""
MARGIN_PART: Final = 64
"""On a small disk the margin is this part of it."""
HOLD_S: Final = 5.0
"""A log dir is full for so long at least, or leaders would move with each deletion on a disk that is filled as fast."""
LOOK_S: Final = 1.0
LACKS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM)
_WORDS_S: Final = 60.0
_EARLIER: Final = "coordination.sqlite-reserve"  # what earlier versions set aside


class DiskSpace:
    """The room in the log dir at `path`; `now_s` is monotonic."""

    def __init__(self, path: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._now_s = now_s
        self._reserve = os.path.join(path, RESERVE)
        self._core: core.Broker | None = None
        self._error = 0
        self._look_at_s = 0.0
        self._told_at_s = -_WORDS_S  # when a call that did not fit was last logged
        self._looking = threading.RLock()
        self.on_changed: Callable[[], object] = lambda: None
        """Called when it became full, or is full no more; on any thread."""

    @property
    def lack(self) -> str:
        """Why it takes no appends, in the system's words; empty while it does."""
        return os.strerror(self._error).lower() if self._error else ""

    def open(self) -> None:
        """Before anything is written at a start, opening the coordination store above all: see that it has room."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, _EARLIER))
        while self._disk()[1] < PART_BYTES and self._give_up_part():
            pass

    def begin(self, to: core.Broker) -> None:
        """From now on appends are refused while it is full: it may be from the start."""
        with self._looking:
            self._core = to
            if (error := self._keep()) in LACKS:
                self._enter(error)

    def look(self, *, at_once: bool = False) -> None:
        """See what calls found, and while it is full, whether there is room again, `at_once` or when it is time. Waits
        for the disk."""
        with self._looking:
            if self._core is None:
                return
            found = self._core.take_lack(self._path)
            if not self._error and found:
                self._consider(found)
            elif self._error and (at_once or self._now_s() >= self._look_at_s):
                self._look_at_s = self._now_s() + LOOK_S
                if not self._room():
                    self._leave()

    def note(self, error: int | None) -> None:
        """See whether it is full: a call that core counts nowhere failed with this errno. Waits for the disk."""
        with self._looking:
            if error in LACKS and self._core is not None and not self._error:
                self._consider(error)

    def lacks(self, error: int | None = errno.ENOSPC) -> bool:
        """A call that what makes room needs failed with an errno, perhaps for a lack. True if it may succeed now: there
        is room, or some was given up. Waits for the disk."""
        with self._looking:
            if error not in LACKS or self._core is None:
                return False
            if not self._error:
                self._consider(error)
            return not self._error or self._give_up_part()

    def _consider(self, error: int) -> None:
        """Be full, unless there is room for all that a call did not find."""
        if self._room():
            self._enter(error)
        elif self._now_s() - self._told_at_s >= _WORDS_S:
            self._told_at_s = self._now_s()
            why, free = os.strerror(error).lower(), self._disk()[1]
            event(log, logging.WARNING, "write did not fit", directory=self._path, reason=why, free_bytes=free)

    def _enter(self, error: int) -> None:
        assert self._core is not None
        self._error = error
        self._look_at_s = self._now_s() + HOLD_S
        free = self._disk()[1]
        self._core.refuse_appends(self._path, error)
        event(log, logging.ERROR, "log dir full", directory=self._path, reason=self.lack, free_bytes=free)
        self.on_changed()

    def _leave(self) -> None:
        assert self._core is not None
        self._error = 0
        self._core.refuse_appends(self._path, 0)
        event(log, logging.INFO, "log dir has room again", directory=self._path, free_bytes=self._disk()[1])
        self.on_changed()

    def _room(self) -> int:
        """Write what is set aside anew, and see whether as much as the margin is left; an errno where it is not."""
        error = self._keep()
        size, free = self._disk()
        return error or (0 if free >= min(MARGIN_BYTES_MAX, size // MARGIN_PART) else errno.ENOSPC)

    def _keep(self) -> int:
        """Set room aside, in a new file; 0, or the errno for which there is none."""
        assert self._core is not None
        new = f"{self._reserve}.new"
        try:
            self._core.set_aside(new, RESERVE_BYTES)
            os.truncate(new, RESERVE_BYTES)  # or it could not be given up in parts
            os.replace(new, self._reserve)
        except OSError as problem:
            return problem.errno or errno.EIO
        return 0

    def _give_up_part(self) -> bool:
        """Give up a part of what is set aside; False if nothing is left."""
        try:
            left = os.stat(self._reserve).st_size - PART_BYTES
            if left > 0:
                os.truncate(self._reserve, left)
            else:
                os.unlink(self._reserve)
        except OSError:
            return False
        return True

    def _disk(self) -> tuple[int, int]:
        """The size of the disk and what is free of it, in bytes; 0 where it cannot be asked: the check of the log dir
        reports that."""
        try:
            disk = os.statvfs(self._path)
        except OSError:
            return 0, 0
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
