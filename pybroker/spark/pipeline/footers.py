"""The footers of Parquet files, as the driver reads them: no job of Spark, whose executors may see other disks."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

SPARK_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
"""Under this key Spark writes the columns with its own types into each footer."""


class Footer(NamedTuple):
    """What a footer says. `schema` is None in a file that Spark did not write."""

    rows: int
    schema: "StructType | None"


class Footers:
    """Reads footers through the JVM; failures are Hadoop's and Parquet's, through Py4J."""

    def __init__(self, spark: "SparkSession") -> None:
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()

    def rows(self, paths: Iterable[str]) -> int:
        """How many rows all of these files have."""
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
