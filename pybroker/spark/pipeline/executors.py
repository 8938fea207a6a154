"""Where the executors of a session are, and what is told when they do not share the driver's files."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


def unshared(hosts: Iterable[str], table: str) -> KafkaError:
    """What is told when the driver does not find what executors on these hosts have written."""
    return KafkaError(
        UNKNOWN_SERVER_ERROR,
        f"what executors on {', '.join(sorted(set(hosts)))} write to {table} is not there for the driver: {_WAY_OUT}",
    )


_WAY_OUT: Final = "give a path that the driver and all executors share, or use a table format for object stores"
