"""One socket of the slow plane: frames are executed one after another, and answers keep their order.

States of a connection; `frames` wait while a request runs or its answer is not sent yet:

    open ──bytes──> frame complete ──> running ──> answering ──> open (next frame)
    │                                   │            │
    └── paused: too many bytes wait, or the pool is short; resumed when they are executed
    end of stream: reading stops; received frames are executed, then the connection closes
    frame of a forbidden size: as at the end of a stream, but a long poll is answered at its time
    error, idle timeout, Disconnect from a handler: closed

A partial frame is held as received: memory never grows by a length that was only declared.
"""

import asyncio
import fcntl
import logging
import socket
import termios
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pybroker import fork_safety
from pybroker.core import LogError
from pybroker.decisions.caller import Caller, Disconnect, Throttle
from pybroker.logs import event
from pybroker.security.tls import Stream, pending
from pybroker.server.api.responder import HEARD_MS, SIZE_BYTES, Answer, Last, Part, Responder, Waiting
from pybroker.server.network.closed_connections import Closings
from tests.oracle.pool import Pool

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 1 << 20
"""Bytes of complete requests waiting behind the running one at which a connection's reads stop."""
SEND_BYTES_PER_TURN = 4 << 20
REQUESTS_PER_TURN = 32
"""Limits of one connection's requests and bytes before other connections get a turn."""


class Owner(Protocol):
    """State that the connections of one listener share."""

    loop: asyncio.AbstractEventLoop
    responder: Responder
    pool: Pool
    scratch: memoryview
    request_bytes_max: int
    closing: bool
    closings: Closings


class Connection:
    """A client's socket and its pending requests; used on the event loop's thread only."""

    __slots__ = (
        "_ended",
        "_fd",
        "_forget",
        "_frames",
        "_is_last",
        "_muted",
        "_need",
        "_out",
        "_owner",
        "_partial",
        "_paused",
        "_queued",
        "_refused",
        "_running",
        "_sent",
        "_sock",
        "_stuck",
        "_taken",
        "_task",
        "_throttle",
        "_waiting",
        "caller",
        "last_active",
    )

    def __init__(
        self, owner: Owner, sock: socket.socket | Stream, caller: Caller, forget: Callable[[Any], object]
    ) -> None:
        """`forget` is called when the connection is closed."""
        self._owner = owner
        self._forget = forget
        self._sock = sock
        self._fd = sock.fileno()
        self._throttle = Throttle()
        self._muted: asyncio.TimerHandle | None = None  # nothing is read or executed until then
        self.caller = caller._replace(throttle=self._throttle)
        self.last_active = owner.loop.time()
        self._partial: bytearray | None = None  # the frame that is being received, with its size
        self._need = SIZE_BYTES  # bytes of _partial until it is complete
        self._frames: deque[bytes | memoryview] | None = None
        self._queued = 0  # bytes in _frames
        self._running = 0  # bytes of the request that runs or is being answered
        self._task: asyncio.Task[Answer] | None = None
        self._waiting: Waiting | None = None  # the request that _task executes
        self._out: deque[Part] | None = None
        self._sent = 0  # bytes of _out[0] that are sent
        self._stuck = False  # the socket takes no more at the moment
        self._taken: tuple[object, float] | None = None  # how much of _out the peer has received, and since when
        self._paused = False
        self._ended = False
        self._is_last = False  # no request after the last answer is executed
        self._refused: str | None = None  # why reading stopped
        self._read_on()

    # -- in --------------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        self._owner.loop.add_reader(self._fd, self._readable)
        self._read_pending()

    def _read_pending(self) -> None:
        """Read input that TLS has already decrypted, which the socket does not report as readable."""
        if self._fd >= 0 and pending(self._sock):
            self._owner.loop.call_soon(self._readable)

    def _readable(self) -> None:
        owner = self._owner
        if self._fd < 0 or self._paused or self._ended:
            return
        if self._muted is not None and not self._has_left():
            self._pause()
            return
        if self._queued >= QUEUED_BYTES_MAX:
            self._pause()
            return
        if owner.pool.short(self):
            self._pause()
            owner.pool.wait(self, owner.loop.time())
            return
        try:
            count = self._sock.recv_into(owner.scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if count == 0:
            self._end_of_stream()
            return
        self.last_active = owner.loop.time()
        self._feed(owner.scratch[:count])
        self._advance()
        self._read_pending()

    def _feed(self, data: memoryview) -> None:
        """Cut received bytes into frames and queue them; stop at a size that is not allowed."""
        position, end = 0, len(data)
        while position < end:
            if self._partial is None:
                self._partial, self._need = bytearray(), SIZE_BYTES
            taken = min(self._need - len(self._partial), end - position)
            self._partial += data[position : position + taken]
            position += taken
            self._owner.pool.take(taken)
            if len(self._partial) < self._need:
                break
            if self._need == SIZE_BYTES:
                size = int.from_bytes(self._partial, "big", signed=True)
                if not 0 < size <= self._owner.request_bytes_max:
                    self._refused = f"a frame of {size} bytes; allowed are 1 to {self._owner.request_bytes_max}"
                    self._ended = True
                    self._owner.loop.remove_reader(self._fd)
                    return
                self._need += size
            else:
                self._push(memoryview(self._partial)[SIZE_BYTES:])
                self._partial = None

    def _push(self, frame: memoryview) -> None:
        if self._frames is None:
            self._frames = deque()
        self._frames.append(frame)
        self._queued += len(frame) + SIZE_BYTES
        self._owner.pool.complete(self, len(frame) + SIZE_BYTES)

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._owner.loop.remove_reader(self._fd)

    def room(self) -> None:
        """Resume reading: requests were executed, or the pool has room."""
        if self._paused and not self._ended and self._fd >= 0:
            self._paused = False
            self._read_on()

    def _end_of_stream(self) -> None:
        """Handle the end of the client's stream: execute complete frames, cancel a long poll (Fetch)."""
        self._ended = True
        self._owner.loop.remove_reader(self._fd)
        self._give_up()
        self._advance()

    def _give_up(self) -> None:
        """Cancel a request that may be abandoned, one turn later: an unstarted task would not clean up."""
        if self._task is not None and self._waiting is not None and self._waiting.abandon:
            self._owner.loop.call_soon(self._task.cancel)

    # -- execution -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """True if nothing runs and nothing is left to send."""
        return self._task is None and not self._out

    @property
    def _may_execute(self) -> bool:
        return self.idle and not (self._owner.closing or self._is_last or self._muted is not None)

    def _advance(self) -> None:
        """Execute queued requests until one takes time, an answer does not fit the socket, or the turn is over."""
        owner, left = self._owner, REQUESTS_PER_TURN
        while self._frames and self._fd >= 0 and self._may_execute:
            if left == 0:
                owner.loop.call_soon(self._advance)
                return
            left -= 1
            self._execute(self._frames.popleft())
        if self._fd < 0:
            return
        heard = self._is_last and self._muted is None
        if self.idle and (owner.closing or heard or (self._ended and not self._frames)):
            self.close(self._refused)
        elif self._paused and self._queued < QUEUED_BYTES_MAX and self._muted is None:
            self.room()

    def _execute(self, frame: bytes | memoryview) -> None:
        self._running = len(frame) + SIZE_BYTES
        self._queued -= self._running
        try:
            answer = self._owner.responder.respond(frame, self.caller)
        except Disconnect as why:
            self.close(str(why))
            return
        except Exception as problem:
            self._fail(problem)
            return
        if isinstance(answer, Waiting):
            self._waiting = answer
            self._task = self._owner.loop.create_task(answer.answer)
            self._task.add_done_callback(self._answered)
        else:
            self._answer(answer)

    def _answered(self, task: "asyncio.Task[Answer]") -> None:
        self._task = None
        if task.cancelled():
            self._answer(None)
        elif (problem := task.exception()) is None:
            self._answer(task.result())
        elif isinstance(problem, Disconnect):
            self.close(str(problem))
        else:
            self._fail(problem)
        self._advance()

    def _fail(self, problem: BaseException) -> None:
        """Close the connection after an unexpected exception, and log the traceback."""
        event(log, logging.ERROR, "request failed", client=self.caller.address, reason=problem, exc_info=problem)
        self.close(None)

    def _answer(self, parts: Answer) -> None:
        """Queue the answer after its size, with small parts joined, and send what the socket takes."""
        self._release_request()
        self._is_last = self._is_last or isinstance(parts, Last)
        self._throttle.told = None
        if self.caller.rights is not None:
            self.caller.rights.take()  # each request is authorized again
        mute_ms = self._throttle.take_mute()
        if isinstance(parts, Last):
            mute_ms = HEARD_MS
        if mute_ms and self._fd >= 0:
            self._muted = self._owner.loop.call_later(mute_ms / 1000, self._unmute)
            self.last_active = float("inf")  # a muted connection is not idle
        if parts is None or self._fd < 0:
            _discard(parts)
            return
        joined = bytearray(sum(map(len, parts)).to_bytes(SIZE_BYTES, "big"))
        self._out = deque()
        for part in parts:
            if isinstance(part, bytes | bytearray | memoryview):
                joined += part
                continue
            if not isinstance(self._sock, socket.socket):  # only bytes can be encrypted
                joined += part.tobytes()
                part.close()
                continue
            if joined:
                self._out.append(joined)
                joined = bytearray()
            self._out.append(part)
        if joined:
            self._out.append(joined)
        self._flush()

    def _unmute(self) -> None:
        self._muted = None
        self.last_active = self._owner.loop.time()
        self._advance()

    def _has_left(self) -> bool:
        """True if a muted connection's client has disconnected and no frame is left; not seen with TLS."""
        if self._frames or not isinstance(self._sock, socket.socket):
            return False
        try:
            return not self._sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    def _release_request(self) -> None:
        pool = self._owner.pool
        pool.give(self._running, self._running, self._owner.loop.time())
        self._running = 0

    # -- out -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send until everything is sent, the socket takes no more, or the turn is over."""
        left = SEND_BYTES_PER_TURN
        try:
            while self._out and left > 0:
                count = self._send(self._out[0], len(self._out) > 1)
                if count == 0 and len(self._out[0]) > self._sent:
                    break
                left -= count
                self._sent += count
                if self._sent == len(self._out[0]):
                    _discard([self._out.popleft()])
                    self._sent = 0
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, LogError) as problem:
            self.close(f"the answer could not be sent: {problem}", logging.DEBUG)
            return
        if left < SEND_BYTES_PER_TURN and self._muted is None:
            self.last_active = self._owner.loop.time()
        if not self._out:
            self._out = None
        if bool(self._out) != self._stuck:
            self._stuck = not self._stuck
            if self._stuck:
                self._owner.loop.add_writer(self._fd, self._writable)
            else:
                self._owner.loop.remove_writer(self._fd)

    def _send(self, part: Part, more: bool) -> int:
        if isinstance(part, bytes | bytearray | memoryview):
            rest = memoryview(part)[self._sent :]
            return self._sock.send(rest, socket.MSG_MORE if more else 0)
        return part.send(self._fd, self._sent)

    def _writable(self) -> None:
        self._flush()
        if self._out is None:
            self._advance()

    def forked(self) -> None:
        """Close the socket in a forked child; the parent keeps its own."""
        self._sock.close()

    # -- end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the running request when the listener closes, send its answer, then close."""
        self._pause()
        self._advance()

    def stalls(self, seconds: float) -> bool:
        """True if the peer has received nothing of its answers for that long; must be called repeatedly."""
        if self._out is None or self._fd < 0:
            self._taken = None
            return False
        in_kernel = fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4))  # what the peer has not acknowledged
        left, now = (len(self._out), self._sent, in_kernel), self._owner.loop.time()
        if self._taken is None or self._taken[0] != left:
            self._taken = left, now
        return now - self._taken[1] >= seconds

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Close the socket and release its memory; a running request goes on unless it may be abandoned."""
        if self._fd < 0:
            return
        owner, fd, self._fd = self._owner, self._fd, -1
        if reason is not None and level < logging.WARNING:
            event(log, level, "connection closed", client=self.caller.address, reason=reason)
        elif reason is not None:
            owner.closings.tell("connection closed", self.caller, reason, owner.loop.time())
        if self._muted is not None:
            self._muted.cancel()
        owner.loop.remove_reader(fd)
        owner.loop.remove_writer(fd)
        fork_safety.hang_up(self._sock)
        _discard(self._out)
        partial = len(self._partial) if self._partial is not None else 0
        running = 0 if self._task is not None else self._running
        whole = self._queued + running
        self._out = self._frames = self._partial = None
        self._running -= running
        self._queued = 0
        self._give_up()
        owner.pool.leave(self)
        owner.pool.give(partial + whole, whole, owner.loop.time())
        self._forget(self)


def _discard(parts: Iterable[Part] | None) -> None:
    """Unpin the files that unsent parts hold."""
    for part in parts or ():
        if not isinstance(part, bytes | bytearray | memoryview):
            part.close()
