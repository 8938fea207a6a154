"""A broker as a process: stops while requests run, and kills while it writes the files of its log dirs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, Ended, free_port, until
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
    """SIGHUP, sent by a closed terminal and by systemctl reload, reads files again, and the broker goes on."""
    broker = start_broker()
    assert broker.process is not None
    broker.process.signal(signal.SIGHUP)
    broker.process.wait_line("files read again certificates=none token_keys=0", 90)
    with Wire(broker.port) as wire:
        assert wire.create_topic(topic) == 0
        assert wire.produce(topic, batch([b"v"])).error == 0
    broker.stop()


class Notifying(BrokerProcess):
    """A broker with a service manager's socket and watchdog."""

    at = ""

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), "NOTIFY_SOCKET": self.at, "WATCHDOG_USEC": "200000"}


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_is_notified(tmp_path: Path, is_abstract: bool) -> None:
    """READY=1 comes once the broker serves, RELOADING=1 and READY=1 at SIGHUP, STOPPING=1 at the stop, and WATCHDOG=1
    between them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        at = f"pybroker-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
        manager.bind(f"\0{at}" if is_abstract else at)
        manager.settimeout(60)
        broker = Notifying(tmp_path / "data", free_port())
        broker.at = f"@{at}" if is_abstract else at
        told: list[str] = []

        def wait_for(line: str) -> list[str]:
            while line not in (lines := manager.recv(1 << 16).decode().split("\n")):
                told.extend(lines)
            return lines

        with closing(broker):
            broker.start()
            assert wait_for("READY=1") == ["READY=1", f"STATUS=serving on 127.0.0.1:{broker.port}"]
            assert "STATUS=starting" in told
            wait_for("WATCHDOG=1")
            assert broker.process is not None
            broker.process.signal(signal.SIGHUP)
            assert wait_for("RELOADING=1")[1].startswith("MONOTONIC_USEC=")
            wait_for("READY=1")
            broker.process.signal(signal.SIGTERM)
            wait_for("STOPPING=1")
            assert broker.wait_end() == 0


def test_a_service_manager_that_is_gone_stops_nothing(tmp_path: Path) -> None:
    """A socket that is not there is logged once, and the broker serves."""
    broker = Notifying(tmp_path / "data", free_port())
    broker.at = str(tmp_path / "gone")
    with closing(broker):
        broker.start()
        broker.stop()
        assert broker.output().count("service manager not notified") == 1


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
