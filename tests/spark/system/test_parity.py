"""The source and the sink beside Spark's own connector, format "kafka", on the same topics."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker.testing import Record
from tests.spark.connector import connector_jars
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

START_MS = 1_700_000_000_000


@pytest.fixture
def mixed(topics: Topics, topic: str) -> Topics:
    """A topic of two partitions with nulls, empty bytes, headers and times."""
    if not connector_jars():
        pytest.skip("Maven cannot be had, or not the jar of Spark's connector")
    topics.create(topic, 2)
    for number in range(40):
        headers = tuple((f"h{n}", None if n == 1 else bytes([n])) for n in range(number % 3))
        value = None if number % 7 == 0 else b"v" * (number * 11 % 50)
        key = None if number % 5 == 0 else b"k%d" % number
        topics.produce(topic, [Record(value, key, headers, START_MS + number * 1000, partition=number % 2)])
    return topics


def read(topics: Topics, format_: str, topic: str, **options: str) -> Any:
    given = topics.options(topic, **options)
    return topics.spark.read.format(format_).options(**given).load()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"includeHeaders": "true"},
        {"startingTimestamp": str(START_MS + 20_000)},
        {"endingTimestamp": str(START_MS + 20_000)},
        {"startingTimestamp": str(START_MS + 10**9), "startingOffsetsByTimestampStrategy": "latest"},
        {"minPartitions": "5"},
    ],
    ids=lambda options: ",".join(options) or "all",
)
def test_both_read_the_same(mixed: Topics, topic: str, options: dict[str, str]) -> None:
    """Both sources read the same schema and the same rows with every set of options."""
    ours, theirs = read(mixed, "pybroker", topic, **options), read(mixed, "kafka", topic, **options)
    assert ours.schema.simpleString() == theirs.schema.simpleString()
    assert sorted(ours.collect(), key=repr) == sorted(theirs.collect(), key=repr)


def test_both_write_the_same(mixed: Topics, topic: str) -> None:
    """Both sinks write the same keys, values, headers and partitions, whether a key or a row chooses the partition."""
    written = {}
    for format_ in ("pybroker", "kafka"):
        target = mixed.create(f"{topic}-{format_}", 4)
        rows = read(mixed, "pybroker", topic, includeHeaders="true").where("key is not null").drop("topic", "partition")
        options = {"kafka.bootstrap.servers": mixed.broker.bootstrap, "topic": target, "includeHeaders": "true"}
        rows.write.format(format_).options(**options).mode("append").save()
        written[format_] = sorted((r.partition, r.key, r.value, r.headers) for r in mixed.held(target))
    assert written["pybroker"] == written["kafka"]
