"""Backups while clients write, retention deletes and compaction rewrites: each is sound."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pybroker
from pybroker import Producer
from pybroker.testing import BrokerHandle
from tests.backup.kit import says
from tests.cli.conftest import run
from tests.harness import until

RUNS = 6
BUSY = {"log.retention.check.interval.ms": 50, "log.cleaner.backoff.ms": 20, "log.segment.delete.delay.ms": 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerHandle]:
    """A broker that deletes and compacts all the time, on the file system of the backups."""
    with BrokerHandle(data_dir=str(tmp_path / "data"), settings=BUSY) as handle:
        yield handle


class Writing:
    """A client that writes records with rising numbers, to 7 keys in turn, until the block ends."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written = 0
        self._bootstrap, self._topic = bootstrap, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writing:
        self._thread.start()
        until("the first records", lambda: self.written > 100)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _write(self) -> None:
        with Producer(bootstrap_servers=self._bootstrap, batch_size=2000) as producer:
            for n in itertools.count():
                if self._stopped.is_set():
                    return
                sent = producer.send(self._topic, b"%d" % n, key=b"%d" % (n % 7), partition=0)
                if n % 50 == 0:
                    sent.result(60)
                    self.written = n


@pytest.mark.parametrize("how", [(), ("--copy",), ("--no-log-dirs",)], ids=["links", "copies", "fetch"])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_backups_of_a_busy_topic(broker: BrokerHandle, tmp_path: Path, how: tuple[str, ...], policy: str) -> None:
    """A backup is sound, whatever happens to the log meanwhile, and its records of a key end with the topic's."""
    own = {
        "compact": {"min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1"},
        "delete": {"retention.bytes": "60000"},
    }
    broker.create_topic("busy", 1, {"cleanup.policy": policy, "segment.bytes": 8000, **own[policy]})
    home, address = tmp_path / "backup", ("-b", broker.bootstrap_servers)
    with Writing(broker.bootstrap_servers, "busy") as writing:
        for _ in range(RUNS):
            before = writing.written
            says(run("backup", "busy", "--to", home, *how, *address))
            says(run("backup", "verify", home))
            until("more records", lambda before=before: writing.written > before + 500)  # type: ignore[misc]
    says(run("backup", "busy", "--to", home, *how, *address))
    last = {r.key: r.value for r in broker.records("busy")}
    found = pybroker.read_topic("busy", log_dir=home).to_pydict()
    assert dict(zip(found["key"], found["value"], strict=True)).items() >= last.items()
    assert found["offset"] == sorted(found["offset"])
    says(run("restore", home, "--as", "again", "--config", "retention.bytes=-1", *address))
    assert {r.key: r.value for r in broker.records("again")} == last
