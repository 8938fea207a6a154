"""The partition of a row in its table, and the values that no partition can have.

A record with such a value counts as unparsable: otherwise a producer with a wrong clock or an overlong text could stop
the pipeline for good.
"""

from typing import TYPE_CHECKING, Final

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.parsing.formats import ERROR, TIME_COLUMNS
from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

YEAR_MAX: Final = 9999
"""The last year of Python's dates, which Delta's and Iceberg's libraries use."""
NAME_BYTES_MAX: Final = 255
"""Bytes of a directory's name, on common file systems."""
_ESCAPED: Final = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""
"""The characters that Spark writes as %XX in the name of a directory."""


def check_names(job: Job, columns: list[str]) -> None:
    """KafkaError unless the table can be partitioned by these columns of the job, date and hour among them."""
    spelled = {name.lower(): name for name in columns}
    for name in job.partition_by:
        there = spelled.get(name.lower(), name if name in TIME_COLUMNS else None)
        if there is None:
            raise _refused(f"{name}: the schema has no such column")
        if there != name:
            raise _refused(f"{name}, which the schema spells {there}")
        if name.startswith("."):
            raise _refused(f"{name}: readers skip directories that begin with a dot")
    if len(set(job.partition_by)) < len(job.partition_by):
        raise _refused(f"{', '.join(job.partition_by)}: one of them is repeated")


def placed(job: Job, rows: "DataFrame") -> "DataFrame":
    """Return the rows with the record's date and hour if the table is partitioned by them, and an error for those that
    fit no partition."""
    from pyspark.sql import functions as F

    made = {"date": F.to_date("kafka_timestamp"), "hour": F.hour("kafka_timestamp")}
    for name in job.partition_by:
        if name not in rows.columns:
            rows = rows.withColumn(name, made[name])
    why = F.col(ERROR)
    for name in job.partition_by:
        if (misplaced := _misplaced(job, rows, name)) is not None:
            why = F.coalesce(why, F.when(misplaced, F.lit(f"no table can be partitioned by its value of {name}")))
    return rows.withColumn(ERROR, why)


def _misplaced(job: Job, rows: "DataFrame", name: str) -> "Column | None":
    """Return the condition for values that no directory, or no date of the table's library, can have. None if all
    fit."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import DateType, StringType

    kind: JavaObject = rows.schema[name].dataType
    value = F.col(f"`{name}`")
    if isinstance(kind, DateType):
        return ~F.year(value).between(1, YEAR_MAX)
    if isinstance(kind, StringType) and job.table_format == "parquet":
        directory = F.concat(F.lit(f"{name}="), F.regexp_replace(value, _ESCAPED, "%00"))
        return value.contains("\0") | (F.octet_length(directory) > NAME_BYTES_MAX)
    return None


def _refused(why: str) -> KafkaError:
    return KafkaError(INVALID_CONFIG, f"the table cannot be partitioned by {why}")
