"""SIGKILL of the broker at any failpoint loses no acknowledged record, and a retry is stored once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess
from tests.wire import Wire

Start = Callable[..., BrokerProcess]
BATCH_BYTES = 69
"""Size of the first batches of `Sequenced`."""


def die_and_retry(
    start_broker: Start, topic: str, fault: str, config: dict[str, str] | None = None, pad: int = 0
) -> None:
    """Produce until the fault kills the broker, restart it, retry the batch in flight, and produce more."""
    broker = start_broker(failpoints=fault)
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config=config) == 0
    producer = Sequenced(broker, topic, pad)
    lost = producer.send_until_death(0)
    assert broker.wait_end() == -signal.SIGKILL
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as w:
        assert w.list_offset(topic, -1)[2] in (lost, lost + 1)
    producer.send_range(lost, lost + 20)
    producer.assert_stored(lost + 20)
    broker.kill()
    broker.restart()
    producer.send_range(lost + 15, lost + 30)  # five of them are duplicates
    producer.assert_stored(lost + 30)


@pytest.mark.parametrize("written", [1, 4, 12, 16, 17, 21, 60, 61, BATCH_BYTES - 1])
def test_in_the_middle_of_a_batch(start_broker: Start, topic: str, written: int) -> None:
    """A partial batch is dropped, no older batch is touched, and the retry takes its place."""
    die_and_retry(start_broker, topic, f"segment.write=kill:{written}:3")


@pytest.mark.parametrize("point", ["append.before", "append.after"])
def test_beside_the_append(start_broker: Start, topic: str, point: str) -> None:
    """A retry gets the same offset, whether the broker was killed before the append or after it."""
    die_and_retry(start_broker, topic, f"{point}=kill:0:4")


ROLL = [
    "roll.before",
    "segment.create",
    "roll.after",
    "segment.reserve",
    "snapshot.write",
    "snapshot.rename",
    "index.write",
]


@pytest.mark.parametrize("point", ROLL)
def test_at_each_step_of_a_roll(start_broker: Start, topic: str, point: str) -> None:
    """A broker killed at any step of a roll restarts with one active segment, without gap or overlap."""
    small = {"segment.bytes": "2000", "index.interval.bytes": "100"}
    die_and_retry(start_broker, topic, f"{point}=kill:0:2", small, pad=100)


@pytest.mark.parametrize(("point", "delay_ms"), [("segment.rename", 60_000), ("segment.unlink", 0)])
def test_while_records_are_deleted(start_broker: Start, topic: str, point: str, delay_ms: int) -> None:
    """After a kill during DeleteRecords, segments from the acknowledged log start on are all there."""
    broker = start_broker(failpoints=f"{point}=kill:0:1", sets={"log.retention.check.interval.ms": 100})
    with Wire(broker.port) as w:
        config = {"segment.bytes": "2000", "file.delete.delay.ms": str(delay_ms)}
        assert w.create_topic(topic, config=config) == 0
        producer = Sequenced(broker, topic, pad=100)
        producer.send_range(0, 60)
        try:
            assert w.delete_records(topic, 45) == (0, 45)
        except ConnectionError:
            told = 0
        else:
            told = 45
    assert broker.wait_end() == -signal.SIGKILL
    broker.failpoints = ""
    broker.restart()
    with Wire(broker.port) as w:
        start = w.list_offset(topic, -2)[2]
    assert told <= start <= 45
    producer.assert_stored(60, start)
    producer.send_range(58, 70)
    producer.assert_stored(70, start)


@pytest.mark.long
def test_all_of_it_again_and_again(start_broker: Start, topic: str) -> None:
    """A log is whole after ten lives that each end by a kill in another write."""
    broker = start_broker(failpoints="segment.write=kill:30:7")
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config={"segment.bytes": "4000"}) == 0
    producer = Sequenced(broker, topic)
    sent = producer.send_until_death(0)
    for life in range(10):
        broker.wait_end()
        broker.failpoints = f"segment.write=kill:{10 + 9 * life}:{3 + life}"
        broker.restart()
        sent = producer.send_until_death(max(0, sent - 4))
    broker.wait_end()
    broker.failpoints = ""
    broker.restart()
    producer.send_range(sent - 4, sent + 1)
    producer.assert_stored(sent + 1)
