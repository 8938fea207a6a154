"""A table of Parquet files to which each batch is added once, whatever dies in between.

A batch, and a compaction, is a change with a name. It is prepared where readers do not look, then written down, then
done; what was written down is done again after a crash until nothing is left to do:

    staged in _pybroker/staging/NAME -> _pybroker/changes/NAME.json (moves, deletes) -> moved, deleted
        -> _pybroker/done/NAME.json

    a crash before the change is written down: the staging is thrown away, and Spark runs the batch again
    a crash after it: the next start finishes the moves, and Spark's second run of the batch finds it done

So each record is in the table once, after every start. While a change is being done a reader may see a part of it; who
needs isolation from that, and time travel, needs a table format that has it.
"""

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.spark.pipeline.files import Files
from pybroker.spark.pipeline.footers import Footers
from pybroker.spark.pipeline.job import STATE, Job
from pybroker.spark.pipeline.table import Batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARQUET: Final = ".parquet"
DONE_KEPT: Final = 100
"""So many names of done batches are kept of each checkpoint; Spark only ever repeats the last one."""


class Change(NamedTuple):
    """What is to be done to the files of a table."""

    moves: tuple[tuple[str, str], ...]
    deletes: tuple[str, ...] = ()


class ParquetTable:
    """The table in one directory; only one pipeline writes to it. Changes are named CHECKPOINT-NUMBER..., ascending."""

    def __init__(self, spark: "SparkSession", job: Job) -> None:
        self.spark = spark
        self.job = job
        self.files = Files(spark, job.table)
        self.footers = Footers(spark)
        self.root = self.files.qualified(job.table.rstrip("/"))
        self._state = f"{self.root}/{STATE}"

    def recover(self) -> None:
        """Finish what was written down, and throw away what was only staged. OSError where no table can be."""
        self.files.make(self._state)
        for path, _ in self.files.walk(f"{self._state}/changes"):
            if path.endswith(".json"):
                self._carry_out(path.rpartition("/")[2].removesuffix(".json"))
            else:
                self.files.delete(path)
        self.files.delete(f"{self._state}/staging")

    def is_done(self, batch: Batch) -> bool:
        return self.files.exists(f"{self._state}/done/{batch.name}.json")

    def add(self, batch: Batch, rows: "DataFrame", check: Callable[[int], None]) -> None:
        staged = f"{self._state}/staging/{batch.name}"
        rows.write.partitionBy(*self.job.partition_by).mode("overwrite").parquet(staged)
        moves = self._moves(staged, batch.name)
        check(self.footers.rows(source for source, _ in moves))
        self._commit(batch.name, Change(moves))

    def compact(self, batch: Batch) -> int:
        """Make one file of each directory's small ones, where there are `compact_files` of them."""
        name, files_min, file_bytes = f"{batch.name}-compact", self.job.compact_files, self.job.file_bytes
        small: dict[str, list[tuple[str, int]]] = {}
        for path, size in self.files.walk(self.root):
            if not path.startswith(self._state) and path.endswith(PARQUET) and size < file_bytes // 2:
                small.setdefault(path.rpartition("/")[0], []).append((path, size))
        moves: list[tuple[str, str]] = []
        deletes: list[str] = []
        for number, (home, found) in enumerate(sorted(small.items())):
            if len(found) < files_min:
                continue
            staged = f"{self._state}/staging/{name}-{number}"
            pieces = max(1, round(sum(size for _, size in found) / file_bytes))
            merged = self.spark.read.parquet(*(path for path, _ in found))
            merged.coalesce(pieces).write.mode("overwrite").parquet(staged)
            moves += self._moves(staged, name, home)
            deletes += [path for path, _ in found]
        if moves:
            self._commit(name, Change(tuple(moves), tuple(deletes)))
        return len(deletes)

    # -- changes ---------------------------------------------------------------------------------------------------

    def _moves(self, staged: str, name: str, home: str | None = None) -> tuple[tuple[str, str], ...]:
        """Where each staged file goes: its directory in the table, or `home`, under a name that says its change."""
        found = [path for path, _ in self.files.walk(staged) if path.endswith(PARQUET)]
        moves = []
        for number, path in enumerate(found):
            inner = path.removeprefix(f"{self.files.qualified(staged)}/").rpartition("/")[0]
            directory = home or (f"{self.root}/{inner}" if inner else self.root)
            moves.append((path, f"{directory}/part-{name}-{number:05}-{uuid.uuid4().hex[:8]}{PARQUET}"))
        return tuple(moves)

    def _commit(self, name: str, change: Change) -> None:
        """From the moment that it is written down it will be done."""
        self.files.write(f"{self._state}/changes/{name}.json", json.dumps(change._asdict()))
        self._carry_out(name)

    def _carry_out(self, name: str) -> None:
        """Each step may have been done before."""
        written = f"{self._state}/changes/{name}.json"
        told = json.loads(self.files.read(written))
        for source, target in told["moves"]:
            if not self.files.exists(target):
                self.files.move(source, target)
        for path in told["deletes"]:
            self.files.delete(path)
        self.files.move(written, f"{self._state}/done/{name}.json")
        self.files.delete(f"{self._state}/staging")
        checkpoint = f"{self._state}/done/{name.partition('-')[0]}-"  # another's names sort before these, or after them
        own = [path for path, _ in self.files.walk(f"{self._state}/done") if path.startswith(checkpoint)]
        for path in own[:-DONE_KEPT]:
            self.files.delete(path)
