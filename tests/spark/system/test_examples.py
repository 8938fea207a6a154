"""The three worked examples do what their first lines promise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from examples import log_aggregation, metric_monitoring, stream_enrichment
from pybroker.testing import Record
from tests.spark.topics import Topics

# The group's first test waits for the JVM and its first query: a busy machine needs 80 s for both.
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

PATIENCE_S = 150.0


def finish(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S)


def as_json(*documents: dict[str, Any], key: str | None = None) -> list[Record]:
    return [Record(json.dumps(document), key) for document in documents]


@pytest.mark.long
def test_metric_monitoring(topics: Topics, topic: str, checkpoint: str) -> None:
    """Metric monitoring reports a minute whose average was too high once that minute is over, and no open minute."""
    source, target = topics.create(f"{topic}-metrics"), topics.create(f"{topic}-alerts")
    values = [("a", 80, "08:00:10"), ("a", 110, "08:00:50"), ("b", 20, "08:00:20"), ("a", 99, "08:05:00")]
    samples = [{"host": host, "value": value, "at": f"2026-11-21T{at}Z"} for host, value, at in values]
    topics.produce(source, as_json(*samples))
    start = metric_monitoring.start
    finish(start(topics.spark, topics.broker.bootstrap, 90.0, checkpoint, source=source, target=target))
    (alert,) = topics.held(target)
    told = json.loads(alert.value or "")
    assert alert.key == b"a" and (told["average"], told["samples"]) == (95.0, 2)
    assert told["minute"].startswith("2026-11-21T08:00:00")


@pytest.mark.long
def test_log_aggregation(topics: Topics, topic: str, checkpoint: str) -> None:
    """Log aggregation writes each line to its level's topic, keyed by service; a search finds lines by time and
    text."""
    for suffix in ("", "-error", "-other", "-unparsed"):
        topics.create(topic + suffix)
    lines = [f"2026-11-21T08:00:0{n}Z ERROR billing card declined {n}" for n in range(3)]
    others = ["2026-11-21T08:00:12Z INFO shop hello", "what is this"]
    topics.produce(topic, [*lines, *others])
    finish(log_aggregation.start(topics.spark, topics.broker.bootstrap, checkpoint, topic))
    errors = topics.held(f"{topic}-error")
    assert [(r.key, r.value) for r in errors] == [(b"billing", line.encode()) for line in lines]
    assert [(r.key, r.value) for r in topics.held(f"{topic}-other")] == [(b"shop", others[0].encode())]
    assert [(r.key, r.value) for r in topics.held(f"{topic}-unparsed")] == [(None, others[1].encode())]
    written_ms = errors[0].timestamp_ms or 0
    bounds = (written_ms, written_ms + 3_600_000)
    found = log_aggregation.search(topics.spark, topics.broker.bootstrap, f"{topic}-error", "declined 1", *bounds)
    assert [row.line for row in found.collect()] == [lines[1]]


def test_stream_enrichment(topics: Topics, topic: str, checkpoint: str) -> None:
    """Stream enrichment writes an order that was paid in time with its customer's last name, and not one that was paid
    late."""
    prefix = f"{topic}-"
    for name in ("orders", "payments", "customers", "paid"):
        topics.create(prefix + name)
    topics.produce(f"{prefix}customers", as_json({"name": "Old"}, {"name": "Ada"}, key="c1"))
    orders = [
        {"order": 1, "customer": "c1", "amount": 9.5, "at": "2026-11-21T08:00:00Z"},
        {"order": 2, "customer": "c2", "amount": 1.0, "at": "2026-11-21T08:00:00Z"},
        {"order": 3, "customer": "c3", "amount": 2.0, "at": "2026-11-21T08:00:00Z"},
    ]
    payments = [
        {"order": 1, "at": "2026-11-21T08:05:00Z"},
        {"order": 2, "at": "2026-11-21T08:30:00Z"},
        {"order": 3, "at": "2026-11-21T08:01:00Z"},
    ]
    topics.produce(f"{prefix}orders", as_json(*orders))
    topics.produce(f"{prefix}payments", as_json(*payments))
    finish(stream_enrichment.start(topics.spark, topics.broker.bootstrap, checkpoint, prefix))
    found = {r.key: json.loads(r.value or "") for r in topics.held(f"{prefix}paid")}
    assert found == {b"c1": {"order": 1, "name": "Ada", "amount": 9.5}, b"c3": {"order": 3, "amount": 2.0}}
