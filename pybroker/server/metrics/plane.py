"""The metrics of the native plane: of its reactors, and of file calls.

Core's histograms have more buckets than needed: only bounds that are powers of two are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from pybroker import core
from pybroker.replication.disks.disk import DiskTimes

SHOWN = [at for at, bound in enumerate(core.BOUNDS_US) if 8 <= bound <= 1 << 25 and bound & (bound - 1) == 0]
"""The indexes of the bounds that are shown: 8 microseconds, 16, and so on, up to half a minute."""


def buckets(histogram: core.Histogram) -> list[tuple[str, float]]:
    """Prometheus' buckets: (upper bound in seconds, number of values up to it)."""
    steps = list(accumulate(histogram["counts"]))
    shown = [(str(core.BOUNDS_US[at] / 1e6), float(steps[at])) for at in SHOWN]
    return [*shown, ("+Inf", float(steps[-1]))]


def plane_metrics(reactors: list[core.Reactor]) -> Iterator[Metric]:
    """The metrics of reactors: requests, bytes, errors, and how busy they are."""
    times = HistogramMetricFamily(
        "pybroker_plane_request_seconds", "Time from a request to its response, if the native plane executes it.",
        labels=["api"],
    )  # fmt: skip
    asked = CounterMetricFamily(
        "pybroker_plane_request_bytes", "Bytes of the requests that the native plane executed.", labels=["api"]
    )
    answered = CounterMetricFamily(
        "pybroker_plane_answer_bytes", "Bytes of the responses that the native plane wrote.", labels=["api"]
    )
    declined = CounterMetricFamily(
        "pybroker_plane_declined", "Requests that the native plane left to Python.", labels=["api"]
    )
    errors = CounterMetricFamily(
        "pybroker_plane_errors", "Partitions that the native plane answered with an error.", labels=["api"]
    )
    for api, each in (("Produce", [r["Produce"] for r in reactors]), ("Fetch", [r["Fetch"] for r in reactors])):
        whole = added(one["times"] for one in each)
        times.add_metric([api], buckets(whole), whole["sum_us"] / 1e6)
        asked.add_metric([api], sum(one["bytes_in"] for one in each))
        answered.add_metric([api], sum(one["bytes_out"] for one in each))
        declined.add_metric([api], sum(one["declined"] for one in each))
        errors.add_metric([api], sum(one["errors"] for one in each))
    yield times
    yield from _stages(reactors)
    yield from (asked, answered, declined, errors)
    turns = HistogramMetricFamily("pybroker_plane_turn_seconds", "Time of a turn of a reactor, without its wait.")
    whole = added(r["turns"] for r in reactors)
    turns.add_metric([], buckets(whole), whole["sum_us"] / 1e6)
    busy = CounterMetricFamily("pybroker_plane_busy_seconds", "Time that a reactor was busy.", labels=["reactor"])
    for number, reactor in enumerate(reactors):
        busy.add_metric([str(number)], reactor["busy_ns"] / 1e9)
    yield from (turns, busy)
    came, went = sum(r["bytes_in"] for r in reactors), sum(r["bytes_out"] for r in reactors)
    yield CounterMetricFamily("pybroker_plane_bytes_in", "Bytes received from clients.", came)
    yield CounterMetricFamily("pybroker_plane_bytes_out", "Bytes sent to clients.", went)
    yield GaugeMetricFamily(
        "pybroker_plane_parked", "Fetches that wait for records or a deadline.", sum(r["parked"] for r in reactors)
    )


STAGED = ("Produce", "FetchConsumer", "FetchFollower")


def _stages(reactors: list[core.Reactor]) -> Iterator[Metric]:
    stages = HistogramMetricFamily(
        "pybroker_plane_request_stage_seconds",
        "Parts of that time: queue, before the execution; local, the execution; remote, the wait; send, until the "
        "kernel has the response. Kafka's RequestQueueTimeMs, LocalTimeMs, RemoteTimeMs, ResponseSendTimeMs.",
        labels=["api", "stage"],
    )
    for api in STAGED:
        for stage in ("queue", "local", "remote", "send"):
            whole = added(r["stages"][api][stage] for r in reactors)
            stages.add_metric([api, stage], buckets(whole), whole["sum_us"] / 1e6)
    yield stages


def python_metrics(queued: list[core.Histogram], reactors: list[core.Reactor]) -> Iterator[Metric]:
    """The times that the native plane measures of requests that Python executes."""
    sent = added(r["stages"]["python"]["send"] for r in reactors)
    for name, says, times in (
        ("request_queue", "Time from reading a request that Python executes to its execution.", added(queued)),
        ("response_send", "Time from a response by Python until the kernel has all of it.", sent),
    ):
        family = HistogramMetricFamily(f"pybroker_{name}_seconds", says)
        family.add_metric([], buckets(times), times["sum_us"] / 1e6)
        yield family


def disk_metrics(disk: DiskTimes) -> Iterator[Metric]:
    """The histograms of file calls."""
    for name, says, times in (
        ("flush", "Time of a flush of a file to its disk.", disk.flushes),
        ("append", "Time of an append to a log: its checks under the log's lock, and its write.", disk.appends),
        ("cold_read", "Time to read records that were not in the page cache, of one Fetch.", disk.cold_reads),
    ):
        family = HistogramMetricFamily(f"pybroker_{name}_seconds", says)
        family.add_metric([], buckets(times), times["sum_us"] / 1e6)
        yield family
    says = "Bytes of the ranges that these reads covered."
    yield CounterMetricFamily("pybroker_cold_read_bytes", says, disk.cold_bytes)


def added(histograms: Iterable[core.Histogram]) -> core.Histogram:
    """Return the sum of histograms."""
    each = list(histograms)
    counts = [sum(column) for column in zip(*(one["counts"] for one in each), strict=True)]
    return {"sum_us": sum(one["sum_us"] for one in each), "counts": counts or [0] * (len(core.BOUNDS_US) + 1)}
