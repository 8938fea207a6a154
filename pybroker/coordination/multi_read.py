"""ZooKeeper's multiRead, which kazoo lacks: many nodes by one request and one answer (ZooKeeper 3.6, ZOOKEEPER-1535).

Each read in it succeeds or fails by itself. An older server answers Unimplemented, and ends the session.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from kazoo.exceptions import EXCEPTIONS, MarshallingError
from kazoo.protocol.states import ZnodeStat

MULTI_READ: Final = 22
GET_DATA: Final = 4
ERROR: Final = -1
_HEADER: Final = struct.Struct("!i?i")
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")


class MultiRead:
    """A request object for kazoo that reads the nodes at these paths; the paths include the chroot."""

    type = MULTI_READ

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def serialize(self) -> bytes:
        parts = []
        for path in self._paths:
            name = path.encode()
            parts += [_HEADER.pack(GET_DATA, False, -1), _INT.pack(len(name)), name, b"\0"]  # no watch
        parts.append(_HEADER.pack(-1, True, -1))
        return b"".join(parts)

    def deserialize(self, answer: bytes, at: int) -> list[tuple[bytes, ZnodeStat] | Exception]:
        """Return the result of each read. Raises MarshallingError, struct.error."""
        found: list[tuple[bytes, ZnodeStat] | Exception] = []
        while True:
            kind, is_last, _ = _HEADER.unpack_from(answer, at)
            at += _HEADER.size
            if is_last:
                break
            (number,) = _INT.unpack_from(answer, at)  # the length of the data, or an error code
            at += _INT.size
            if kind == ERROR:
                found.append(EXCEPTIONS[number]())
                continue
            data = bytes(answer[at : at + number]) if number > 0 else b""
            at += len(data)
            found.append((data, ZnodeStat._make(_STAT.unpack_from(answer, at))))
            at += _STAT.size
        if len(found) != len(self._paths):
            raise MarshallingError(f"{len(found)} answers to {len(self._paths)} reads")
        return found
