"""The start and the end of a read, planned in this process: an offset that does not exist is refused at once, by
name."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pybroker.errors import INVALID_CONFIG, UNKNOWN_TOPIC_OR_PARTITION, KafkaError
from pybroker.spark.reading.input_partitions import KafkaInputPartition
from pybroker.spark.schema import full
from pybroker.spark.source import KafkaSource
from tests.harness import BrokerProcess
from tests.spark.topics import Topics


@pytest.fixture
def topics(shared_broker: BrokerProcess, topic: str) -> Topics:
    """A topic of two partitions: three records in the first, none in the other."""
    made = Topics(shared_broker)
    made.create(topic, 2)
    made.produce(topic, [1, 2, 3])
    return made


def planned(topics: Topics, **options: object) -> list[tuple[int, int, int]]:
    """The (partition, start, end) of each task of a batch read."""
    given = {"kafka.bootstrap.servers": topics.broker.bootstrap, **options}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
    tasks = KafkaSource(texts).reader(full(False)).partitions()
    return [(each.range.partition, each.range.start, each.range.end) for each in tasks
            if isinstance(each, KafkaInputPartition)]  # fmt: skip


def refused(topics: Topics, **options: object) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        planned(topics, **options)
    return caught.value


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_a_partition_that_is_not_there(topics: Topics, topic: str, option: str) -> None:
    """A partition that does not exist is refused with the topic and its number of partitions."""
    told = refused(topics, subscribe=topic, **{option: {topic: {"0": 1, "1": 0, "2": 0, "7": 0}}})
    assert told.code == INVALID_CONFIG
    assert told.message == f"{option} names {topic}-2, {topic}-7, but topic {topic} has 2 partitions"


def test_an_assigned_partition_that_is_not_there(topics: Topics, topic: str) -> None:
    told = refused(topics, assign={topic: [1, 2]})
    assert told.code == UNKNOWN_TOPIC_OR_PARTITION
    assert told.message == f"assign: there is no {topic}-2, but topic {topic} has 2 partitions"
    topics.create(f"{topic}-one")
    told = refused(topics, assign={f"{topic}-one": [1]})
    assert told.message == f"assign: there is no {topic}-one-1, but topic {topic}-one has 1 partition"


def test_a_partition_that_is_there_and_not_read(topics: Topics, topic: str) -> None:
    told = refused(topics, assign={topic: [0]}, startingOffsets={topic: {"0": 1, "1": 0}})
    assert told.message == f"startingOffsets names {topic}-1, which is not read"


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_offsets_beyond_the_end(topics: Topics, topic: str, option: str, isolation: str) -> None:
    """An offset beyond the partition's end is refused when the read is planned, with the offset and the end. The end
    itself is allowed."""
    how: Any = {"subscribe": topic, "kafka.isolation.level": isolation}
    told = refused(topics, **how, **{option: {topic: {"0": 4, "1": 9}}})
    assert told.code == INVALID_CONFIG
    assert told.message == f"{option} of {topic}-0 is 4, but it ends at 3; {topic}-1 is 9, but it ends at 0"
    expected = {"startingOffsets": [], "endingOffsets": [(0, 0, 3)]}
    assert planned(topics, **how, **{option: {topic: {"0": 3, "1": 0}}}) == expected[option]


def test_a_stream_that_begins_beyond_the_end(topics: Topics, topic: str) -> None:
    """A stream that begins beyond the end is refused, and the sentence does not claim that the stream has read
    anything."""
    given = topics.options(topic, startingOffsets=json.dumps({topic: {"0": 4, "1": 0}}))
    reader = KafkaSource(given).streamReader(full(False))
    with pytest.raises(KafkaError) as caught:
        reader.initialOffset()
    reader.stop()
    assert caught.value.message == f"startingOffsets of {topic}-0 is 4, but it ends at 3"


def test_beyond_the_end_with_losses_allowed(topics: Topics, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """A read beyond the end with failOnDataLoss=false reads the existing records and logs a warning."""
    with caplog.at_level(logging.WARNING):
        assert planned(topics, subscribe=topic, failOnDataLoss=False, endingOffsets={topic: {"0": 4, "1": 0}}) == [
            (0, 0, 3)]  # fmt: skip
    assert f"endingOffsets of {topic}-0 is 4, but it ends at 3: reading from the end" in caplog.text
