"""Collect the logs of many services: parse them, route them by level, and search them by time.

    python examples/log_aggregation.py --bootstrap localhost:9092                       # routes until it is stopped
    python examples/log_aggregation.py --search timeout --since 1763712000000           # in logs-error, by record time

Services write lines like `2026-11-21T08:00:12Z ERROR billing card declined` to the topic `logs`. Errors go to
`logs-error`, other levels to `logs-other`, keyed by service, so that the lines of a service stay in order. Other text
goes to `logs-unparsed` unchanged. The search reads only the offsets of its time range.
"""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.spark.session import session

LINE = r"^(\S+) (DEBUG|INFO|WARN|ERROR) (\S+) (.*)$"


def routed(records: DataFrame, prefix: str = "logs") -> DataFrame:
    """Return each line with its target topic."""
    line = F.col("value").cast("string")
    level, service = F.regexp_extract(line, LINE, 2), F.regexp_extract(line, LINE, 3)
    kind = F.when(level == "", "unparsed").when(level == "ERROR", "error").otherwise("other")
    return records.select(
        F.concat(F.lit(f"{prefix}-"), kind).alias("topic"),
        F.when(service != "", service).alias("key"),
        F.col("value"),
    )


def start(spark: SparkSession, bootstrap: str, checkpoint: str, source: str = "logs") -> Any:
    """Return the routing query, not yet started: add a trigger."""
    broker = {"kafka.bootstrap.servers": bootstrap}
    options = {**broker, "subscribe": source, "startingOffsets": "earliest"}
    records = spark.readStream.format("pybroker").options(**options).load()
    writer = routed(records, source).writeStream.format("pybroker").options(**broker)
    return writer.option("checkpointLocation", checkpoint)


def search(spark: SparkSession, bootstrap: str, topic: str, text: str, since_ms: int, until_ms: int) -> DataFrame:
    """Return the lines that contain a text, from the records of a time range, oldest first."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingTimestamp": str(since_ms),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": str(until_ms),
    }
    lines = spark.read.format("pybroker").options(**options).load().selectExpr("timestamp", "string(value) as line")
    return lines.where(F.contains("line", F.lit(text))).sort("timestamp", "line")


def main() -> None:
    parser = argparse.ArgumentParser(description="Logs routed by level, or searched by time.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--checkpoint", default="/tmp/log-aggregation")
    parser.add_argument("--search", metavar="TEXT")
    parser.add_argument("--since", type=int, default=0, metavar="MS")
    parser.add_argument("--until", type=int, default=1 << 42, metavar="MS")
    given = parser.parse_args()
    spark = session("log-aggregation")
    if given.search is None:
        start(spark, given.bootstrap, given.checkpoint).start().awaitTermination()
    else:
        search(spark, given.bootstrap, "logs-error", given.search, given.since, given.until).show(100, truncate=False)


if __name__ == "__main__":
    main()
