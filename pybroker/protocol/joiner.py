"""Joins the responses to the slices of a request into one: each joined array has the elements of all of them.

    response to a slice ──its elements──> encoded after those of earlier slices
          └── the last element, if it continues in the next slice ──> stays open: its own array grows

So only one slice's response exists as objects at a time; the rest is bytes, whose counts are filled in at the end.
"""

from collections.abc import Sequence
from typing import Final

from pybroker.protocol import codec
from pybroker.protocol.message import Bytes, Message, Sendable
from pybroker.protocol.wire import EncodeError, put_uvarint
from pybroker.protocol.writer import ArrayWriters, compile_levels

UNWRITABLE: Final = (TypeError, AttributeError, ValueError, OverflowError)

_LEVELS: Final[dict[tuple[str, int, tuple[str, ...]], list[ArrayWriters]]] = {}


def _levels(kind: type[Message], version: int, path: tuple[str, ...]) -> list[ArrayWriters]:
    key = kind.SCHEMA.name, version, path
    if key not in _LEVELS:
        _LEVELS[key] = compile_levels(kind, version, path)
    return _LEVELS[key]


class _Open:
    """A struct whose array grows: the index of the array's count among the parts, and the count so far."""

    __slots__ = ("count", "place", "struct")

    def __init__(self, struct: Message, place: int) -> None:
        self.struct = struct
        self.place = place
        self.count = 0


class Joiner:
    """Joins the responses to slices: the nested arrays of `path` get the elements of all responses."""

    def __init__(
        self, api_key: int, version: int, correlation_id: int, kind: type[Message], path: tuple[str, ...]
    ) -> None:
        self._header = codec.response_header(api_key, version, correlation_id)
        self._title = f"{kind.__name__} v{version}"
        self._compact = kind.SCHEMA.flexible(version)
        self._path = path
        self._levels = _levels(kind, version, path)
        self._parts: list[bytes] = []
        self._pieces: list[bytes] = []  # pieces of the current part
        self._open: list[_Open] = []  # the response, and the nested elements that continue
        self.size = 0
        """Bytes written so far."""

    def add(self, answer: Message, goes_on: list[object]) -> None:
        """Add the response to a slice. `goes_on` has the key (`key_of`) of its last element, if that continues in the
        next slice, then of the last element nested in it, and so on. Raises EncodeError."""
        try:
            if self._open:
                _take_over(self._open[0].struct, answer)
            else:
                self._begin(answer)
            self._write(0, getattr(answer, self._path[0]), goes_on)
        except UNWRITABLE as problem:
            raise EncodeError(f"{self._title}: {problem}") from problem
        self._cut()

    def finish(self) -> list[Bytes | Sendable]:
        """Return the parts of the whole response."""
        first = self._open[0]
        self._close(1)
        self._close(0)
        self._cut()
        before: list[bytes] = [self._header]
        self._levels[0].before(first.struct, before.append)
        self._parts[0] = b"".join([*before, self._parts[0]])
        return [*self._parts]

    # -- one level ----------------------------------------------------------------------------------------------------

    def _write(self, depth: int, elements: Sequence[Message], goes_on: list[object]) -> None:
        """Append the elements of a response: first the one that continues from the last slice, last the one that
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

    def _begin(self, struct: Message) -> None:
        """Reserve a part for the count of a struct's array, whose elements follow."""
        self._cut()
        self._open.append(_Open(struct, len(self._parts)))
        self._parts.append(b"")

    def _close(self, depth: int) -> None:
        """Write the fields after the arrays from this depth on, and the counts of these arrays."""
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


def key_of(element: object) -> object:
    """Return the name or id that an element of a request has in common with its element of the response."""
    if isinstance(element, str):
        return element
    return tuple(getattr(element, name, None) for name in ("name", "topic", "topic_id", "group_id"))


def _take_over(first: Message, other: Message) -> None:
    """Keep the first error and the longest throttle time of the fields outside the array."""
    if getattr(other, "error_code", 0) and not getattr(first, "error_code", 0):
        _copy("error_code", other, first)
        _copy("error_message", other, first)
    if getattr(other, "throttle_time_ms", 0) > getattr(first, "throttle_time_ms", 0):
        _copy("throttle_time_ms", other, first)


def _copy(name: str, source: Message, to: Message) -> None:
    if hasattr(to, name):
        setattr(to, name, getattr(source, name))
