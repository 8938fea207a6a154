"""How kazoo waits, is woken and calls back: on its connection's thread alone.

kazoo's own handler has a thread for watches and another one for answers, which overtake each other. Whoever asks for
something wakes the connection's thread through a socket that nobody reads while there is no connection: after some
hundred requests the next one would wait there, and with it the event loop. And each of its waits needs a descriptor of
its own: a process that has none to spare would lose a connection that is fine.
"""

import os
import select
from collections.abc import Callable, Sequence
from typing import Protocol

from kazoo.handlers.threading import SequentialThreadingHandler


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class _AtOnce:
    """A queue whose entries are called by who puts them there."""

    def put(self, call: Callable[[], object]) -> None:
        call()


class _Bell:
    """Both ends of what wakes the thread, as kazoo uses a pair of sockets: a byte is read for each that was sent."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._fd, len(data))
        return len(data)

    def recv(self, count: int) -> bytes:
        """OSError where nothing was sent."""
        os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class OneThread(SequentialThreadingHandler):  # type: ignore[misc]
    """Has the connection's thread call back: watches, answers and states come in the order of the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.callback_queue = self.completion_queue = _AtOnce()

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> tuple[_Bell, _Bell]:
        bell = _Bell()
        return bell, bell

    def select(
        self, readers: Sequence[HasFileno], writers: Sequence[HasFileno], _: object, timeout_s: float | None = None
    ) -> tuple[list[HasFileno], list[HasFileno], list[HasFileno]]:
        """Those that are ready: to be read from, and to be written to."""
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)}
        found = [[each for each in some if each.fileno() in ready] for some in (readers, writers)]
        return found[0], found[1], []
