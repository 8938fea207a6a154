"""A broker is killed at each step of a move between its log dirs: one log is left, with every acknowledged record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess, until
from tests.wire import Wire

Start = Callable[..., BrokerProcess]
BEFORE = 300
PAD = 400
SEGMENT_BYTES = 16_384


class Moved:
    """A topic with a few segments, whose partition can move to the log dir that it is not in."""

    def __init__(self, start: Start, home: Path, topic: str, failpoints: str, *, beside: bool = True) -> None:
        """`beside`: the partition is in the log dir that has the store, where the first one is placed."""
        self.dirs = [home / "one", home / "two"]
        self.topic, self.key = topic, TopicPartition(topic, 0)
        sets = {"log.dirs": ",".join(map(str, self.dirs)), "log.segment.delete.delay.ms": 0}
        self.broker = start(data_dir=home, sets=sets, failpoints=failpoints)
        with Wire(self.broker.port) as w:
            config = {"segment.bytes": str(SEGMENT_BYTES), "flush.messages": "1"}
            if not beside:
                assert w.create_topic(f"before-{topic}") == 0
            assert w.create_topic(topic, config=config) == 0
        self.producer = Sequenced(self.broker, topic, PAD)
        self.producer.send_range(0, BEFORE)
        self.before = self.here()
        [self.to] = [path for path in self.dirs if path != self.before]

    def until_death(self) -> int:
        """Send until the broker dies of its move; return the number of the first unacknowledged batch."""
        try:
            count = self.producer.send_until_death(BEFORE)
        except ConnectionError:  # it was dead before
            count = BEFORE
        self.broker.wait_end()
        return count

    def move(self) -> None:
        with Admin(f"127.0.0.1:{self.broker.port}") as admin:
            [broker] = {log_dir.broker for log_dir in admin.log_dirs()}
            with contextlib.suppress(KafkaError):  # the first steps may kill it before it has answered
                admin.alter_replica_log_dirs(broker, {self.key: str(self.to)})

    def here(self) -> Path:
        """The log dir of the partition, as the broker shows it."""
        [found] = self.shown()
        return found

    def shown(self) -> list[Path]:
        with Admin(f"127.0.0.1:{self.broker.port}") as admin:
            return [Path(d.path) for d in admin.log_dirs(topics=[self.topic]) for replica in d.replicas]

    def named(self) -> list[str]:
        return sorted(f"{d.name}/{path.name}" for d in self.dirs for path in d.glob(f"{self.topic}-0*"))

    def is_there(self) -> bool:
        return self.shown() == [self.to] and self.named() == [f"{self.to.name}/{self.topic}-0"]


STEPS = [
    *(f"move.copy=kill:{size}:{after}" for size, after in [(0, 0), (1000, 1), (5, 4), (0, 9)]),
    *(f"move.sync=kill:0:{after}" for after in (0, 1, 5)),
    "metadata.sync=kill:0",
    "move.rename=kill:0",
    "move.leave=kill:0",
    "move.leave=sleep:300000",
]
"""The failpoints, in the order in which a move passes them; metadata.sync is passed for the mark of the copy alone. At
the last one the old directory is still there when the broker is killed from outside."""


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_each_step(start_broker: Start, tmp_path: Path, topic: str, step: str) -> None:
    """After the restart every acknowledged record is there once, and the move is or will be complete."""
    moved = Moved(start_broker, tmp_path / "data", topic, step)
    moved.move()
    if "sleep" in step:
        until("both directories have the name", lambda: len([n for n in moved.named() if n.endswith("-0")]) == 2)
        moved.broker.kill()
        count = BEFORE
    else:
        count = moved.until_death()
    moved.broker.failpoints = ""
    moved.broker.restart()
    with Wire(moved.broker.port) as w:
        stored = len(w.fetch_all(topic))
    assert stored in (count, count + 1), "the batch under way may be there"
    until("the move is complete", moved.is_there)
    moved.producer.assert_stored(stored)
    moved.producer.send_range(stored, stored + 20)
    moved.producer.assert_stored(stored + 20)
    assert not list(moved.to.glob("*/switching"))
    moved.broker.stop()
    moved.broker.restart()
    moved.producer.assert_stored(stored + 20)
    assert moved.is_there()


def test_without_the_disk_of_the_partition(start_broker: Start, tmp_path: Path, topic: str) -> None:
    """A copy is not taken for the log while the log dir that the partition is in cannot be used: it is offline."""
    moved = Moved(start_broker, tmp_path / "data", topic, "move.copy=kill:0:9", beside=False)
    moved.move()
    count = moved.until_death()
    away = moved.before.with_name("away")
    moved.before.rename(away)
    moved.before.write_text("")
    moved.broker.failpoints = ""
    moved.broker.restart()
    with Wire(moved.broker.port) as w:
        assert w.produce(topic, moved.producer.batch(count))[0] != 0
    assert [name for name in moved.named() if name.endswith("-future")] == moved.named()
    moved.broker.stop()
    moved.before.unlink()
    away.rename(moved.before)
    moved.broker.restart()
    until("the move is complete", moved.is_there)
