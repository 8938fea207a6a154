"""A socket until somebody is logged in on it: one small frame at a time, for a short while; then it is handed over.

    open ──frame──> answered ──> open        ──a user is logged in──> handed over, with nothing read beyond
      │                └──refused──> silent, for connection.failed.authentication.delay.ms ──> answered, closed
      └── too large, too slow, too many bytes held by others like it, end of the stream: closed

Nothing beyond a frame is read, so that whoever takes the socket over finds in it what follows.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pybroker import forks
from pybroker.cluster.caller import Caller, Disconnect, Session
from pybroker.config.oauth_settings import OAUTHBEARER
from pybroker.logs import event
from pybroker.security.handshake import Handshake, Mechanisms, Step
from pybroker.security.tls import Stream, pending
from pybroker.server.closings import Closings
from pybroker.server.connection import HEARD_MS, SIZE_BYTES, Responder, Waiting

log = logging.getLogger(__name__)

LOGIN_SECONDS = 30.0
SMALL_FRAME_BYTES = 4096
"""So much of a frame is kept for everybody: logins with a password are smaller, and no stranger keeps them out."""
TOKEN_FRAME_BYTES = 16 << 10
"""The same where clients log in by tokens, which name groups and roles."""
HELD_BYTES_MAX = 32 << 20
"""What frames of all who are not logged in yet may hold in memory together, beyond those first bytes."""
TLS_HANDSHAKE = b"\x16\x03"
"""What a client of TLS begins with."""
ERROR_CODE = slice(4, 6)
"""Of an answer to ApiVersions, behind its correlation id."""


@dataclass(slots=True)
class Logins:
    """What logins of one broker have in common."""

    frame_bytes_max: int
    delay_seconds: float
    mechanisms: dict[str, Mechanisms]
    """By listener; those of a listener may be exchanged at any time."""
    held_bytes: int = 0
    failed: int = 0
    """Logins that were refused."""
    credentials: int = 0
    """Those of them whose password, proof or token was refused."""
    expired: int = 0
    """Connections that were closed since their login had ended."""

    def count_refused(self, step: Step) -> None:
        self.failed += 1
        self.credentials += step.credentials


class Owner(Protocol):
    """The listener, as a login sees it."""

    loop: asyncio.AbstractEventLoop
    responder: Responder
    closings: Closings

    def forget(self, connection: "Login") -> None: ...


class Login:
    """One client's socket. Everything happens on the event loop's thread."""

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
        owner: Owner,
        sock: socket.socket | Stream,
        caller: Caller,
        logins: Logins,
        hand_over: Callable[[socket.socket | Stream, Caller], object],
    ) -> None:
        """`hand_over` takes the socket, and a caller that has its principal."""
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
        """Read on: what TLS has decrypted already, too, of which the socket says nothing."""
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
            self.close("the client left before it was logged in", logging.DEBUG)
            return
        before = self._large_bytes()
        self._frame += data
        more = self._large_bytes() - before
        self._logins.held_bytes += more
        if more and self._logins.held_bytes > HELD_BYTES_MAX:
            self.close("others who are not logged in hold too much memory")
        elif len(self._frame) == self._need:
            self._whole()
        if self._fd >= 0 and self._reading and pending(self._sock):
            self._owner.loop.call_soon(self._readable)

    def _whole(self) -> None:
        """The size of a frame is known, or all of it is there."""
        if self._need == SIZE_BYTES:
            size = int.from_bytes(self._frame, "big", signed=True)
            if not 0 <= size <= self._logins.frame_bytes_max:
                most = self._logins.frame_bytes_max
                why = f"a frame of {size} bytes before a login; allowed are 0 to {most}"
                if self._frame.startswith(TLS_HANDSHAKE):
                    why = "it speaks TLS, which this listener does not"
                self._refuse(Step(failed=why))
                return
            self._need += size
            if size:
                return
        self._hear(bytes(memoryview(self._frame)[SIZE_BYTES:]))

    def _hear(self, frame: bytes) -> None:
        """Go on with a frame that is whole, at once, or when what is to be read for it was read."""
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
        """The answer to ApiVersions, and whether it tells them. A version that is not served is answered too."""
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
        """Send an answer, reading nothing until it is sent; `then` None: read on."""
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
            self.close("the client left before it was logged in", logging.DEBUG)
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

    # -- how it ends -------------------------------------------------------------------------------------------------

    def _refuse(self, step: Step) -> None:
        """Answer the refusal and hang up after a delay, so that guessing is slow. Log it at once: the client may leave
        meanwhile, or have to make room for another."""
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
        """Hang up: once the client has had the time to read the answer, if there is one."""
        if step.answer is None:
            self.close(None)
            return
        self._deadline.cancel()
        self._deadline = self._owner.loop.call_later(HEARD_MS / 1000, self.close, None)

    def _logged_in(self, step: Step) -> None:
        now_s, session = self._owner.loop.time(), None
        if step.lifetime_ms:
            session = Session(step.mechanism, now_s + step.lifetime_ms / 1000)
        sock, caller = (
            self._sock,
            self.caller._replace(principal=f"User:{step.user}", session=session, by_token=step.by_token),
        )
        self._leave()
        self._hand_over(sock, caller)

    def _leave(self) -> None:
        """The socket is not its own any more."""
        self._deadline.cancel()
        self._owner.loop.remove_reader(self._fd)
        self._owner.loop.remove_writer(self._fd)
        self._fd = -1
        self._release()
        self._owner.forget(self)

    def finish(self) -> None:
        """The listener closes."""
        self.close(None)

    def forked(self) -> None:
        """In a forked child: the socket is the parent's."""
        self._sock.close()

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Hang up. Again does nothing."""
        if self._fd < 0:
            return
        if reason is not None and level < logging.WARNING:
            event(log, level, "connection closed", client=self.caller.address, reason=reason)
        elif reason is not None:
            self._tell(reason, Step())
        self._leave()
        forks.hang_up(self._sock)
