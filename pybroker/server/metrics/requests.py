"""Times of the requests that Python executes, measured as they pass, and only if metrics are enabled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily

from pybroker.decisions.caller import Caller
from pybroker.histogram import Times
from pybroker.protocol.apis import KNOWN
from pybroker.server.api.quotas import Timed
from pybroker.server.api.responder import Answer, Responder, Waiting

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

NAMES = {key: api.name for key, api in KNOWN.items()}


class Requests:
    """The times of requests by API: in all, in steps on the event loop, and in waits between them."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[Times, Times, Times]] = {}

    def add(self, api: str, local: float, remote: float) -> None:
        """Record a request that took `local` seconds on the event loop, and waited `remote` seconds."""
        times = self.times.get(api)
        if times is None:
            times = self.times[api] = Times(), Times(), Times()
        for each, seconds in zip(times, (local + remote, local, remote), strict=True):
            each.add(seconds)

    def counts(self) -> dict[str, int]:
        """Return the number of requests by API."""
        return {api: times[0].count for api, times in list(self.times.items())}

    def metrics(self) -> Iterator[Metric]:
        whole = HistogramMetricFamily(
            "pybroker_request_seconds",
            "Time from a request to its response, if Python executes it.",
            labels=["api"],
        )
        stages = HistogramMetricFamily(
            "pybroker_request_stage_seconds",
            "Parts of that time: local, on the event loop: Kafka's LocalTimeMs; remote, waits: Kafka's RemoteTimeMs.",
            labels=["api", "stage"],
        )
        for api, (total, local, remote) in list(self.times.items()):
            whole.add_metric([api], *exposed(total))
            stages.add_metric([api, "local"], *exposed(local))
            stages.add_metric([api, "remote"], *exposed(remote))
        yield from (whole, stages)


class Metered:
    """A responder that measures the time of each request that it passes on, from its frame to its response."""

    def __init__(self, responder: Responder, requests: Requests) -> None:
        self._responder = responder
        self._requests = requests

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        begun = time.perf_counter()
        answer = self._responder.respond(frame, caller)
        local = time.perf_counter() - begun
        name = NAMES.get(int.from_bytes(frame[:2], "big"), "unknown")
        if isinstance(answer, Waiting):
            return Waiting(self._later(answer, name, begun, local), answer.abandon)
        self._requests.add(name, local, 0.0)
        return answer

    async def _later(self, waiting: Waiting, name: str, begun: float, local: float) -> Answer:
        steps = Timed(waiting.answer)
        answer = await steps
        local += steps.spent_ns / 1e9
        self._requests.add(name, local, max(time.perf_counter() - begun - local, 0.0))
        return answer


def exposed(times: Times) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets of a histogram as Prometheus has them, and the sum."""
    steps = times.cumulated()
    return [("+Inf" if bound is None else str(bound), float(count)) for bound, count in steps], times.sum_seconds
