"""Requests of any API with one array of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pybroker.protocol.schema import Field, Struct

Path = tuple[str, ...]


def arrays(struct: Struct, version: int, path: Path = ()) -> Iterator[Path]:
    """The names that lead to each array of a message."""
    for field in struct.untagged(version):
        if field.is_array:
            yield (*path, field.name)
        if field.struct:
            yield from arrays(field.struct, version, (*path, field.name))


def wide(kind: Any, version: int, path: Path, counts: Sequence[int], number: int = 0) -> Any:
    """A message whose arrays of `path` have this many elements each, with different names; its other arrays are
    empty."""
    fields: dict[str, Any] = {}
    for field in kind.STRUCT.untagged(version):
        if field.is_array and path[:1] == (field.name,):
            numbers = range(number * counts[0], (number + 1) * counts[0])
            if field.struct:
                inner = getattr(kind, field.struct.name)
                fields[field.name] = [wide(inner, version, path[1:], counts[1:], each) for each in numbers]
            else:
                fields[field.name] = [_value(field, each) for each in numbers]
        elif field.is_array:
            fields[field.name] = []
        elif not field.struct:
            fields[field.name] = _value(field, number)
    return kind(**fields)


def _value(field: Field, number: int) -> Any:
    if field.type == "str":
        return "other" if field.name == "transactional_id" else f"a{number}"
    if field.type == "uuid":
        return (number + 1).to_bytes(16, "big")
    if field.type in ("bytes", "records"):
        return b""
    return number if field.name in ("partition", "partition_index", "index", "partition_indexes", "partitions") else 0
