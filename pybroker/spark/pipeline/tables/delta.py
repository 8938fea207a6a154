"""A table of Delta Lake, committed by deltalake (delta-rs) in the driver, without the JVM.

Each batch is one transaction: its files, and the batch's number as an application transaction under the query's name.
That number identifies a batch in the table for the table's life; of two drivers that commit the same batch at the same
time, one fails.
"""

import json
import random
import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from pybroker.clock import wall_ms
from pybroker.errors import INVALID_CONFIG, UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.tables.columns import arrow_schema, change, check_still, first_line
from pybroker.spark.pipeline.tables.data_files import WritePlan, WrittenFile, write
from pybroker.spark.pipeline.tables.rewriting import Small, chosen, rewrite
from pybroker.spark.pipeline.tables.storage import TableStorage
from pybroker.spark.pipeline.tables.table import check_same
from pybroker.spark.untyped import Document

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame, SparkSession

    from pybroker.spark.pipeline.tables.table import MicroBatch

COMMITS_MAX: Final = 20
"""Retries of a commit that another writer has preceded."""
WAIT_S: Final = 0.1
STATS_TEXT_MAX: Final = 32
"""Longer texts have no minimum and maximum in the table's statistics."""
_KNOWN_FEATURES: Final = {
    "appendOnly", "timestampNtz", "deletionVectors", "domainMetadata", "v2Checkpoint", "invariants",
}  # fmt: skip
"""Writer features that this writer supports. A column with an invariant is refused."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9_.=/-]+")


class DeltaLake:
    """One table; `recover` creates it if it does not exist. Other writers may write to it at the same time."""

    def __init__(self, spark: "SparkSession", job: Job) -> None:
        self.spark = spark
        self.store = TableStorage.of(job.table, job.table_options)
        self._job = job
        self._held: DeltaTable | None = None
        self._seen: tuple[int, int] | None = None

    def recover(self) -> None:
        """Create the table, or adapt it to the job's columns. KafkaError names one that it cannot take."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError

        wanted = arrow_schema(self._job)
        by = list(self._job.partition_by)
        made = Schema.from_arrow(wanted)
        try:
            DeltaTable.create(
                self.store.root, made, "ignore", partition_by=by, storage_options=self.store.library_options()
            )
            self._held = DeltaTable(self.store.root, storage_options=self.store.library_options())
        except (DeltaError, OSError) as error:
            raise KafkaError(
                INVALID_CONFIG, f"cannot use a Delta table at {self.store.root}: {first_line(error)}"
            ) from error
        self._fits(self._held, by)
        needs = change(self._schema(), wanted, widens=False, where=f"at {self.store.root}")
        if needs.added:
            self._held.alter.add_columns([Schema.from_arrow(_only(field)).fields[0] for field in needs.added])
            self._held.update_incremental()

    def is_done(self, batch: "MicroBatch") -> bool:
        table = self._fresh()
        last = table.transaction_version(_application(batch))
        if last is None or last < batch.number:
            return False
        check_same(self._job, batch, last, table.transaction_version(_application_of_ends(batch)))
        return True

    def add(self, batch: "MicroBatch", rows: "DataFrame", check: Callable[[int], None]) -> None:
        """KafkaError if the driver does not see what the workers wrote, or other writers always commit first."""
        self._still_fits()
        written = write(rows, self._plan(batch.name), check)
        from deltalake import Transaction

        added = [self._added(each, data_change=True) for each in written]
        now = wall_ms()
        told = [Transaction(_application(batch), batch.number, now)]
        if batch.end is not None:
            told.append(Transaction(_application_of_ends(batch), batch.end, now))
        for attempt in range(COMMITS_MAX):
            try:
                self._commit(added, _properties(told))
                return
            except _conflict() as error:
                if self.is_done(batch):  # by another driver of the same query, or by us before the answer was lost
                    return
                self._still_fits()
                why = error
            time.sleep(random.uniform(0, WAIT_S * 2 ** min(attempt, 5)))
        raise KafkaError(
            UNKNOWN_SERVER_ERROR,
            f"other writers were first {COMMITS_MAX} times at {self.store.root}: {first_line(why)}",
        )

    def compact(self, batch: "MicroBatch") -> int:
        """Merge small files of one size; return their number. 0 if another writer commits meanwhile: the next call
        retries.

        Not by delta-rs's own optimize: if another compaction had been committed since its table was loaded, that of
        1.6.6 left duplicate rows."""
        from deltalake.transaction import RemoveAction

        table = self._fresh()
        if "deletionVectors" in (table.protocol().reader_features or ()):
            return 0  # deletion vectors, which only their writer can read, may have deleted rows of its files
        groups = chosen(self._small(table), self._job.compact_files, self._job.file_bytes)
        if not groups:
            return 0
        went = [file for group in groups for file in group]
        written = rewrite(self.spark, groups, self._plan(f"{batch.name}-compact"))
        before, after = sum(file.rows for file in went), sum(each.rows for each in written)
        if before != after:
            self.store.delete([each.path for each in written])
            raise KafkaError(
                UNKNOWN_SERVER_ERROR, f"{len(went)} files have {before} rows, but {after} when merged: not merged"
            )
        now = wall_ms()
        by = self._job.partition_by
        removed = [
            RemoveAction(file.path, False, now, file.size, dict(zip(by, map(_value, file.values), strict=True)))
            for file in went
        ]
        added = [self._added(each, data_change=False) for each in written]
        try:
            self._commit([*removed, *added], _properties(retries=0))
        except _conflict():
            self.store.delete([each.path for each in written])
            return 0
        return len(went)

    # -- the table ---------------------------------------------------------------------------------------------------

    def _fresh(self) -> "DeltaTable":
        assert self._held is not None, "recover() comes first"
        if self._seen is None or self._stamp() == self._seen:
            self._held.update_incremental()
        else:
            self._held = self._again(str(self._held.metadata().id))
        self._seen = self._stamp()
        return self._held

    def _stamp(self) -> tuple[int, int] | None:
        """Return the stamp of the last log entry that we know. delta-rs continues after it, even in another table."""
        assert self._held is not None, "recover() comes first"
        return self.store.stamp(f"_delta_log/{self._held.version():020}.json")

    def _again(self, known: str) -> "DeltaTable":
        """Reload the table after its log was cut. KafkaError if it is another table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            table = DeltaTable(self.store.root, storage_options=self.store.library_options())
            if str(table.metadata().id) == known:
                return table
        except (DeltaError, OSError) as error:
            why = first_line(error)
        else:
            why = "its id has changed"
        raise KafkaError(
            UNKNOWN_SERVER_ERROR, f"the table at {self.store.root} was removed or recreated during the run: {why}"
        )

    def _schema(self) -> "pa.Schema":
        import pyarrow as pa

        assert self._held is not None, "recover() comes first"
        return pa.schema(self._held.schema().to_arrow())

    def _plan(self, name: str) -> WritePlan:
        return WritePlan(self.store, self._schema(), self._job.partition_by, False, self._job.file_bytes, name)

    def _commit(self, actions: list[Any], properties: "CommitProperties") -> None:
        assert self._held is not None, "recover() comes first"
        by = list(self._job.partition_by)
        self._held.create_write_transaction(actions, "append", self._held.schema(), by, commit_properties=properties)
        self._seen = self._stamp()

    def _fits(self, table: "DeltaTable", by: list[str]) -> None:
        """KafkaError for a table with other partitioning, or with writer features that are not supported."""
        where = self.store.root
        if (found := table.metadata().partition_columns) != by:
            raise KafkaError(
                INVALID_CONFIG,
                f"the table at {where} is partitioned by {', '.join(found) or 'nothing'}, but the job by "
                f"{', '.join(by) or 'nothing'}: name its columns in its order",
            )
        asked = set(table.protocol().writer_features or ()) - _KNOWN_FEATURES
        settings = table.metadata().configuration
        if settings.get("delta.columnMapping.mode", "none") == "none":
            asked.discard("columnMapping")
        else:
            asked.add("columnMapping")
        if not any(name.startswith("delta.constraints.") for name in settings):
            asked.discard("checkConstraints")
        else:
            asked.add("checkConstraints")
        asked |= {key for field in table.schema().fields for key in field.metadata if key.startswith("delta.")}
        if asked:
            raise KafkaError(
                INVALID_CONFIG, f"the table at {where} has {min(asked)}, which the pipeline does not support"
            )

    def _still_fits(self) -> None:
        """KafkaError if another writer has changed the table so that it cannot take all values."""
        assert self._held is not None, "recover() comes first"
        self._fits(self._held, list(self._job.partition_by))
        check_still(self._schema(), arrow_schema(self._job), where=f"at {self.store.root}")

    def _small(self, table: "DeltaTable") -> list[Small]:
        by = self._job.partition_by
        found = []
        for row in _actions(table):
            path, rows = row["path"], row["num_records"]
            if _PLAIN_PATH.fullmatch(path) and rows is not None:  # other files are left to their writers
                values = tuple(row[f"partition.{name}"] for name in by)
                found.append(Small(path, row["size_bytes"], rows, values))
        return found

    def _added(self, each: WrittenFile, *, data_change: bool) -> "AddAction":
        from deltalake.transaction import AddAction

        values = dict(zip(self._job.partition_by, map(_value, each.values), strict=True))
        return AddAction(each.path, each.size, values, wall_ms(), data_change, json.dumps(statistics(each.metadata())))


def statistics(footer: "pq.FileMetaData") -> Document:
    """Return the statistics by which readers skip a file, as in Delta: for integers, dates, times and short texts."""
    nulls: dict[str, int] = {}
    smallest: Document = {}
    largest: Document = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        if footer.schema.column(at).max_definition_level > 1 or name not in footer.schema.to_arrow_schema().names:
            continue  # a part of a column
        told = [group.column(at).statistics for group in groups]
        if any(each is None or not each.has_null_count for each in told):
            continue
        nulls[name] = sum(each.null_count for each in told)
        filled = [each for each, group in zip(told, groups, strict=True) if each.null_count < group.num_rows]
        if not filled or not all(each.has_min_max for each in filled):
            continue
        try:
            texts = [_statistic(min(each.min for each in filled)), _statistic(max(each.max for each in filled))]
        except (OverflowError, ValueError, NotImplementedError):
            # A time outside Python's range, or a type whose statistics this pyarrow cannot read (18: decimals).
            continue
        if None not in texts:
            smallest[name], largest[name] = texts
    return {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}


def _statistic(value: object) -> object:
    if isinstance(value, datetime):  # not with strftime, which writes years before 1000 with fewer digits
        return None if value.tzinfo is None else value.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= STATS_TEXT_MAX else None
    return value if type(value) is int else None


def _actions(table: "DeltaTable") -> list[Document]:
    import pyarrow as pa

    found: list[Document] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return found


def _application(batch: "MicroBatch") -> str:
    return f"pybroker-{batch.query}"


def _application_of_ends(batch: "MicroBatch") -> str:
    """Return the application id under which the version is a batch's end, not a number: transactions stay when the log
    is cut."""
    return f"{_application(batch)}-end"


def _properties(transactions: list[Any] | None = None, retries: int = COMMITS_MAX) -> "CommitProperties":
    from deltalake import CommitProperties

    return CommitProperties(app_transactions=transactions, max_commit_retries=retries)


def _conflict() -> type[Exception]:
    from deltalake.exceptions import CommitFailedError

    return CommitFailedError


def _only(field: "pa.Field") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([field])


def _value(value: object) -> str | None:
    """Return a partition value as Delta writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
