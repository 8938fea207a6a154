"""Where Spark looks for data sources by itself: packages named pyspark_*, and in them the class DefaultSource.

Spark imports this in every session of an environment that has pybroker, also where nobody installed what the source
needs: then there is none, and nothing to complain about.
"""

import contextlib

with contextlib.suppress(ImportError):
    from pybroker.spark.source import KafkaSource as DefaultSource

    __all__ = ["DefaultSource"]
