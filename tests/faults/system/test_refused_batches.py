"""A disk without space for a while stores each record of a pipelining client once, under one producer epoch."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Mapping

import confluent_kafka as ck
import pytest

from tests.faults.sequenced import Sequenced
from tests.harness import BrokerProcess
from tests.wire import Wire

KAFKA_STORAGE_ERROR = 56
COUNT, PARTITIONS = 200, 2


@pytest.mark.parametrize("config", [{}, {"compression.type": "zstd"}], ids=["in core", "by Python"])
def test_librdkafka_takes_no_new_epoch(
    start_broker: Callable[..., BrokerProcess], topic: str, config: Mapping[str, str]
) -> None:
    """librdkafka keeps its epoch when a full disk refuses a dozen writes: all refused batches are sent again."""
    broker = start_broker(failpoints=f"segment.write=errno:{errno.ENOSPC}:7:12")
    with Wire(broker.port) as w:
        assert w.create_topic(topic, PARTITIONS, config=config) == 0
    errors: list[object] = []
    producer = ck.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "retry.backoff.ms": 20,
        }
    )
    for n in range(COUNT * PARTITIONS):
        producer.produce(topic, b"%d" % n, partition=n % PARTITIONS, callback=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None] * COUNT * PARTITIONS
    with Wire(broker.port) as w:
        for partition in range(PARTITIONS):
            found = w.fetch_all(topic, 0, partition)
            sequences = Counter(b.base_sequence for b in found)
            assert sequences == Counter(range(COUNT)), "a new epoch begins at 0"
            assert len({b.producer_id for b in found}) == 1


def test_a_pipeline_over_two_connections_is_refused_alike(
    start_broker: Callable[..., BrokerProcess], topic: str
) -> None:
    """A batch on a second connection is refused until the refused one before it is sent again."""
    broker = start_broker(failpoints=f"segment.write=errno:{errno.ENOSPC}:2:1")
    with Wire(broker.port) as one, Wire(broker.port) as two:
        assert one.create_topic(topic) == 0
        producer = Sequenced(broker, topic)
        assert [producer.send(one, n)[:2] for n in (0, 1)] == [(0, 0), (0, 1)]
        assert producer.send(one, 2).error == KAFKA_STORAGE_ERROR
        assert [producer.send(two, n).error for n in (3, 4)] == [KAFKA_STORAGE_ERROR] * 2
        assert producer.send(two, 1)[:2] == (0, 1), "a repeat of an older one"
        assert [producer.send(two, n)[:2] for n in (2, 3, 4)] == [(0, 2), (0, 3), (0, 4)]
    producer.assert_stored(5)
