"""The package that Spark finds by its prefix pyspark_; Spark looks for data sources in its class DefaultSource.

Spark imports this in every session of an environment with pybroker, even without the source's dependencies: then there
is no source, and no error.
"""

import contextlib

with contextlib.suppress(ImportError):
    from pybroker.spark.source import KafkaSource as DefaultSource

    __all__ = ["DefaultSource"]
