"""Schemas as callers give them: Arrow's, a mapping of names to types of Arrow, polars or Python, or an Avro record."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

if TYPE_CHECKING:
    from pybroker.avro.values import Avro, Document

SchemaLike = object
"""pyarrow.Schema; a mapping of names to types, polars.Schema among them; an Avro record as dict, JSON or path."""

_PYTHON: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}
_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "uuid": pa.string(),
}
DECIMAL_DIGITS_MAX: Final = 38
_COLUMN_LIST: Final = re.compile(r"^\s*\w+\s*[:\s]\s*\w[^/\\.]*$")
"""Text like "id bigint, at timestamp" or "id:int64", which the commands take."""


def arrow_schema(given: SchemaLike) -> pa.Schema:
    """The Arrow schema that is meant. Raises ValueError or TypeError with what is wrong; OSError for a path."""
    if isinstance(given, pa.Schema):
        return given
    document = avro_record(given)
    if document is not None:
        return avro_schema(document)
    if isinstance(given, Mapping):
        return pa.schema(_fields(given))
    raise TypeError(
        "a schema is a pyarrow.Schema, a mapping of names to types, or an Avro record (dict, JSON or the path of an"
        f" .avsc file), not {type(given).__name__}"
    )


def _fields(given: Mapping[str, object]) -> list[pa.Field]:
    of_polars = [name for name, kind in given.items() if _is_of_polars(kind)]
    known = _polars_types({name: given[name] for name in of_polars}) if of_polars else {}
    return [pa.field(name, known[name] if name in known else _type(name, kind)) for name, kind in given.items()]


def _type(name: str, kind: object) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, type) and kind in _PYTHON:
        return _PYTHON[kind]
    if isinstance(kind, str):
        try:
            return pa.type_for_alias(kind)
        except ValueError:
            pass
    raise TypeError(f"the type of {name!r} is {kind!r}: expected is one of Arrow, polars or Python, such as pa.int64()")


def _is_of_polars(kind: object) -> bool:
    module = getattr(kind if isinstance(kind, type) else type(kind), "__module__", "")
    return module.split(".")[0] == "polars"


def _polars_types(given: Mapping[str, object]) -> dict[str, pa.DataType]:
    import polars

    made = polars.DataFrame(schema=cast("polars.Schema", given)).to_arrow().schema
    return {field.name: _small(field.type) for field in made}


def _small(kind: pa.DataType) -> pa.DataType:
    """A type with offsets of 32 bits where polars has 64: a batch has no more."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _small(field.type)) for field in kind])
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _small(kind.value_type), kind.ordered)
    return kind


# -- Avro -------------------------------------------------------------------------------------------------------------


def avro_record(given: SchemaLike) -> Document | None:
    """The Avro record that a schema is, as a document; None if it is something else.

    Raises ValueError for text that is no such record, OSError for the path of a file that cannot be read."""
    if isinstance(given, os.PathLike) or (isinstance(given, str) and not given.lstrip().startswith(("{", "["))):
        if isinstance(given, str) and _COLUMN_LIST.search(given) and not Path(given).exists():
            words = "and text is Avro's JSON or a path: give a dict like {'id': int}"
            raise ValueError(f"schema is {given[:80]!r}, {words}")
        text, what = Path(given).read_text(), f"the Avro schema in {os.fspath(given)}"
    elif isinstance(given, str):
        text, what = given, "the Avro schema"
    elif isinstance(given, dict) and given.get("type") == "record" and isinstance(given.get("fields"), list):
        return given
    else:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("type") != "record" or not document.get("fields"):
        raise ValueError(f"{what} is not a record with fields")
    return document


def avro_schema(record: Document) -> pa.Schema:
    """The Arrow schema of an Avro record. ValueError for types that no column has: recursive ones, most unions."""
    return pa.schema(_avro_fields(record, {}))


def _avro_fields(record: Document, named: Document) -> list[pa.Field]:
    return [pa.field(field["name"], _avro_type(field["type"], named)) for field in record["fields"]]


def _avro_type(kind: Avro, named: Document) -> pa.DataType:
    if isinstance(kind, list):
        real = [each for each in kind if each != "null"]
        if len(real) == 1:
            return _avro_type(real[0], named)
    elif isinstance(kind, str):
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        found = named.get(kind) or named.get(kind.rpartition(".")[2])
        if found is not None:
            return found
    elif isinstance(kind, dict):
        made = _avro_complex(kind, named)
        if made is not None:
            if "name" in kind:
                named[kind["name"]] = made
            return made
    raise ValueError(f"the Avro type {json.dumps(kind)[:200]} has no column of Arrow")


def _avro_complex(kind: Document, named: Document) -> pa.DataType | None:
    inner, logical = kind.get("type"), kind.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "decimal" and 0 < kind.get("precision", 0) <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(kind["precision"], kind.get("scale", 0))
    if inner == "array":
        return pa.list_(_avro_type(kind["items"], named))
    if inner == "map":
        return pa.map_(pa.string(), _avro_type(kind["values"], named))
    if inner == "record":
        return pa.struct(_avro_fields(kind, named))
    if inner == "enum":
        return pa.string()
    if inner == "fixed":
        return pa.binary(kind["size"])
    return _avro_type(inner, named) if isinstance(inner, str | dict | list) else None
