"""A socket until TLS is spoken on it: then it is handed over, with the principal that the client's certificate makes.

    open ──bytes──> a step of the handshake, on a thread ──> open        ──it is over──> handed over
      └── too slow, or it failed: told, closed

A step is hundreds of microseconds of arithmetic without the GIL, so the event loop does not make it: a few threads do,
and those for whom none is free wait in line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from pybroker import forks
from pybroker.cluster.caller import Caller
from pybroker.config.settings import ConfigError
from pybroker.config.ssl_settings import PRINCIPAL_RULES, Ssl
from pybroker.logs import event
from pybroker.security.principals import can_log_in
from pybroker.security.ssl_principal_mapper import Rule, parse_rules, principal_name, subject_of
from pybroker.security.tls import ListenerContext, Stream, Wanted, secure, server_context
from pybroker.security.tls_errors import HANDSHAKE_FAILED, OF_CERTIFICATES, alert_of
from pybroker.server.closings import Closings
from pybroker.server.login import LOGIN_SECONDS, Logins

log = logging.getLogger(__name__)

ALERT_SECONDS = 0.1
"""That a client has to read why it is turned away."""
NO_TLS = dict.fromkeys(("wrong version number", "http request"), "it does not speak TLS, which this listener asks for")
"""OpenSSL's words for it."""


def _explained(why: str) -> str:
    """What OpenSSL says of a handshake, for who reads the log."""
    if (alert := alert_of(why)) in OF_CERTIFICATES:
        return f"the client does not take this broker's certificate: {alert}"
    return NO_TLS.get(why, why)


@dataclass(slots=True)
class Tls:
    """What a listener speaks TLS by; another context may be put in its place at any time."""

    context: ListenerContext
    rules: Sequence[Rule]
    steps: Executor
    """Where steps are made."""
    logins: Logins
    """What counts those who are turned away."""


def tls_of(listener: str, settings: Ssl, steps: Executor, logins: Logins, *, dated: bool = True) -> Tls:
    """The TLS of a listener from its settings; `dated` as in `server_context`. Raises ConfigError."""
    context = server_context(settings, listener, dated=dated)
    try:
        rules = parse_rules(settings[PRINCIPAL_RULES])
    except ValueError as problem:
        raise ConfigError(f"{PRINCIPAL_RULES} of the listener {listener} is not allowed: {problem}") from None
    return Tls(context, rules, steps, logins)


class Owner(Protocol):
    """The listener, as a handshake sees it."""

    loop: asyncio.AbstractEventLoop
    closings: Closings

    def forget(self, connection: TlsHandshake) -> None: ...


class TlsHandshake:
    """One client's socket. What is not a step happens on the event loop's thread."""

    __slots__ = ("_closing", "_deadline", "_fd", "_hand_over", "_owner", "_stepping", "_stream", "_tls",
                 "caller", "last_active")  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        sock: socket.socket,
        caller: Caller,
        tls: Tls,
        hand_over: Callable[[Stream, Caller], object],
    ) -> None:
        """`hand_over` takes the stream, and a caller that has its principal."""
        self._owner = owner
        self._tls = tls
        self._hand_over = hand_over
        self._stream = secure(sock, tls.context, server=True)
        self._fd = self._stream.fileno()
        self._stepping = False
        self._closing = False
        self.caller = caller
        self.last_active = owner.loop.time()
        late = f"no TLS handshake within {LOGIN_SECONDS:g} s"
        self._deadline = owner.loop.call_later(LOGIN_SECONDS, self.close, late)
        owner.loop.add_reader(self._fd, self._step)

    def _step(self) -> None:
        """What it waited for is there. Nobody else touches the stream until the step is over."""
        self._watch(None)
        self._stepping = True
        loop = self._owner.loop
        loop.run_in_executor(self._tls.steps, self._stream.handshake).add_done_callback(self._stepped)

    def _stepped(self, step: asyncio.Future[Wanted]) -> None:
        self._stepping = False
        problem = None if step.cancelled() else step.exception()
        if self._closing or step.cancelled():
            self._end()
        elif problem is not None:
            self._fail(problem)
        elif (wanted := step.result()) is not None:
            self._watch(wanted)
        else:
            self._over()

    def _watch(self, wanted: Wanted) -> None:
        loop = self._owner.loop
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        if wanted == "read":
            loop.add_reader(self._fd, self._step)
        elif wanted == "write":
            loop.add_writer(self._fd, self._step)

    def _over(self) -> None:
        try:
            shown = self._stream.peer_certificate()
            caller = self.caller
            if shown is not None:
                name = principal_name(self._tls.rules, subject_of(shown))
                if not can_log_in(name):
                    raise ValueError(f"no user can be called {name!r}")
                caller = caller._replace(principal=f"User:{name}")
        except ValueError as problem:
            self._refuse(f"the client's certificate makes no principal: {problem}")
            return
        stream = self._stream
        self._leave()
        self._hand_over(stream, caller)

    def _fail(self, problem: BaseException) -> None:
        if isinstance(problem, OSError):
            why = (problem.strerror or str(problem)).removeprefix(HANDSHAKE_FAILED)
            self._refuse(_explained(why))
        else:
            event(log, logging.ERROR, "handshake failed", client=self.caller.address, reason=problem, exc_info=problem)
            self.close(None)

    def _refuse(self, why: str) -> None:
        """Tell why, and hang up a moment after the alert: what the client sent meanwhile would have it lost."""
        owner = self._owner
        self._tls.logins.failed += 1
        owner.closings.tell("TLS handshake failed", self.caller, why, owner.loop.time())
        self._deadline.cancel()
        self._watch(None)
        with contextlib.suppress(OSError):
            self._stream.sock.shutdown(socket.SHUT_WR)
        self._deadline = owner.loop.call_later(ALERT_SECONDS, self.close, None)

    def _leave(self) -> None:
        """The socket is not its own any more."""
        self._deadline.cancel()
        self._watch(None)
        self._fd = -1
        self._owner.forget(self)

    def finish(self) -> None:
        """The listener closes."""
        self.close(None)

    def forked(self) -> None:
        """In a forked child: the socket is the parent's."""
        self._stream.close()

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Hang up. Again does nothing. A descriptor that a step still uses is closed after it."""
        if self._fd < 0 or self._closing:
            return
        self._closing = True
        if reason is not None and level < logging.WARNING:
            event(log, level, "connection closed", client=self.caller.address, reason=reason)
        elif reason is not None:
            self._owner.closings.tell("TLS handshake failed", self.caller, reason, self._owner.loop.time())
        if not self._stepping:
            self._end()

    def _end(self) -> None:
        stream = self._stream
        self._leave()
        forks.hang_up(stream)
