"""A client's connection during its login: reads one small frame at a time, with a time limit, then hands it over.

    open ──frame──> answered ──> open        ──the user is logged in──> handed over, with nothing read beyond.
      │                └──refused──> waits connection.failed.authentication.delay.ms ──> answered, closed.
      └── too large, too slow, too many bytes held by logins, end of the stream ──> closed.

Nothing beyond a frame is read, so that the next owner of the socket finds all further bytes in it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pybroker import fork_safety
from pybroker.config.oauth_settings import OAUTHBEARER
from pybroker.decisions.caller import Caller, Disconnect, LoginSession
from pybroker.logs import event
from pybroker.security.handshake import Handshake, Mechanisms, Step
from pybroker.security.tls import Stream, pending
from pybroker.server.api.responder import HEARD_MS, SIZE_BYTES, Responder, Waiting
from pybroker.server.network.closed_connections import Closings

log = logging.getLogger(__name__)

LOGIN_SECONDS = 30.0
SMALL_FRAME_BYTES = 4096
"""Bytes of a frame that do not count for HELD_BYTES_MAX: password logins are smaller, so floods cannot block them."""
TOKEN_FRAME_BYTES = 16 << 10
"""The same for listeners with OAUTHBEARER, whose tokens may name groups and roles."""
HELD_BYTES_MAX = 32 << 20
"""Bytes of memory for frames of all logins together, beyond the first bytes of each."""
TLS_HANDSHAKE = b"\x16\x03"
"""The first bytes that a TLS client sends."""
ERROR_CODE = slice(4, 6)
"""The error code in a response to ApiVersions, after the correlation id."""


@dataclass(slots=True)
class Logins:
    """The state that all logins of one broker share."""

    frame_bytes_max: int
    delay_seconds: float
    mechanisms: dict[str, Mechanisms]
    """The mechanisms by listener; they may be replaced at any time."""
    held_bytes: int = 0
    failed: int = 0
    """Logins that were refused."""
    credentials: int = 0
    """Refused logins whose password, proof or token was wrong."""
    expired: int = 0
    """Connections that were closed because their login had expired."""

    def count_refused(self, step: Step) -> None:
        self.failed += 1
        self.credentials += step.credentials


class LoginOwner(Protocol):
    """The listener, as a login sees it."""

    loop: asyncio.AbstractEventLoop
    responder: Responder
    closings: Closings

    def forget(self, connection: "LoginConnection") -> None: ...


class LoginConnection:
    """One client's connection; used on the event loop's thread only."""

    __slots__ = (
        "_deadline",
        "_fd",
        "_frame",
        "_hand_over",
        "_handshake",
        "_logins",
        "_need",
        "_out",
        "_owner",
        "_reading",
        "_small_bytes",
        "_sock",
        "_then",
        "_told",
        "caller",
        "last_active",
    )

    def __init__(
        self,
        owner: LoginOwner,
        sock: socket.socket | Stream,
        caller: Caller,
        logins: Logins,
        hand_over: Callable[[socket.socket | Stream, Caller], object],
    ) -> None:
        """`hand_over` takes the socket, and the caller with its principal."""
        self._owner = owner
        self._sock = sock
        self._fd = sock.fileno()
        self._logins = logins
        self._hand_over = hand_over
        self.caller = caller
        self.last_active = owner.loop.time()
        offered = logins.mechanisms[caller.listener]
        self._handshake = Handshake(offered, self._versions)
        self._small_bytes = TOKEN_FRAME_BYTES if OAUTHBEARER in offered else SMALL_FRAME_BYTES
        self._frame = bytearray()
        self._need = SIZE_BYTES
        self._out = b""
        self._told = False  # the reason of the refusal was logged
        self._then: Callable[[], None] | None = None  # once the answer is sent
        self._deadline = owner.loop.call_later(LOGIN_SECONDS, self.close, f"no login within {LOGIN_SECONDS:g} s")
        self._listen()

    # -- in ----------------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Continue reading, including bytes that TLS has already decrypted, for which the socket reports no event."""
        self._owner.loop.add_reader(self._fd, self._readable)
        self._reading = True
        if pending(self._sock):
            self._owner.loop.call_soon(self._readable)

    def _readable(self) -> None:
        if self._fd < 0 or not self._reading:
            return
        try:
            data = self._sock.recv(self._need - len(self._frame))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close("the client disconnected before its login", logging.DEBUG)
            return
        before = self._large_bytes()
        self._frame += data
        more = self._large_bytes() - before
        self._logins.held_bytes += more
        if more and self._logins.held_bytes > HELD_BYTES_MAX:
            self.close(f"requests of clients that are logging in hold more than {HELD_BYTES_MAX} bytes")
        elif len(self._frame) == self._need:
            self._whole()
        if self._fd >= 0 and self._reading and pending(self._sock):
            self._owner.loop.call_soon(self._readable)

    def _whole(self) -> None:
        """Handle a complete size field, or a complete frame."""
        if self._need == SIZE_BYTES:
            size = int.from_bytes(self._frame, "big", signed=True)
            if not 0 <= size <= self._logins.frame_bytes_max:
                most = self._logins.frame_bytes_max
                why = f"a frame of {size} bytes before the login; allowed are 0 to {most} bytes"
                if self._frame.startswith(TLS_HANDSHAKE):
                    why = "it speaks TLS, which this listener does not"
                self._refuse(Step(failed=why))
                return
            self._need += size
            if size:
                return
        self._hear(bytes(memoryview(self._frame)[SIZE_BYTES:]))

    def _hear(self, frame: bytes) -> None:
        """Handle a complete frame; if token keys have to be read first, handle it again after that."""
        if self._fd < 0:
            return
        try:
            step = self._handshake.receive(frame)
        except Disconnect as why:
            step = Step(failed=str(why))
        if step.until is not None:
            loop = self._owner.loop
            loop.remove_reader(self._fd)
            self._reading = False
            asyncio.wrap_future(step.until, loop=loop).add_done_callback(lambda _: self._hear(frame))
            return
        self._release()
        self._take(step)

    def _release(self) -> None:
        self._logins.held_bytes -= self._large_bytes()
        self._frame = bytearray()
        self._need = SIZE_BYTES

    def _large_bytes(self) -> int:
        return max(0, len(self._frame) - self._small_bytes)

    def _versions(self, frame: bytes) -> tuple[bytes, bool]:
        """Return the response to ApiVersions, and whether it is a success; an unsupported version gets a response too.
        """
        answer = self._owner.responder.respond(frame, self.caller)
        assert answer is not None and not isinstance(answer, Waiting)
        data = b"".join(bytes(part) for part in answer if isinstance(part, bytes | bytearray | memoryview))
        return data, data[ERROR_CODE] == b"\0\0"

    def _take(self, step: Step) -> None:
        if step.failed is not None:
            self._refuse(step)
        elif step.user is not None:
            self._send(step.answer, lambda: self._logged_in(step))
        else:
            self._send(step.answer, None)

    # -- out ---------------------------------------------------------------------------------------------------------

    def _send(self, answer: bytes | None, then: Callable[[], None] | None) -> None:
        """Send a response, reading nothing meanwhile, then call `then`; None: continue reading."""
        self._then = then
        if answer is not None:
            self._out = len(answer).to_bytes(SIZE_BYTES, "big") + answer
        self._owner.loop.remove_reader(self._fd)
        self._reading = False
        self._flush()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._out) if self._out else 0
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close("the client disconnected before its login", logging.DEBUG)
            return
        self._out = self._out[sent:]
        loop = self._owner.loop
        if self._out:
            loop.add_writer(self._fd, self._flush)
            return
        loop.remove_writer(self._fd)
        if self._then is not None:
            self._then()
        else:
            self._listen()

    # -- end ---------------------------------------------------------------------------------------------------------

    def _refuse(self, step: Step) -> None:
        """Send the refusal and close after a delay, which slows down guessing. Log it at once, as the client may
        disconnect or be closed meanwhile."""
        owner = self._owner
        self._logins.count_refused(step)
        self._tell(step.failed or "", step)
        owner.loop.remove_reader(self._fd)
        self._reading = False
        self._deadline.cancel()

        def answer() -> None:
            if self._fd >= 0:
                self._deadline = owner.loop.call_later(LOGIN_SECONDS, self.close, None)
                self._send(step.answer, lambda: self._part(step))

        self._deadline = owner.loop.call_later(self._logins.delay_seconds, answer)

    def _tell(self, reason: str, step: Step) -> None:
        """Log why the login is refused, once."""
        if not self._told:
            self._told = True
            owner = self._owner
            now = owner.loop.time()
            owner.closings.tell("login refused", self.caller, reason, now, step.claimed, credentials=step.credentials)

    def _part(self, step: Step) -> None:
        """Close the connection, HEARD_MS later if a response was sent, so that the client can read it."""
        if step.answer is None:
            self.close(None)
            return
        self._deadline.cancel()
        self._deadline = self._owner.loop.call_later(HEARD_MS / 1000, self.close, None)

    def _logged_in(self, step: Step) -> None:
        now_s, session = self._owner.loop.time(), None
        if step.lifetime_ms:
            session = LoginSession(step.mechanism, now_s + step.lifetime_ms / 1000)
        sock, caller = (
            self._sock,
            self.caller._replace(principal=f"User:{step.user}", session=session, by_token=step.by_token),
        )
        self._leave()
        self._hand_over(sock, caller)

    def _leave(self) -> None:
        """Release the socket."""
        self._deadline.cancel()
        self._owner.loop.remove_reader(self._fd)
        self._owner.loop.remove_writer(self._fd)
        self._fd = -1
        self._release()
        self._owner.forget(self)

    def finish(self) -> None:
        """Close, as the listener closes."""
        self.close(None)

    def forked(self) -> None:
        """Close this process's copy of the socket, in a forked child."""
        self._sock.close()

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Close the connection. Again does nothing."""
        if self._fd < 0:
            return
        if reason is not None and level < logging.WARNING:
            event(log, level, "connection closed", client=self.caller.address, reason=reason)
        elif reason is not None:
            self._tell(reason, Step())
        self._leave()
        fork_safety.hang_up(self._sock)
