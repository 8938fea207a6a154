"""Single keys from a terminal, without Enter."""

import os
import select
import sys
import termios
import tty
from collections.abc import Callable
from functools import partial
from typing import Self


class TerminalKeys:
    """The keys that are pressed while the block runs; none if standard input is no terminal. The terminal is as before
    after it."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        if self._descriptor >= 0:
            before = termios.tcgetattr(self._descriptor)
            self._restore = partial(termios.tcsetattr, self._descriptor, termios.TCSADRAIN, before)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def wait(self, seconds: float) -> str:
        """Return the keys pressed within this time, as soon as there is one; "" if there is none."""
        readable, _, _ = select.select([self._descriptor] if self._descriptor >= 0 else [], [], [], seconds)
        if not readable:
            return ""
        pressed = os.read(self._descriptor, 64).decode(errors="ignore")
        return pressed or "q"  # the terminal is gone
