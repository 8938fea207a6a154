"""Says on standard error what a command waits for, so that no command is silent for long."""

import threading
import time
from contextvars import ContextVar, Token
from typing import Final, Self

import click

from pybroker.logs import printable

QUIET_S: Final = 2.0
"""Seconds after which the first line appears, and between two lines. At 0 each change is said at once."""
_is_within: Final = ContextVar("is_within", default=False)


class WaitReport:
    """One wait: `on` sets what for. Nothing is said if it ends within QUIET_S; then each change is, but no line comes
    sooner than QUIET_S after another. A thread says it, as the caller may be in a request without an answer. A wait
    within another one, of the same thread, is a part of that and silent."""

    def __init__(self, words: str = "") -> None:
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._words = words
        self._said = ""
        self._token: Token[bool] | None = None
        self._next_s = time.monotonic() + QUIET_S
        self._thread = threading.Thread(target=self._keep_saying, name="waiting", daemon=True)

    def __enter__(self) -> Self:
        if not _is_within.get():
            self._token = _is_within.set(True)
            self._say()
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._token is not None:
            _is_within.reset(self._token)
            self._thread.join()

    def on(self, words: str) -> None:
        """Set what the command waits for, as the rest of a sentence that begins with "waiting"; empty for nothing."""
        with self._lock:
            self._words = words
        if self._token is not None:
            self._say()

    def _keep_saying(self) -> None:
        while not self._over.wait(QUIET_S or None):
            self._say()

    def _say(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            if not self._words or self._words == self._said or now_s < self._next_s:
                return
            self._said, self._next_s = self._words, now_s + QUIET_S
            click.echo(f"pybroker: waiting {printable(self._said)}", err=True)
