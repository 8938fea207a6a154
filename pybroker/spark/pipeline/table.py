"""What a pipeline asks of a table, whatever its format is."""

import hashlib
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pybroker.errors import INVALID_CONFIG, UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pybroker.spark.pipeline.job import Job


class Batch(NamedTuple):
    """One batch of one query. `query` is the beginning of the query's id, which a new checkpoint makes anew.

    end: a number for where the batch ends, below 2**63, the same when it is run again; None: whichever has `number`."""

    query: str
    number: int
    end: int | None = None

    @property
    def name(self) -> str:
        """No other batch has it, and those of a query sort in their order."""
        return f"{self.query}-{self.number:09}"


class Table(Protocol):
    """A table to which each batch is added once; only one pipeline writes to it."""

    def recover(self) -> None:
        """Before the query starts: finish or throw away what a crash left. KafkaError where the table does not fit the
        columns of the job, OSError where no table can be."""

    def is_done(self, batch: Batch) -> bool:
        """Whether this batch is in the table. KafkaError where it is not, and one of its number or a later one is."""

    def add(self, batch: Batch, rows: "DataFrame", check: Callable[[int], None]) -> None:
        """Stage the rows, call `check` with how many of them the driver finds staged, and commit them. Nothing is
        committed if `check` raises. Files of a task's attempt that the job did not commit never count."""

    def compact(self, batch: Batch) -> int:
        """Merge small files after this batch; how many files went."""


def end_number(text: str) -> int:
    """For the offsets that a batch ends at, as Spark's checkpoint has them: Batch.end."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


def check_same(job: "Job", batch: Batch, last: int, end: int | None) -> None:
    """KafkaError unless the last batch in the table is this one. Its records would be missing, were it taken for that.

    end: of the last batch; None where an earlier version has added it."""
    if batch.end is None or (last == batch.number and end in (None, batch.end)):
        return
    raise KafkaError(
        UNKNOWN_SERVER_ERROR,
        f"the table {job.table} has batch {last} already, and the checkpoint {job.checkpoint_dir} is about to add "
        f"{'another one' if last == batch.number else f'batch {batch.number}'}: the checkpoint was restored to an "
        "older state, or is used twice; with a new checkpoint, and another table, everything is read again",
    )


def check_package(job: "Job") -> None:
    """KafkaError where the package of the table's format is not installed."""
    if job.table_format != "parquet":
        package, extra = ("deltalake", "delta") if job.table_format == "delta" else ("pyiceberg", "iceberg")
        if importlib.util.find_spec(package) is None:
            raise KafkaError(
                INVALID_CONFIG,
                f"table format {job.table_format} needs the package {package}: pip install 'pybroker[{extra}]'",
            )


def open_table(spark: "SparkSession", job: "Job") -> Table:
    """The table of a job, by its format. KafkaError where the format's package is not installed."""
    check_package(job)
    if job.table_format == "delta":
        from pybroker.spark.pipeline.delta import DeltaLake

        return DeltaLake(spark, job)
    if job.table_format == "iceberg":
        from pybroker.spark.pipeline.iceberg import Iceberg

        return Iceberg(spark, job)
    from pybroker.spark.pipeline.parquet import ParquetTable

    return ParquetTable(spark, job)


def shared_directory(spark: "SparkSession", job: "Job") -> str | None:
    """The directory of a local or mounted disk that the driver and all executors have to share; None where the table is
    elsewhere, or where only a catalog knows its place."""
    if job.table_format == "delta":
        from pybroker.spark.pipeline.stores import Store

        return Store.of(job.table, job.table_options).directory
    if job.table_format == "parquet":
        files = Files(spark, job.table)
        return files.local(files.qualified(job.table)) if files.scheme == "file" else None
    return None
