"""One pass over a topic, batch after batch: fetched on the caller's thread, decoded on others, handed out in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Literal

import pyarrow as pa

from pybroker.clock import wall_ms
from pybroker.frames import inference, layouts, schemas
from pybroker.frames.json_values import JsonValues
from pybroker.frames.layouts import Layout, Piece, ValueDecoder
from pybroker.frames.ranges import EARLIEST, LATEST, NO_BOUNDS, Bound, Within, resolve
from pybroker.frames.schemas import SchemaLike
from pybroker.frames.sources import LogDirs, open_source

Format = Literal["json", "avro"]

WORKERS_MAX: Final = 4
INFER_ROWS: Final = 10_000


@dataclass(frozen=True)
class TopicRequest:
    """The arguments of a caller; the functions of `reading` say what each of them means."""

    topic: str
    log_dir: LogDirs | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    start: Bound = EARLIEST
    end: Bound = LATEST
    partitions: Iterable[int] | None = None
    columns: Iterable[str] | None = None
    format: Format | None = None
    schema: SchemaLike | None = None
    schema_registry: str | None = None
    registry_config: Mapping[str, str] | None = None
    n_rows: int | None = None
    infer_rows: int = INFER_ROWS
    within: Within = NO_BOUNDS

    def __post_init__(self) -> None:
        if self.format not in (None, "json", "avro"):
            raise ValueError(f"format is {self.format!r}: expected is json, avro, or None for records as they are")
        if self.schema_registry is not None and self.format != "avro":
            raise ValueError("schema_registry is for format='avro'; a frame before JSON is skipped without one")
        if self.registry_config and self.schema_registry is None:
            raise ValueError("registry_config is given without schema_registry")
        if self.schema is not None and self.format is None:
            raise ValueError("a schema is for values that are decoded: give format='json' or 'avro' too")
        if self.n_rows is not None and self.n_rows < 0:
            raise ValueError(f"n_rows is {self.n_rows}")
        if self.infer_rows < 1:
            raise ValueError(f"infer_rows is {self.infer_rows}")

    @property
    def infers(self) -> bool:
        """True if the types are those of the first records."""
        return self.format == "json" and self.schema is None


class Scan:
    """A pass: its columns are known once it is made. Close it, or read its pieces to their end.

    Raises ValueError and TypeError for a request that does not fit together, KafkaError of brokers, OSError of files.
    """

    def __init__(self, request: TopicRequest) -> None:
        self._request = request
        self._head: list[pa.RecordBatch] = []
        self._unknown: dict[str, None] = {}
        self._filled: set[str] | None = None  # fields with a value; None before the first row
        self._source = open_source(request.topic, request.log_dir, request.settings)
        try:
            wanted = None if request.partitions is None else list(request.partitions)
            ranges = resolve(self._source, wanted, request.start, request.end, wall_ms())
            self._ranges = request.within.cut(self._source, ranges)
            self._batches: Iterator[pa.RecordBatch] | None = None
            self.layout = self._find_layout()
        except BaseException:
            self.close()
            raise

    @property
    def unknown(self) -> list[str]:
        """Fields that are left out although all were asked for, as the first records do not have them; the first
        few."""
        return [*self._unknown] if self._request.infers and self._request.columns is None else []

    @property
    def empty(self) -> list[str]:
        """Fields of the given schema without a value in any record, if records have fields that it lacks."""
        request = self._request
        if request.infers or request.within != NO_BOUNDS:  # a part of the records may lack a field
            return []
        if self._filled is None or self._unknown.keys() <= {*self.fields.names}:
            return []
        return [name for name, of in self.layout.columns if of is None and name not in self._filled]

    @property
    def records(self) -> int:
        """Offsets in the ranges: as many records, or fewer."""
        return sum(end - start for start, end in self._ranges.values())

    def close(self) -> None:
        """Let go of the source. Calling it again does nothing."""
        self._source.close()

    def __enter__(self) -> Scan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pieces(self) -> Iterator[Piece]:
        """The rows, once; those of a partition in their order."""
        batches = self._batches or self._source.batches(self._ranges, self.layout.fetched)
        left = self._request.n_rows
        if left == 0:
            return
        for piece in _decoded(self.layout, chain(self._head, batches)):
            self._unknown |= dict.fromkeys(piece.unknown)
            if rows := piece.rows.num_rows:
                filled = {name for name in piece.rows.schema.names if piece.rows.column(name).null_count < rows}
                self._filled = filled | (self._filled or set())
            if left is None:
                yield piece
                continue
            piece = piece.head(left)
            left -= piece.rows.num_rows
            yield piece
            if left <= 0:
                return

    # -- columns -------------------------------------------------------------------------------------------------------

    def _find_layout(self) -> Layout:
        columns = None if self._request.columns is None else layouts.names_of(self._request.columns)
        if self._request.format is None:
            self.fields = pa.schema([])
            return layouts.raw_layout(columns)
        decoder = self._avro_values() if self._request.format == "avro" else self._json_values()
        if decoder is None:  # there is no value, so only columns of metadata have a type
            decoder = JsonValues(pa.schema([]))
            columns = None if columns is None else [name for name in columns if name.startswith(layouts.PREFIX)]
        self.fields = decoder.schema
        wanted = layouts.wanted_fields(columns, decoder.schema)
        return layouts.decoded_layout(columns, decoder.select(wanted))

    def _json_values(self) -> ValueDecoder | None:
        request = self._request
        if request.schema is not None:
            return JsonValues(schemas.arrow_schema(request.schema))
        fields = inference.infer_schema(self._peek(request.infer_rows))
        return JsonValues(fields) if len(fields) else None

    def _avro_values(self) -> ValueDecoder | None:
        from pybroker.frames.avro_values import avro_values

        request = self._request
        first = None
        if request.schema is None:
            first = next((value for value in self._peek(1) if value), None)
            if first is None:
                return None
        return avro_values(request.schema, request.schema_registry, request.registry_config or {}, first)

    def _peek(self, rows: int) -> Iterator[bytes | None]:
        """The values of the first records: so many, without nulls. What is read for them is not lost."""
        asked = [name.removeprefix(layouts.PREFIX) for name in self._request.columns or ()]
        fetched = [*layouts.OF_ERRORS, *(name for name in asked if name in layouts.TYPES)]
        self._batches = self._source.batches(self._ranges, fetched)
        left = rows
        for batch in self._batches:
            self._head.append(batch)
            left -= batch.num_rows - batch.column("value").null_count
            if left <= 0:
                break
        columns = (batch.column("value").drop_null().slice(0, rows) for batch in self._head)
        return islice(chain.from_iterable(column.to_pylist() for column in columns), rows)


def _decoded(layout: Layout, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """Each batch decoded by one of several threads, while the next ones are fetched."""
    if layout.decoder is None:
        yield from map(layout.piece, batches)
        return
    workers = min(WORKERS_MAX, os.cpu_count() or 1)
    waiting: deque[Future[Piece]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="pybroker-decode")
    try:
        for batch in batches:
            waiting.append(pool.submit(layout.piece, batch))
            while waiting and (waiting[0].done() or len(waiting) > 2 * workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
