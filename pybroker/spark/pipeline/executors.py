"""Where the executors of a session are, and whether they see the driver's files."""

from typing import TYPE_CHECKING, Any, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pybroker.spark.pipeline.files import Files

TASKS_PER_CORE: Final = 2
TASKS_MAX: Final = 64


def executor_hosts(spark: "SparkSession") -> list[str]:
    """The hosts of the executors that are alive, sorted; the driver's where it has no other."""
    hosts = [str(info.host()) for info in spark._jsc.sc().statusTracker().getExecutorInfos()]
    driver = spark.conf.get("spark.driver.host") or ""
    if len(hosts) > 1 and driver in hosts:
        hosts.remove(driver)  # once: it is among them as an executor would be
    return sorted(set(hosts)) or [driver]


def count(spark: "SparkSession") -> int:
    """How many executors are alive, as far as the driver has heard."""
    tracker: Any = spark.sparkContext._jsc.sc().statusTracker()
    return len(tracker.getExecutorInfos()) - 1  # the driver is one of them


def hold_against(spark: "SparkSession", table: str, staged: int, read: int) -> None:
    """KafkaError unless the driver finds as many rows staged as were read."""
    if staged != read:
        raise KafkaError(
            UNKNOWN_SERVER_ERROR,
            f"{read:,} rows were read and {staged:,} of them are in {table} as the driver sees it; executors ran on "
            f"{', '.join(executor_hosts(spark))}: {_WAY_OUT}",
        )


def is_local(spark: "SparkSession") -> bool:
    """Whether the driver is its own only executor."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def probe(spark: "SparkSession", files: "Files", table: str, staging: str) -> None:
    """Every executor writes into `staging`; KafkaError with the hosts of those whose files the driver does not find."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    tasks = min(TASKS_MAX, TASKS_PER_CORE * max(2, spark.sparkContext.defaultParallelism))
    seen = Observation("probe")
    # An executor's JVM gives its host by the name that the cluster knows: no Python has to be started there for it.
    host = F.reflect(F.lit("org.apache.spark.util.Utils"), F.lit("localHostName"))
    rows = spark.range(0, tasks, 1, tasks).select(F.col("id").alias("task"), host.alias("host"))
    ran = [F.max(F.when(F.col("task") == task, F.col("host"))).alias(str(task)) for task in range(tasks)]
    rows.observe(seen, *ran).write.partitionBy("task").parquet(staging)
    found = {path.rpartition("/")[0].rpartition("task=")[2] for path, _ in files.walk(staging)}
    files.delete(staging)
    if missing := sorted({str(host) for task, host in seen.get.items() if task not in found}):
        raise KafkaError(
            UNKNOWN_SERVER_ERROR,
            f"what executors on {', '.join(missing)} write to {table} is not there for the driver: {_WAY_OUT}",
        )


_WAY_OUT: Final = "give a path that the driver and all executors share, or use a table format for object stores"
