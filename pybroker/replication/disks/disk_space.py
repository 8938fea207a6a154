"""The space of a log dir: whether it takes appends, and the reserve for operations that make room.

    takes appends ──a call found no space or no right, and a check finds none either──> full
          ^                                                                               │
          └── after HOLD_S: a check once a second finds room ─────────────────────────────┘

    takes appends   RESERVE, a file of RESERVE_BYTES, holds that much of the disk
    full            appends of clients, leaders and coordinators are refused. If a checkpoint or a write of the
                    coordination store does not fit, a part of RESERVE is freed for it: so deletions and settings go on,
                    and no other program takes the rest. Reads and retention go on.

A check writes RESERVE again, beside the old file, and then requires a margin of free space. The write is the real test:
statvfs does not see quotas and inodes. If a call did not fit but a check finds room, the state stays as it is. Appends
are refused before a part of RESERVE is freed: otherwise they would take it.

ENOSPC and EDQUOT mean full. So do EACCES and EPERM, which look the same to clients, and pass when an operator acts. A
disk that failed (EIO, EROFS) is offline instead, for good (core/storage/log/log_dir.pyx). EMFILE, ENFILE and ENOMEM are
shortages of the process or the machine, not of a log dir, and pass by themselves.
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
"""The size that the coordination store's journal usually reaches before it is written back."""
PART_BYTES: Final = 1 << 20
"""Bytes of RESERVE that are freed at a time."""
MARGIN_BYTES_MAX: Final = 64 << 20
"""Free space to require besides RESERVE: as much as a segment reserves ahead."""
MARGIN_PART: Final = 64
"""On a small disk the margin is the size of the disk divided by this."""
HOLD_S: Final = 5.0
"""A log dir stays full for at least this long: else leaders would move each time a deletion makes a little room."""
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
        self._core: core.LogManager | None = None
        self._error = 0
        self._look_at_s = 0.0
        self._told_at_s = -_WORDS_S  # when a call that did not fit was last logged
        self._looking = threading.RLock()
        self._on_changed: Callable[[], object] = lambda: None

    def report_to(self, on_changed: Callable[[], object]) -> None:
        """Have `on_changed` called, on any thread, when the log dir becomes full and when it has room again."""
        self._on_changed = on_changed

    @property
    def lack(self) -> str:
        """The system's message for why the log dir takes no appends; empty while it takes them."""
        return os.strerror(self._error).lower() if self._error else ""

    def open(self) -> None:
        """Make room for the writes of a start, above all for opening the coordination store; call this before them."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._path, _EARLIER))
        while self._disk()[1] < PART_BYTES and self._give_up_part():
            pass

    def begin(self, to: core.LogManager) -> None:
        """Refuse appends from now on while the log dir is full, as it may be from the start."""
        with self._looking:
            self._core = to
            if (error := self._keep()) in LACKS:
                self._enter(error)

    def look(self, *, at_once: bool = False) -> None:
        """Enter the full state if a call found no room; leave it if there is room again, which is checked when it is
        time, or `at_once`. Waits for the disk."""
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
        """Check whether the log dir is full, after a call outside core failed with this errno. Waits for the disk."""
        with self._looking:
            if error in LACKS and self._core is not None and not self._error:
                self._consider(error)

    def lacks(self, error: int | None = errno.ENOSPC) -> bool:
        """Make room for a call that failed with this errno, if the errno is a lack of room.

        True if the call may succeed now: there is room, or a part of RESERVE was freed. Waits for the disk."""
        with self._looking:
            if error not in LACKS or self._core is None:
                return False
            if not self._error:
                self._consider(error)
            return not self._error or self._give_up_part()

    def _consider(self, error: int) -> None:
        """Enter the full state after a call failed, unless a check finds room."""
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
        self._on_changed()

    def _leave(self) -> None:
        assert self._core is not None
        self._error = 0
        self._core.refuse_appends(self._path, 0)
        event(log, logging.INFO, "log dir has room again", directory=self._path, free_bytes=self._disk()[1])
        self._on_changed()

    def _room(self) -> int:
        """Write RESERVE again and check that the margin is free besides; 0, or the errno if there is no room."""
        error = self._keep()
        size, free = self._disk()
        return error or (0 if free >= min(MARGIN_BYTES_MAX, size // MARGIN_PART) else errno.ENOSPC)

    def _keep(self) -> int:
        """Write RESERVE as a new file; 0, or the errno of the failure."""
        assert self._core is not None
        new = f"{self._reserve}.new"
        try:
            self._core.set_aside(new, RESERVE_BYTES)
            os.truncate(new, RESERVE_BYTES)  # `_give_up_part` shrinks by size, which the reservation left at 0
            os.replace(new, self._reserve)
        except OSError as problem:
            return problem.errno or errno.EIO
        return 0

    def _give_up_part(self) -> bool:
        """Free a part of RESERVE; False if nothing is left of it."""
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
        """The size of the disk and its free bytes; 0 and 0 if statvfs fails, which the check of the log dir reports."""
        try:
            disk = os.statvfs(self._path)
        except OSError:
            return 0, 0
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
