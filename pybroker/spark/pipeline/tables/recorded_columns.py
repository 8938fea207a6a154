"""The columns of a Parquet table, recorded by the pipeline: in the last file _pybroker/schemas/NUMBER.json.

    {"schema": Spark's JSON of all columns, those of the partitioning among them; "partition_by": [names]}
"""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.tables.evolution import check_partitioning, evolved, without
from pybroker.spark.pipeline.tables.footers import Footers
from pybroker.spark.pipeline.tables.hadoop_files import HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DIGITS: Final = 9


class TableColumns(NamedTuple):
    """The columns of a table, and those it is partitioned by."""

    schema: "StructType"
    partition_by: tuple[str, ...]

    @property
    def in_files(self) -> "StructType":
        """The columns in the files; the others are in the names of directories."""
        return without(self.schema, self.partition_by)

    def with_types_of(self, schema: "StructType") -> "TableColumns":
        """Return these columns with the partition columns' types of `schema`: names of directories have no types."""
        from pyspark.sql.types import StringType, StructField, StructType

        types = {field.name: field.dataType for field in schema.fields}
        added = [StructField(name, types.get(name, StringType())) for name in self.partition_by]
        return TableColumns(StructType([*self.in_files.fields, *added]), self.partition_by)

    def taking(self, wanted: "TableColumns") -> "TableColumns":
        """Return the columns once a job with `wanted` columns writes to the table. KafkaError if it cannot."""
        check_partitioning(self.partition_by, wanted.partition_by)
        return TableColumns(evolved(self.schema, wanted.schema), self.partition_by)


class RecordedColumns:
    """Reads and writes the records of one table."""

    def __init__(self, files: HadoopFiles, directory: str) -> None:
        self._files = files
        self._directory = directory

    def read(self) -> TableColumns | None:
        from pyspark.sql.types import StructType

        names = [path for path, _ in self._files.walk(self._directory) if path.endswith(".json")]
        if not names:
            return None
        told = self._files.document(names[-1])
        return TableColumns(StructType.fromJson(told["schema"]), tuple(told["partition_by"]))

    def write(self, columns: TableColumns) -> None:
        """Write a new record: records are never changed, because some file systems cannot replace a file atomically."""
        number = len(self._files.walk(self._directory)) + 1
        told = {"schema": columns.schema.jsonValue(), "partition_by": list(columns.partition_by)}
        self._files.write(f"{self._directory}/{number:0{DIGITS}}.json", json.dumps(told))


def derived(root: str, paths: Iterable[str], footers: Footers, fallback: Callable[[str], "StructType"]) -> TableColumns:
    """Return the columns of a table without a record, from the footers of its files and the names of their directories.

    `fallback` returns the schema of a file that Spark did not write. KafkaError if two files do not fit together."""
    from pyspark.sql.types import StructType

    schema, partition_by = StructType([]), None
    for path in paths:
        directories = path.removeprefix(f"{root}/").split("/")[:-1]
        here = tuple(name.partition("=")[0] for name in directories)
        if partition_by not in (None, here):
            was, now = (", ".join(each) or "no column" for each in (partition_by or (), here))
            raise KafkaError(INVALID_CONFIG, f"the table is partitioned by {was}, but {path} by {now}")
        partition_by = here
        try:
            schema = evolved(schema, footers.read(path).schema or fallback(path), either_way=True)
        except KafkaError as error:
            raise KafkaError(INVALID_CONFIG, f"{path} does not fit the files before it: {error.message}") from error
    return TableColumns(schema, partition_by or ())
