"""A table of Parquet files to which each batch is added once, also across crashes.

A batch, and a compaction, is a change with a name. It is staged where readers do not look, then recorded, then carried
out; after a crash a recorded change is carried out again, until it is complete:

    staged in _pybroker/staging/NAME -> _pybroker/changes/NAME.json (moves, deletes) -> moved, deleted
      -> _pybroker/done/NAME.json

    a crash before the change is recorded: the staging is removed, and Spark runs the batch again
    a crash after it: the next start finishes the moves, and Spark's second run of the batch finds it done

Each attempt of a batch has its own directory in the staging, and a change moves a list of files. So a task that the job
did not commit never gets into the table, neither through `_temporary` nor through an executor that was given up and
goes on writing: its files are removed with the staging.

So each record is in the table once, after every start. While a change is carried out a reader may see a part of it; for
isolation and time travel, use a table format that has them.
"""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.executors import hold_against
from pybroker.spark.pipeline.job import STATE, Job
from pybroker.spark.pipeline.parsing.formats import table_schema
from pybroker.spark.pipeline.tables.compaction import Merge, due
from pybroker.spark.pipeline.tables.evolution import evolved, fits
from pybroker.spark.pipeline.tables.footers import Footers
from pybroker.spark.pipeline.tables.hadoop_files import HadoopFiles
from pybroker.spark.pipeline.tables.recorded_columns import RecordedColumns, TableColumns, derived
from pybroker.spark.pipeline.tables.table import MicroBatch, check_destination, check_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

PARQUET: Final = ".parquet"
COMMITTER: Final = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}
"""Files leave `_temporary` when the job is committed. With algorithm 2 they leave it with their task: the files of an
executor lost midway would stay beside those of the next attempt."""
DONE_KEPT: Final = 100
"""Names of done batches kept for each checkpoint; Spark only ever repeats the last one."""


class FileChange(NamedTuple):
    """The moves and deletions of a change to a table's files."""

    moves: tuple[tuple[str, str], ...]
    deletes: tuple[str, ...] = ()
    end: int | None = None
    """The batch's end."""


class ParquetTable:
    """The table in one directory; only one pipeline writes to it. Changes are named CHECKPOINT-NUMBER..., ascending."""

    def __init__(self, spark: "SparkSession", job: Job) -> None:
        check_destination(job)
        self.spark = spark
        self.job = job
        self.files = HadoopFiles(spark, job.table)
        self.footers = Footers(spark)
        self.root = self.files.qualified(job.table.rstrip("/"))
        self._state = f"{self.root}/{STATE}"
        self._recorded = RecordedColumns(self.files, f"{self._state}/schemas")

    def recover(self) -> None:
        """Finish recorded changes, and remove what was only staged. OSError if no table can be there."""
        self.files.make(self._state)
        for path, _ in self.files.walk(f"{self._state}/changes"):
            if path.endswith(".json"):
                self._carry_out(path.rpartition("/")[2].removesuffix(".json"))
            else:
                self.files.delete(path)
        self.files.delete(f"{self._state}/staging")
        self._fit()

    def _fit(self) -> None:
        """Adapt the table to the job's columns. KafkaError if that is impossible."""
        schema = table_schema(self.job)
        wanted = TableColumns(evolved(schema, schema), self.job.partition_by)
        known = self.columns()
        fitting = known.taking(wanted) if known else wanted
        if fitting != self._recorded.read():
            self._recorded.write(fitting)

    def columns(self) -> TableColumns | None:
        """The table's columns; None if there is no table."""
        if recorded := self._recorded.read():
            return recorded
        paths = [path for path, _ in self._data_files()]
        if not paths:
            return None
        found = derived(self.root, paths, self.footers, lambda path: self.spark.read.parquet(path).schema)
        return found.with_types_of(table_schema(self.job))

    def is_done(self, batch: MicroBatch) -> bool:
        done = f"{self._state}/done/{batch.name}.json"
        if not self.files.exists(done):
            return False
        if batch.end is not None:
            check_same(self.job, batch, batch.number, self.files.document(done).get("end"))
        return True

    def add(self, batch: MicroBatch, rows: "DataFrame", check: Callable[[int], None]) -> None:
        staged = self._staging(batch.name)
        rows.write.options(**COMMITTER).partitionBy(*self.job.partition_by).parquet(staged)
        moves = self._moves(staged, batch.name)
        check(self.footers.rows(source for source, _ in moves))
        self._commit(batch.name, FileChange(moves, end=batch.end))

    def compact(self, batch: MicroBatch) -> int:
        """Merge the small files of directories with `compact_files` of a level; return the number of merged files."""
        columns = self.columns()
        if columns is None:
            return 0
        name = f"{batch.name}-compact"
        moves: list[tuple[str, str]] = []
        deletes: list[str] = []
        for merge in due(self._data_files(), self.job.compact_files, self.job.file_bytes):
            sources, rows = self._readable(merge, columns.in_files)
            if len(sources) < self.job.compact_files:
                continue
            staged = self._staging(name)
            # With the table's columns: one file may lack some, or have narrower ones.
            merged = self.spark.read.schema(columns.in_files).parquet(*sources)
            merged.coalesce(merge.pieces).write.options(**COMMITTER).parquet(staged)
            made = self._moves(staged, f"{name}{merge.level + 1}", merge.directory)
            self._prove(made, columns.in_files, rows)
            moves += made
            deletes += sources
        if moves:
            self._commit(name, FileChange(tuple(moves), tuple(deletes)))
        return len(deletes)

    def _readable(self, merge: Merge, schema: "StructType") -> tuple[list[str], int]:
        """Return the files of a merge whose columns are all in the table, and their rows. Others are not the
        pipeline's."""
        sources, rows = [], 0
        for path in merge.paths:
            footer = self.footers.read(path)
            if footer.schema is not None and fits(schema, footer.schema):
                sources.append(path)
                rows += footer.rows
        return sources, rows

    def _prove(self, moves: Sequence[tuple[str, str]], schema: "StructType", rows: int) -> None:
        """KafkaError unless the merged files have all these columns, and this many rows: the originals are deleted."""
        made = [self.footers.read(source) for source, _ in moves]
        complete = sum(footer.rows for footer in made if footer.schema is not None and fits(footer.schema, schema))
        hold_against(self.spark, self.root, complete, rows)

    # -- files -----------------------------------------------------------------------------------------------------

    def _data_files(self) -> list[tuple[str, int]]:
        return [(path, size) for path, size in self.files.walk(self.root) if path.endswith(PARQUET)]

    def _staging(self, name: str) -> str:
        """Return a new directory that no earlier attempt writes to."""
        return f"{self._state}/staging/{name.partition('-')[0]}/{name}-{uuid.uuid4().hex[:8]}"

    # -- changes ---------------------------------------------------------------------------------------------------

    def _moves(self, staged: str, name: str, home: str | None = None) -> tuple[tuple[str, str], ...]:
        """Return each staged file's target: its directory in the table, or `home`, under a name with the change's
        name."""
        found = [path for path, _ in self.files.walk(staged) if path.endswith(PARQUET)]
        moves = []
        for number, path in enumerate(found):
            inner = path.removeprefix(f"{self.files.qualified(staged)}/").rpartition("/")[0]
            directory = home or (f"{self.root}/{inner}" if inner else self.root)
            moves.append((path, f"{directory}/part-{name}-{number:05}-{uuid.uuid4().hex[:8]}{PARQUET}"))
        return tuple(moves)

    def _commit(self, name: str, change: FileChange) -> None:
        """Record a change; from then on it will be carried out."""
        if self.files.exists(f"{self._state}/done/{name}.json"):
            raise KafkaError(UNKNOWN_SERVER_ERROR, f"another pipeline writes to {self.root}: it committed {name} first")
        moves = [[source.removeprefix(f"{self.root}/") for source in each] for each in change.moves]
        deletes = [path.removeprefix(f"{self.root}/") for path in change.deletes]
        told = {"moves": moves, "deletes": deletes, "end": change.end}
        self.files.write(f"{self._state}/changes/{name}.json", json.dumps(told))
        self._carry_out(name)

    def _below(self, path: str) -> str:
        """Return a path in a change, relative to the root: a moved or copied table keeps its changes."""
        return f"{self.root}/{path.removeprefix(f'{self.root}/')}"

    def _carry_out(self, name: str) -> None:
        """Carry out a change, any step of which may have been done before."""
        written = f"{self._state}/changes/{name}.json"
        told = self.files.document(written)
        for source, target in told["moves"]:
            if not self.files.exists(self._below(target)):
                self.files.move(self._below(source), self._below(target))
        for path in told["deletes"]:
            self.files.delete(self._below(path))
        self.files.move(written, f"{self._state}/done/{name}.json")
        self.files.delete(f"{self._state}/staging/{name.partition('-')[0]}")  # this checkpoint's staging
        checkpoint = f"{self._state}/done/{name.partition('-')[0]}-"  # other checkpoints sort before or after
        own = [path for path, _ in self.files.walk(f"{self._state}/done") if path.startswith(checkpoint)]
        for path in own[:-DONE_KEPT]:
            self.files.delete(path)
