"""The progress of a running pipeline: lines for a person, metrics for Prometheus."""

import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from pybroker.errors import INVALID_CONFIG, KafkaError, system_words
from pybroker.spark.offsets import Offsets, from_json
from pybroker.spark.untyped import Document, Told

EVERY_S: Final = 5.0


class PipelineProgress:
    """Counts finished batches, and reports from time to time; `metrics_port` serves the same to Prometheus."""

    def __init__(self, metrics_port: int | None = None, every_s: float = EVERY_S) -> None:
        self.rows = 0
        self.dead_letters = 0
        self.batches = 0
        self.lag: int | None = None
        self._waited = -1, 0  # the last batch for which Spark has reported the backlog, and the records in it
        self._read: dict[int, int] = {}  # records of later batches, which are no longer in that backlog
        self._every_s = every_s
        self._started = self._said = time.monotonic()
        self._rows_said = 0
        registry = CollectorRegistry()
        self._rows = Counter("pybroker_pipeline_rows", "Records added to the table.", registry=registry)
        self._dead = Counter("pybroker_pipeline_dead_letters", "Records that did not parse.", registry=registry)
        self._lag = Gauge("pybroker_pipeline_lag_records", "Records not read yet.", registry=registry)
        self._lag.set(math.nan)  # not known yet
        self._seconds = Gauge("pybroker_pipeline_batch_seconds", "How long the last batch took.", registry=registry)
        if metrics_port is not None:
            try:
                start_http_server(metrics_port, registry=registry)
            except OSError as error:
                why = system_words(error)
                raise KafkaError(INVALID_CONFIG, f"metrics cannot be served on port {metrics_port}: {why}") from error

    def batch(self, number: int, rows: int, dead_letters: int, seconds: float) -> None:
        """Record that batch `number` of the query is in the table."""
        self._read = {n: read for n, read in self._read.items() if n > self._waited[0]} | {number: rows + dead_letters}
        self.batches += 1
        self.rows += rows
        self.dead_letters += dead_letters
        self._rows.inc(rows)
        self._dead.inc(dead_letters)
        self._seconds.set(seconds)

    def see(self, spark_progress: Told | None) -> None:
        """Read Spark's report of the query, and print a line if it is time."""
        if spark_progress is not None:
            told = [lag for source in spark_progress["sources"] if (lag := lag_of(source)) is not None]
            if told:
                self._waited = spark_progress["batchId"], sum(told)
        if self._waited[0] >= 0:  # Spark reports a batch some time after its end, and a stop may come before
            after, waited = self._waited
            self.lag = max(0, waited - sum(read for number, read in self._read.items() if number > after))
            self._lag.set(self.lag)
        if time.monotonic() - self._said >= self._every_s:
            self.say()

    def note(self, text: str) -> None:
        """Print what the pipeline does, or waits for, before its first batch."""
        print(text, file=sys.stderr, flush=True)

    def say(self) -> None:
        now = time.monotonic()
        rate = (self.rows - self._rows_said) / max(now - self._said, 1e-9)
        self._said, self._rows_said = now, self.rows
        dead = f", {self.dead_letters:,} did not parse" if self.dead_letters else ""
        lag = "" if self.lag is None else f", {self.lag:,} behind"
        self.note(f"{self.rows:,} records in {self.batches:,} batches{dead}; {rate:,.0f} records/s{lag}")

    def summary(self) -> Document:
        """The numbers of the whole run, for the caller."""
        return {
            "records": self.rows,
            "dead_letters": self.dead_letters,
            "batches": self.batches,
            "seconds": round(time.monotonic() - self._started, 3),
        }


def lag_of(source: Told) -> int | None:
    """Return the records between a batch's end and the latest offsets, as Spark reports both; None if it does not.

    A partition that is new since the batch is counted from its first record."""
    if source.get("endOffset") is None or source.get("latestOffset") is None:
        return None
    end, latest = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    return sum(max(0, offset - end.get(tp, 0)) for tp, offset in latest.items())


def _offsets(told: object) -> Offsets:
    document = json.loads(told) if isinstance(told, str) else told
    return from_json(document) if isinstance(document, Mapping) else {}
