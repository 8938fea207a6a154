"""Progress of a long run, on standard error, and only on a terminal."""

import sys
import time
from typing import Final

_EVERY_S: Final = 0.5
_ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """Records and bytes so far, shown twice a second; a run shorter than that shows nothing."""

    def __init__(self, verb: str, *, shown: bool) -> None:
        self.records = 0
        self.bytes = 0
        self._verb = verb
        self._shown = shown and sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + _EVERY_S
        self._drawn = False

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size
        if self._shown and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _EVERY_S
            self._drawn = True
            sys.stderr.write(f"{_ERASE}{self._line()}")
            sys.stderr.flush()

    def end(self) -> None:
        """Print the final figures over the last ones."""
        if self._drawn:
            sys.stderr.write(f"{_ERASE}{self._line()}\n")
            sys.stderr.flush()

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._began_s, 1e-3)
        return (
            f"{self.records:,} records {self._verb}, {self.bytes / 1e6:,.1f} MB in {seconds:.0f} s: "
            f"{self.records / seconds:,.0f} records/s, {self.bytes / 1e6 / seconds:,.1f} MB/s"
        )
