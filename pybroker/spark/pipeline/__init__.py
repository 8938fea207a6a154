"""Topics into a table of Parquet files: parsed, partitioned, each record in it once, and what does not parse beside it.

    from pybroker.spark.pipeline import Job, run
    run(Job(bootstrap="localhost:9092", topics="events", table="/data/events", schema="id bigint, kind string"))

`pybroker pipeline` is the same from the command line; docs/spark.md has the options and what is promised.
"""

from pybroker.spark.pipeline.job import Job
from pybroker.spark.pipeline.runner import run

__all__ = ["Job", "run"]
