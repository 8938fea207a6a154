"""The footers of Parquet files, read by the driver: executors of a Spark job may see other disks."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SPARK_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
"""The key of Spark's own column types in a footer."""


class Footer(NamedTuple):
    """The content of a footer. `schema` is None in a file that Spark did not write."""

    rows: int
    schema: "StructType | None"


class Footers:
    """Reads footers through the JVM; failures are Hadoop's and Parquet's, through Py4J."""

    def __init__(self, spark: "SparkSession") -> None:
        self._jvm: JavaObject = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()

    def rows(self, paths: Iterable[str]) -> int:
        """Return the number of rows in all of these files."""
        return sum(self.read(path).rows for path in paths)

    def read(self, path: str) -> Footer:
        from pyspark.sql.types import StructType

        name = self._jvm.org.apache.hadoop.fs.Path(path)
        file = self._jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(name, self._configuration)
        reader = self._jvm.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        try:
            told = reader.getFileMetaData().getKeyValueMetaData().get(SPARK_KEY)
            return Footer(int(reader.getRecordCount()), StructType.fromJson(json.loads(told)) if told else None)
        finally:
            reader.close()
