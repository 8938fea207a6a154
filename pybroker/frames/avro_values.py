"""Values that are Avro, as columns: records of one schema, or of the schemas that their frames name to a registry.

Null and empty values are rows of nulls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

try:
    import fastavro
except ModuleNotFoundError as error:
    from pybroker import extras

    words = f"format='avro' needs fastavro: {extras.install('schema-registry')}"
    raise ModuleNotFoundError(words, name=error.name) from error

from pybroker.avro.decoding import NO_AVRO, decode_avro
from pybroker.avro.framing import FRAME_BYTES, framed_id
from pybroker.avro.registry_client import NoSchema
from pybroker.avro.resolution import Resolver, whole_schema
from pybroker.avro.values import Avro, Document
from pybroker.avro.writer_schemas import SCHEMAS_MAX, WriterSchema, WriterSchemas, writer_schemas
from pybroker.errors import KafkaError
from pybroker.frames.avro_program import AvroProgram
from pybroker.frames.json_values import Decoded
from pybroker.frames.schemas import SchemaLike, avro_record, avro_schema

_UNFIT: Final = (ValueError, TypeError, OverflowError)
"""Errors of pyarrow for a value outside a type, as ArrowInvalid and ArrowTypeError."""


class AvroValues:
    """Decodes values by a record's schema; those of other schemas are resolved to it, where there is a registry.

    Core decodes what it has a program for, and fastavro the rest, with the same result."""

    def __init__(self, record: Document, schemas: WriterSchemas | None, fields: pa.Schema | None = None) -> None:
        self.schema: pa.Schema = avro_schema(record) if fields is None else fields
        self._record = record
        self._schemas = schemas
        plain = _without_uuids(record)
        try:
            self._known = fastavro.parse_schema(plain)
            self._resolver = None if schemas is None else Resolver(plain, schemas)
        except Exception as error:  # fastavro raises several types, also for defaults that do not fit their fields
            raise ValueError(f"the Avro schema cannot be used: {error}") from error
        self._plain = plain
        self._program_of = functools.lru_cache(maxsize=SCHEMAS_MAX)(self._program)

    def select(self, fields: pa.Schema) -> AvroValues:
        """The same for some of the fields."""
        return self if fields.names == self.schema.names else AvroValues(self._record, self._schemas, fields)

    def decode(self, values: pa.Array) -> Decoded:
        """The columns of an array of binary values. Raises KafkaError where the registry does not answer."""
        if self._schemas is None:
            return self._decode_alike(values, None)
        frames = pc.binary_slice(values, 0, FRAME_BYTES)
        there = [frame for frame in frames.unique().to_pylist() if frame]
        if len(there) <= 1:
            return self._decode_alike(values, framed_id(there[0]) if there else None)
        parts, places, bad = [], [], []
        for frame in [None, *there]:
            empty = pc.or_kleene(pc.is_null(frames), pc.equal(frames, b""))
            rows = pc.indices_nonzero(empty if frame is None else pc.fill_null(pc.equal(frames, frame), False))
            decoded = self._decode_alike(values.take(rows), None if frame is None else framed_id(frame))
            parts.append(decoded.columns)
            places.append(rows)
            bad += [(rows[row].as_py(), why) for row, why in decoded.bad]
        back = pc.sort_indices(pa.concat_arrays(places))
        columns = [pa.concat_arrays(each).take(back) for each in zip(*parts, strict=True)]
        return Decoded(columns, sorted(bad))

    def _decode_alike(self, values: pa.Array, number: int | None) -> Decoded:
        """Decode values of one schema: of a frame's id, or without a registry of ours."""
        program = self._program_of(number) if number is not None or self._schemas is None else None
        if program is None:
            return self._decode_each(values)
        try:
            columns, bad = program.decode(values, FRAME_BYTES if self._schemas is not None else 0)
        except _UNFIT:
            return self._decode_each(values)
        why = [self._decode_one(values[row].as_py())[1] for row in bad]
        if None in why:  # fastavro takes more: a string that is not UTF-8 in a field that is not wanted
            return self._decode_each(values)
        return Decoded(columns, [(row, str(error)) for row, error in zip(bad, why, strict=True)])

    def _program(self, number: int | None) -> AvroProgram | None:
        """The program for records of an id's schema, or of ours; None if there is none."""
        try:
            ours = whole_schema(WriterSchema(self._plain))
            defaults = {field["name"]: field["default"] for field in self._plain["fields"] if "default" in field}
            fields = [
                {**field, "default": defaults[field["name"]]} if field["name"] in defaults else field
                for field in ours["fields"]
            ]
            theirs = ours
            if number is not None and self._schemas is not None:
                theirs = _without_uuids(whole_schema(self._schemas.schema(number)))
            return AvroProgram(theirs, {**ours, "fields": fields}, self.schema)
        except KafkaError:
            raise
        except Exception:  # a schema that is none: fastavro's own way says why, record by record
            return None

    # -- record by record ----------------------------------------------------------------------------------------------

    def _decode_one(self, value: bytes) -> tuple[Document | None, str | None]:
        return decode_avro(self._known, value, self._resolver, advice="give schema_registry")

    def _decode_each(self, values: pa.Array) -> Decoded:
        rows: list[Document | None] = []
        why: dict[int, str] = {}
        for at, value in enumerate(values.to_pylist()):
            row, error = self._decode_one(value) if value else (None, None)
            if error is not None:
                why[at] = error
            rows.append(row)
        try:
            columns = self._columns(rows)
        except _UNFIT:
            for at, row in enumerate(rows):
                try:
                    self._columns([row])
                except _UNFIT:  # Avro's numbers may have 64 bits, more than the column
                    rows[at], why[at] = None, NO_AVRO
            columns = self._columns(rows)
        return Decoded(columns, sorted(why.items()))

    def _columns(self, rows: list[Document | None]) -> list[pa.Array]:
        return [pa.array([row.get(f.name) if row else None for row in rows], f.type) for f in self.schema]


def avro_values(
    schema: SchemaLike | None, registry: str | None, config: Mapping[str, str], first: bytes | None
) -> AvroValues:
    """The decoder for a schema; without one for that of `first`, a framed value.

    Raises ValueError for what is no Avro record, and without schema and registry; KafkaError where the registry does
    not answer or its settings are wrong."""
    schemas = writer_schemas(registry, config)
    if schema is not None:
        record = avro_record(schema)
        if record is None:
            raise ValueError("format='avro' takes an Avro record as schema: a dict, JSON or the path of an .avsc file")
        return AvroValues(record, schemas)
    if schemas is None:
        raise ValueError("format='avro' needs a schema or a schema_registry")
    number = None if first is None else framed_id(first)
    if number is None:
        raise ValueError("the first value does not begin with the frame of a schema registry: give a schema")
    try:
        return AvroValues(whole_schema(schemas.schema(number)), schemas)
    except NoSchema as error:
        raise ValueError(f"schema {number}, of the first value, {error}: give a schema") from None


def _without_uuids(schema: Avro) -> Avro:
    """A copy in which uuids are the strings that they are: no column takes an object of UUID."""
    if isinstance(schema, list):
        return [_without_uuids(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: each if name == "default" else _without_uuids(each) for name, each in schema.items()}
    if made.get("logicalType") == "uuid" and made.get("type") == "string":
        del made["logicalType"]
    return made
