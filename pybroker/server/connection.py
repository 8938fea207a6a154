"""One socket of the Python path: frames in, executed one after the other, answers out in the same order.

States of a connection; `frames` wait while a request runs or its answer is not sent yet:

    open ──bytes──> frame whole ──> running ──> answering ──> open (next frame)
      │                                │            │
      └── paused: too many bytes wait, or the pool is short; resumed when they are executed
    end of stream: nothing more is read, what was received is executed, then closed
    frame of a size that is not allowed: as the end of a stream, but a mere wait for news is answered in its time
    error, idle for too long, Disconnect from a handler: closed

A cut frame is held as received: memory never grows by a length that was only declared.
"""

import asyncio
import fcntl
import logging
import socket
import termios
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pybroker import forks
from pybroker.cluster.caller import Caller, Disconnect, Throttle
from pybroker.core import LogError
from pybroker.logs import event
from pybroker.security.tls import Stream, pending
from pybroker.server.closings import Closings
from pybroker.server.pool import Pool

log = logging.getLogger(__name__)

SIZE_BYTES = 4
QUEUED_BYTES_MAX = 1 << 20
"""Whole requests that a connection may have waiting behind the running one before it is no longer read."""
SEND_BYTES_PER_TURN = 4 << 20
REQUESTS_PER_TURN = 32
"""What one connection may send and execute before the others have their turn."""


class Sendable(Protocol):
    """A range of a log file that sends itself (core.Slice)."""

    def __len__(self) -> int: ...
    def send(self, fd: int, start: int = 0) -> int: ...
    def tobytes(self) -> bytes: ...
    def close(self) -> None: ...


Part = bytes | bytearray | memoryview | Sendable
Answer = list[Part] | None
"""The parts of an answer without its size; None where the request gets no answer (acks=0)."""


HEARD_MS = 50
"""That a client has to read why it is turned away: kafka-python forgets an answer that comes with the end."""


class Last(list[Part]):
    """An answer behind which the connection is closed, HEARD_MS later."""


@dataclass(slots=True)
class Waiting:
    """A request that is answered later. `abandon`: it has no effects that are needed once the client is gone; this may
    change while it waits."""

    answer: Coroutine[Any, Any, Answer]
    abandon: bool


class Responder(Protocol):
    """What executes a frame. Raises Disconnect where the connection must be closed instead of answered."""

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting: ...


class Owner(Protocol):
    """The listener, as its connections see it."""

    loop: asyncio.AbstractEventLoop
    responder: Responder
    pool: Pool
    scratch: memoryview
    request_bytes_max: int
    closing: bool
    closings: Closings

    def forget(self, connection: "Connection") -> None: ...


class Connection:
    """A client's socket and what is under way on it. Everything happens on the event loop's thread."""

    __slots__ = (
        "_ended",
        "_fd",
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

    def __init__(self, owner: Owner, sock: socket.socket | Stream, caller: Caller) -> None:
        self._owner = owner
        self._sock = sock
        self._fd = sock.fileno()
        self._throttle = Throttle()
        self._muted: asyncio.TimerHandle | None = None  # nothing is read or executed until then
        self.caller = caller._replace(throttle=self._throttle)
        self.last_active = owner.loop.time()
        self._partial: bytearray | None = None  # the frame that is being received, with its size
        self._need = SIZE_BYTES  # bytes of _partial until it is whole
        self._frames: deque[bytes | memoryview] | None = None
        self._queued = 0  # bytes in _frames
        self._running = 0  # bytes of the request that runs or is being answered
        self._task: asyncio.Task[Answer] | None = None
        self._waiting: Waiting | None = None  # the request that _task executes
        self._out: deque[Part] | None = None
        self._sent = 0  # bytes of _out[0] that are sent
        self._stuck = False  # the socket takes no more at the moment
        self._taken: tuple[object, float] | None = None  # how much of _out the peer had, and since when
        self._paused = False
        self._ended = False
        self._is_last = False  # nothing behind what was answered last is executed
        self._refused: str | None = None  # why nothing more of it is read
        self._read_on()

    # -- in --------------------------------------------------------------------------------------------------------

    def _read_on(self) -> None:
        self._owner.loop.add_reader(self._fd, self._readable)
        self._read_pending()

    def _read_pending(self) -> None:
        """What TLS has decrypted already is read, too: the socket says nothing of it."""
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
        """Cut received bytes into frames and queue them; behind a size that is not allowed nothing more is read."""
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
        """Read again: requests were executed, or the pool has room."""
        if self._paused and not self._ended and self._fd >= 0:
            self._paused = False
            self._read_on()

    def _end_of_stream(self) -> None:
        """The client sends no more: what it sent whole is executed, a mere wait for news (Fetch) is given up."""
        self._ended = True
        self._owner.loop.remove_reader(self._fd)
        self._give_up()
        self._advance()

    def _give_up(self) -> None:
        """Cancel what runs, if it may be; a turn later, for what has not begun would not be closed in good order."""
        if self._task is not None and self._waiting is not None and self._waiting.abandon:
            self._owner.loop.call_soon(self._task.cancel)

    # -- execution -------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing is left to send."""
        return self._task is None and not self._out

    @property
    def _may_execute(self) -> bool:
        return self.idle and not (self._owner.closing or self._is_last or self._muted is not None)

    def _advance(self) -> None:
        """Execute what waits until a request takes its time, an answer is stuck, or the turn is over."""
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
        """What nobody foresaw costs its connection, and a traceback in the log."""
        event(log, logging.ERROR, "request failed", client=self.caller.address, reason=problem, exc_info=problem)
        self.close(None)

    def _answer(self, parts: Answer) -> None:
        """Queue the answer behind its size, small parts joined, and send what the socket takes."""
        self._release_request()
        self._is_last = self._is_last or isinstance(parts, Last)
        self._throttle.told = None
        mute_ms = self._throttle.take_mute()
        if isinstance(parts, Last):
            mute_ms = HEARD_MS
        if mute_ms and self._fd >= 0:
            self._muted = self._owner.loop.call_later(mute_ms / 1000, self._unmute)
            self.last_active = float("inf")  # it is not idle
        if parts is None or self._fd < 0:
            _discard(parts)
            return
        joined = bytearray(sum(map(len, parts)).to_bytes(SIZE_BYTES, "big"))
        self._out = deque()
        for part in parts:
            if isinstance(part, bytes | bytearray | memoryview):
                joined += part
                continue
            if not isinstance(self._sock, socket.socket):  # nothing but its bytes can be encrypted
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
        """Has the client of a muted connection gone, and left nothing? Of TLS it is seen once it is muted no more."""
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
        """Send until all is sent, the socket takes no more, or the turn is over."""
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
        """In a forked child: the socket is the parent's."""
        self._sock.close()

    # -- end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The listener closes: end what runs, send its answer, then close."""
        self._pause()
        self._advance()

    def stalls(self, seconds: float) -> bool:
        """Has its peer taken nothing for so long of what it is owed? To be asked again and again."""
        if self._out is None or self._fd < 0:
            self._taken = None
            return False
        in_kernel = fcntl.ioctl(self._fd, termios.TIOCOUTQ, bytes(4))  # what the peer has not acknowledged
        left, now = (len(self._out), self._sent, in_kernel), self._owner.loop.time()
        if self._taken is None or self._taken[0] != left:
            self._taken = left, now
        return now - self._taken[1] >= seconds

    def close(self, reason: str | None, level: int = logging.WARNING) -> None:
        """Close the socket and give everything back; a request that runs goes on unless nobody needs its effects."""
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
        forks.hang_up(self._sock)
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
        owner.forget(self)


def _discard(parts: Iterable[Part] | None) -> None:
    """Unpin the files that unsent parts hold."""
    for part in parts or ():
        if not isinstance(part, bytes | bytearray | memoryview):
            part.close()
