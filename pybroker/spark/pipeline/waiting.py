"""A pipeline whose executors are all gone: Spark waits for another one for ever, and says nothing.

    an executor is alive -> none: said every SAY_S, with the master's state -> an executor is alive
                                  `- the master has answered for NONE_S_MAX, and has given none -> `problem`

A standalone master that is started anew, and recovers nothing, ends the executors of the applications that it does not
know. Spark's driver does not register there again.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pybroker.errors import UNKNOWN_SERVER_ERROR, KafkaError
from pybroker.spark.pipeline.executors import count, is_local
from pybroker.spark.pipeline.preflight import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S: Final = 1.0
PATIENCE_S: Final = 5.0
SAY_S: Final = 10.0
NONE_S_MAX: Final = 180.0
"""Longer than a worker takes to come back. Where nobody waits for cores of a queue, as under YARN and Kubernetes."""


class Watch:
    """Looks for executors in a thread of its own. `problem` is set once there is no hope of one."""

    def __init__(self, spark: "SparkSession") -> None:
        self.problem: KafkaError | None = None
        self._spark = spark
        self._master = str(spark.sparkContext.master)
        self._alone = self._said = time.monotonic()
        self._hoping: float | None = None
        """Since when the master has answered, without an executor."""

    def look(self) -> None:
        now = time.monotonic()
        if count(self._spark):
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
                    "or the master was started anew and has forgotten this application; start the pipeline again, it "
                    "goes on where it was",
                )
                return
        line = f"no executor is alive: waiting for {self._master}, {now - self._alone:.0f} s so far{away}"
        print(line, file=sys.stderr, flush=True)


@contextmanager
def watched(spark: "SparkSession") -> Iterator[Watch]:
    """Meanwhile a line on standard error from time to time while no executor is alive. A local master needs none."""
    watch = Watch(spark)
    over = threading.Event()

    def run() -> None:
        while not over.wait(LOOK_S) and watch.problem is None:
            try:
                watch.look()
            except Exception:  # the JVM is gone, or the session is stopped: who works with it hears why
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
