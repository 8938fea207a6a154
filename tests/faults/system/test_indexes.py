"""Missing, torn or wrong indexes are rebuilt, and a broker survives files that are cut while it runs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess
from tests.marks import long, long_for
from tests.wire import BASE_MS, Wire

COUNT = 80
CONFIG = {"segment.bytes": "2000", "index.interval.bytes": "200", "retention.ms": "-1"}

DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda p: os.truncate(p, 0),
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "torn": lambda p: os.truncate(p, p.stat().st_size - 3),
    "random": lambda p: p.write_bytes(random.Random(3).randbytes(p.stat().st_size)),
    "not monotonic": lambda p: p.write_bytes(p.read_bytes() + p.read_bytes()),
    "preallocated": lambda p: os.truncate(p, 10 << 20),
    "past the log": lambda p: p.write_bytes(p.read_bytes() + b"\x7f\xff\xff\xf0" * (len(p.read_bytes()) // 4)),
}


@pytest.fixture
def filled(broker: BrokerProcess, topic: str) -> Sequenced:
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config=CONFIG) == 0
    producer = Sequenced(broker, topic, pad=100)
    producer.send_range(0, COUNT)
    return producer


def assert_found(producer: Sequenced) -> None:
    """Check that each offset is found by a Fetch from it, and by its timestamp."""
    producer.assert_stored(COUNT)
    with Wire(producer.broker.port) as w:
        for offset in range(0, COUNT, 7):
            found = w.fetch(producer.topic, offset, max_wait_ms=0, partition_bytes=1)
            assert found.error == 0
            assert int.from_bytes(found.data[:8], "big") == offset
        assert w.list_offset(producer.topic, BASE_MS)[:3] == (0, BASE_MS, 0)
        assert w.list_offset(producer.topic, BASE_MS + 1) == (0, -1, -1)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", long_for(DAMAGE, "empty", "torn", "preallocated", "past the log"))
def test_a_damaged_index_is_made_anew(filled: Sequenced, suffix: str, damage: str) -> None:
    """A damaged index is rebuilt after a clean stop and after a kill; look-ups are right, and no log file changes."""
    broker = filled.broker
    directory = broker.partition_dir(filled.topic)
    for end in (broker.stop, broker.kill):
        end()
        logs = {p.name: p.read_bytes() for p in directory.glob("*.log")}
        indexes = sorted(directory.glob(f"*{suffix}"))
        for index in (indexes[0], indexes[len(indexes) // 2]):
            if index.stat().st_size:
                DAMAGE[damage](index)
        broker.restart()
        assert_found(filled)
        assert {p.name: p.read_bytes() for p in directory.glob("*.log")} == logs


def test_all_indexes_gone_at_once(filled: Sequenced) -> None:
    """All indexes of a partition are rebuilt from its logs and snapshots."""
    broker = filled.broker
    broker.stop()
    remove(filled, ".index", ".timeindex")
    broker.restart()
    assert_found(filled)
    broker.stop()
    assert len(list(broker.partition_dir(filled.topic).glob("*.index"))) > 3


@pytest.mark.parametrize("which", ["last", "all"])
@pytest.mark.parametrize("damage", ["missing", long("empty"), long("torn"), "random"])
def test_producers_are_known_without_their_snapshots(filled: Sequenced, which: str, damage: str) -> None:
    """If the last producer snapshot or all are damaged after a clean stop, the logs give the producers' state."""
    broker = filled.broker
    broker.stop()
    snapshots = sorted(broker.partition_dir(filled.topic).glob("*.snapshot"))
    for snapshot in snapshots if which == "all" else snapshots[-1:]:
        DAMAGE[damage](snapshot)
    broker.restart()
    filled.send_range(COUNT - 5, COUNT + 5)
    filled.assert_stored(COUNT + 5)


def remove(producer: Sequenced, *suffixes: str) -> None:
    for path in producer.broker.partition_dir(producer.topic).iterdir():
        if path.suffix in suffixes:
            path.unlink()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".log"])
def test_files_that_are_cut_under_a_running_broker(filled: Sequenced, suffix: str) -> None:
    """A cut index or log under a running broker causes no SIGBUS: a log gives an error or a short answer."""
    broker = filled.broker
    with Wire(broker.port) as w:
        w.fetch_all(filled.topic)  # opens and maps the sealed segments
        for path in sorted(broker.partition_dir(filled.topic).glob(f"*{suffix}"))[:-1]:
            os.truncate(path, 0)
        if suffix == ".log":
            fetched = w.fetch(filled.topic, 0, max_wait_ms=0)
            assert fetched.error != 0 or fetched.data == b""
        else:
            assert [b.base_offset for b in w.fetch_all(filled.topic)] == list(range(COUNT))
        w.list_offset(filled.topic, BASE_MS)
    filled.send_range(COUNT, COUNT + 3)
    assert broker.running
