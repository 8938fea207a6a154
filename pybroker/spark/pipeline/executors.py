"""The hosts of a session's executors, and the errors for executors that do not share the driver's files."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.untyped import JavaObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def executor_hosts(spark: "SparkSession") -> list[str]:
    """Return the hosts of live executors, sorted; the driver's if there is no other."""
    hosts = [str(info.host()) for info in spark._jsc.sc().statusTracker().getExecutorInfos()]
    driver = spark.conf.get("spark.driver.host") or ""
    if len(hosts) > 1 and driver in hosts:
        hosts.remove(driver)  # once: an executor on the same host is listed, too
    return sorted(set(hosts)) or [driver]


def count_executors(spark: "SparkSession") -> int:
    """Return the number of live executors, as the driver knows it."""
    tracker: JavaObject = spark.sparkContext._jsc.sc().statusTracker()
    return len(tracker.getExecutorInfos()) - 1  # the driver is one of them


def hold_against(spark: "SparkSession", table: str, staged: int, read: int) -> None:
    """KafkaError unless the driver finds as many staged rows as were read."""
    if staged != read:
        raise KafkaError(
            UNKNOWN_SERVER_ERROR,
            f"{read:,} rows were read, but the driver sees {staged:,} of them in {table}; executors ran on "
            f"{', '.join(executor_hosts(spark))}: {_WAY_OUT}",
        )


def is_local(spark: "SparkSession") -> bool:
    """True if the driver is its own only executor."""
    master = str(spark.sparkContext.master)
    return master == "local" or master.startswith("local[")


def unshared(hosts: Iterable[str], table: str) -> KafkaError:
    """Return the error for a driver that does not find the files that executors on these hosts wrote."""
    return KafkaError(
        UNKNOWN_SERVER_ERROR,
        f"the driver does not see what executors on {', '.join(sorted(set(hosts)))} write to {table}: {_WAY_OUT}",
    )


_WAY_OUT: Final = "use a path that the driver and all executors share, or use a table format for object stores"
