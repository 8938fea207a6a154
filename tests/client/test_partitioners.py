"""Partitioners by name and by callable: the same partitions as other libraries, in each way of sending."""

from __future__ import annotations

from collections import Counter
from typing import Any

import confluent_kafka as ck
import numpy as np
import pyarrow as pa
import pytest

from pybroker import PartitionInfo, TopicInfo
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.producing.partitioners import partitioner_of
from pybroker.client.producing.producer import Producer
from tests.client.kit import create, read_all
from tests.harness import Server

KEYS = [b"", b"a", b"key", "sch\u00f6n".encode(), *(b"key-%d" % n for n in range(40))]
PARTITIONS = 7
HASHES = ("murmur2", "consistent", "fnv1a")


def info(count: int, leaderless: tuple[int, ...] = ()) -> TopicInfo:
    parts = tuple(PartitionInfo(p, -1 if p in leaderless else 1, 0, (1,), (1,), 0) for p in range(count))
    return TopicInfo("t", bytes(16), False, parts, 0)


@pytest.mark.parametrize("name", [f"{hashed}{rest}" for hashed in HASHES for rest in ("", "_random")])
def test_keys_go_where_librdkafka_sends_them(shared_broker: Server, topic: str, name: Any) -> None:
    """Keys go where librdkafka sends them, by each name that both have; the empty key too, if it is hashed."""
    create(shared_broker, topic, partitions=PARTITIONS)
    keys = [key for key in KEYS if key or not name.startswith("consistent_")]
    theirs = ck.Producer({"bootstrap.servers": shared_broker.bootstrap, "partitioner": name})
    for key in keys:
        theirs.produce(topic, b"theirs", key)
    theirs.flush()
    with Producer(bootstrap_servers=shared_broker.bootstrap, partitioner=name) as producer:
        for key in keys:
            producer.send(topic, b"ours", key=key)
        producer.send_columns(topic, [b"ours, by column"] * len(keys), keys)
    places: dict[bytes | None, set[int]] = {}
    for record in read_all(shared_broker, topic, 3 * len(keys), PARTITIONS):
        places.setdefault(record.key, set()).add(record.partition)
    assert all(len(found) == 1 for found in places.values()), places


def test_without_keys() -> None:
    """Records without keys: names with "random" leave the choice to the producer, others have one partition;
    round-robin uses all partitions."""
    for name in ("consistent_random", "fnv1a_random"):
        chooser = partitioner_of(name)  # type: ignore[arg-type]
        assert chooser is not None and chooser.choose("t", None, info(5)) is None
    consistent, turns, chance = (partitioner_of(name) for name in ("consistent", "round_robin", "random"))  # type: ignore[arg-type]
    assert consistent is not None and turns is not None and chance is not None
    assert {consistent.choose("t", None, info(5)) for _ in range(9)} == {0}
    assert Counter(turns.choose("t", b"k", info(5)) for _ in range(50)) == dict.fromkeys(range(5), 10)
    assert {chance.choose("t", b"k", info(3)) for _ in range(200)} == {0, 1, 2}
    with pytest.raises(ValueError, match=r"a partitioner is a callable or one of murmur2_random, .*, not 'murmur3'"):
        partitioner_of("murmur3")  # type: ignore[arg-type]


async def test_a_callable(shared_broker: Server, topic: str) -> None:
    """A callable, as in kafka-python, gets the key as bytes, all partitions, and those with a leader, in every way of
    sending."""
    create(shared_broker, topic, partitions=3)
    asked: list[tuple[object, ...]] = []

    def last(key: bytes | None, every: list[int], led: list[int]) -> int:
        asked.append((key, every, led))
        return every[-1]

    with Producer(bootstrap_servers=shared_broker.bootstrap, partitioner=last) as producer:
        assert producer.send(topic, b"", key="k").result(10).partition == 2
        assert producer.send(topic, b"", key="k", partition=0).result(10).partition == 0
        for keys in (pa.array(["a", None]), np.array([b"a", b"b"]), [b"a", None]):
            producer.send_columns(topic, [b"", b""], keys)
    async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap, partitioner=last) as twin:
        assert (await twin.send_and_wait(topic, b"", key=b"k")).partition == 2
    assert asked[0] == (b"k", [0, 1, 2], [0, 1, 2]) and (b"b", [0, 1, 2], [0, 1, 2]) in asked
    assert Counter(r.partition for r in read_all(shared_broker, topic, 9, 3)) == {2: 8, 0: 1}


@pytest.mark.parametrize(("returned", "error"), [("0", TypeError), (-1, ValueError), (0.0, TypeError)])
def test_a_callable_that_returns_no_partition(
    shared_broker: Server, topic: str, returned: Any, error: type[Exception]
) -> None:
    create(shared_broker, topic)
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap, partitioner=lambda *_: returned) as producer,
        pytest.raises(error, match="the partition that the partitioner returns is"),
    ):
        producer.send(topic, b"")
