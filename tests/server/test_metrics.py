"""Prometheus metrics, health checks, and a broker without metrics."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from pybroker import __version__
from pybroker.errors import StartError
from pybroker.histogram import BUCKETS_SECONDS, Times
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import Spot
from pybroker.server.metrics.bounded import OTHER, Chosen, Totals
from pybroker.testing.certificates import Authority
from tests.groups.members import Member, commit, stable
from tests.harness import ROOT, BrokerProcess
from tests.metrics_page import row, rows
from tests.server.live import Live, Wire, batch

DAYS = 100
WAIT_MS = 200
STAGES = ("queue", "local", "remote", "send")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with a metrics listener, and a listener of each kind."""
    signed, store = Authority().sign("broker", days=DAYS), tmp_path / "broker.pem"
    store.write_bytes(signed.key + signed.chain)
    made = Live(tmp_path / "data", [
        "offsets.topic.num.partitions=2", "group.initial.rebalance.delay.ms=0", "metrics.listener=127.0.0.1:0",
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", "ssl.keystore.type=PEM",
        f"ssl.keystore.location={store}",
    ])  # fmt: skip
    await made.start()
    yield made
    await made.stop()


async def ask(port: int, line: str) -> tuple[int, str, str]:
    """Send a request line; return (status, head, body) of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{line}\r\nHost: x\r\n\r\n".encode())
    async with asyncio.timeout(10):
        data = (await reader.read()).decode()
    writer.close()
    head, _, body = data.partition("\r\n\r\n")
    return int(head.split()[1]), head, body


async def get(live: Live, path: str) -> tuple[int, str]:
    assert live.broker is not None
    status, _, body = await ask(live.broker.metrics_port, f"GET {path} HTTP/1.1")
    return status, body


async def scrape(live: Live) -> Samples:
    """Scrape every sample: {(name, labels): value}."""
    status, body = await get(live, "/metrics")
    assert status == 200
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parse(body) for s in family.samples}


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def test_traffic_sizes_and_lag(live: Live, wire: Wire) -> None:
    """Metrics show the records written, log sizes, the lag of a group, and the plane that served a request."""
    await wire.create("t", 2)
    sent = batch(b"a", b"b", b"c")
    for _ in range(2):
        assert (await wire.produce("t", sent, partition=1)).error_code == 0
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    assert await commit(wire, "g", {"t1": 4}) == [0]
    seen = await scrape(live)
    assert of(seen, "pybroker_topic_messages_in_total", topic="t") == 6
    assert of(seen, "pybroker_log_bytes", topic="t", partition="1") == 2 * len(sent)
    assert of(seen, "pybroker_log_end_offset", topic="t", partition="1") == 6
    assert of(seen, "pybroker_log_start_offset", topic="t", partition="1") == 0
    assert of(seen, "pybroker_group_lag", group="g", topic="t", partition="1") == 2
    assert of(seen, "pybroker_groups", state="Empty") == 1
    assert of(seen, "pybroker_partitions") == 4
    assert of(seen, "pybroker_partitions_offline") == 0
    assert of(seen, "pybroker_connections") == 1
    left_s = of(seen, "pybroker_certificate_end_timestamp_seconds", listener="SSL") - time.time()
    assert DAYS - 1 < left_s / 86_400 < DAYS
    assert of(seen, "pybroker_failed_authentications_total") == 0
    assert of(seen, "pybroker_requests_total", api="CreateTopics", plane="python") == 1
    assert of(seen, "pybroker_request_seconds_count", api="CreateTopics") == 1
    assert 0 < of(seen, "pybroker_request_seconds_sum", api="CreateTopics") < 10
    both = [seen.get(("pybroker_requests_total", (("api", "Produce"), ("plane", p))), 0) for p in ("native", "python")]
    assert sum(both) == 2
    assert of(seen, "pybroker_topic_bytes_in_total", topic="t") == 2 * len(sent)
    assert of(seen, "pybroker_topic_bytes_out_total", topic="t") == 0
    directory = str(live.data_dir)
    assert of(seen, "pybroker_log_dir_offline", dir=directory) == 0
    assert of(seen, "pybroker_log_dir_bytes", dir=directory) >= of(seen, "pybroker_log_dir_free_bytes", dir=directory)


async def test_what_the_native_plane_counts(live: Live, wire: Wire) -> None:
    """Metrics have requests, bytes and times by API, requests left to Python, reactor load, and disk time."""
    await wire.create("t")
    for _ in range(3):
        assert (await wire.produce("t", batch(b"a"))).error_code == 0
    assert len((await wire.fetch("t", 0)).records or b"") > 0
    await wire.call("ApiVersions", 2)  # the requests before it on the connection are counted by now
    seen = await scrape(live)
    native = of(seen, "pybroker_requests_total", api="Produce", plane="native")
    assert native == of(seen, "pybroker_plane_request_seconds_count", api="Produce")
    assert native == of(seen, "pybroker_plane_request_seconds_bucket", api="Produce", le="+Inf")
    assert native + of(seen, "pybroker_plane_declined_total", api="Produce") >= (3 if native else 0)
    assert of(seen, "pybroker_plane_errors_total", api="Produce") == 0
    assert of(seen, "pybroker_plane_request_bytes_total", api="Produce") >= native * len(batch(b"a"))
    assert of(seen, "pybroker_plane_answer_bytes_total", api="Fetch") >= 0
    assert of(seen, "pybroker_plane_parked") == 0
    assert of(seen, "pybroker_topic_bytes_out_total", topic="t") >= len(batch(b"a"))
    assert of(seen, "pybroker_plane_bytes_in_total") >= of(seen, "pybroker_plane_request_bytes_total", api="Produce")
    assert of(seen, "pybroker_flush_seconds_count") >= 0
    assert of(seen, "pybroker_append_seconds_count") >= 3
    assert of(seen, "pybroker_cold_read_seconds_count") == of(seen, "pybroker_cold_read_bytes_total") == 0
    bounds = [float(dict(labels)["le"]) for name, labels in seen if name == "pybroker_plane_turn_seconds_bucket"]
    assert bounds == sorted(bounds) and bounds[0] == 8e-06


async def test_rebalances_are_counted_by_their_kind_of_cause(live: Live, wire: Wire) -> None:
    await wire.create("t")
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    one = Member(await live.connect(), "g")
    await stable(one)
    assert of(await scrape(live), "pybroker_group_members", group="g") == 1
    await one.leave()
    seen = await scrape(live)
    causes = {labels[0][1]: value for (name, labels), value in seen.items() if name == "pybroker_rebalances_total"}
    assert causes == {"member_joined": 1, "member_left": 1}


async def test_every_metric_is_in_the_docs(live: Live, wire: Wire) -> None:
    """docs/metrics.md lists every metric of /metrics with its type and help text, and no other."""
    await wire.create("t")
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    assert await commit(wire, "g", {"t0": 0}) == [0]
    await stable(Member(await live.connect(), "h"))  # a rebalance
    assert live.broker is not None
    live.broker.log_dirs[0].damage = {TopicPartition("t", 0): frozenset([Spot(0, 0, 1, 0, 1)])}
    (built,) = [labels for name, labels in await scrape(live) if name == "pybroker_build_info"]
    assert dict(built) == {"version": __version__, "python": platform.python_version()}
    told = dict(row(family) for family in parse((await get(live, "/metrics"))[1]))
    of_a_cluster = ("pybroker_follower_lag", "pybroker_zookeeper", "pybroker_registered")  # brokers/system/test_seen.py
    written = {name: says for name, says in rows().items() if not name.startswith(of_a_cluster)}
    assert written == told
    assert list(rows()) == sorted(rows())


async def test_stages_of_requests_in_the_native_plane(live: Live, wire: Wire) -> None:
    """Each request counts once in each stage; the stages add up to no more than its time. A Fetch that waits for
    records waits in `remote`."""
    name = "pybroker_plane_request_stage_seconds"
    await wire.create("t")
    await wire.fetch("t", 0)
    for _ in range(3):
        assert (await wire.produce("t", batch(b"a"))).error_code == 0
    await wire.fetch("t", 3, max_wait_ms=WAIT_MS, min_bytes=1)
    await wire.call("ApiVersions", 2)
    seen = await scrape(live)
    native = {api: of(seen, "pybroker_requests_total", api=api, plane="native") for api in ("Produce", "Fetch")}
    assert native["Produce"] >= 3 and native["Fetch"] >= 1
    for api, count in (("Produce", native["Produce"]), ("FetchConsumer", native["Fetch"]), ("FetchFollower", 0)):
        assert {of(seen, f"{name}_count", api=api, stage=stage) for stage in STAGES} == {count}
    spent = {stage: of(seen, f"{name}_sum", api="FetchConsumer", stage=stage) for stage in STAGES}
    assert 0.9 * WAIT_MS <= 1000 * spent["remote"] < 60_000
    assert of(seen, f"{name}_sum", api="Produce", stage="local") > 0
    whole = of(seen, "pybroker_plane_request_seconds_sum", api="Produce")
    parts = sum(of(seen, f"{name}_sum", api="Produce", stage=stage) for stage in STAGES)
    assert parts <= whole + native["Produce"] / 1e6  # durations are rounded down to microseconds


async def test_stages_of_requests_in_python(live: Live, wire: Wire) -> None:
    """A request waits for the event loop, then takes its steps there, and waits between them; its response is sent."""
    name = "pybroker_request_stage_seconds"
    await wire.create("t")
    await wire.call("ApiVersions", 2)
    seen = await scrape(live)
    assert {of(seen, f"{name}_count", api="CreateTopics", stage=stage) for stage in ("local", "remote")} == {1}
    parts = [of(seen, f"{name}_sum", api="CreateTopics", stage=stage) for stage in ("local", "remote")]
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(of(seen, "pybroker_request_seconds_sum", api="CreateTopics"))
    assert of(seen, f"{name}_sum", api="ApiVersions", stage="remote") == 0
    served = sum(value for (what, labels), value in seen.items() if what == f"{name}_count") / 2
    assert of(seen, "pybroker_request_queue_seconds_count") == served
    assert of(seen, "pybroker_response_send_seconds_count") >= served - 1  # the last may be on its way


async def test_topics_and_partitions_are_bounded(live: Live, wire: Wire) -> None:
    """With metrics.topics.max the largest topics keep series of their own, and the others are summed as (other)."""
    assert live.broker is not None
    await live.restart("metrics.topics.max=1", "metrics.groups.max=1", "metrics.partitions.max=2")
    wire = await live.connect()
    sent = batch(b"x" * 1000)
    await wire.create("big", 3)
    for partition in range(3):
        assert (await wire.produce("big", sent, partition=partition)).error_code == 0
    for topic in ("a", "b"):
        await wire.create(topic)
        assert (await wire.produce(topic, batch(b"a"))).error_code == 0
    await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])
    for group in ("g", "h"):
        assert await commit(wire, group, {"a0": 0}) == [0]
    seen = await scrape(live)
    topics = {labels[0][1]: value for (name, labels), value in seen.items() if name == "pybroker_topic_bytes_in_total"}
    assert topics.keys() == {"big", OTHER}
    assert topics["big"] == 3 * len(sent) and topics[OTHER] >= 2 * len(batch(b"a"))
    bounded = [dict(labels) for name, labels in seen if name == "pybroker_log_bytes"]
    assert [labels["topic"] for labels in bounded] == ["big", "big"]
    assert of(seen, "pybroker_samples_left_out") == 3  # of the third partition
    lags = {labels[0][1]: value for (name, labels), value in seen.items() if name == "pybroker_group_total_lag"}
    assert sorted(lags.values()) == [1, 1] and OTHER in lags


def test_a_topic_keeps_its_series() -> None:
    """A larger topic takes the place of a topic only when that is deleted."""
    chosen = Chosen(2)
    assert chosen.among({"a": 1, "b": 2}) == {"a", "b"}
    assert chosen.among({"a": 1, "b": 2, "c": 9}) == {"a", "b"}
    assert chosen.among({"b": 2, "c": 9, "d": 10}) == {"b", "d"}
    assert Chosen(2).among({"x": 1, "y": 3, "z": 2, OTHER: 9}) == {"y", "z"}


def test_counters_never_decrease() -> None:
    """A log that is closed, or opened again from 0, takes nothing away from its topic's counters."""
    totals, t0, t1, u0 = Totals(1, 1), TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    assert totals.add({t0: (10,), t1: (5,), u0: (7,)}, {"t": 2, "u": 1}) == {"t"}
    assert totals.sums() == {"t": [15], OTHER: [7]}
    totals.add({t0: (12,)}, {"t": 2, "u": 1})
    assert totals.sums() == {"t": [17], OTHER: [7]}
    totals.add({t0: (3,), t1: (1,), u0: (8,)}, {"t": 2, "u": 1})
    assert totals.sums() == {"t": [21], OTHER: [15]}
    totals.add({}, {})
    assert totals.sums() == {OTHER: [15]}
    assert totals.whole == [36]


async def test_what_waits_is_timed_to_its_answer(live: Live, wire: Wire) -> None:
    """CreateTopics is timed until its later answer; an unknown API does not add a label."""
    await wire.create("t")
    seen = await scrape(live)
    apis = {labels[0][1] for name, labels in seen if name == "pybroker_request_seconds_count"}
    assert apis == {"CreateTopics"}


async def test_who_supervises_is_answered(live: Live) -> None:
    """/healthz and /readyz answer 200; other requests get the right HTTP status."""
    assert await get(live, "/healthz") == (200, "ok\n")
    assert await get(live, "/readyz") == (200, "ok\n")
    assert (await get(live, "/nothing"))[0] == 404
    assert live.broker is not None
    port = live.broker.metrics_port
    assert (await ask(port, "POST /metrics HTTP/1.1"))[0] == 405
    assert (await ask(port, "nonsense"))[0] == 400
    status, head, body = await ask(port, "HEAD /healthz HTTP/1.1")
    assert (status, body) == (200, "") and "Content-Length: 3" in head


async def test_a_request_that_never_ends_is_given_up(live: Live) -> None:
    """A request longer than the limit is closed."""
    assert live.broker is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", live.broker.metrics_port)
    writer.write(b"GET /" + b"x" * 20_000)
    async with asyncio.timeout(5):
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    writer.close()
    assert await get(live, "/healthz") == (200, "ok\n")


async def test_a_broker_that_starts_or_stops_is_not_ready(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """/readyz is 503 while groups load and while the broker stops; a stopping broker has only process metrics."""
    assert live.broker is not None and live.broker.groups is not None and live.broker._exporter is not None
    monkeypatch.setattr(live.broker.groups, "loading", lambda: True)
    assert await get(live, "/readyz") == (503, "groups are being loaded\n")
    monkeypatch.undo()
    await live.broker._exporter.detach()
    assert await get(live, "/readyz") == (503, "it is stopping\n")
    assert await get(live, "/healthz") == (200, "ok\n")
    assert not any(name == "pybroker_partitions" for name, _ in await scrape(live))


async def test_a_port_that_is_taken_stops_the_start(live: Live, tmp_path: Path) -> None:
    assert live.broker is not None
    other = Live(tmp_path / "other")
    with pytest.raises(StartError, match=r"metrics.listener = 127.0.0.1:\d+: cannot listen there"):
        await other.start(f"metrics.listener=127.0.0.1:{live.broker.metrics_port}")


def test_durations_fall_into_their_buckets() -> None:
    """A bucket includes its bound; longer durations are counted in +Inf."""
    times = Times()
    for seconds in (0.0, BUCKETS_SECONDS[0], BUCKETS_SECONDS[0] + 1e-9, BUCKETS_SECONDS[-1], 11.0):
        times.add(seconds)
    steps = times.cumulated()
    assert steps[0] == (BUCKETS_SECONDS[0], 2) and steps[1][1] == 3
    assert steps[-2:] == [(BUCKETS_SECONDS[-1], 4), (None, 5)]


def test_without_metrics_nothing_of_them_is_imported() -> None:
    """A broker without metrics does not import the modules for them at its start."""
    probe = (
        "import sys, pybroker.server.broker; print([m for m in sys.modules if 'prometheus' in m or 'metrics_' in m])"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_shows_them(start_broker: Callable[..., BrokerProcess]) -> None:
    """--metrics-port sets metrics.listener on the host of the broker's listener."""
    help_text = subprocess.run(
        [sys.executable, "-m", "pybroker", "serve", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "--metrics-port" in help_text
    broker = start_broker(sets={"metrics.listener": "127.0.0.1:0"})
    assert broker.process is not None
    port = int(broker.process.wait_line(r"metrics served .*port=(\d+)", 90)[1])
    assert asyncio.run(ask(port, "GET /readyz HTTP/1.1"))[0] == 200
