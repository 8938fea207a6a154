"""A broker as a process: stops while requests run, and kills while it writes the files of its log dirs."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from tests.harness import BrokerProcess, Ended, until
from tests.marks import long
from tests.wire import Wire, batch

INTERVALS = {
    "replica.high.watermark.checkpoint.interval.ms": 20,
    "log.flush.offset.checkpoint.interval.ms": 20,
    "log.flush.start.offset.checkpoint.interval.ms": 20,
}
Start = Callable[..., BrokerProcess]


def test_a_stop_answers_the_request_that_runs(start_broker: Start, topic: str) -> None:
    """SIGTERM during a topic creation on a slow disk: the client is answered, and the topic is there afterwards."""
    broker = start_broker(failpoints="partition.create=sleep:3000:1")
    with Wire(broker.port) as wire, ThreadPoolExecutor(1) as client:
        created = client.submit(wire.create_topic, topic, 2)
        until("a partition is there", lambda: list(broker.data_dir.rglob(f"{topic}-[01]")))
        assert broker.process is not None and not created.done()
        broker.process.signal(signal.SIGTERM)
        assert created.result(10) == 0
        assert wire.is_closed()
    assert broker.wait_end() == 0
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as wire:
        assert topic in wire.metadata()[1]


def test_more_partitions_than_a_common_limit_of_files(start_broker: Start, topic: str) -> None:
    """A broker with more partitions than its soft limit of open files serves: it raises that limit, often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    partitions = 300
    if hard < 2 * partitions:
        pytest.skip(f"the hard limit of open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (partitions // 2, hard))
    try:
        broker = start_broker()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Wire(broker.port) as wire:
        assert wire.create_topic(topic, partitions) == 0
        assert wire.produce(topic, batch([b"v"]), partitions - 1).error == 0


def test_a_hangup_ends_nothing(start_broker: Start, topic: str) -> None:
    """SIGHUP, sent by a closed terminal and by systemctl reload, is logged, and the broker goes on."""
    broker = start_broker()
    assert broker.process is not None
    broker.process.signal(signal.SIGHUP)
    broker.process.wait_line("SIGHUP ignored", 90)
    with Wire(broker.port) as wire:
        assert wire.create_topic(topic) == 0
        assert wire.produce(topic, batch([b"v"])).error == 0
    broker.stop()


def test_a_second_signal_waits_for_no_request(start_broker: Start, topic: str) -> None:
    """A running request's client is disconnected without an answer; records acknowledged before are kept."""
    broker = start_broker()
    with Wire(broker.port) as wire:
        wire.create_topic(topic)
        assert wire.produce(topic, batch([b"before"])).error == 0
    broker.stop()
    broker.failpoints = "partition.create=sleep:3000:1"
    broker.restart()
    with Wire(broker.port) as wire, ThreadPoolExecutor(1) as client:
        created = client.submit(wire.create_topic, topic + "-slow", 2)
        until("a partition is there", lambda: list(broker.data_dir.rglob(f"{topic}-slow-[01]")))
        assert broker.process is not None and not created.done()
        broker.process.signal(signal.SIGTERM)
        broker.process.wait_line("stopping", 90)
        broker.process.signal(signal.SIGINT)
        with pytest.raises((OSError, EOFError)):
            created.result(20)
    assert broker.wait_end() == 0
    assert "Traceback" not in broker.output()
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as wire:
        assert sum(b.count for b in wire.fetch_all(topic)) == 1


@pytest.mark.parametrize("after", [0, long(1), 2, long(5)])
@pytest.mark.parametrize("point", ["checkpoint.write", "checkpoint.sync", "checkpoint.rename"])
def test_death_while_a_checkpoint_is_written(start_broker: Start, topic: str, point: str, after: int) -> None:
    """A kill at any step of any checkpoint leaves the old file or the new one, and acknowledged records are read back.

    The first step may come before the broker reports that it serves."""
    broker = start_broker(sets=INTERVALS)
    acknowledged = 0
    with Wire(broker.port) as wire:
        wire.create_topic(topic)
        acknowledged += wire.produce(topic, batch([b"before"])).error == 0
    broker.stop()
    broker.failpoints = f"{point}=kill:3:{after}"
    with suppress(OSError, Ended):
        broker.restart()
        with Wire(broker.port) as wire:
            deadline = time.monotonic() + 20  # an unchanged checkpoint is not written again
            while time.monotonic() < deadline:
                acknowledged += wire.produce(topic, batch([b"%d" % acknowledged])).error == 0
    assert broker.wait_end() == -signal.SIGKILL
    broker.failpoints = ""
    broker.restart()
    assert "Traceback" not in broker.output()
    with Wire(broker.port) as wire:
        kept = sum(b.count for b in wire.fetch_all(topic))
        assert acknowledged <= kept <= acknowledged + 1
        assert wire.list_offset(topic, -1)[2] == kept
