"""A loss of power, as hard as POSIX allows, takes what was never synced, and nothing that was promised.

A broker's next life begins with exactly what a sync made durable (power.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import power
from tests.faults.sequenced import Sequenced
from tests.harness import free_port, until
from tests.wire import Wire, batch

DURABLE = {"flush.messages": "1", "segment.bytes": "3000"}
WRITERS = 6


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return power.build(tmp_path_factory.mktemp("powercut"))


class Plugged(power.Plug):
    """A broker that can lose power."""

    def __init__(self, home: Path, library: Path) -> None:
        often = {"log.retention.check.interval.ms": 200, "log.flush.start.offset.checkpoint.interval.ms": 200}
        super().__init__(home, free_port(), often)
        self.plug_in(home, library)

    def lose_power(self) -> None:
        """Kill the broker, and restart it with what is on disk."""
        super().lose_power()
        self.restart()


@pytest.fixture
def plugged(tmp_path: Path, library: Path) -> Iterator[Plugged]:
    broker = Plugged(tmp_path, library)
    with broker:
        yield broker


def test_what_no_class_promises_is_gone(plugged: Plugged, topic: str) -> None:
    """A topic in the page cache's class loses its records but not itself: this is a loss of power, not a kill."""
    with Wire(plugged.port) as w:
        assert w.create_topic(topic) == 0
    Sequenced(plugged, topic).send_range(0, 20)
    plugged.lose_power()
    with Wire(plugged.port) as w:
        assert w.list_offset(topic, -1)[2] == 0
        assert w.produce(topic, batch([b"x"]))[:2] == (0, 0)


def test_group_commit_keeps_what_it_acknowledged(plugged: Plugged, topic: str) -> None:
    """Group commit keeps each acknowledged record at its offset over three lives, and an idempotent producer goes on.

    Several connections write to several partitions, whose segments roll.
    """
    with Wire(plugged.port) as w:
        assert w.create_topic(topic, 3, DURABLE) == 0
    told: dict[tuple[int, int], bytes] = {}
    producer = Sequenced(plugged, topic, pad=100)
    for life in range(3):
        ending = threading.Event()

        def write(writer: int, life: int = life, ending: threading.Event = ending) -> None:
            try:
                with Wire(plugged.port) as w:
                    for n in range(10_000):
                        if ending.is_set():
                            return
                        value = b"%d %d %d " % (life, writer, n) + b"." * 100
                        produced = w.produce(topic, batch([value]), 1 + writer % 2)
                        assert produced.error == 0
                        told[1 + writer % 2, produced.base_offset] = value
            except ConnectionError:
                pass

        before = len(told)
        writers = [threading.Thread(target=write, args=(n,)) for n in range(WRITERS)]
        for thread in writers:
            thread.start()
        producer.send_range(max(0, 30 * life - 4), 30 * life + 30)
        until("enough is acknowledged", lambda before=before: len(told) > before + 150)
        plugged.lose_power()
        ending.set()
        for thread in writers:
            thread.join()
        producer.assert_stored(30 * life + 30)
        with Wire(plugged.port) as w:
            for partition in (1, 2):
                found = {b.base_offset: b.data for b in w.fetch_all(topic, 0, partition)}
                lost = [o for (p, o), value in told.items() if p == partition and value not in found.get(o, b"")]
                assert not lost


def test_what_was_decided_stays_decided(plugged: Plugged, topic: str) -> None:
    """A created topic, a deleted one and a raised log start survive a loss of power."""
    kept, gone = topic + "-kept", topic + "-gone"
    with Wire(plugged.port) as w:
        for name in (kept, gone):
            assert w.create_topic(name, 2, DURABLE) == 0
            for _ in range(60):
                assert w.produce(name, batch([b"." * 200])).error == 0
        assert w.delete_records(kept, 40) == (0, 40)
        assert w.delete_topic(gone) == 0
    for _ in range(2):
        plugged.lose_power()
        with Wire(plugged.port) as w:
            assert {name: len(leaders) for name, leaders in w.metadata()[1].items()} == {kept: 2}
            assert [w.list_offset(kept, at)[2] for at in (-2, -1)] == [40, 60]
            assert [b.base_offset for b in w.fetch_all(kept, 40)] == list(range(40, 60))
    assert "Traceback" not in plugged.output()
    assert not [name for name in os.listdir(plugged.data_dir) if name.startswith(gone) and not name.endswith("-delete")]


def test_records_that_retention_removed_never_come_back(plugged: Plugged, topic: str) -> None:
    """Records that retention removed never come back after a loss of power.

    A log start that equals a segment's base is no longer recorded once the files before it are durably removed.
    """
    with Wire(plugged.port) as w:
        assert w.create_topic(topic, 1, DURABLE) == 0
        for _ in range(60):
            assert w.produce(topic, batch([b"." * 200])).error == 0

        def bases() -> list[int]:
            return sorted(int(path.stem) for path in (plugged.data_dir / f"{topic}-0").glob("*.log"))

        start = bases()[3]
        assert w.delete_records(topic, start) == (0, start)
        until("the segments are removed", lambda: bases()[0] == start)
        starts = plugged.data_dir / "log-start-offset-checkpoint"
        until("the first file has the log start", lambda: topic not in starts.read_text())
    plugged.lose_power()
    with Wire(plugged.port) as w:
        assert [w.list_offset(topic, at)[2] for at in (-2, -1)] == [start, 60]
