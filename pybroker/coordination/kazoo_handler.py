"""How kazoo waits, is woken and calls back: on its connection's thread alone.

kazoo's own handler has a thread for watches and another one for answers, which overtake each other. Whoever asks for
something wakes the connection's thread through a socket that nobody reads while there is no connection: after some
hundred requests the next one would wait there, and with it the event loop. And each of its waits needs a descriptor of
its own: a process that has none to spare would lose a connection that is fine. With TLS it reads files
for each connection, and what a record brought besides the frame that it looks for, it leaves until more comes.
"""

import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Protocol

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


class Patience:
    """How long a server may take for a handshake: one that is slow is waited for twice as long each time.

    It may be longer than a session lasts: a server that is so slow has more to do with each handshake that is given up,
    and might never end one."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = self._present_s = least_s
        self._most_s = most_s

    def take(self, timeout_s: float) -> float:
        """For this time, and never longer than the timeout."""
        bound_s = min(timeout_s, self._present_s)
        self._present_s = min(self._most_s, 2 * self._present_s)
        return bound_s

    def tls(self) -> float:
        """For a handshake of TLS."""
        return self.take(self._most_s)

    def met(self) -> None:
        """It was long enough."""
        self._present_s = self._least_s


class OneThread(SequentialThreadingHandler):  # type: ignore[misc]
    """Has the connection's thread call back: watches, answers and states come in the order of the wire."""

    def __init__(self, tls: ssl.SSLContext | None = None, patience: Patience | None = None) -> None:
        """`tls`: what connections are made with, if they are; then `patience` is for their handshakes."""
        super().__init__()
        self.callback_queue = self.completion_queue = _AtOnce()
        self._tls = tls
        self._patience = patience
        self._name = ""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_socket_pair(self) -> tuple[_Bell, _Bell]:
        bell = _Bell()
        return bell, bell

    def create_connection(
        self, address: tuple[str, int], timeout: float = 1.0, hostname: object = None, **how: Any
    ) -> socket.socket:
        """A socket that is connected, with TLS if there is to be. `hostname`: whose certificate it has to be; kazoo
        names no host where it asks the server that it has a session with. Raises OSError."""
        if self._tls is None:
            return super().create_connection(address, timeout=timeout, hostname=hostname, **how)  # type: ignore[no-any-return]
        self._name = hostname if isinstance(hostname, str) else self._name
        made = socket.create_connection(address, timeout)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(timeout if self._patience is None else self._patience.tls())
            return self._tls.wrap_socket(made, server_hostname=self._name)
        except BaseException:
            made.close()
            raise

    def select(
        self, readers: Sequence[HasFileno], writers: Sequence[HasFileno], _: object, timeout_s: float | None = None
    ) -> tuple[list[HasFileno], list[HasFileno], list[HasFileno]]:
        """Those that are ready: to be read from, and to be written to. What is decrypted already waits for nobody."""
        if held := [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]:
            timeout_s = 0
        poll = select.poll()
        for each in readers:
            poll.register(each, select.POLLIN)
        for each in writers:
            poll.register(each, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)}
        ready.update(each.fileno() for each in held)
        found = [[each for each in some if each.fileno() in ready] for some in (readers, writers)]
        return found[0], found[1], []
