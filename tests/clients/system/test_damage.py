"""A damaged batch in a sealed segment loses only its own offsets: a consumer gets an error, seeks past it, and reads
the rest."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from kafka.errors import CorruptRecordError

from pybroker import Consumer, DamagedRecords
from pybroker.errors import CORRUPT_MESSAGE
from pybroker.replication import scrub
from tests.harness import BrokerProcess, until
from tests.wire import Wire, batch

COUNT, BAD = 12, 5
SIZE = len(batch([b"%02d" % 0]))


def write_and_damage(shared_broker: BrokerProcess, topic: str) -> Path:
    """Write twelve batches of one record, four in each segment, and damage one; return the directory."""
    with Wire(shared_broker.port) as wire:
        assert wire.create_topic(topic, config={"segment.bytes": str(4 * SIZE)}) == 0
    with Wire(shared_broker.port_of(topic)) as wire:
        until("the leader has the partition", lambda: wire.list_offset(topic, -1)[0] == 0)
        for n in range(COUNT):
            assert wire.produce(topic, batch([b"%02d" % n])).base_offset == n
    directory = shared_broker.partition_dir(topic)
    with (directory / f"{4:020}.log").open("r+b") as file:
        file.seek((BAD - 4 + 1) * SIZE - 3)
        file.write(b"\xff")
    return directory


@pytest.fixture
def damaged(shared_broker: BrokerProcess, topic: str) -> str:
    """A topic with a damaged batch that the broker has already found."""
    directory = write_and_damage(shared_broker, topic)
    until("a look at the log dir", lambda: scrub.read_last_ms(directory.parent) is not None)
    asked_ms = scrub.ask(directory.parent)
    until("a pass", lambda: (scrub.read_last_ms(directory.parent) or 0) >= asked_ms)
    return topic


def test_our_consumer(shared_broker: BrokerProcess, damaged: str) -> None:
    """Our consumer raises the damage from poll(), with the offset."""
    read, refused = [], 0
    with Consumer(bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(damaged, 0)])
        while len(read) < COUNT - 1:
            try:
                records = consumer.poll(10_000)
                assert records, "nothing came, and no error"
                read += [record.offset for record in records]
            except DamagedRecords as error:
                assert error.code == CORRUPT_MESSAGE
                assert (error.partition, error.offset, error.next_offset) == ((damaged, 0), BAD, BAD + 1)
                words = f"offset {BAD} cannot be read: damaged on the broker's disk; seek to offset {BAD + 1} to go on"
                assert error.message == f"{damaged}-0: {words} without"
                assert consumer.position((damaged, 0)) == BAD
                refused += 1
                assert error.next_offset is not None
                consumer.seek(error.partition, error.next_offset)
    assert (read, refused) == ([n for n in range(COUNT) if n != BAD], 1)


@pytest.mark.parametrize("poll", ["poll", "poll_numpy", "poll_arrow"])
def test_our_consumer_finds_it_first(shared_broker: BrokerProcess, topic: str, poll: str) -> None:
    """Our consumer raises damage that the broker has not found yet, from the first poll without other records."""
    write_and_damage(shared_broker, topic)
    with Consumer(bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while consumer.position((topic, 0)) != BAD:
            getattr(consumer, poll)(10_000)
        began_s = time.monotonic()
        with pytest.raises(DamagedRecords, match=f"the batch at offset {BAD}") as found:
            getattr(consumer, poll)(60_000)
        assert time.monotonic() - began_s < 10
        assert (found.value.offset, found.value.next_offset) == (BAD, BAD + 1)


def test_confluent_kafka(shared_broker: BrokerProcess, damaged: str) -> None:
    """confluent-kafka returns a message with the error."""
    read, refused = [], 0
    consumer = confluent_kafka.Consumer({"bootstrap.servers": shared_broker.bootstrap, "group.id": damaged})
    consumer.assign([confluent_kafka.TopicPartition(damaged, 0, 0)])
    while len(read) < COUNT - 1:
        message = consumer.poll(10)
        assert message is not None, "nothing came, and no error"
        error = message.error()
        if error is None:
            read.append(message.offset())
        elif not refused:
            assert error.code() == CORRUPT_MESSAGE
            refused += 1
            consumer.seek(confluent_kafka.TopicPartition(damaged, 0, BAD + 1))
    consumer.close()
    assert (read, refused) == ([n for n in range(COUNT) if n != BAD], 1)


def test_kafka_python(shared_broker: BrokerProcess, damaged: str) -> None:
    """kafka-python raises the damage from poll()."""
    read, refused = [], 0
    there = kafka.TopicPartition(damaged, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=shared_broker.bootstrap, enable_auto_commit=False)
    consumer.assign([there])
    consumer.seek(there, 0)
    while len(read) < COUNT - 1:
        try:
            polled = consumer.poll(10_000)
            assert polled, "nothing came, and no error"
            read += [record.offset for records in polled.values() for record in records]
        except CorruptRecordError:
            assert consumer.position(there) == BAD
            refused += 1
            consumer.seek(there, BAD + 1)
    consumer.close()
    assert (read, refused) == ([n for n in range(COUNT) if n != BAD], 1)
