"""Copies bytes between a client and the plane, if core cannot use the client's socket.

    client <──its stream──> relay <──a socket pair──> the plane, which has the other end

Core cannot use TLS of Python's ssl module, and supports a limited number of listeners. The relay does not parse
requests:

    the client shuts down its side ──> the plane sees this, finishes its responses, and closes
    the plane closes ──> pending bytes are sent to the client, until it takes none for STALL_SECONDS; then it is closed
    the client disconnects ──> both are closed

Bytes that one end does not take are held, and the other end is not read meanwhile.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from pybroker import fork_safety
from pybroker.decisions.caller import Caller
from pybroker.security.tls import Stream, pending
from pybroker.server.network.plane import Forget

PIECE_BYTES: Final = 128 << 10
"""Bytes read at a time, and held at most, in each direction."""
STALL_SECONDS: Final = 2.0
"""Seconds for which a client may take no bytes of its responses once the connection is closing."""


def relay_pair() -> tuple[socket.socket, socket.socket]:
    """A non-blocking socket pair: our end, and the plane's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


class _Way:
    """One direction. `over` is called at the end of the source, `lost` if reading fails, `refused` if writing fails."""

    __slots__ = ("_ended", "_held", "_into", "_loop", "_lost", "_over", "_refused", "_source", "moved_s")

    def __init__(
        self,
        source: socket.socket | Stream,
        into: socket.socket | Stream,
        *,
        over: Callable[[], object],
        lost: Callable[[], object],
        refused: Callable[[], object],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source, self._into = source, into
        self._over, self._lost, self._refused = over, lost, refused
        self._held = memoryview(b"")
        self._ended = False
        self.moved_s = self._loop.time()
        """When the target last took bytes."""
        self._read_on()

    def _read_on(self) -> None:
        self._loop.add_reader(self._source.fileno(), self._read)
        if pending(self._source):  # bytes that TLS has already decrypted: the socket reports no event for them
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._ended or self._held:
            return
        try:
            data = self._source.recv(PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.stop()
            self._lost()
            return
        if not data:
            self.stop()
            self._over()
            return
        self._held = memoryview(data)
        self._write()
        if not (self._ended or self._held):
            if pending(self._source):
                self._loop.call_soon(self._read)
        elif not self._ended:
            self._loop.remove_reader(self._source.fileno())
            self._loop.add_writer(self._into.fileno(), self._go_on)

    def _write(self) -> None:
        try:
            sent = self._into.send(self._held)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.stop()
            self._refused()
            return
        self._held = self._held[sent:]
        self.moved_s = self._loop.time()

    def _go_on(self) -> None:
        if self._ended:
            return
        self._write()
        if not (self._ended or self._held):
            self._loop.remove_writer(self._into.fileno())
            self._read_on()

    def stop(self) -> None:
        """Stop copying. Again does nothing."""
        if not self._ended:
            self._ended = True
            self._loop.remove_reader(self._source.fileno())
            self._loop.remove_writer(self._into.fileno())


class Relay:
    """A client's connection, as counted by its listener; the plane closes it when it is idle."""

    __slots__ = ("_client", "_down", "_forget", "_loop", "_ours", "_patience", "_up", "caller", "last_active")

    def __init__(
        self, client: socket.socket | Stream, ours: socket.socket, caller: Caller, forget: Forget
    ) -> None:
        """`ours` is our end of the socket pair; `forget` is called when both sockets are closed."""
        self._loop = asyncio.get_running_loop()
        self._client, self._ours = client, ours
        self._forget: Forget | None = forget
        self._patience: asyncio.TimerHandle | None = None
        self.caller = caller
        self.last_active = float("inf")
        self._up = _Way(client, ours, over=self.end_of_client, lost=self.close, refused=self._up_is_over)
        self._down = _Way(ours, client, over=self.close, lost=self.close, refused=self.close)

    def _up_is_over(self) -> None:
        """Do nothing: the plane has closed, but bytes that it wrote before are still being sent."""

    def end_of_client(self) -> None:
        """Shut down our side of the socket pair, as the client sends no more."""
        self._up.stop()
        try:
            self._ours.shutdown(socket.SHUT_WR)
        except OSError:  # the plane has closed too
            return

    def left(self) -> None:
        """Close, as the plane has closed, once the client has taken no bytes for STALL_SECONDS."""
        if self._forget is None:
            return
        silent_s = self._loop.time() - self._down.moved_s
        if self._patience is not None and silent_s >= STALL_SECONDS:
            self.close()
        else:
            wait_s = STALL_SECONDS if self._patience is None else STALL_SECONDS - silent_s
            self._patience = self._loop.call_later(wait_s, self.left)

    def finish(self) -> None:
        """Do nothing: the plane closes each connection after its responses."""

    def forked(self) -> None:
        """Close this process's copies of the sockets, in a forked child."""
        self._client.close()
        self._ours.close()

    def close(self, reason: str = "", level: int = logging.WARNING) -> None:
        """Close both sockets. Again does nothing."""
        if self._forget is None:
            return
        forget, self._forget = self._forget, None
        if self._patience is not None:
            self._patience.cancel()
        self._up.stop()
        self._down.stop()
        fork_safety.hang_up(self._client)
        fork_safety.hang_up(self._ours)
        forget(self)
