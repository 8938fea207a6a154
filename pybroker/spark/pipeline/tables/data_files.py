"""Data files of a table, which Spark's workers write to their final place and the driver commits.

    rows --mapInArrow--> each attempt of a task: Parquet files with unique names, then a row for each
      --collect-----> WrittenFile, of the attempts that Spark accepted --seen, counted--> the format's own commit

A file that is never committed is in the table's directory but not in the table: the attempt failed, was repeated, or
went on after Spark gave its host up. The format's own maintenance removes it.
"""

import io
import json
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError, system_words
from pybroker.spark.pipeline.tables.storage import TableStorage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

GROUP_BYTES: Final = 32 << 20
"""Bytes of rows in a row group."""
UNWRITTEN_BYTES_MAX: Final = 64 << 20
"""Bytes of rows that a task keeps before it writes the largest group of them."""
OPEN_FILES_MAX: Final = 16
"""Open files of a task; opening one more closes the least recently written one."""
NAMED_MISSING: Final = 3
_SCHEMA: Final = "path string, rows bigint, size bigint, values string, footer binary, host string"

Values = tuple[Any, ...]


class WritePlan(NamedTuple):
    """The workers' instructions. schema: of the rows, partition columns included, in the order of the files.

    values_in_files: whether the files have the partition columns, or only the commit has them."""

    store: TableStorage
    schema: "pa.Schema"
    partition_by: tuple[str, ...]
    values_in_files: bool
    file_bytes: int
    name: str


class WrittenFile(NamedTuple):
    """A data file. path: under the root. values: of the partition columns. footer: the file's, as Parquet's bytes."""

    path: str
    rows: int
    size: int
    values: Values
    footer: bytes
    host: str

    def metadata(self) -> "pq.FileMetaData":
        import pyarrow.parquet as pq

        return pq.read_metadata(io.BytesIO(self.footer))


# -- in the driver -----------------------------------------------------------------------------------------------------


def write(rows: "DataFrame", plan: WritePlan, check: Callable[[int], None]) -> list[WrittenFile]:
    """Write rows into files that the driver sees too. `check` gets the number of rows in them, and may raise.

    KafkaError if the driver does not see a file: the workers have written to a directory that is not shared."""
    written = collected(rows, _writer(plan), plan)
    try:
        see(plan.store, written)
        check(sum(each.rows for each in written))
    except Exception:
        plan.store.delete([each.path for each in written])
        raise
    return written


def collected(
    rows: "DataFrame", work: Callable[[Iterator["pa.RecordBatch"]], Any], plan: WritePlan
) -> list[WrittenFile]:
    """Return the files of the attempts that Spark accepted, and no others."""
    kinds = {name: plan.schema.field(name).type for name in plan.partition_by}
    return [
        WrittenFile(path, count, size, _typed(json.loads(values), kinds), bytes(footer), host)
        for path, count, size, values, footer, host in rows.mapInArrow(work, _SCHEMA).collect()
    ]


def see(store: TableStorage, written: Sequence[WrittenFile]) -> None:
    """KafkaError unless the driver sees each file with its full length."""
    sizes = store.sizes([each.path for each in written])
    unseen = [each for each, size in zip(written, sizes, strict=True) if size != each.size]
    if not unseen:
        return
    hosts = sorted({each.host for each in unseen})
    named = ", ".join([*hosts[:NAMED_MISSING], *(["others"] if len(hosts) > NAMED_MISSING else [])])
    raise KafkaError(
        UNKNOWN_SERVER_ERROR,
        f"{len(unseen)} of {len(written)} files that workers on {named} wrote to {store.root} are missing for the "
        f"driver on {socket.gethostname()}, such as {unseen[0].path}: the table must be where all of them share it",
    )


def _typed(values: Sequence[Any], kinds: "dict[str, pa.DataType]") -> Values:
    import pyarrow as pa

    pairs = zip(values, kinds.values(), strict=True)
    return tuple(date.fromisoformat(v) if v is not None and pa.types.is_date(kind) else v for v, kind in pairs)


# -- in the workers ----------------------------------------------------------------------------------------------------


def _writer(plan: WritePlan) -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from files_of(plan, ((None, batch) for batch in batches))

    return work


def files_of(plan: WritePlan, batches: "Iterable[tuple[Values | None, pa.RecordBatch]]") -> "Iterator[pa.RecordBatch]":
    """Write batches, each with its partition values if known; yield a row of _SCHEMA for each file."""
    import pyarrow as pa

    files = _Files(plan)
    try:
        for values, batch in batches:
            if values is not None:
                files.add(values, fitted(batch, files.schema))
                continue
            whole = fitted(batch, plan.schema)
            for own, part in split(whole, plan.partition_by):
                files.add(own, part.select(files.schema.names))
        files.close()
    except BaseException as error:  # the attempt has failed or was given up: its files will not be committed
        files.remove()
        if isinstance(error, OSError):
            raise KafkaError(
                UNKNOWN_SERVER_ERROR,
                f"{socket.gethostname()} cannot write the table at {plan.store.root}: {system_words(error)}",
            ) from error
        raise
    if files.done:
        columns = list(zip(*files.done, strict=True))
        columns[3] = tuple(json.dumps([directory_value(v) for v in values]) for values in columns[3])
        kinds = [pa.string(), pa.int64(), pa.int64(), pa.string(), pa.binary(), pa.string()]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=["path", "rows", "size", "values", "footer", "host"])


def fitted(batch: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Return the columns of a schema, in its order and types; null for those that the batch lacks."""
    import pyarrow as pa

    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        columns.append(pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def split(batch: "pa.RecordBatch", by: Sequence[str]) -> "Iterator[tuple[Values, pa.RecordBatch]]":
    """Yield the rows of each combination of values, in order; nothing for a batch without rows."""
    import numpy as np
    import pyarrow as pa

    if not by or not batch.num_rows:
        if batch.num_rows:
            yield (), batch
        return
    encoded = [batch.column(name).dictionary_encode(null_encoding="encode") for name in by]
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    for each in encoded:
        codes = codes * len(each.dictionary) + each.indices.to_numpy(zero_copy_only=False)
    for code in np.unique(codes):
        chosen = codes == code
        first = int(np.argmax(chosen))
        values = tuple(batch.column(name)[first].as_py() for name in by)
        yield values, batch if chosen.all() else batch.filter(pa.array(chosen))


class _Files:
    """The files of one attempt: rows wait in memory until they fill a row group, or are too many."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        kept = [f for f in plan.schema if plan.values_in_files or f.name not in plan.partition_by]
        import pyarrow as pa

        self.schema = pa.schema(kept, plan.schema.metadata)
        self.done: list[WrittenFile] = []
        self._fs, self._root = plan.store.open()
        self._unwritten: dict[Values, list[pa.RecordBatch]] = {}
        self._unwritten_bytes: dict[Values, int] = {}
        self._open: dict[Values, _File] = {}
        self._made: list[str] = []

    def add(self, values: Values, batch: "pa.RecordBatch") -> None:
        self._unwritten.setdefault(values, []).append(batch)
        self._unwritten_bytes[values] = self._unwritten_bytes.get(values, 0) + batch.nbytes
        if self._unwritten_bytes[values] >= GROUP_BYTES:
            self._flush(values)
        elif sum(self._unwritten_bytes.values()) >= UNWRITTEN_BYTES_MAX:
            self._flush(max(self._unwritten_bytes, key=lambda each: self._unwritten_bytes[each]))

    def close(self) -> None:
        """Write the waiting rows, one file after the other, so that the number of open files does not grow."""
        for values in list(self._unwritten):
            self._flush(values)
            self._finish(values)
        for values in list(self._open):
            self._finish(values)

    def remove(self) -> None:
        """Remove the files after a failure, as far as the store allows."""
        for file in self._open.values():
            file.abandon()
        self._plan.store.delete(self._made)

    def _flush(self, values: Values) -> None:
        batches = self._unwritten.pop(values)
        del self._unwritten_bytes[values]
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(next(iter(self._open)))
            file = self._new(values)
        self._open[values] = file  # now the most recently written one
        file.add(batches)
        if file.size >= self._plan.file_bytes:
            self._finish(values)

    def _finish(self, values: Values) -> None:
        file = self._open.pop(values, None)
        if file is not None:
            footer = file.close()
            host = socket.gethostname()
            self.done.append(WrittenFile(file.name, file.rows, file.size, values, footer, host))

    def _new(self, values: Values) -> "_File":
        home = directory(self._plan.partition_by, values)
        name = f"{home}part-{self._plan.name}-{uuid.uuid4().hex}.parquet"
        path = f"{self._root}/{name}"
        if self._fs.type_name not in ("s3", "gcs", "abfs"):  # these have no directories, and would create an object
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
        self._made.append(name)
        return _File(self._fs, path, name, self.schema)


class _File:
    """A Parquet file that is being written."""

    def __init__(self, store: Any, path: str, name: str, schema: "pa.Schema") -> None:
        import pyarrow.parquet as pq

        self.name = name
        self.rows = 0
        self._schema = schema
        self._footers: list[pq.FileMetaData] = []
        self._sink = store.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="snappy",
            store_decimal_as_integer=True,  # as Spark and Iceberg write them
            metadata_collector=self._footers,
        )

    @property
    def size(self) -> int:
        return self._closed_at if self._sink.closed else int(self._sink.tell())

    def add(self, batches: "Sequence[pa.RecordBatch]") -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(batches, self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self.rows += table.num_rows

    def close(self) -> bytes:
        """Finish the file and return its footer."""
        import pyarrow as pa

        self._writer.close()
        self._closed_at = int(self._sink.tell())
        self._sink.close()
        out = pa.BufferOutputStream()
        self._footers[0].write_metadata_file(out)
        return bytes(out.getvalue())

    def abandon(self) -> None:
        try:
            self._writer.close()
            self._sink.close()
        except Exception:  # the same failure again, in as many ways as there are stores
            return


def directory(by: Sequence[str], values: Values) -> str:
    """Return the directory for files of these values, with a slash at the end. It is for people: only the commit
    counts."""
    pairs = zip(by, values, strict=True)
    return "".join(f"{_safe(name)}={_safe('null' if value is None else str(value))}/" for name, value in pairs)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:64]


def directory_value(value: object) -> object:
    """Return a partition value for JSON."""
    return value.isoformat() if isinstance(value, date) else value
