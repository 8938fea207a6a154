"""Message classes, created from the definitions at their first use; `messages` has them by name.

Values are int, bool, float, str, bytes (16 for a uuid), lists, or None where null is allowed. Decoded messages have
memoryviews for bytes and records, and None for a missing tagged struct. A field that a version lacks is ignored when
encoded, and has its default when decoded.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar, dataclass_transform

from pybroker.protocol import schema
from pybroker.protocol.schema import Schema, Struct

Bytes = bytes | bytearray | memoryview


class Sliced(Protocol):
    """Records of a request that the codec passes on without copying."""

    def __len__(self) -> int: ...
    def tobytes(self) -> bytes: ...


class Sendable(Sliced, Protocol):
    """Records of a response: a range of a log file, with a method to send it (core.Slice)."""

    def send(self, fd: int, start: int = 0) -> int: ...
    def close(self) -> None: ...


def plain(records: Bytes | Sliced | None) -> Bytes:
    """Return decoded records as bytes or a view of the frame; empty for None."""
    if records is None or isinstance(records, bytes | bytearray | memoryview):
        return records or b""
    return records.tobytes()


@dataclass_transform(kw_only_default=True, eq_default=False)
class Message:
    """A message, or a struct in a message, with a slot for each field; equal to another with the same values."""

    __slots__: ClassVar[tuple[str, ...]] = ()

    # In capitals, as no field has such a name.
    SCHEMA: ClassVar[Schema]  # of a top-level message
    STRUCT: ClassVar[Struct]
    READERS: ClassVar[dict[int, "Reader"]]  # the codec's, by version, for a top-level message
    WRITERS: ClassVar[dict[int, "Writer"]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # messages can be changed

    def __repr__(self) -> str:
        """Show the fields that differ from their defaults; bytes by their length."""
        shown = []
        for field in self.STRUCT.fields:
            value = getattr(self, field.name)
            if value != field.default:
                text = f"<{len(value)} bytes>" if field.type in ("bytes", "records") else repr(value)
                shown.append(f"{field.name}={text}")
        return f"{type(self).__qualname__}({', '.join(shown)})"


MODULE = "pybroker.protocol.messages"
"""The module from which the classes can be imported by name."""

Reader = Callable[[bytes | memoryview, int, int, int], tuple[Any, int]]
"""(data, position, end, elements at most) -> (message, position after it)"""

Scope = dict[str, Any]
"""The names of compiled source."""

Writer = Callable[[Any, Callable[[Any], None]], None]
"""(message, function that takes the next piece of output); pieces are bytes, memoryviews, or slices for records."""

R = TypeVar("R", bound=Message, covariant=True)


class Request(Message, Generic[R]):
    """A request of an API whose response is an R, for type checkers."""

    __slots__ = ()


_FRESH = object()  # the default for a new list in a signature


def _constructor(struct: Struct) -> Callable[..., None]:
    """Create `__init__` with keyword-only arguments, as fields may be added and removed with Kafka's versions."""
    arguments, body = [], []
    scope: Scope = {"_FRESH": _FRESH}
    for field in struct.fields:
        if isinstance(field.default, list):
            arguments.append(f"{field.name}=_FRESH")
            body.append(f"    self.{field.name} = [] if {field.name} is _FRESH else {field.name}")
        else:
            arguments.append(f"{field.name}={field.default!r}")
            body.append(f"    self.{field.name} = {field.name}")
    source = f"def __init__(self, *, {', '.join(arguments)}):\n" + "\n".join(body)
    exec(compile(source, f"<pybroker {struct.name}>", "exec"), scope)
    init: Callable[..., None] = scope["__init__"]
    return init


def _build(struct: Struct, qualname: str, base: type[Message] = Message) -> type[Message]:
    attributes: dict[str, object] = {
        "__slots__": tuple(field.name for field in struct.fields),
        "__init__": _constructor(struct),
        "__module__": MODULE,
        "__qualname__": qualname,
        "STRUCT": struct,
    }
    for field in struct.fields:
        if field.struct:
            attributes[field.struct.name] = _build(field.struct, f"{qualname}.{field.struct.name}")
    return type(struct.name, (base,), attributes)


@cache
def message(name: str) -> type[Message]:
    """The class of the message `name`. Raises KeyError if there is no such definition."""
    loaded = schema.load(name)
    made = _build(loaded.root, name, Request if name.endswith("Request") else Message)
    made.SCHEMA, made.READERS, made.WRITERS = loaded, {}, {}
    return made
