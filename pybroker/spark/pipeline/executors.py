"""Where the executors of a session are."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def executor_hosts(spark: "SparkSession") -> list[str]:
    """The hosts of the executors that are alive, sorted; the driver's where it has no other."""
    hosts = [str(info.host()) for info in spark._jsc.sc().statusTracker().getExecutorInfos()]
    driver = spark.conf.get("spark.driver.host") or ""
    if len(hosts) > 1 and driver in hosts:
        hosts.remove(driver)  # once: it is among them as an executor would be
    return sorted(set(hosts)) or [driver]
