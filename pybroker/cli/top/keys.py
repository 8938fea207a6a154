"""Single keys from a terminal, without Enter."""

import os
import select
import sys
import termios
import tty
from typing import Any, Self


class Keys:
    """The keys that are pressed while the block runs; none if standard input is no terminal. The terminal is as before
    after it."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._descriptor >= 0:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the keys pressed within this time, as soon as there is one; "" if there is none."""
        readable, _, _ = select.select([self._descriptor] if self._descriptor >= 0 else [], [], [], seconds)
        if not readable:
            return ""
        pressed = os.read(self._descriptor, 64).decode(errors="ignore")
        return pressed or "q"  # the terminal is gone
