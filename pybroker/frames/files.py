"""Tables in files, by their names: .parquet, .arrow (or .feather), .csv and .json (an object a line).

A file has its name only once all of it is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from pybroker.frames.json_text import json_objects, looked_up

GROUP_ROWS: Final = 1 << 17
"""Rows that are written at once, so that a Parquet file does not have a row group for each batch."""


class TableWriter(Protocol):
    """Writes one format."""

    def write_table(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


def _parquet(path: Path, schema: pa.Schema) -> TableWriter:
    from pyarrow import parquet

    writer: TableWriter = parquet.ParquetWriter(path, schema, compression="zstd")
    return writer


class _Csv:
    """CSV; types that it does not have are text, and nested values JSON."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import csv

        self._schema = pa.schema([pa.field(field.name, _flat(field.type)) for field in schema])
        self._writer = csv.CSVWriter(path, self._schema)

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            columns = [
                as_text(column, field.name) if pa.types.is_string(to.type) else column
                for column, field, to in zip(batch.columns, batch.schema, self._schema, strict=True)
            ]
            self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


class _Json:
    """Lines of JSON objects; bytes that are not UTF-8 are {"base64": ...}."""

    def __init__(self, path: Path, _: pa.Schema) -> None:
        self._file = path.open("wb")

    def write_table(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            for start in range(0, batch.num_rows, 1 << 14):
                lines = json_objects(batch.slice(start, 1 << 14), base64=True)
                self._file.writelines(line.encode() + b"\n" for line in lines.to_pylist())

    def close(self) -> None:
        self._file.close()


def _flat(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    plain = types.is_primitive(kind) or types.is_decimal(kind)
    return kind if plain else pa.string()


def as_text(column: pa.Array, name: str, *, strict: bool = True) -> pa.Array:
    """A column as text: nested values as JSON. ValueError for bytes that are not UTF-8, which are text with U+FFFD
    where it is not `strict`."""
    if not strict:
        found = column.to_pylist() if _holds_bytes(column.type) else None
        if found is not None and not pa.types.is_nested(column.type):
            return pa.array([None if each is None else each.decode("utf-8", "replace") for each in found], pa.string())
        if found is not None:
            return pa.array([None if each is None else str(each) for each in found], pa.string())
    if pa.types.is_nested(column.type):
        objects = json_objects(pa.RecordBatch.from_arrays([column], ["v"]))
        texts = pa.compute.utf8_slice_codeunits(objects, len('{"v":'), -1)
        return pa.compute.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
    if pa.types.is_dictionary(column.type):
        column = looked_up(column)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        words = "has bytes that are not UTF-8: write a .parquet or an .arrow file"
        raise ValueError(f"column {name!r} {words}") from None


def _holds_bytes(kind: pa.DataType) -> bool:
    return "binary" in str(kind)


WRITERS: Final[dict[str, Callable[[Path, pa.Schema], TableWriter]]] = {
    ".parquet": _parquet,
    ".arrow": pa.ipc.new_file,
    ".feather": pa.ipc.new_file,
    ".csv": _Csv,
    ".json": _Json,
    ".jsonl": _Json,
    ".ndjson": _Json,
}


class TableFile:
    """A file that is written batch by batch; use it in a `with`: where that ends by an exception, no file is left."""

    def __init__(self, path: str | os.PathLike[str], schema: pa.Schema) -> None:
        """Raises ValueError for a name that says no format, OSError."""
        self.path = Path(path)
        self.schema = schema
        self._part = self.path.with_name(f".{self.path.name}.part")
        self._writer = writer_of(self.path)(self._part, schema)
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self.schema).combine_chunks())
            self._waiting, self._rows = [], 0

    def __enter__(self) -> TableFile:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
            self._writer.close()
            if kind is None:
                self._part.replace(self.path)
        finally:
            with contextlib.suppress(OSError):
                self._part.unlink()


def writer_of(path: Path) -> Callable[[Path, pa.Schema], TableWriter]:
    """The writer for the name of a file. ValueError if it says no format."""
    found = WRITERS.get(path.suffix.lower())
    if found is None:
        raise ValueError(f"{path.name}: the name of a file ends with {', '.join(WRITERS)}")
    return found
