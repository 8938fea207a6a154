"""Spans of requests: a broker with tracing.enable exports them to a collector, here a small OTLP receiver."""

from __future__ import annotations

import builtins
import http.server
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pybroker.errors import StartError
from tests.harness import ROOT, eventually
from tests.server.live import Live, batch, produce_data

WAIT_MS = 200
STAGES = ("queue", "local", "remote", "send")
SERVER = 2
FAILED = 2
DELAY_MS = 60_000


class Collector:
    """A receiver of OTLP over HTTP, and the spans that it got."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, dict[str, Any]]] = []
        self.resource: dict[str, Any] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                told = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                for each in told.resource_spans:
                    outer.resource = attributes(each.resource.attributes)
                    for scope in each.scope_spans:
                        outer.spans += [(span, attributes(span.attributes)) for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def named(self, name: str) -> list[tuple[Any, dict[str, Any]]]:
        return [(span, facts) for span, facts in self.spans if span.name == name]


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
async def live(tmp_path: Path, collector: Collector) -> AsyncIterator[Live]:
    made = Live(tmp_path / "data", ["tracing.enable=true", "tracing.samples.per.second=200"])
    yield made
    await made.stop()


async def test_requests_of_the_control_plane(live: Live, collector: Collector) -> None:
    """A request that Python executes is one span, with what it asked for, its stages and its error."""
    broker = await live.start()
    wire = await live.connect()
    assert (await wire.create("orders")).error_code == 0
    assert (await wire.create("orders")).error_code != 0
    await live.stop()  # which exports what is left
    (made, facts), (refused, why) = collector.named("CreateTopics")
    assert made.kind == SERVER and made.parent_span_id == b"" and made.trace_id != refused.trace_id
    assert facts["messaging.system"] == "kafka" and facts["messaging.operation.name"] == "CreateTopics"
    assert facts["messaging.client.id"] == "test" and facts["messaging.destination.name"] == "orders"
    assert facts["client.address"] == "127.0.0.1"
    assert (facts["pybroker.api.key"], facts["pybroker.api.version"], facts["pybroker.topics"]) == (19, 7, 1)
    assert (facts["pybroker.correlation.id"], why["pybroker.correlation.id"]) == (1, 2)
    assert facts["pybroker.error.code"] == 0 and "error.type" not in facts and made.status.code == 0
    assert facts["pybroker.request.bytes"] > 0 and facts["pybroker.response.bytes"] > 0
    assert facts["pybroker.stage.local"] > 0 and facts["pybroker.stage.remote"] > 0  # it waits for the store
    spent_ns = made.end_time_unix_nano - made.start_time_unix_nano
    assert sum(facts[f"pybroker.stage.{stage}"] for stage in STAGES[:3]) * 1e9 <= spent_ns + 1e6
    assert why["error.type"] == "TOPIC_ALREADY_EXISTS" and refused.status.code == FAILED
    named = {key: collector.resource[key] for key in ("service.name", "service.instance.id", "pybroker.broker.id")}
    assert named == {
        "service.name": "pybroker", "service.instance.id": f"{broker.cluster_id}/{broker.broker_id}",
        "pybroker.broker.id": broker.broker_id,
    }  # fmt: skip


async def test_samples_of_the_native_plane(live: Live, collector: Collector) -> None:
    """Produce and Fetch, which Python never sees, are sampled with their stages; a long poll waits in `remote`."""
    broker = await live.start()
    wire = await live.connect()
    await wire.create("t", 2)
    await wire.fetch("t", 0)  # from here on the plane knows the topic
    assert (await wire.produce("t", batch(b"a"))).error_code == 0
    await wire.fetch("t", 1, max_wait_ms=WAIT_MS, min_bytes=1)
    replicas = broker.replicas
    assert replicas is not None
    native = {api: sum(r[api]["requests"] for r in replicas.plane_stats()) for api in ("Produce", "Fetch")}
    assert native["Produce"] == 1 and native["Fetch"] >= 1
    await live.stop()
    ((sent, produced),) = collector.named("Produce")
    assert produced["messaging.operation.type"] == "send" and produced["messaging.destination.name"] == "t"
    assert produced["messaging.client.id"] == "test" and produced["pybroker.correlation.id"] == 3
    assert (produced["pybroker.topics"], produced["pybroker.partitions"], produced["pybroker.error.code"]) == (1, 1, 0)
    assert produced["pybroker.request.bytes"] > len(batch(b"a")) and produced["pybroker.response.bytes"] > 0
    assert produced["pybroker.stage.local"] > 0 and produced["pybroker.stage.remote"] == 0
    assert min(produced[f"pybroker.stage.{stage}"] for stage in STAGES) >= 0
    polled = [(span, facts) for span, facts in collector.named("Fetch") if facts["pybroker.correlation.id"] == 4]
    ((span, fetched),) = polled
    assert fetched["messaging.operation.type"] == "receive" and fetched["pybroker.fetch.by"] == "consumer"
    assert fetched["pybroker.stage.remote"] >= 0.9 * WAIT_MS / 1000
    assert span.end_time_unix_nano - span.start_time_unix_nano >= 0.9 * WAIT_MS * 1e6
    assert sent.start_time_unix_nano < span.start_time_unix_nano
    assert sent.end_time_unix_nano <= span.end_time_unix_nano


async def test_a_sample_of_many_topics_and_one_without_a_response(live: Live, collector: Collector) -> None:
    """A request of two topics has no single destination; with acks=0 there are no bytes of a response."""
    await live.start()
    wire = await live.connect()
    for topic in ("a", "b"):
        await wire.create(topic)
        await wire.fetch(topic, 0)
    data = produce_data("a", {0: batch(b"x")}) + produce_data("b", {0: batch(b"x")})
    await wire.call("Produce", 9, acks=1, timeout_ms=1000, topic_data=data)
    await live.restart()
    wire = await live.connect()
    wire.send("Produce", 9, acks=0, timeout_ms=1000, topic_data=produce_data("a", {0: batch(b"x")}))
    await wire.call("ApiVersions", 2)
    await live.stop()
    both, silent = (facts for _, facts in collector.named("Produce"))
    assert both["pybroker.topics"] == 2 and "messaging.destination.name" not in both
    assert both["pybroker.response.bytes"] > 0
    assert silent["messaging.destination.name"] == "a" and silent["pybroker.response.bytes"] == 0


async def test_samples_are_so_many_a_second(tmp_path: Path, collector: Collector) -> None:
    """With one sample a second, and none, the other requests of the plane have no span."""
    live = Live(tmp_path / "data", ["tracing.enable=true", "tracing.samples.per.second=1"])
    await live.start()
    wire = await live.connect()
    topic = await wire.topic()
    for _ in range(20):
        assert (await wire.produce(topic, batch(b"a"))).error_code == 0
    await live.restart("tracing.samples.per.second=0")
    some = len(collector.named("Produce"))
    wire = await live.connect()
    assert (await wire.produce(topic, batch(b"a"))).error_code == 0
    await wire.fetch(topic, 0)
    fetched = len(collector.named("Fetch"))
    await live.stop()
    assert 1 <= some < 20
    assert len(collector.named("Produce")) == some and len(collector.named("Fetch")) == fetched


async def test_a_connection_that_ends_takes_its_sample_along(live: Live, collector: Collector) -> None:
    """A sampled Produce that waits for the disk when its client resets the connection makes room for the next one."""
    broker = await live.start()
    replicas = broker.replicas
    assert replicas is not None
    wire, leaving = await live.connect(), await live.connect()
    await wire.create("t", flush_messages="1")
    await wire.fetch("t", 0)
    replicas._core.arm("segment.sync", "sleep", DELAY_MS)
    lost = leaving.send("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data("t", {0: batch(b"a")}))
    await eventually("it is appended", lambda: sum(r["Produce"]["requests"] for r in replicas.plane_stats()) == 1)
    leaving.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    leaving.writer.close()  # with a reset
    await eventually("it is gone", lambda: sum(r["connections"] for r in replicas.plane_stats()) == 1)
    replicas.disarm()
    waited = wire.send("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data("t", {0: batch(b"b")}))
    await wire.receive("Produce", 9)
    await live.stop()
    assert [facts["pybroker.correlation.id"] for _, facts in collector.named("Produce")] == [waited]
    assert waited != lost


async def test_the_environment_asks_for_another_exporter(
    live: Live, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A protocol that the broker does not have is one sentence at the start."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(StartError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc', and http/protobuf is the only one"):
        await live.start()


async def test_without_the_packages(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing without its packages is refused with their names."""
    original = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.startswith("pybroker.server.tracing.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(StartError, match=r"needs opentelemetry\S*: pip install .*opentelemetry-sdk"):
        await live.start()


async def test_a_collector_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that is away costs spans, not requests; the broker says so, and ends."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    live = Live(tmp_path / "data", ["tracing.enable=true"])
    await live.start()
    wire = await live.connect()
    assert (await wire.create("t")).error_code == 0
    await live.stop()
    assert "spans not exported" in caplog.text and "Traceback" not in caplog.text


def test_off_imports_nothing() -> None:
    """Without tracing.enable nothing of OpenTelemetry is imported."""
    program = (
        "import sys, pybroker.server.broker\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith('opentelemetry')) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


