"""The messages as classes, made of the definitions when they are first asked for.

`messages.MetadataResponse(brokers=[messages.MetadataResponse.Brokers(node_id=0, host="h", port=9092)])`: keyword
arguments with the definitions' defaults, attributes of the same names, and a nested class for each nested struct, named
like its field in CamelCase. Values are int, bool, float, str, bytes (16 for a uuid), lists, or None where null is
allowed. What was decoded holds memoryviews for bytes and records, and None for a tagged struct that was not there. A
field that a version lacks is ignored when encoded, and has its default when decoded.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from pybroker.protocol import schema
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.schema import Schema, Struct


class Message:
    """A message or a struct in one: slots, named by its definition; equal to another with the same values."""

    __slots__: tuple[str, ...] = ()

    # Capitals: no field of any definition has such a name.
    SCHEMA: ClassVar[Schema]  # of a top-level message
    STRUCT: ClassVar[Struct]
    READERS: ClassVar[dict[int, Callable[..., Any]]]  # the codec's, by version, for a top-level message
    WRITERS: ClassVar[dict[int, Callable[..., Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # messages can be changed

    def __repr__(self) -> str:
        """The fields that are not at their defaults; bytes by their length."""
        shown = []
        for field in self.STRUCT.fields:
            value = getattr(self, field.name)
            if value != field.default:
                text = f"<{len(value)} bytes>" if field.type in ("bytes", "records") else repr(value)
                shown.append(f"{field.name}={text}")
        return f"{type(self).__qualname__}({', '.join(shown)})"


_FRESH = object()  # stands in a signature for a list of one's own


def _constructor(struct: Struct) -> Callable[..., None]:
    """`__init__` as a person would write it: keywords only, so that fields may come and go with Kafka's versions."""
    names, arguments, body, scope = [], [], [], {"_FRESH": _FRESH}
    for field in struct.fields:
        names.append(field.name)
        if isinstance(field.default, list):
            arguments.append(f"{field.name}=_FRESH")
            body.append(f"    self.{field.name} = [] if {field.name} is _FRESH else {field.name}")
        else:
            arguments.append(f"{field.name}={field.default!r}")
            body.append(f"    self.{field.name} = {field.name}")
    source = f"def __init__(self, *, {', '.join(arguments)}):\n" + "\n".join(body)
    exec(compile(source, f"<pybroker {struct.name}>", "exec"), scope)
    init: Callable[..., None] = scope["__init__"]  # type: ignore[assignment]
    return init


def _build(struct: Struct, qualname: str) -> type[Message]:
    attributes: dict[str, Any] = {
        "__slots__": tuple(field.name for field in struct.fields),
        "__init__": _constructor(struct),
        "__module__": __name__,
        "__qualname__": qualname,
        "STRUCT": struct,
    }
    for field in struct.fields:
        if field.struct:
            attributes[field.struct.name] = _build(field.struct, f"{qualname}.{field.struct.name}")
    return type(struct.name, (Message,), attributes)


def message(name: str) -> type[Message]:
    """The class of the message `name`. Raises KeyError if there is no such definition."""
    known = globals().get(name)
    if known is None:
        loaded = schema.load(name)
        known = _build(loaded.root, name)
        known.SCHEMA, known.READERS, known.WRITERS = loaded, {}, {}
        globals()[name] = known
    made: type[Message] = known
    return made


def __getattr__(name: str) -> Any:
    if name not in TEXTS:
        raise AttributeError(f"no message is called {name}")
    return message(name)
