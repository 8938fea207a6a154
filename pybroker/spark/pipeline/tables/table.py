"""The interface between a pipeline and its table, for every table format."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pybroker.errors import INVALID_CONFIG, UNKNOWN_SERVER_ERROR, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pybroker.spark.pipeline.job import Job

PATTERN: Final = frozenset("[]{}*?\\")
"""The characters of a path that Spark's readers take for a pattern."""


class MicroBatch(NamedTuple):
    """One batch of one query. `query` is the start of the query's id, which a new checkpoint changes.

    end: a number below 2**63 for the batch's end, the same when the batch is repeated; None matches any end."""

    query: str
    number: int
    end: int | None = None

    @property
    def name(self) -> str:
        """A unique name; those of a query sort in batch order."""
        return f"{self.query}-{self.number:09}"


class Table(Protocol):
    """A table to which each batch is added once; only one pipeline writes to it."""

    def recover(self) -> None:
        """Finish or undo what a crash left, before the query starts. KafkaError if the table does not fit the job's
        columns, OSError if no table can be there."""

    def is_done(self, batch: MicroBatch) -> bool:
        """True if this batch is in the table. KafkaError if it is not, but one of its number or a later one is."""

    def add(self, batch: MicroBatch, rows: "DataFrame", check: Callable[[int], None]) -> None:
        """Stage the rows, call `check` with the number that the driver finds staged, and commit them. Nothing is
        committed if `check` raises. Files of task attempts that the job did not commit never count."""

    def compact(self, batch: MicroBatch) -> int:
        """Merge small files after this batch; return their number."""


def check_destination(job: "Job") -> None:
    """KafkaError if the table's name cannot be one of its format."""
    if job.table_format == "iceberg":
        if not all(job.table.split(".")) or job.table.count(".") < 2:
            raise KafkaError(INVALID_CONFIG, f"{job.table} is not an Iceberg table: use CATALOG.NAMESPACE.NAME")
    elif job.table_format == "parquet" and (found := set(job.table) & PATTERN):
        raise KafkaError(
            INVALID_CONFIG, f"the table cannot be at {job.table}: Spark reads {min(found)} as part of a pattern"
        )


def end_number(text: str) -> int:
    """Return MicroBatch.end for a batch's end offsets, as Spark's checkpoint has them."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def check_same(job: "Job", batch: MicroBatch, last: int, end: int | None) -> None:
    """KafkaError unless the last batch in the table is this one: otherwise its records would be missing.

    end: the last batch's; None if an earlier version added it."""
    if batch.end is None or (last == batch.number and end in (None, batch.end)):
        return
    raise KafkaError(
        UNKNOWN_SERVER_ERROR,
        f"the table {job.table} has batch {last} already, but the checkpoint {job.checkpoint_dir} is about to add "
        f"{'another one' if last == batch.number else f'batch {batch.number}'}: the checkpoint was restored to an "
        "older state, or is used twice; with a new checkpoint, and another table, everything is read again",
    )
