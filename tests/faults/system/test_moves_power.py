"""A loss of power at each step of a move between log dirs takes no record that was acknowledged by group commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.client.admin import Admin
from pybroker.model import TopicPartition
from tests.faults import power
from tests.faults.sequenced import Sequenced
from tests.harness import free_port, until
from tests.wire import Wire

BEFORE = 120
STEPS = [
    "move.copy=kill:500:6",
    "move.sync=kill:0:4",
    "metadata.sync=kill:0",
    "move.rename=kill:0",
    "move.leave=kill:0",
    "move.leave=sleep:1",
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return power.build(tmp_path_factory.mktemp("powercut"))


class TwoDisks(power.Plug):
    """A broker with two log dirs that can lose power."""

    def __init__(self, home: Path, library: Path, failpoints: str) -> None:
        super().__init__(home, free_port(), {"log.segment.delete.delay.ms": 0}, failpoints)
        self.plug_in(home, library)

    @property
    def dirs(self) -> list[Path]:
        return [self.data_dir / "one", self.data_dir / "two"]

    def command(self) -> list[str]:
        self.sets["log.dirs"] = ",".join(map(str, self.dirs))
        return super().command()

    def kill(self) -> None:
        if self.running:
            super().kill()
        else:
            self.wait_end()

    def lose_power(self) -> None:
        """Restart with what is on disk."""
        super().lose_power()
        self.failpoints = ""
        self.restart()

    def places(self, topic: str) -> list[Path]:
        with Admin(f"127.0.0.1:{self.port}") as admin:
            return [Path(d.path) for d in admin.log_dirs(topics=[topic]) for _ in d.replicas]


@pytest.mark.parametrize("step", STEPS)
def test_a_loss_of_power_at_each_step(tmp_path: Path, library: Path, topic: str, step: str) -> None:
    """Before the switch, in it, and just after it."""
    with TwoDisks(tmp_path, library, step) as broker:
        with Wire(broker.port) as w:
            assert w.create_topic(topic, config={"flush.messages": "1", "segment.bytes": "8000"}) == 0
        producer = Sequenced(broker, topic, 100)
        producer.send_range(0, BEFORE)
        [here] = broker.places(topic)
        to = next(path for path in broker.dirs if path != here)
        with Admin(f"127.0.0.1:{broker.port}") as admin:
            [node] = admin.describe_cluster().nodes
            admin.alter_replica_log_dirs(node.id, {TopicPartition(topic, 0): str(to)})
        if "sleep" in step:
            until("it has moved", lambda: broker.places(topic) == [to])
            count = BEFORE + 30
            producer.send_range(BEFORE, count)
        else:
            try:
                count = producer.send_until_death(BEFORE)
            except ConnectionError:  # it was dead before
                count = BEFORE
        broker.lose_power()
        with Wire(broker.port) as w:
            stored = len(w.fetch_all(topic))
        assert stored in (count, count + 1), "the batch under way may be there"
        # A copy whose name was not on disk yet is gone, and its move forgotten.
        until("one log is left", lambda: len(broker.places(topic)) == 1)
        producer.assert_stored(stored)
