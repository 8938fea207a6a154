"""The footers of Parquet files, as the driver reads them: no job of Spark, whose executors may see other disks."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Footers:
    """Reads footers through the JVM; failures are Hadoop's and Parquet's, through Py4J."""

    def __init__(self, spark: "SparkSession") -> None:
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()

    def rows(self, paths: Iterable[str]) -> int:
        """How many rows all of these files have."""
        return sum(map(self._rows, paths))

    def _rows(self, path: str) -> int:
        reader = self._open(path)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def _open(self, path: str) -> Any:
        name = self._jvm.org.apache.hadoop.fs.Path(path)
        file = self._jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(name, self._configuration)
        return self._jvm.org.apache.parquet.hadoop.ParquetFileReader.open(file)
