"""Detect that a pipeline's executors are all gone: Spark waits for a new one for ever, without a message.

    an executor is alive -> none: reported every SAY_S, with the master's state -> an executor is alive
             `- the master has answered for NONE_S_MAX, and has given none -> `problem`

A standalone master that restarts without recovery ends the executors of applications that it does not know. Spark's
driver does not register there again.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.executors import count_executors, is_local
from pybroker.spark.pipeline.preflight import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 1.0
PATIENCE_S: Final = 5.0
SAY_S: Final = 10.0
NONE_S_MAX: Final = 180.0
"""Longer than a worker takes to come back. Not for queues, as under YARN and Kubernetes, where an application may
wait."""


class Watch:
    """Looks for executors in a thread of its own. Sets `problem` once none can be expected."""

    def __init__(self, spark: "SparkSession") -> None:
        self.problem: KafkaError | None = None
        self._spark = spark
        self._master = str(spark.sparkContext.master)
        self._alone = self._said = time.monotonic()
        self._hoping: float | None = None
        """The time since which the master has answered without giving an executor."""

    def look(self) -> None:
        now = time.monotonic()
        if count_executors(self._spark):
            self._alone = self._said = now
            self._hoping = None
        elif now - self._alone > PATIENCE_S and (self._said == self._alone or now - self._said > SAY_S):
            self._said = now
            self._say(now)

    def _say(self, now: float) -> None:
        away = ""
        try:
            check_master(self._master)
        except KafkaError as error:
            self._hoping, away = None, f" ({error.message})"
        else:
            self._hoping = self._hoping or now
            if self._master.startswith("spark:") and now - self._hoping > NONE_S_MAX:
                self.problem = KafkaError(
                    UNKNOWN_SERVER_ERROR,
                    f"{self._master} has given no executor for {now - self._alone:.0f} s: no worker is alive or free, "
                    "or the master was restarted and has lost this application; start the pipeline again, it "
                    "continues from its checkpoint",
                )
                return
        line = f"no executor is alive: waiting for {self._master}, {now - self._alone:.0f} s so far{away}"
        print(line, file=sys.stderr, flush=True)


@contextmanager
def watched(spark: "SparkSession") -> Iterator[Watch]:
    """Print a line on standard error from time to time while no executor is alive. Does nothing for a local master."""
    watch = Watch(spark)
    over = threading.Event()

    def run() -> None:
        while not over.wait(LOOK_S) and watch.problem is None:
            try:
                watch.look()
            except Exception:  # the JVM is gone, or the session is stopped: the thread that uses it reports why
                return

    watching = threading.Thread(target=run, name="watching executors", daemon=True)
    if not is_local(spark):
        watching.start()
    try:
        yield watch
    finally:
        over.set()
        if watching.ident is not None:
            watching.join()
