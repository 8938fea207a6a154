"""Join two topics and look up a third: orders with their payments and customers, written to a topic.

    python examples/stream_enrichment.py --bootstrap localhost:9092

`orders` has {"order": 1, "customer": "c", "amount": 9.5, "at": "..."}, `payments` {"order": 1, "at": "..."}, and
`customers` {"name": "..."} keyed by customer, where the last record counts. An order and a payment that comes within
ten minutes of it become one record of `paid`, keyed by customer, with the customer's name. Spark keeps an order only
while its payment may still arrive.
"""

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pybroker.spark.session import session

ORDER = "order bigint, customer string, amount double, at timestamp"
PAYMENT = "order bigint, at timestamp"


def parsed(records: DataFrame, schema: str, prefix: str) -> DataFrame:
    """Return the fields of a topic's JSON, with the join's time as a watermark."""
    row = F.from_json(F.col("value").cast("string"), schema).alias("row")
    rows = records.select(row).select("row.*")
    return rows.select(*(F.col(name).alias(f"{prefix}_{name}") for name in rows.columns)).withWatermark(
        f"{prefix}_at", "10 minutes"
    )


def names_of(customers: DataFrame) -> DataFrame:
    """Return the last name of each customer, as in a compacted topic."""
    last = customers.groupBy("key").agg(F.max_by("value", "offset").alias("value"))
    name = F.get_json_object(F.col("value").cast("string"), "$.name").alias("name")
    return last.select(F.col("key").cast("string").alias("customer"), name)


def paid(orders: DataFrame, payments: DataFrame, customers: DataFrame) -> DataFrame:
    """Return a record for `paid` for each order that was paid in time."""
    order, payment = parsed(orders, ORDER, "order"), parsed(payments, PAYMENT, "payment")
    same = F.col("order_order") == F.col("payment_order")
    in_time = F.expr("payment_at BETWEEN order_at AND order_at + INTERVAL 10 MINUTES")
    joined = order.join(payment, same & in_time).join(
        F.broadcast(names_of(customers)), F.col("order_customer") == F.col("customer"), "left"
    )
    told = F.struct(F.col("order_order").alias("order"), "name", F.col("order_amount").alias("amount"))
    return joined.select(F.col("order_customer").alias("key"), F.to_json(told).alias("value"))


def start(spark: SparkSession, bootstrap: str, checkpoint: str, prefix: str = "") -> Any:
    """Return the query from orders, payments and customers to paid, not yet started: add a trigger."""
    broker = {"kafka.bootstrap.servers": bootstrap}

    def topic(reader: Any, name: str) -> DataFrame:
        options = {**broker, "subscribe": prefix + name, "startingOffsets": "earliest"}
        found: DataFrame = reader.format("pybroker").options(**options).load()
        return found

    orders, payments = topic(spark.readStream, "orders"), topic(spark.readStream, "payments")
    rows = paid(orders, payments, topic(spark.read, "customers"))
    writer = rows.writeStream.format("pybroker").options(**broker, topic=f"{prefix}paid")
    return writer.option("checkpointLocation", checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description="Orders with their payments and customers.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--checkpoint", default="/tmp/stream-enrichment")
    given = parser.parse_args()
    start(session("stream-enrichment"), given.bootstrap, given.checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main()
