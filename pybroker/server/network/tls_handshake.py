"""A client's connection during its TLS handshake; then it is handed over, with the principal from its certificate.

    open ──bytes──> a step of the handshake, on a thread ──> open        ──handshake done──> handed over
      └── too slow, or failed ──> logged, closed.

A step takes hundreds of microseconds of CPU time without the GIL, so a few threads do it instead of the event loop, and
further steps wait in a queue.
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

from pybroker import fork_safety
from pybroker.config.settings import ConfigError
from pybroker.config.ssl_settings import PRINCIPAL_RULES, Ssl
from pybroker.decisions.caller import Caller
from pybroker.logs import event
from pybroker.security.principals import can_log_in
from pybroker.security.ssl_principal_mapper import Rule, parse_rules, principal_name, subject_of
from pybroker.security.tls import ListenerContext, Stream, Wanted, secure, server_context
from pybroker.security.tls_errors import HANDSHAKE_FAILED, OF_CERTIFICATES, alert_of
from pybroker.server.network.closed_connections import Closings
from pybroker.server.network.login import LOGIN_SECONDS, Logins

log = logging.getLogger(__name__)

ALERT_SECONDS = 0.1
"""Seconds that a client has to read the alert before the connection is closed."""
NO_TLS = dict.fromkeys(("wrong version number", "http request"), "it does not speak TLS, which this listener requires")
"""OpenSSL's errors for clients without TLS."""


def _explained(why: str) -> str:
    """The log text for an error of OpenSSL."""
    if (alert := alert_of(why)) in OF_CERTIFICATES:
        return f"the client rejected this broker's certificate: {alert}"
    return NO_TLS.get(why, why)


@dataclass(slots=True)
class Tls:
    """The TLS of a listener; `context` may be replaced at any time."""

    context: ListenerContext
    rules: Sequence[Rule]
    steps: Executor
    """The threads for handshake steps."""
    logins: Logins
    """Counts failed handshakes."""


def tls_of(listener: str, settings: Ssl, steps: Executor, logins: Logins, *, dated: bool = True) -> Tls:
    """The TLS of a listener by its settings; `dated` as in `server_context`. Raises ConfigError."""
    context = server_context(settings, listener, dated=dated)
    try:
        rules = parse_rules(settings[PRINCIPAL_RULES])
    except ValueError as problem:
        raise ConfigError(f"{PRINCIPAL_RULES} of the listener {listener} is not allowed: {problem}") from None
    return Tls(context, rules, steps, logins)


class HandshakeOwner(Protocol):
    """The listener, as a handshake sees it."""

    loop: asyncio.AbstractEventLoop
    closings: Closings

    def forget(self, connection: TlsHandshake) -> None: ...


class TlsHandshake:
    """One client's connection. All but the handshake steps runs on the event loop's thread."""

    __slots__ = ("_closing", "_deadline", "_fd", "_hand_over", "_owner", "_stepping", "_stream", "_tls",
                 "caller", "last_active")  # fmt: skip

    def __init__(
        self,
        owner: HandshakeOwner,
        sock: socket.socket,
        caller: Caller,
        tls: Tls,
        hand_over: Callable[[Stream, Caller], object],
    ) -> None:
        """`hand_over` takes the stream, and the caller with its principal."""
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
        """Begin a handshake step on a thread; nothing else uses the stream until the step is over."""
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
            self._refuse(f"the client's certificate maps to no principal: {problem}")
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
        """Log the reason, and close a moment after the alert: pending bytes of the client would discard the alert."""
        owner = self._owner
        self._tls.logins.failed += 1
        owner.closings.tell("TLS handshake failed", self.caller, why, owner.loop.time())
        self._deadline.cancel()
        self._watch(None)
        with contextlib.suppress(OSError):
            self._stream.sock.shutdown(socket.SHUT_WR)
        self._deadline = owner.loop.call_later(ALERT_SECONDS, self.close, None)

    def _leave(self) -> None:
        """Release the socket."""
        self._deadline.cancel()
        self._watch(None)
        self._fd = -1
        self._owner.forget(self)

    def finish(self) -> None:
        """Close, as the listener closes."""
        self.close(None)

    def forked(self) -> None:
        """Close this process's copy of the socket, in a forked child."""
        self._stream.close()

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Close the connection, after a running step. Again does nothing."""
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
        fork_safety.hang_up(stream)
