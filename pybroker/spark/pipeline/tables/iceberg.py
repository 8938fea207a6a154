"""A table of Apache Iceberg, committed by pyiceberg in the driver to the catalog in its configuration.

Each batch is one transaction: a snapshot with its files, and a property of the table with the number of the query's
last batch. That property identifies a batch in the table, and stays when snapshots expire. This module, not pyiceberg,
retries a commit that another writer has preceded: pyiceberg would not check whether the batch is done.
"""

import random
import time
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from pybroker.errors import INVALID_CONFIG, UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.tables.columns import arrow_schema, change, check_still, first_line
from pybroker.spark.pipeline.tables.data_files import WritePlan, WrittenFile, write
from pybroker.spark.pipeline.tables.storage import TableStorage
from pybroker.spark.pipeline.tables.table import check_destination, check_same

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from pybroker.spark.pipeline.tables.table import MicroBatch

COMMITS_MAX: Final = 20
"""Retries of a commit that another writer has preceded."""
WAIT_S: Final = 0.1
MERGE: Final = "commit.manifest-merge.enabled"
PROPERTIES: Final = {
    # Otherwise a batch a second leaves readers as many metadata files and manifests.
    MERGE: "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Properties of a table that the pipeline creates."""
COUNTS_ONLY: Final = {"write.metadata.metrics.default": "counts"}
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_EPOCH: Final = date(1970, 1, 1)
# pyiceberg's names of a store's options, and delta-rs's.
_STORE_OPTIONS: Final = {
    "s3.endpoint": "AWS_ENDPOINT_URL",
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
    "s3.region": "AWS_REGION",
}


class Iceberg:
    """One table of a catalog; `recover` creates it if it does not exist. Other writers may write to it at the same
    time."""

    def __init__(self, spark: "SparkSession", job: Job) -> None:
        check_destination(job)
        self.spark = spark
        self._job = job
        self._catalog: Catalog | None = None
        self._catalog_name, _, self._name = job.table.partition(".")

    def recover(self) -> None:
        """Create the table, or adapt it to the job's columns. KafkaError names one that it cannot take."""
        from pyiceberg.catalog import load_catalog

        arrow_schema(self._job)  # raises its own sentence before the catalog is used
        try:
            self._catalog = load_catalog(self._catalog_name, **self._job.table_options)
            table = self._made(self._catalog)
        except Exception as error:  # catalogs and their drivers fail in many ways
            raise KafkaError(
                INVALID_CONFIG, f"the Iceberg table {self._job.table} cannot be opened: {first_line(error)}"
            ) from error
        self._fits(table)
        needs = self._change(table)
        if needs.added or needs.widened:
            import pyarrow as pa

            with table.update_schema() as update:
                update.union_by_name(pa.schema([*needs.added, *needs.widened]))

    def is_done(self, batch: "MicroBatch") -> bool:
        return self._is_done(self._fresh(), batch)

    def add(self, batch: "MicroBatch", rows: "DataFrame", check: Callable[[int], None]) -> None:
        """KafkaError if the driver does not see what the workers wrote, or other writers always commit first."""
        from pyiceberg.exceptions import CommitFailedException

        table = self._fresh()
        self._still_fits(table)
        plan = self._plan(table, batch.name)
        written = write(rows, plan, check)
        files = [self._file(table, plan, each) for each in written]
        for attempt in range(COMMITS_MAX):
            try:
                self._commit(table, batch, files)
                return
            except CommitFailedException as error:
                why = error
            time.sleep(random.uniform(0, WAIT_S * 2 ** min(attempt, 5)))
            table = self._fresh()
            if self._is_done(table, batch):  # by another driver of the same query, or by us before the answer was lost
                return
            self._still_fits(table)
        raise KafkaError(
            UNKNOWN_SERVER_ERROR, f"other writers of {self._job.table} were first {COMMITS_MAX} times: {why}"
        )

    def compact(self, batch: "MicroBatch") -> int:
        """Return 0: pyiceberg merges manifests, but no data files. Engines with access to the catalog do."""
        return 0

    def _is_done(self, table: "Table", batch: "MicroBatch") -> bool:
        last = int(table.properties.get(_property(batch), -1))
        if last < batch.number:
            return False
        end = table.properties.get(_property_of_end(batch), "None")
        check_same(self._job, batch, last, None if end == "None" else int(end))
        return True

    # -- the table ---------------------------------------------------------------------------------------------------

    def _made(self, catalog: "Catalog") -> "Table":
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError

        try:
            return catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            with (
                catalog.create_table_transaction(self._name, arrow_schema(self._job), properties=PROPERTIES) as made,
                made.update_spec() as spec,
            ):
                for name in self._job.partition_by:
                    spec.add_identity(name)
        except TableAlreadyExistsError:  # another writer has created it at this moment
            pass
        return catalog.load_table(self._name)

    def _fresh(self) -> "Table":
        assert self._catalog is not None, "recover() comes first"
        return self._catalog.load_table(self._name)

    def _change(self, table: "Table") -> Any:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return change(schema_to_pyarrow(table.schema()), arrow_schema(self._job), widens=True, where=self._job.table)

    def _fits(self, table: "Table") -> None:
        """KafkaError for a table with other partitioning."""
        schema = table.schema()
        found = [f"{field.transform}({schema.find_column_name(field.source_id)})" for field in table.spec().fields]
        wanted = [f"identity({name})" for name in self._job.partition_by]
        if found != wanted:
            raise KafkaError(
                INVALID_CONFIG,
                f"the table {self._job.table} is partitioned by {', '.join(found) or 'nothing'}, but the job by "
                f"{', '.join(wanted) or 'nothing'}: only identity partitions, in the same order, fit",
            )

    def _still_fits(self, table: "Table") -> None:
        """KafkaError if another writer has changed the table so that it cannot take all values."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._fits(table)
        check_still(schema_to_pyarrow(table.schema()), arrow_schema(self._job), where=self._job.table)

    def _plan(self, table: "Table", name: str) -> WritePlan:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        home = table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data"
        held = table.io.properties
        options = {ours: str(held[theirs]) for theirs, ours in _STORE_OPTIONS.items() if theirs in held}
        schema = schema_to_pyarrow(table.schema())  # with the ids by which readers find columns
        return WritePlan(
            TableStorage.of(home, options), schema, self._job.partition_by, True, self._job.file_bytes, name
        )

    def _file(self, table: "Table", plan: WritePlan, each: WrittenFile) -> "DataFile":
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
        )
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        schema: Schema = table.schema()
        ids = parquet_path_to_id_mapping(schema)
        try:
            wanted = compute_statistics_plan(schema, table.properties)
            told = data_file_statistics_from_parquet_metadata(each.metadata(), wanted, ids)
        except (OverflowError, ValueError):  # a time outside Python's range: readers must open the file
            wanted = compute_statistics_plan(schema, COUNTS_ONLY)
            told = data_file_statistics_from_parquet_metadata(each.metadata(), wanted, ids)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{plan.store.root}/{each.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*((v - _EPOCH).days if isinstance(v, date) else v for v in each.values)),
            file_size_in_bytes=each.size,
            sort_order_id=None,
            spec_id=table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **told.to_serialized_dict(),
        )

    def _commit(self, table: "Table", batch: "MicroBatch", files: "list[DataFile]") -> None:
        merges = table.properties.get(MERGE, "false").lower() == "true"
        # Only this copy of the table's metadata has the setting; the catalog gets only the changes.
        table.metadata = table.metadata.model_copy(update={"properties": {**table.properties, **_NO_RETRIES}})
        told = {"pybroker.query": batch.query, "pybroker.batch": str(batch.number)}
        with table.transaction() as transaction:
            transaction.set_properties({_property(batch): str(batch.number), _property_of_end(batch): str(batch.end)})
            if not files:  # no snapshot for a batch without rows; the property still records the batch
                return
            snapshot = transaction.update_snapshot(snapshot_properties=told)
            with snapshot.merge_append() if merges else snapshot.fast_append() as append:
                for file in files:
                    append.append_data_file(file)


def _property(batch: "MicroBatch") -> str:
    return f"pybroker.{batch.query}.batch"


def _property_of_end(batch: "MicroBatch") -> str:
    return f"pybroker.{batch.query}.end"
