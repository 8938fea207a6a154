"""Write topics into a table of Parquet files: parsed, partitioned, each record once, unparsable records beside it.

    run(Job(bootstrap="localhost:9092", topics="events", table="/data/events", schema="id bigint, kind string"))

`pybroker pipeline` does the same from the command line; docs/spark.md has the options and the guarantees.
"""

from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.runner import run

__all__ = ["Job", "run"]
