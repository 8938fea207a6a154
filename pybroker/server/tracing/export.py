"""The spans of one broker, from the start of its service to its end.

The variables OTEL_... of the environment name the collector, and the sampler of spans. A span has no parent: Kafka's
protocol carries no trace context, and the headers of records belong to the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind

from pybroker import __version__, core
from pybroker.decisions.caller import Caller
from pybroker.errors import StartError
from pybroker.logs import event
from pybroker.protocol import codec
from pybroker.protocol.apis import KNOWN, SERVED
from pybroker.replication.replicas import Replicas
from pybroker.server.api.dispatch import AnyHandler
from pybroker.server.api.responder import Responder
from pybroker.server.tracing.attributes import Facts, described, facts_of, fail
from pybroker.server.tracing.requests import ONE_NS, Traced

log = logging.getLogger(__name__)

EXPORTER: Final = "OTEL_TRACES_EXPORTER"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL: Final = "http/protobuf"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
ENDPOINT: Final = "http://localhost:4318"
"""OpenTelemetry's default."""
TAKE_S: Final = 0.25
"""Seconds between looks at the samples of core, which keeps 256 for each thread: more than come in this time."""
CLOSE_S_MAX: Final = 3.0
"""Seconds that the last spans have to reach the collector when the broker stops."""
REPORT_S: Final = 60.0
STAGES: Final = ("queue", "local", "remote", "send")
KEYS: Final = {api.name: key for key, api in KNOWN.items()}
SAMPLED: Final = frozenset(key for key, api in SERVED.items() if api.name in ("Produce", "Fetch"))


class Tracing:
    """The spans of one broker, from the start of its service to `close`."""

    def __init__(self, broker_id: int, cluster_id: str, samples_per_second: int) -> None:
        """Raises StartError if the environment asks for an export that is not there."""
        _check_environment()
        resource = Resource.create({
            **({} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "pybroker"}),
            "service.version": __version__, "service.instance.id": f"{cluster_id}/{broker_id}",
            "messaging.kafka.cluster.id": cluster_id, "pybroker.broker.id": broker_id,
        })  # fmt: skip
        try:
            exporter = OTLPSpanExporter()
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(exporter))
        except Exception as problem:  # of any kind: OpenTelemetry reads its variables here
            raise StartError(f"tracing.enable = true: OpenTelemetry does not start: {problem}") from problem
        self._reports = _Reports()
        self._tracer = self._provider.get_tracer("pybroker", __version__)
        self._interval_ns = ONE_NS // samples_per_second if samples_per_second else 0
        self._sampled_ns = dict.fromkeys(SAMPLED, -ONE_NS)
        self._samples: core.RequestSamples | None = None
        self._plane: core.Plane | None = None
        self._timer: asyncio.TimerHandle | None = None
        where = next((os.environ[name] for name in ENDPOINTS if name in os.environ), ENDPOINT)
        event(log, logging.INFO, "tracing", collector=where)

    def watch(self, replicas: Replicas, responder: Responder) -> Responder:
        """Begin to sample the requests of the plane; return a responder that makes spans of the others."""
        self._plane = replicas.plane
        if self._interval_ns and self._plane is not None:
            self._samples = core.RequestSamples(self._plane, self._interval_ns)
            self._take()
        return Traced(responder, self._begin)

    @staticmethod
    def described(table: Mapping[int, AnyHandler]) -> dict[int, AnyHandler]:
        """Return the table with each handler wrapped so that it describes its request in the current span."""
        return described(table)

    async def close(self) -> None:
        """Export what is left, for CLOSE_S_MAX at most."""
        if self._timer is not None:
            self._timer.cancel()
        if self._samples is not None:
            self._samples.stop()
            self._export(self._samples.take())
            self._samples = None
        ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(ended.set)

        # A daemon, as the collector may not answer: the process does not wait for it.
        threading.Thread(target=shut_down, name="pybroker-tracing-close", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), CLOSE_S_MAX)
        except TimeoutError:
            event(log, logging.WARNING, "spans not exported", reason="the collector did not answer in time")
        self._reports.close()

    # -- requests that Python executes -------------------------------------------------------------------------------

    def _begin(self, frame: bytes | memoryview, caller: Caller) -> Span | None:
        """Begin the span of a request; None if it has none."""
        try:
            header = codec.decode_request_header(frame)
        except codec.ProtocolError:
            return None
        now_ns = time.time_ns()
        if header.api_key in SAMPLED:
            if not self._interval_ns or now_ns - self._sampled_ns[header.api_key] < self._interval_ns:
                return None
            self._sampled_ns[header.api_key] = now_ns
        queued_ns = 0 if self._plane is None else self._plane.queued_ns
        facts = {
            **facts_of(header.api_key, header.api_version, header.correlation_id, header.client_id, len(frame)),
            "client.address": caller.host, "client.port": caller.port,
            "pybroker.stage.queue": queued_ns / ONE_NS,
        }  # fmt: skip
        return self._span(header.api_key, facts, now_ns - queued_ns)

    def _span(self, api_key: int, facts: Facts, began_ns: int) -> Span | None:
        api = KNOWN.get(api_key)
        name = api.name if api is not None else "unknown"
        span = self._tracer.start_span(
            name, Context(), SpanKind.SERVER, facts, start_time=began_ns, record_exception=False
        )
        return span if span.is_recording() else None

    # -- samples of the plane ----------------------------------------------------------------------------------------

    def _take(self) -> None:
        assert self._samples is not None
        try:
            self._export(self._samples.take())
        finally:
            self._timer = asyncio.get_running_loop().call_later(TAKE_S, self._take)

    def _export(self, samples: list[core.RequestSample]) -> None:
        to_wall_ns = time.time_ns() - time.monotonic_ns()
        for sample in samples:
            api = "Produce" if sample.kind == "Produce" else "Fetch"
            client_id = None if sample.client_id is None else sample.client_id.decode(errors="replace")
            facts = facts_of(KEYS[api], sample.version, sample.correlation_id, client_id, sample.request_bytes)
            facts |= {f"pybroker.stage.{stage}": getattr(sample, f"{stage}_ns") / ONE_NS for stage in STAGES}
            facts |= {
                "pybroker.topics": sample.topics,
                "pybroker.partitions": sample.partitions,
                "pybroker.partitions.failed": sample.errors,
                "pybroker.response.bytes": sample.response_bytes,
            }
            if api == "Fetch":
                facts["pybroker.fetch.by"] = "follower" if sample.kind == "FetchFollower" else "consumer"
            if sample.topics == 1:
                facts["messaging.destination.name"] = sample.topic
            began_ns = sample.read_ns + to_wall_ns
            span = self._span(KEYS[api], facts, began_ns)
            if span is not None:
                fail(span, sample.error_code)
                span.end(began_ns + sum(getattr(sample, f"{stage}_ns") for stage in STAGES))


class _Reports(logging.Handler):
    """Logs what OpenTelemetry's exporter says, once in REPORT_S, for it says the same again for each batch of spans."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said_s = -REPORT_S
        self._exporter = logging.getLogger(OTLPSpanExporter.__module__)
        self._exporter.addHandler(self)
        self._exporter.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= REPORT_S:
            self._said_s = now_s
            event(log, logging.WARNING, "spans not exported", reason=record.getMessage())

    def close(self) -> None:
        self._exporter.removeHandler(self)
        self._exporter.propagate = True
        super().close()


def _check_environment() -> None:
    """Raise StartError if the environment asks for another exporter than OTLP over HTTP."""
    asked = [(EXPORTER, "otlp"), *((name, PROTOCOL) for name in PROTOCOLS)]
    for name, only in asked:
        if os.environ.get(name, only) != only:
            words = f"{name} is {os.environ[name]!r}, and {only} is the only one that the broker has"
            raise StartError(f"tracing.enable = true: {words}")
