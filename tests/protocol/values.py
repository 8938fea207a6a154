"""Messages with values of every kind, generated from the definitions by hypothesis or from a seed."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from hypothesis import strategies as st

from pybroker.protocol import messages
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.schema import OUR_TAGS, Field, Struct

BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
EMPTY: dict[str, Any] = {"str": "", "bytes": b"", "records": b""}

# Sizes at which a compact length grows from one byte to two, and from two to three.
LONG_STRINGS = ["x" * 126, "x" * 127, "é" * 64, "x" * 0x4000]
LONG_BYTES = [bytes(126), bytes(127), bytes(0x4000)]

NAMES = sorted(TEXTS)
VERSIONS = [
    (name, version)
    for name in NAMES
    for schema in [messages.message(name).SCHEMA]
    for version in range(schema.first, schema.last + 1)
]


@cache
def messages_of(kind: Any) -> st.SearchStrategy[Any]:
    """Messages with all fields of all Kafka versions; `at` adapts them to one version."""
    theirs = [field for field in kind.STRUCT.fields if field.tag is None or field.tag < OUR_TAGS]
    return st.builds(kind, **{field.name: _field(field, kind) for field in theirs})


def _field(field: Field, kind: Any) -> st.SearchStrategy[Any]:
    one = _scalar(field, kind)
    if field.is_array:
        one = st.lists(one, max_size=3)
        if field.type in BITS:
            one |= st.integers(100, 200).map(lambda n: list(range(n % 128)))
    if field.nulls or (field.struct and not field.is_array):
        one = st.none() | one
    return one


def _scalar(field: Field, kind: Any) -> st.SearchStrategy[Any]:
    if field.struct:
        return messages_of(getattr(kind, field.struct.name))
    if field.type in BITS:
        half = 1 << BITS[field.type] - 1
        return st.integers(-half, half - 1) | st.just(field.default if isinstance(field.default, int) else 0)
    if field.type == "str":
        return st.text(max_size=12) | st.sampled_from(LONG_STRINGS)
    if field.type in ("bytes", "records"):
        return st.binary(max_size=12) | st.sampled_from(LONG_BYTES)
    if field.type == "uuid":
        return st.binary(min_size=16, max_size=16) | st.just(bytes(16))
    if field.type == "bool":
        return st.booleans()
    assert field.type == "f64"
    return st.floats(allow_nan=False)


def at(message: Any, version: int) -> Any:
    """Copy a message with defaults for fields that the version lacks, and without nulls that it forbids."""
    kind: Any = type(message)
    return kind(**{field.name: _fitted(field, getattr(message, field.name), version) for field in kind.STRUCT.fields})


def _fitted(field: Field, value: Any, version: int) -> Any:
    if not field.exists(version):
        return [] if isinstance(field.default, list) else field.default
    if value is None:
        if field.nullable(version) or (field.struct and not field.is_array):
            return None
        return [] if field.is_array else EMPTY[field.type]
    if field.struct:
        return [at(item, version) for item in value] if field.is_array else _settled(field, at(value, version), version)
    return value


def _settled(field: Field, value: Any, version: int) -> Any:
    """Return None for a tagged struct at its defaults, as it is not written."""
    return None if not field.nullable(version) and value == type(value)() else value


def sample(kind: Any, version: int, rng: random.Random) -> Any:
    """A message of a top-level class with all arrays filled, valid for the version."""
    return at(_sample(kind, kind.STRUCT, rng), version)


def _sample(kind: Any, struct: Struct, rng: random.Random) -> Any:
    values = {}
    for field in struct.fields:
        made = [_sample_one(field, kind, rng) for _ in range(rng.randint(1, 2) if field.is_array else 1)]
        values[field.name] = made if field.is_array else made[0]
    return kind(**values)


def _sample_one(field: Field, kind: Any, rng: random.Random) -> Any:
    if field.struct:
        return _sample(getattr(kind, field.struct.name), field.struct, rng)
    if field.type in BITS:
        half = 1 << BITS[field.type] - 1
        return rng.randrange(-half, half)
    if field.type == "str":
        return "".join(rng.choices("abcé", k=rng.randint(0, 6)))
    if field.type in ("bytes", "records"):
        return rng.randbytes(rng.randint(0, 9))
    if field.type == "uuid":
        return rng.randbytes(16)
    return rng.random() < 0.5 if field.type == "bool" else rng.random()
