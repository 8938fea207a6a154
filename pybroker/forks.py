"""What `os.fork` does to clients and brokers: the child has their memory, and none of their threads.

Whatever would wait for such a thread waits for ever, and what is written to a socket of both gets mixed up with what
the parent writes. So a client or a broker belongs to the process that made it: in the child its sockets are closed,
which the parent does not notice, and it refuses to do anything.
"""

import contextlib
import os
import socket
import weakref
from typing import Final, Protocol

from pybroker import errors
from pybroker.errors import KafkaError


class Inherited(Protocol):
    """What a forked child has of its parent."""

    def forked(self) -> None:
        """In the child, before anything else runs there: take no lock, as no thread is left to release it."""


_made: Final["weakref.WeakSet[Inherited]"] = weakref.WeakSet()


def tell(made: Inherited) -> None:
    """Call its `forked` in every child that is forked from here on."""
    _made.add(made)


class Closable(Protocol):
    """A socket, or what is spoken over one."""

    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def hang_up(sock: Closable) -> None:
    """Close a socket that a forked child may have, too: its peer sees the end, and a listening one listens no more."""
    with contextlib.suppress(OSError):  # its peer has gone
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def refusal(kind: str) -> KafkaError:
    """What a child is told that uses a client of its parent."""
    words = f"this {kind} was made before a fork and works in the parent process only: make one in the child"
    return KafkaError(errors.INVALID_REQUEST, words)


def _in_child() -> None:
    for made in list(_made):
        made.forked()


os.register_at_fork(after_in_child=_in_child)
