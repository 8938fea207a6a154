"""The columns of a frame, and how the records of a batch become rows of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from pybroker.client.columns.arrow import HEADERS
from pybroker.frames.bad_records import ERRORS
from pybroker.frames.json_values import Decoded
from pybroker.frames.sources import METADATA, RAW

PREFIX: Final = "kafka_"
"""Of what Kafka has of a record, beside columns of its value."""
DEFAULT_METADATA: Final = ("partition", "offset", "timestamp")
DEFAULT_RAW: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
TYPES: Final = {
    "topic": pa.dictionary(pa.int32(), pa.string()),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", "UTC"),
    "timestamp_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}
OF_ERRORS: Final = ("offset", "timestamp", "key", "value")


class ValueDecoder(Protocol):
    """Decodes values into the columns of its schema; any threads may do so at once."""

    @property
    def schema(self) -> pa.Schema: ...
    def decode(self, values: pa.Array) -> Decoded: ...
    def select(self, fields: pa.Schema) -> ValueDecoder:
        """The same for some of its fields."""


class Piece(NamedTuple):
    """The rows of a batch, its records that do not decode, and fields that no column is for.

    runs: (partition, rows) of rows that follow each other. bad: where the errors were among all."""

    rows: pa.RecordBatch
    runs: list[tuple[int, int]]
    errors: pa.RecordBatch | None = None
    unknown: tuple[str, ...] = ()
    bad: tuple[int, ...] = ()

    def head(self, rows: int) -> Piece:
        """The first rows, and the errors before the last of them."""
        if rows > self.rows.num_rows:
            return self
        last = rows - 1
        before = 0
        for at in self.bad:
            if at > last:
                break
            last, before = last + 1, before + 1
        errors = None if self.errors is None else self.errors.slice(0, before)
        return self._replace(rows=self.rows.slice(0, rows), errors=errors)


class Layout(NamedTuple):
    """The columns of a frame: (name, its name in a batch of records, or None for one of the decoder)."""

    columns: tuple[tuple[str, str | None], ...]
    schema: pa.Schema
    decoder: ValueDecoder | None = None

    @property
    def fetched(self) -> list[str]:
        """The columns of records that are needed."""
        needed = {name for _, name in self.columns if name is not None} | {"partition", "offset"}
        return [name for name in RAW if name in needed or (self.decoder is not None and name in OF_ERRORS)]

    def piece(self, batch: pa.RecordBatch) -> Piece:
        """The rows that a batch of records becomes, without those that do not decode."""
        partitions = batch.column("partition")
        if self.decoder is None:
            return Piece(batch.select([name for _, name in self.columns]), _runs(partitions))
        decoded = self.decoder.decode(batch.column("value"))
        made = dict(zip(self.decoder.schema.names, decoded.columns, strict=True))
        arrays = [made[name] if of is None else batch.column(of) for name, of in self.columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not decoded.bad:
            return Piece(rows, _runs(partitions), None, decoded.unknown)
        at = [row for row, _ in decoded.bad]
        sound = np.ones(batch.num_rows, bool)
        sound[at] = False
        keep = pa.array(sound)
        errors = _errors(batch.take(pa.array(at)), decoded)
        return Piece(rows.filter(keep), _runs(partitions.filter(keep)), errors, decoded.unknown, tuple(at))


def _runs(partitions: pa.Array) -> list[tuple[int, int]]:
    numbers = partitions.to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    sizes = np.diff(starts, append=len(numbers))
    return [(int(numbers[start]), int(size)) for start, size in zip(starts, sizes, strict=True)]


def _errors(records: pa.RecordBatch, decoded: Decoded) -> pa.RecordBatch:
    arrays = [records.column(field.name).cast(field.type) for field in ERRORS if field.name != "error"]
    return pa.RecordBatch.from_arrays([*arrays, pa.array([why for _, why in decoded.bad], pa.string())], schema=ERRORS)


def raw_layout(columns: Iterable[str] | None) -> Layout:
    """Records as they are. ValueError for a column that records do not have."""
    names = DEFAULT_RAW if columns is None else names_of(columns)
    for name in names:
        if name not in RAW:
            raise ValueError(f"records have no column {name!r}, but {', '.join(RAW)}; give a format to have fields")
    return Layout(tuple((name, name) for name in names), pa.schema([(name, TYPES[name]) for name in names]))


def wanted_fields(columns: Iterable[str] | None, schema: pa.Schema) -> pa.Schema:
    """The part of the values' schema that the columns need. ValueError for a column that nothing has."""
    known = [f"{PREFIX}{name}" for name in METADATA]
    taken = [name for name in schema.names if name in known]
    if taken or len(set(schema.names)) < len(schema.names):
        twice = taken or [name for name in schema.names if schema.names.count(name) > 1]
        raise ValueError(f"the values have a field {twice[0]!r}, of which there can be one: give a schema without it")
    if columns is None:
        return schema
    for name in names_of(columns):
        if name not in schema.names and name not in known:
            shown = ", ".join([*schema.names[:20], *known])
            raise ValueError(f"there is no column {name!r}; there are {shown}")
    return pa.schema([schema.field(name) for name in columns if name in schema.names])


def decoded_layout(columns: Iterable[str] | None, decoder: ValueDecoder) -> Layout:
    """The fields of values, and columns of the record: kafka_offset and the like."""
    fields = decoder.schema
    names = [*fields.names, *(f"{PREFIX}{name}" for name in DEFAULT_METADATA)] if columns is None else [*columns]
    made: list[tuple[str, str | None]] = []
    types = []
    for name in names:
        of = None if name in fields.names else name.removeprefix(PREFIX)
        made.append((name, of))
        types.append(fields.field(name) if of is None else pa.field(name, TYPES[of]))
    return Layout(tuple(made), pa.schema(types), decoder)


def names_of(columns: Iterable[str]) -> Sequence[str]:
    """The names in a list. TypeError for one name in its place, ValueError for one that is there twice."""
    if isinstance(columns, str):
        raise TypeError(f"columns is a list of names, such as [{columns!r}], and not one name")
    names = list(columns)
    if len(set(names)) < len(names):
        raise ValueError(f"columns has a name twice: {', '.join(names)}")
    return names
