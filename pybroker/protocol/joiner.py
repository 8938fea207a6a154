"""Joins the answers to the slices of a request into one: each joined array has the elements of all of them.

    answer to a slice ──its elements──> written behind those before
          └── the last one, if it goes on in the next slice ──> stays open: its own array grows

So only one slice's answer exists as objects at a time; the rest is bytes, whose counts are filled in at the end.
"""

from functools import cache
from typing import Any, Final

from pybroker.protocol import codec
from pybroker.protocol.wire import EncodeError, put_uvarint
from pybroker.protocol.writer import compile_levels

UNWRITABLE: Final = (TypeError, AttributeError, ValueError, OverflowError)

_levels: Final = cache(compile_levels)


class _Open:
    """A struct whose array grows: the place of the array's count among the parts, and the count so far."""

    __slots__ = ("count", "place", "struct")

    def __init__(self, struct: Any, place: int) -> None:
        self.struct = struct
        self.place = place
        self.count = 0


class Joiner:
    """Joins the answers to slices: arrays of `path`, each in the one before, get the elements of all answers."""

    def __init__(self, api_key: int, version: int, correlation_id: int, kind: Any, path: tuple[str, ...]) -> None:
        self._header = codec.response_header(api_key, version, correlation_id)
        self._title = f"{kind.__name__} v{version}"
        self._compact = kind.SCHEMA.flexible(version)
        self._path = path
        self._levels = _levels(kind, version, path)
        self._parts: list[bytes] = []
        self._pieces: list[Any] = []  # the pieces of the part that is being written
        self._open: list[_Open] = []  # the answer itself, and the elements within it that continue
        self.size = 0
        """Bytes written so far."""

    def add(self, answer: Any, goes_on: list[object]) -> None:
        """Add the answer to a slice. `goes_on` has the key (`key_of`) of its last element, if that continues in the
        next slice, then of the last one within it, and so on. Raises EncodeError."""
        try:
            if self._open:
                _take_over(self._open[0].struct, answer)
            else:
                self._begin(answer)
            self._write(0, getattr(answer, self._path[0]), goes_on)
        except UNWRITABLE as problem:
            raise EncodeError(f"{self._title}: {problem}") from problem
        self._cut()

    def finish(self) -> list[Any]:
        """The parts of the whole answer."""
        first = self._open[0]
        self._close(1)
        self._close(0)
        self._cut()
        before: list[Any] = [self._header]
        self._levels[0].before(first.struct, before.append)
        self._parts[0] = b"".join([*before, self._parts[0]])
        return self._parts

    # -- one level ----------------------------------------------------------------------------------------------------

    def _write(self, depth: int, elements: list[Any], goes_on: list[object]) -> None:
        """Append the elements of an answer: first the one that continues from the last slice, last the one that
        continues in the next."""
        below = depth + 1
        going = goes_on[0] if goes_on else None
        held = self._open[below] if len(self._open) > below else None
        if held is not None:
            key = key_of(held.struct)
            mine = next((each for each in elements if key_of(each) == key), None)
            if mine is not None:
                elements = [each for each in elements if each is not mine]
                _take_over(held.struct, mine)
                within = getattr(mine, self._path[below])
                self._write(below, within or [], goes_on[1:] if going == key else [])
            if going != key:
                self._close(below)
                held = None
        to_open = None
        owner, write = self._open[depth], self._levels[depth].element
        for each in elements:
            if going is not None and held is None and to_open is None and key_of(each) == going:
                to_open = each
            else:
                owner.count += 1
                write(each, self._pieces.append)
        if to_open is not None:
            owner.count += 1
            self._levels[below].before(to_open, self._pieces.append)
            self._begin(to_open)
            self._write(below, getattr(to_open, self._path[below]) or [], goes_on[1:])

    def _begin(self, struct: Any) -> None:
        """Leave room for the count of a struct's array, whose elements follow."""
        self._cut()
        self._open.append(_Open(struct, len(self._parts)))
        self._parts.append(b"")

    def _close(self, depth: int) -> None:
        """Write the fields behind the arrays from this depth on, and the counts of these arrays."""
        while len(self._open) > depth:
            done = self._open.pop()
            self._levels[len(self._open)].after(done.struct, self._pieces.append)
            count = put_uvarint(done.count + 1) if self._compact else done.count.to_bytes(4, "big")
            self._parts[done.place] = count

    def _cut(self) -> None:
        if self._pieces:
            self._parts.append(b"".join(self._pieces))
            self.size += len(self._parts[-1])
            self._pieces.clear()


def key_of(element: Any) -> object:
    """Return the name or id that an element of a request shares with its element of the answer."""
    if isinstance(element, str):
        return element
    return tuple(getattr(element, name, None) for name in ("name", "topic", "topic_id", "group_id"))


def _take_over(first: Any, other: Any) -> None:
    """Keep the first error and the longest throttle time of the fields beside the array."""
    if getattr(other, "error_code", 0) and not first.error_code:
        first.error_code = other.error_code
        if hasattr(first, "error_message"):
            first.error_message = other.error_message
    if getattr(other, "throttle_time_ms", 0) > getattr(first, "throttle_time_ms", 0):
        first.throttle_time_ms = other.throttle_time_ms
