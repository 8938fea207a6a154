"""Recovery cuts off exactly what a crash left behind the last whole batch of a log."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess
from tests.wire import Wire, batch

COUNT = 30
Tail = Callable[[Path, bytes], None]
"""Spoils the end of a log file, given the bytes of the next batch."""


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def at_offset(data: bytes, offset: int) -> bytes:
    """Set the batch's offset as a leader does; the checksum does not cover it."""
    return offset.to_bytes(8, "big") + data[8:]


TAILS: dict[str, Tail] = {
    "half a header": lambda log, data: append(log, at_offset(data, COUNT)[:30]),
    "all but the last byte": lambda log, data: append(log, at_offset(data, COUNT)[:-1]),
    "one byte": lambda log, data: append(log, b"\0"),
    "zeros": lambda log, data: append(log, bytes(5000)),
    "a hole of zeros": lambda log, data: os.truncate(log, log.stat().st_size + (1 << 20)),
    "random bytes": lambda log, data: append(log, random.Random(7).randbytes(3000)),
    "an old batch": lambda log, data: append(log, log.read_bytes()[:200]),
    "a huge length": lambda log, data: append(log, COUNT.to_bytes(8, "big") + b"\x7f\xff\xff\xff" + data[12:]),
    "a negative length": lambda log, data: append(log, COUNT.to_bytes(8, "big") + b"\xff\xff\xff\xf0" + data[12:]),
    "a right checksum at a lower offset": lambda log, data: append(log, at_offset(data, COUNT - 3)),
    "a wrong checksum": lambda log, data: append(log, at_offset(data, COUNT)[:-1] + b"\xff"),
    "garbage behind a good batch cut short": lambda log, data: append(log, at_offset(data, COUNT)[:40] + b"x" * 100),
}


@pytest.fixture
def crashed(broker: BrokerProcess, topic: str) -> tuple[Sequenced, Path]:
    """A killed broker with thirty batches of one record each."""
    with Wire(broker.port) as w:
        assert w.create_topic(topic) == 0
    producer = Sequenced(broker, topic)
    producer.send_range(0, COUNT)
    broker.kill()
    return producer, broker.partition_dir(topic) / f"{0:020}.log"


@pytest.mark.parametrize("tail", TAILS)
def test_a_torn_tail_is_cut_to_the_last_valid_batch(crashed: tuple[Sequenced, Path], tail: str) -> None:
    """After a torn tail exactly the acknowledged batches are served, and the next record follows them."""
    producer, log = crashed
    whole = log.read_bytes()
    TAILS[tail](log, producer.batch(COUNT))
    assert log.stat().st_size > len(whole)
    producer.broker.restart()
    producer.assert_stored(COUNT)
    assert log.read_bytes() == whole
    producer.send_range(COUNT - 5, COUNT + 10)
    producer.assert_stored(COUNT + 10)
    memory_kb = int(Path(f"/proc/{producer.broker.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])
    assert memory_kb < 200_000, "an unchecked length was allocated"


def test_a_log_that_ends_in_the_middle_of_a_batch(crashed: tuple[Sequenced, Path]) -> None:
    """The rest of a batch that the file system cut is removed, and the producer's retry takes its place."""
    producer, log = crashed
    os.truncate(log, log.stat().st_size - 7)
    producer.broker.restart()
    producer.assert_stored(COUNT - 1)
    producer.send_range(COUNT - 1, COUNT + 5)
    producer.assert_stored(COUNT + 5)


def test_a_flipped_bit_is_never_served_as_good_data(broker: BrokerProcess, topic: str) -> None:
    """A flipped bit in a sealed segment loses no later batch, and no client gets that batch with a right checksum."""
    with Wire(broker.port) as w:
        assert w.create_topic(topic, config={"segment.bytes": "2000"}) == 0
    producer = Sequenced(broker, topic, pad=100)
    producer.send_range(0, 60)
    broker.stop()
    log = broker.partition_dir(topic) / f"{0:020}.log"
    size = len(producer.batch(0))
    content = bytearray(log.read_bytes())
    content[2 * size + 80] ^= 0x10  # in the value of batch 2
    log.write_bytes(content)
    for _ in range(2):
        broker.restart()
        with Wire(broker.port) as w:
            assert w.list_offset(topic, -1)[2] == 60
            fetched = w.fetch(topic, 2, max_wait_ms=0)
            assert fetched.error != 0 or fetched.data.startswith(
                content[2 * size : 3 * size]
            )  # as it is stored, checksum included
        producer.assert_stored(60, start=3)
        broker.kill()


def test_offset_past_the_end_is_refused_after_a_cut(crashed: tuple[Sequenced, Path]) -> None:
    """A consumer whose offset a cut removed gets OFFSET_OUT_OF_RANGE and does not wait."""
    producer, log = crashed
    os.truncate(log, log.stat().st_size // 2)
    producer.broker.restart()
    with Wire(producer.broker.port) as w:
        end = w.list_offset(producer.topic, -1)[2]
        assert 0 < end < COUNT
        assert w.fetch(producer.topic, COUNT).error == 1  # OFFSET_OUT_OF_RANGE
        assert w.produce(producer.topic, batch([b"next"])).base_offset == end
