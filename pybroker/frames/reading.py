"""Topics as tables: read_topic has all of it at once, scan_topic batch after batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Unpack

import pyarrow as pa

from pybroker.frames.bad_records import Collected, OnError, collected_of_scan, warn_unknown
from pybroker.frames.ranges import EARLIEST, LATEST, Bound
from pybroker.frames.scanning import INFER_ROWS, Format, Scan, TopicRequest
from pybroker.frames.schemas import SchemaLike
from pybroker.frames.sources import LogDirs, ReadSettings, Servers, all_settings


def read_topic(
    topic: str,
    *,
    bootstrap_servers: Servers | None = None,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    partitions: Iterable[int] | None = None,
    columns: Iterable[str] | None = None,
    format: Format | None = None,
    schema: SchemaLike | None = None,
    schema_registry: str | None = None,
    registry_config: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    n_rows: int | None = None,
    infer_rows: int = INFER_ROWS,
    log_dir: LogDirs | None = None,
    **settings: Unpack[ReadSettings],
) -> pa.Table:
    """Return the records of a topic as a pyarrow.Table, ordered by partition and offset.

    They are read from brokers (`bootstrap_servers` and other settings of a Consumer), or from the partitions'
    directories in `log_dir`, without a broker.

    start, end: "earliest", "latest", an offset (-N: N records before the end), a datetime, a timedelta (so long ago),
    or a mapping of partitions to these. The record at `end` is not read. Times are looked up as brokers do: the first
    record that is as late. partitions: only these. n_rows: at most so many.

    format: "json" and "avro" decode values into columns; None has records as they are. schema: a pyarrow.Schema, a
    mapping of names to types of Arrow, polars or Python, or an Avro record (dict, JSON, path). Without a schema the
    types are those of the first `infer_rows` JSON values. schema_registry: its URL, by which framed Avro is read;
    registry_config: its login, by Confluent's names. Null and empty values are rows of nulls.

    columns: with a format, fields of the values and kafka_topic, kafka_partition, kafka_offset, kafka_timestamp,
    kafka_timestamp_type, kafka_key and kafka_headers; None is all fields, partition, offset and timestamp. Without a
    format: topic, partition, offset, timestamp, timestamp_type, key, value, headers. Other columns are not decoded.

    on_error: "raise" raises BadRecords once all is read, with the table of the other records and a table of `errors`;
    "warn" warns with the number of records that do not decode; "return" returns (table, errors); a function is called
    with tables of errors.

    Raises ValueError and TypeError for arguments that make no sense, KafkaError of brokers, OSError and LogError of
    files."""
    request = TopicRequest(
        topic, log_dir, all_settings(bootstrap_servers, settings), start, end, partitions, columns, format, schema,
        schema_registry, registry_config, n_rows, infer_rows,
    )  # fmt: skip
    return _read(request, on_error)


def _read(request: TopicRequest, on_error: OnError) -> pa.Table:
    errors = Collected(on_error)
    rows: dict[int, list[pa.RecordBatch]] = {}
    with Scan(request) as scan:
        for piece in scan.pieces():
            _split(piece.rows, piece.runs, rows)
            errors.add(piece.errors)
    batches = [batch for partition in sorted(rows) for batch in rows[partition]]
    table = pa.Table.from_batches(batches, scan.layout.schema)
    warn_unknown(scan.unknown, scan.empty, stacklevel=4)  # the caller of read_topic
    errors.end(table, stacklevel=4)
    return (table, errors.table) if on_error == "return" else table


def _split(batch: pa.RecordBatch, runs: Iterable[tuple[int, int]], to: dict[int, list[pa.RecordBatch]]) -> None:
    start = 0
    for partition, count in runs:
        part = batch.slice(start, count)
        if part.num_rows:
            to.setdefault(partition, []).append(part)
        start += count


def scan_topic(
    topic: str,
    *,
    bootstrap_servers: Servers | None = None,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    partitions: Iterable[int] | None = None,
    columns: Iterable[str] | None = None,
    format: Format | None = None,
    schema: SchemaLike | None = None,
    schema_registry: str | None = None,
    registry_config: Mapping[str, str] | None = None,
    on_error: OnError = "raise",
    n_rows: int | None = None,
    infer_rows: int = INFER_ROWS,
    log_dir: LogDirs | None = None,
    **settings: Unpack[ReadSettings],
) -> pa.RecordBatchReader:
    """Return the same as a pyarrow.RecordBatchReader, which DuckDB and others take: only some batches are in memory.

    The rows of a partition are in their order; partitions take turns. on_error: "raise" raises BadRecords after the
    last batch; it has at most some 10,000 of the errors. "return" is not possible. Close a reader that is not read to
    its end.
    """
    errors = collected_of_scan(on_error)
    request = TopicRequest(
        topic, log_dir, all_settings(bootstrap_servers, settings), start, end, partitions, columns, format, schema,
        schema_registry, registry_config, n_rows, infer_rows,
    )  # fmt: skip
    scan = Scan(request)
    batches = scanned(scan, errors)
    next(batches)  # from here on the end of the generator, whenever it comes, closes the scan
    return pa.RecordBatchReader.from_batches(scan.layout.schema, batches)


def scanned(scan: Scan, errors: Collected) -> Iterator[pa.RecordBatch]:
    """An empty batch, and then those of the scan, which is closed at the end, or when the generator is dropped."""
    with scan:
        yield pa.RecordBatch.from_pylist([], scan.layout.schema)
        for piece in scan.pieces():
            errors.add(piece.errors)
            if piece.rows.num_rows:
                yield piece.rows
        warn_unknown(scan.unknown, scan.empty)
        errors.end()
