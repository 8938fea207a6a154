"""Monitor metrics: compute averages per minute and host, and write an alert to a topic for each that is too high.

    python examples/metric_monitoring.py --bootstrap localhost:9092 --above 90

reads the topic `metrics`, records like {"host": "a", "value": 71.5, "at": "2026-11-21T08:00:12Z"}, and writes to
`alerts`, keyed by host. A minute is complete once a record arrives that is a minute
younger than its end (the watermark). After a restart, open windows continue from the checkpoint.
"""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.spark.session import session

METRIC = "host string, value double, at timestamp"


def alerts(records: DataFrame, above: float) -> DataFrame:
    """Return a record for `alerts` for each host and minute whose average is above a value."""
    metrics = records.select(F.from_json(F.col("value").cast("string"), METRIC).alias("m")).select("m.*")
    minutes = metrics.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "host")
    high = minutes.agg(F.avg("value").alias("average"), F.count("*").alias("samples")).where(F.col("average") > above)
    told = F.struct("host", F.col("window.start").alias("minute"), "average", "samples")
    return high.select(F.col("host").alias("key"), F.to_json(told).alias("value"))


def start(spark: SparkSession, bootstrap: str, above: float, checkpoint: str, **names: str) -> Any:
    """Return the query from `source` (metrics) to `target` (alerts), not yet started: add a trigger."""
    broker = {"kafka.bootstrap.servers": bootstrap}
    options = {**broker, "subscribe": names.get("source", "metrics"), "startingOffsets": "earliest"}
    records = spark.readStream.format("pybroker").options(**options).load()
    writer = (
        alerts(records, above).writeStream.format("pybroker").options(**broker, topic=names.get("target", "alerts"))
    )
    return writer.option("checkpointLocation", checkpoint).outputMode("append")


def main() -> None:
    parser = argparse.ArgumentParser(description="Alerts for metrics that are too high on average.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--above", type=float, default=90.0)
    parser.add_argument("--checkpoint", default="/tmp/metric-monitoring")
    given = parser.parse_args()
    spark = session("metric-monitoring")
    start(spark, given.bootstrap, given.above, given.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
