"""Parses the notation of `definitions` into schemas: the fields of each message and their versions."""

import re
from typing import Final, NamedTuple

from pybroker.protocol.definitions import TEXTS

VERSION_LAST: Final = 32767
"""The end of an open range of versions; versions are i16 on the wire."""

ZERO_UUID: Final = bytes(16)

OUR_TAGS: Final = 9000
"""Tagged fields from this number on are pybroker's own, far above Kafka's; clients ignore unknown tags."""

# The default of a field without one in the notation, by type; arrays and structs have [] and null.
_ZEROS: dict[str, object] = {"bool": False, "f64": 0.0, "str": "", "bytes": b"", "records": b"", "uuid": ZERO_UUID}

_HEAD = re.compile(r"(\w+)(?: (\d+))? v([\d-]+) flex (none|\d+\+)\n")
_NAME = re.compile(r"\s*(\w+):(\w+|\{)")
_TAIL = re.compile(r"(\[\])?(?:(\?)(?:\(([\d+-]+)\))?)?(?: v([\d+-]+))?(?: tag(\d+))?(?:=([^\s,}]+))?\s*([,}]|\Z)")

Range = tuple[int, int]


class Field(NamedTuple):
    """One field of a struct; `struct` describes a struct, or each element of an array of structs."""

    name: str
    type: str  # of each element, if it is an array; "struct" for a struct
    struct: "Struct | None"
    is_array: bool
    versions: Range
    nulls: Range | None  # the versions in which it may be null
    tag: int | None
    default: object  # None for null, and for a missing tagged struct

    def exists(self, version: int) -> bool:
        return self.versions[0] <= version <= self.versions[1]

    def nullable(self, version: int) -> bool:
        return self.nulls is not None and self.nulls[0] <= version <= self.nulls[1]


class Struct(NamedTuple):
    """Fields in the order of the wire; `name` is the name of its class in `messages`."""

    name: str
    fields: tuple[Field, ...]

    def untagged(self, version: int) -> list[Field]:
        return [f for f in self.fields if f.tag is None and f.exists(version)]

    def tagged(self, version: int) -> list[Field]:
        """The tagged fields, by ascending tag, as on the wire."""
        return sorted((f for f in self.fields if f.tag is not None and f.exists(version)), key=lambda f: f.tag or 0)


class Schema(NamedTuple):
    """A message. `key` is -1 if it is not an API's; if no version is flexible `flexible_from` is above all versions."""

    name: str
    key: int
    first: int
    last: int
    flexible_from: int
    root: Struct

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_from


def _range(text: str) -> Range:
    """Parse `3+`, `0-2` or `1`."""
    if text.endswith("+"):
        return int(text[:-1]), VERSION_LAST
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _default(text: str | None, type_: str, is_array: bool, always_null: bool) -> object:
    if text is not None:
        return text == "true" if type_ == "bool" else int(text, 0)
    if always_null or (type_ == "struct" and not is_array):
        return None
    return [] if is_array else _ZEROS.get(type_, 0)


def _fields(text: str, position: int) -> tuple[tuple[Field, ...], int]:
    """Return the fields from `position` to the end of their struct, and the position of that end."""
    fields = []
    end = ","
    while end == ",":
        head = _NAME.match(text, position)
        assert head, f"a field is expected at {text[position:][:40]!r}"
        name, type_ = head.groups()
        position, struct = head.end(), None
        if type_ == "{":
            inner, position = _fields(text, position)
            type_, struct = "struct", Struct("".join(word.capitalize() for word in name.split("_")), inner)
        tail = _TAIL.match(text, position)
        assert tail, f"{name}: cannot read {text[position:][:40]!r}"
        array, null, nulls, versions, tag, default, end = tail.groups()
        exists = _range(versions or "0+")
        null_in = _range(nulls or "0+") if null else None
        always_null = null_in is not None and null_in[0] <= exists[0] and exists[1] <= null_in[1]
        value = _default(default, type_, bool(array), always_null)
        fields.append(Field(name, type_, struct, bool(array), exists, null_in, int(tag) if tag else None, value))
        position = tail.end()
    return tuple(fields), position


def heading(block: str) -> tuple[str, int, int, int, int]:
    """Return (name, key, first version, last version, flexible from) of a block, without parsing its fields."""
    head = _HEAD.match(block)
    assert head, f"a message is expected at {block[:40]!r}"
    name, key, versions, flexible = head.groups()
    first, last = _range(versions)
    flexible_from = VERSION_LAST + 1 if flexible == "none" else _range(flexible)[0]
    return name, int(key) if key else -1, first, last, flexible_from


def load(name: str) -> Schema:
    """The schema of the message `name`. Raises KeyError if there is none."""
    block = TEXTS[name]
    fields, end = _fields(block, block.index("\n"))
    assert end == len(block), f"{name}: cannot read {block[end:][:40]!r}"
    return Schema(*heading(block), Struct(name, fields))
