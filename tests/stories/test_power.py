"""A loss of power: each class of acknowledgement keeps what docs/durability.md promises, and no more is required."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import Record
from tests.faults import power
from tests.harness import free_port, until

COUNT = 100
OFTEN = {"log.flush.scheduler.interval.ms": 20, "log.flush.offset.checkpoint.interval.ms": 50}


@pytest.fixture
def plugged(tmp_path: Path) -> Iterator[power.Plug]:
    """A broker whose disk keeps, after a loss of power, only data that a sync made durable."""
    broker = power.Plug(tmp_path / "unused", free_port(), OFTEN)
    broker.plug_in(tmp_path, power.build(tmp_path))
    with broker:
        yield broker


def test_group_commit_and_interval(plugged: power.Plug) -> None:
    """A topic with flush.messages=1 has each acknowledged record, and one with flush.ms each record older than its
    interval. The broker starts, and both topics continue at the next offset."""
    client = Confluent(plugged.bootstrap)
    client.create_topic("payments", config={"flush.messages": "1"})
    client.create_topic("orders", config={"flush.ms": "20"})
    records = [Record(b"%d" % number) for number in range(COUNT)]
    client.send_all("orders", records, batch_bytes=700)
    flushed = plugged.data_dir / "recovery-point-offset-checkpoint"
    until("the interval has passed", lambda: flushed.exists() and f"orders 0 {COUNT}\n" in flushed.read_text())
    client.send_all("payments", records, batch_bytes=700)
    plugged.lose_power()
    plugged.restart()
    for topic in ("payments", "orders"):
        assert [record.value for record in client.read(topic, COUNT)] == [record.value for record in records]
        assert client.send_all(topic, [Record(b"next")]) == [COUNT]
