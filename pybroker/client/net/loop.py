"""The one thread of a client on which its sockets, timers and answers live.

What runs on it belongs to it: connections and their queues need no lock. Other threads hand work over by `call_soon`,
which costs a system call only for the first call while the thread sleeps.
"""

import contextlib
import heapq
import itertools
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import check_port

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE

_log = unfailing(__name__)

T = TypeVar("T")
Address = tuple[int, int, int, str, tuple[object, ...]]
"""An address as getaddrinfo gives it."""


class Timer:
    """A call that is due at a time of `time.monotonic()`; `cancel` takes it back."""

    __slots__ = ("call", "when_s")

    def __init__(self, when_s: float, call: Callable[[], object]) -> None:
        self.when_s = when_s
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """A thread that waits for sockets and for time. A call that fails is logged, and the thread goes on."""

    def __init__(self, name: str, died: Callable[[], object] = lambda: None) -> None:
        """`died` is called on the thread if it ends without `close`: because of a defect, or a debugger."""
        self._died = died
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakes = socket.socketpair()
        self._waker.setblocking(False)
        self._wakes.setblocking(False)
        self._soon: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._woken = False
        self._awake = False
        self._running = True
        self._over = False
        self._selector.register(self._wakes, READ, self._drain)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def here(self) -> bool:
        """True on the loop's own thread."""
        return threading.current_thread() is self._thread

    @property
    def running(self) -> bool:
        """True until the thread ends. Thread.is_alive() returns False for good once a Ctrl-C interrupts a join."""
        return self._running

    # -- from any thread -----------------------------------------------------------------------------------------------

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Run a call on the loop's thread."""
        self._soon.append((call, arguments))
        if not self._woken and not (self._awake and self.here):
            self._woken = True
            try:
                self._waker.send(b"\0")
            except OSError:  # the loop has ended, or has unread wakes enough
                pass
            except BaseException:  # Ctrl-C: the next one tries again
                self._woken = False
                raise

    def call_surely(self, call: Callable[..., object], *arguments: object) -> None:
        """Run a call on the loop's thread, or on this one if the loop has ended, as a caller waits for the outcome."""
        self.call_soon(call, *arguments)
        if self._over:
            self._run_left()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread after the calls that are queued."""
        self.call_soon(self._stop)
        if not self.here:
            self._thread.join(timeout_s)

    def forked(self) -> None:
        """Close the child's copies after a fork. Nothing is unregistered: parent and child share the selector."""
        self._running = False
        self._selector.close()
        self._wakes.close()
        self._waker.close()

    # -- on its thread -------------------------------------------------------------------------------------------------

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        timer = Timer(time.monotonic() + delay_s, call)
        heapq.heappush(self._timers, (timer.when_s, next(self._order), timer))
        return timer

    def call_by(self, timer: Timer | None, when_s: float, call: Callable[[], object]) -> Timer:
        """This timer if it is due by `when_s`, else a new one that replaces it."""
        if timer is not None and timer.call is not None:
            if timer.when_s <= when_s:
                return timer
            timer.cancel()
        return self.call_later(max(0.0, when_s - time.monotonic()), call)

    def resolve(self, host: str, port: int, done: Callable[["list[Address] | Exception"], object]) -> None:
        """Look up a name, and call `done` with its addresses as of getaddrinfo, or with the exception.

        A name server may take seconds to answer, so names are looked up on another thread; IP addresses are not."""
        try:
            check_port(port)
            self.call_soon(done, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
        except socket.gaierror:
            try:
                threading.Thread(target=self._look_up, args=(host, port, done), daemon=True).start()
            except RuntimeError:  # the interpreter ends, or the limit of threads is reached
                self._look_up(host, port, done)
        except (ValueError, OverflowError) as error:
            self.call_soon(done, error)

    def run(self, call: Callable[[], T], done: Callable[[T | KafkaError], object]) -> None:
        """Make a call that may block, on a thread of its own; `done` is called with its result, or its KafkaError.

        Any other exception of the call becomes a KafkaError, so `done` is always called."""
        try:
            threading.Thread(target=self._run_aside, args=(call, done), daemon=True).start()
        except RuntimeError:  # the interpreter ends, or there may be no more threads
            self._run_aside(call, done)

    def _run_aside(self, call: Callable[[], T], done: Callable[[T | KafkaError], object]) -> None:
        result: T | KafkaError
        try:
            result = call()
        except KafkaError as error:
            result = error
        except BaseException as problem:
            _log.exception("a call on a thread beside %s failed", self._thread.name)
            result = KafkaError(errors.UNKNOWN_SERVER_ERROR, f"{type(problem).__name__}: {problem}")
        self.call_soon(done, result)

    def _look_up(self, host: str, port: int, done: Callable[["list[Address] | Exception"], object]) -> None:
        found: list[Address] | Exception
        try:
            found = [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, ValueError, OverflowError) as error:
            found = error
        self.call_soon(done, found)

    def watch(self, sock: socket.socket, events: int, call: Callable[[int], object]) -> None:
        """Call with the events that came, from now on; events 0 ends that."""
        known = sock in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(sock)
        elif known:
            self._selector.modify(sock, events, call)
        else:
            self._selector.register(sock, events, call)

    def _stop(self) -> None:
        self._running = False

    def _drain(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakes.recv(64)

    def _run(self) -> None:
        try:
            self._turns()
        except BaseException:
            _log.exception("the thread %s ended", self._thread.name)
        finally:
            if self._running:
                self._running = False
                self._guard(self._died)
            self._over = True  # before the calls that are left: a thread that adds a later one sees it
            self._run_left()
            self._selector.close()
            self._wakes.close()
            self._waker.close()

    def _turns(self) -> None:
        while self._running:
            self._awake = False  # a finalizer may queue a call from here on, and must wake the loop
            found = self._selector.select(self._wait_s())
            self._awake = True
            for key, events in found:
                self._guard(key.data, events)
            self._run_soon()
            self._run_timers()

    def _wait_s(self) -> float | None:
        if self._soon:
            return 0
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _run_soon(self) -> None:
        """Make the calls that are queued now; calls that these add run in the next turn, after the sockets."""
        self._woken = False
        for _ in range(len(self._soon)):
            call, arguments = self._soon.popleft()
            self._guard(call, *arguments)

    def _run_left(self) -> None:
        """Make the calls that were queued while the thread ended, but none that these add."""
        with contextlib.suppress(IndexError):  # the other thread was faster
            for _ in range(len(self._soon)):
                call, arguments = self._soon.popleft()
                self._guard(call, *arguments)

    def _run_timers(self) -> None:
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                self._guard(timer.call)

    def _guard(self, call: Callable[..., object], *arguments: object) -> None:
        try:
            call(*arguments)
        except BaseException:  # SystemExit too: a callback of the program ends neither this thread nor the program
            _log.exception("a call on the thread %s failed", self._thread.name)


class Wake:
    """A call on the loop's thread, asked for from any thread, as often as one likes, and made once for all of them."""

    def __init__(self, loop: Loop, call: Callable[[], object]) -> None:
        self._loop = loop
        self._call = call
        self._due = False

    def __call__(self) -> None:
        if not self._due:
            self._due = True
            try:
                self._loop.call_soon(self._run)
            except BaseException:  # Ctrl-C: the next one tries again
                self._due = False
                raise

    def _run(self) -> None:
        self._due = False
        self._call()
