"""A log directory as Arrow record batches, no broker running, or one that is.

for batch in pybroker.read_log("data/orders-0", columns=["offset", "value"]):
    ...
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

from pybroker.client.columns.arrow import Origin, record_batch
from pybroker.client.columns.segments import BATCH_ROWS, LogFiles
from pybroker.core import COLUMNS, Columns
from pybroker.protocol.compression import decompress_stored

if TYPE_CHECKING:
    import pyarrow as pa

NAMES = ("topic", "partition", *COLUMNS)


def read_log(
    path: str | os.PathLike[str],
    *,
    start_offset: int | None = None,
    end_offset: int | None = None,
    start_time: int | None = None,
    end_time: int | None = None,
    columns: Iterable[str] | None = None,
    batch_rows: int = BATCH_ROWS,
    timestamp_unit: Literal["ms", "us"] = "ms",
    topics: Literal["dictionary", "string"] = "dictionary",
    empty_headers: Literal["empty", "null"] = "empty",
    check_crcs: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The records of a partition's directory, all that are there now, batch_rows in each batch but the last.

    start_offset, end_offset: from the one to before the other. start_time, end_time, in ms: from the first record that
    is at or after the one to before the first at or after the other, as brokers look times up. columns: which of
    topic, partition, offset, timestamp, timestamp_type, key, value and headers, in that order if None; without the
    first two if the directory's name is no partition's. Records of open and aborted transactions are included.

    Raises OSError; ValueError for arguments that make no sense; LogError, after the records before it, if a batch is
    damaged (CORRUPT_MESSAGE and the like) or a file was truncated meanwhile (KAFKA_STORAGE_ERROR). One thread at a time
    reads the batches of a directory."""
    log = LogFiles(path, check_crcs=check_crcs)
    names = None if columns is None else list(columns)
    origin = None if log.tp is None else Origin(*log.tp)
    for name in names or ():
        if name not in NAMES or (origin is None and name in NAMES[:2]):
            known = ", ".join(NAMES if origin else COLUMNS)
            raise ValueError(f"{log.path} has no column {name!r}, it has {known}")
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}")
    wanted = [name for name in COLUMNS if names is None or name in names]
    gathered = Columns(wanted, timestamp_unit=timestamp_unit, decompress=decompress_stored)

    def batch() -> pa.RecordBatch:
        made = record_batch(gathered.take(), topics=topics, empty_headers=empty_headers)
        return made if names is None else made.select(names)

    def batches() -> Iterator[pa.RecordBatch]:
        start, end = _range(log, (start_offset, end_offset), (start_time, end_time))
        try:
            for fetched in log.batches(start, end):
                while not fetched.finished:
                    gathered.read(fetched, max_records=batch_rows - len(gathered), tag=origin)
                    if len(gathered) == batch_rows or not fetched.finished:  # or 2 GiB of a column
                        yield batch()
        except Exception:
            if len(gathered):
                yield batch()
            raise
        if len(gathered):
            yield batch()

    return batches()


def _range(
    log: LogFiles, offsets: tuple[int | None, int | None], times_ms: tuple[int | None, int | None]
) -> tuple[int, int | None]:
    """The offsets in both ranges; an end of None is the end of the log."""
    start, end = offsets[0] or 0, offsets[1]
    if times_ms[0] is not None:
        found = log.offset_for_time(times_ms[0])
        if found is None:
            return start, 0
        start = max(start, found)
    if times_ms[1] is not None:
        found = log.offset_for_time(times_ms[1])
        if found is not None:
            end = found if end is None else min(end, found)
    return start, end
