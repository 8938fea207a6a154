"""The columns of a Parquet table as the pipeline has recorded them: in _pybroker/schemas/NUMBER.json, the last of them.

    {"schema": Spark's JSON of all columns, those of the partitioning among them; "partition_by": [names]}
"""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.evolution import check_partitioning, evolved, without
from pybroker.spark.pipeline.files import Files
from pybroker.spark.pipeline.footers import Footers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

DIGITS: Final = 9


class Columns(NamedTuple):
    """What a table is made of."""

    schema: "StructType"
    partition_by: tuple[str, ...]

    @property
    def in_files(self) -> "StructType":
        """The columns that lie in the files; the others are in the names of directories."""
        return without(self.schema, self.partition_by)

    def with_types_of(self, schema: "StructType") -> "Columns":
        """With the types that the columns of the partitioning have there: names of directories do not tell them."""
        from pyspark.sql.types import StringType, StructField, StructType

        types = {field.name: field.dataType for field in schema.fields}
        added = [StructField(name, types.get(name, StringType())) for name in self.partition_by]
        return Columns(StructType([*self.in_files.fields, *added]), self.partition_by)

    def taking(self, wanted: "Columns") -> "Columns":
        """The same table once a job with these columns writes to it. KafkaError if it cannot."""
        check_partitioning(self.partition_by, wanted.partition_by)
        return Columns(evolved(self.schema, wanted.schema), self.partition_by)


class RecordedColumns:
    """Reads and writes the records of one table."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory

    def read(self) -> Columns | None:
        from pyspark.sql.types import StructType

        names = [path for path, _ in self._files.walk(self._directory) if path.endswith(".json")]
        if not names:
            return None
        told = self._files.document(names[-1])
        return Columns(StructType.fromJson(told["schema"]), tuple(told["partition_by"]))

    def write(self, columns: Columns) -> None:
        """One more record: none is ever changed, for not every file system replaces a file in one step."""
        number = len(self._files.walk(self._directory)) + 1
        told = {"schema": columns.schema.jsonValue(), "partition_by": list(columns.partition_by)}
        self._files.write(f"{self._directory}/{number:0{DIGITS}}.json", json.dumps(told))


def derived(root: str, paths: Iterable[str], footers: Footers, fallback: Callable[[str], "StructType"]) -> Columns:
    """The columns of a table that has none recorded: out of the footers of all its files, and their directories' names.

    `fallback` tells the schema of a file that Spark did not write. KafkaError where two files do not fit each other."""
    from pyspark.sql.types import StructType

    schema, partition_by = StructType([]), None
    for path in paths:
        directories = path.removeprefix(f"{root}/").split("/")[:-1]
        here = tuple(name.partition("=")[0] for name in directories)
        if partition_by not in (None, here):
            was, now = (", ".join(each) or "no column" for each in (partition_by or (), here))
            raise KafkaError(INVALID_CONFIG, f"the table is partitioned by {was}, and {path} by {now}")
        partition_by = here
        try:
            schema = evolved(schema, footers.read(path).schema or fallback(path), either_way=True)
        except KafkaError as error:
            raise KafkaError(INVALID_CONFIG, f"{path} does not fit the files before it: {error.message}") from error
    return Columns(schema, partition_by or ())
