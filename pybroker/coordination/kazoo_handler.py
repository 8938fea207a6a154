"""A kazoo handler that waits, wakes and calls back on the connection's thread alone. What it replaces:

kazoo's own handler runs watches and answers on two threads, so that they overtake each other. A request wakes the
connection's thread through a socket, which is not read while there is no connection: after some hundred requests the
next one would block, and with it the event loop. Each wait opens a descriptor: a process that has none left would lose
a sound connection. With TLS, kazoo reads the certificate files for each connection. And a TLS record may bring more
than one frame: kazoo leaves the rest undelivered until more bytes arrive.
"""

import os
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Protocol

from kazoo.handlers.threading import SequentialThreadingHandler


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class _AtOnce:
    """A queue that calls each entry at once, on the thread that puts it there."""

    def put(self, call: Callable[[], object]) -> None:
        call()


class _Bell:
    """Both ends of kazoo's pair of wake-up sockets, as one eventfd: one byte can be read for each byte sent."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._fd, len(data))
        return len(data)

    def recv(self, count: int) -> bytes:
        """Read one byte. Raises OSError if there is none."""
        os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class Patience:
    """The timeout of a handshake, doubled after each one that fails.

    It may exceed the session timeout: each abandoned handshake costs a slow server work, and with short timeouts the
    server might never complete one."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = self._present_s = least_s
        self._most_s = most_s

    def take(self, timeout_s: float) -> float:
        """The timeout in seconds for the next handshake, at most `timeout_s`; doubles the one after it."""
        bound_s = min(timeout_s, self._present_s)
        self._present_s = min(self._most_s, 2 * self._present_s)
        return bound_s

    def tls(self) -> float:
        """The timeout in seconds for the next TLS handshake."""
        return self.take(self._most_s)

    def met(self) -> None:
        """Return to the shortest timeout, as a handshake has succeeded."""
        self._present_s = self._least_s


class OneThread(SequentialThreadingHandler):  # type: ignore[misc]
    """Calls back on the connection's thread: watches, answers and states come in the order of the wire."""

    def __init__(self, tls: ssl.SSLContext | None = None, patience: Patience | None = None) -> None:
        """`tls`: None for plain connections. `patience`: the timeouts of TLS handshakes."""
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
        self, address: tuple[str, int], timeout: float = 1.0, hostname: object = None, **how: object
    ) -> socket.socket:
        """Return a connected socket, with TLS if set. Raises OSError.

        `hostname`: the name to verify in the certificate. kazoo passes no name for a four-letter command to its current
        server: then the last name is used."""
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
        """The readers and the writers that are ready. A TLS socket with decrypted data pending is ready at once."""
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
