"""Produce to and read from a test's cluster with pybroker's own producer and consumer, which find the leaders."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pybroker.clock import wall_ms
from pybroker.testing import records
from pybroker.testing.records import CLIENT_ID, Record, StoredRecord

if TYPE_CHECKING:
    from pybroker.client.consuming.consumer import Consumer
    from pybroker.model import TopicPartition

TIMEOUT_MS: Final = int(records.TIMEOUT_S * 1000)
ANSWER_MS: Final = 3000
"""Milliseconds to wait for a silent broker before asking another."""
GIVEN_UP_S: Final = records.TIMEOUT_S + ANSWER_MS / 1000
"""Seconds until the producer has given a record up and reported why."""
BACKOFF_MS: Final = 20
POLL_MS: Final = 100


def produce(bootstrap: str, topic: str, given: Sequence[Record]) -> list[StoredRecord]:
    """Append records, acks=all, each once; return them as stored, in their order. Raises KafkaError."""
    from pybroker.client.producing.producer import Producer

    now_ms = wall_ms()
    made = [records.stored(record, topic, now_ms) for record in given]
    with Producer(
        bootstrap_servers=bootstrap, client_id=CLIENT_ID, linger_ms=0, delivery_timeout_ms=TIMEOUT_MS,
        max_block_ms=TIMEOUT_MS, request_timeout_ms=ANSWER_MS, retry_backoff_ms=BACKOFF_MS,
    ) as producer:  # fmt: skip
        told = [
            producer.send(
                topic, r.value, key=r.key, headers=r.headers, partition=r.partition, timestamp_ms=r.timestamp_ms
            )
            for r in made
        ]
        offsets = [each.result(GIVEN_UP_S).offset for each in told]
    return [record._replace(offset=offset) for record, offset in zip(made, offsets, strict=True)]


def read(bootstrap: str, topic: str, partition: int | None, count: int, timeout_s: float) -> list[StoredRecord]:
    """Return the committed records of a topic, or of one partition, by offset, once there are `count`.

    Raises KafkaError if there is no such topic and `count` is 0; TimeoutError, which names the records found."""
    from pybroker.client.consuming.consumer import Consumer
    from pybroker.errors import UNKNOWN_TOPIC_OR_PARTITION, KafkaError

    deadline_s = time.monotonic() + timeout_s
    found: list[StoredRecord] = []
    with Consumer(
        bootstrap_servers=bootstrap, client_id=CLIENT_ID, allow_auto_create_topics=False, fetch_max_wait_ms=POLL_MS,
        default_api_timeout_ms=TIMEOUT_MS, request_timeout_ms=ANSWER_MS, retry_backoff_ms=BACKOFF_MS,
    ) as consumer:  # fmt: skip
        while True:
            try:
                _assign(consumer, topic, partition)
                found += _read_on(consumer)
                found.sort(key=lambda record: (record.partition, record.offset))
            except KafkaError as problem:
                if not count or problem.code != UNKNOWN_TOPIC_OR_PARTITION:
                    raise
            if len(found) >= count:
                return found
            if time.monotonic() > deadline_s:
                there = records.shown(found) if found else _topics(bootstrap)
                raise TimeoutError(f"{topic} has {len(found)} of {count} records after {timeout_s:g} s: {there}")
            time.sleep(records.POLL_S)


def _assign(consumer: "Consumer", topic: str, partition: int | None) -> None:
    """Assign the topic's partitions, or this one, from the beginning."""
    if consumer.assignment():
        return
    partitions = consumer.partitions_for(topic) if partition is None else [partition]
    consumer.assign([(topic, index) for index in partitions])
    consumer.seek_to_beginning()


def _read_on(consumer: "Consumer") -> list[StoredRecord]:
    """Return the records from the consumer's position to the current end offsets."""
    ends: dict[TopicPartition, int] = consumer.end_offsets(consumer.assignment())
    found = []
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for r in consumer.poll(POLL_MS):
            value, key, headers = _bytes(r.value), _bytes(r.key), tuple((k, _bytes(v)) for k, v in r.headers)
            found.append(StoredRecord(value, key, headers, r.timestamp_ms, r.topic, r.partition, r.offset))
    return found


def _topics(bootstrap: str) -> str:
    from pybroker.client.admin import Admin

    with Admin(bootstrap) as admin:
        return records.named(topic.name for topic in admin.topics() if not topic.internal)


def _bytes(content: "bytes | None") -> bytes | None:
    return None if content is None else bytes(content)
