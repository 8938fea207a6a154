"""Topics as DataFrames: every column, starts and ends, and the errors for a range that cannot be read."""

from __future__ import annotations

import re
from typing import Any

import pytest
from confluent_kafka import Producer

from pybroker.errors import KafkaError
from pybroker.testing import Record
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

START_MS = 1_700_000_000_000


def values(frame: Any) -> list[str]:
    """The values as text, by partition and offset."""
    return [
        row.v
        for row in frame.selectExpr("partition", "offset", "string(value) as v").sort("partition", "offset").collect()
    ]


def said(caught: pytest.ExceptionInfo[Any]) -> str:
    """The line with the error in Spark's failure, with no stack trace before it."""
    found = re.search(r"KafkaError: (.*)", str(caught.value))
    assert found and "Traceback" not in str(caught.value)[: found.start()], str(caught.value)
    return found[1]


def test_every_column_is_what_the_broker_has(topics: Topics, topic: str) -> None:
    """Every column has the broker's values: nulls, empty bytes, headers and times, as a slow reader finds them."""
    topics.create(topic, 2)
    topics.produce(
        topic,
        [
            Record("v", "k", (("a", b"1"), ("a", None), ("", b"")), START_MS),
            Record(None, b"", (), START_MS + 1),
            Record(b"\xff\x00" * 300, None, (), START_MS + 2, partition=1),
        ],
    )
    rows = topics.read(topic, includeHeaders=True).selectExpr("*", "unix_millis(timestamp) as ms").collect()
    found = [
        Record(r.value, r.key, tuple((h.key, h.value) for h in r.headers or ()), r.ms, r.topic, r.partition, r.offset)
        for r in rows
    ]
    assert sorted(found, key=lambda r: (r.partition, r.offset)) == topics.held(topic)
    assert [r.headers is None for r in rows].count(True) == 2 and {r.timestampType for r in rows} == {0}


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(topics: Topics, topic: str, codec: str) -> None:
    """Compressed batches are read, with each codec that another client's producer may use."""
    topics.create(topic)
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap, "compression.type": codec, "linger.ms": 50})
    for number in range(2000):
        producer.produce(topic, f"value {number}", key=str(number % 7))
    producer.flush()
    assert values(topics.read(topic)) == [f"value {number}" for number in range(2000)]


def test_a_read_begins_and_ends_where_it_is_told(topics: Topics, topic: str) -> None:
    """A read begins and ends at its options: offsets, "earliest" and "latest", one timestamp, or timestamps by
    partition."""
    topics.create(topic, 2)
    for partition in range(2):
        topics.produce(
            topic, [Record(f"{partition}:{n}", timestamp_ms=START_MS + n, partition=partition) for n in range(5)]
        )

    def read(**options: object) -> list[str]:
        return values(topics.read(topic, **options))

    assert len(read()) == 10
    bounds = {"startingOffsets": f'{{"{topic}":{{"0":3,"1":-2}}}}', "endingOffsets": f'{{"{topic}":{{"0":-1,"1":1}}}}'}
    assert read(**bounds) == ["0:3", "0:4", "1:0"]
    assert read(startingTimestamp=START_MS + 3) == ["0:3", "0:4", "1:3", "1:4"]
    assert read(endingTimestamp=START_MS + 1) == ["0:0", "1:0"]
    by_partition = {"startingOffsetsByTimestamp": f'{{"{topic}":{{"0":{START_MS + 4},"1":{START_MS + 3}}}}}'}
    assert read(**by_partition) == ["0:4", "1:3", "1:4"]
    with pytest.raises(Exception) as caught:
        read(startingTimestamp=START_MS + 99)
    assert "is as late as the given time" in said(caught)
    assert read(startingTimestamp=START_MS + 99, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception) as caught:
        read(startingOffsets=f'{{"{topic}":{{"0":3}}}}')
    assert said(caught).endswith(f"startingOffsets lacks {topic}-1")


def test_topics_are_named_matched_or_assigned(topics: Topics, topic: str) -> None:
    """Topics are named, matched by pattern, or assigned by partition; a topic that does not exist is named in the
    error."""
    for suffix in ("-a", "-b"):
        topics.create(topic + suffix, 2)
        topics.produce(topic + suffix, [f"p1{suffix}"], partition=1)
        topics.produce(topic + suffix, [f"p0{suffix}"], partition=0)
    spark = topics.spark
    base = {"kafka.bootstrap.servers": topics.broker.bootstrap}

    def read(**how: str) -> set[str]:
        return set(values(spark.read.format("pybroker").options(**base, **how).load()))

    assert read(subscribe=f"{topic}-a,{topic}-b") == {"p0-a", "p1-a", "p0-b", "p1-b"}
    assert read(subscribePattern=f"{topic}-[bc]") == {"p0-b", "p1-b"}
    assert read(assign=f'{{"{topic}-a":[1]}}') == {"p1-a"}
    with pytest.raises(Exception) as caught:
        read(subscribe=f"{topic}-c", **{"fetchOffset.numRetries": "0"})
    assert f"topic {topic}-c" in said(caught) and "no such topic" in said(caught)
    with pytest.raises(Exception) as caught:
        read(assign=f'{{"{topic}-a":[7]}}', **{"fetchOffset.numRetries": "0"})
    assert said(caught).endswith(f"there is no {topic}-a-7, but topic {topic}-a has 2 partitions")


def test_the_schema_of_the_user_selects(topics: Topics, topic: str) -> None:
    """The user's schema selects and orders columns; a column of another type is refused by name."""
    topics.create(topic)
    topics.produce(topic, ["a", "b"])
    source = topics.spark.read.format("pybroker").options(**topics.options(topic))
    frame = source.schema("offset bigint, value binary").load()
    assert frame.columns == ["offset", "value"] and [tuple(r) for r in frame.collect()] == [(0, b"a"), (1, b"b")]
    assert [tuple(r) for r in source.schema("topic string").load().collect()] == [(topic,), (topic,)]
    for schema, problem in [
        ("value string", "column value is binary in pybroker, not string"),
        ("body binary", "a topic has no column body"),
        ("value binary NOT NULL", "column value may be null"),
    ]:
        with pytest.raises(Exception) as caught:
            source.schema(schema).load().collect()
        assert problem in said(caught)


def test_tasks_share_a_big_partition(topics: Topics, topic: str) -> None:
    """A large partition is split between tasks by minPartitions and maxRecordsPerPartition; together they read each
    record once."""
    topics.create(topic)
    for begin in range(0, 1000, 50):
        topics.produce(topic, range(begin, begin + 50))
    whole, expected = topics.read(topic), [str(number) for number in range(1000)]
    assert whole.rdd.getNumPartitions() == 1 and values(whole) == expected
    for how, tasks in [({"minPartitions": 3}, 3), ({"maxRecordsPerPartition": 260}, 4)]:
        cut = topics.read(topic, **how)
        assert cut.rdd.getNumPartitions() == tasks and values(cut) == expected


def test_an_answer_may_be_smaller_than_a_batch_and_larger_than_a_fetch(topics: Topics, topic: str) -> None:
    """A fetch response may be smaller than a batch or hold many: the rows are the same, and many small responses make
    one RecordBatch."""
    topics.create(topic)
    for begin in range(0, 200, 20):
        topics.produce(topic, ["x" * 100 + str(n) for n in range(begin, begin + 20)])
    assert values(topics.read(topic, **{"kafka.max.partition.fetch.bytes": 1})) == [
        "x" * 100 + str(n) for n in range(200)
    ]


def test_an_empty_topic_is_no_rows(topics: Topics, topic: str) -> None:
    """An empty topic gives no rows, and so does a range without records."""
    topics.create(topic, 3)
    assert topics.read(topic).count() == 0


def test_what_retention_took_is_an_error_or_is_left_out(topics: Topics, topic: str) -> None:
    """Records that retention has deleted are an error with the offsets, or left out with failOnDataLoss=false."""
    from pybroker.client.admin import Admin
    from pybroker.protocol import messages as m

    topics.create(topic)
    topics.produce(topic, range(10))
    kind = m.DeleteRecordsRequest.Topics
    deleted = kind(name=topic, partitions=[kind.Partitions(partition_index=0, offset=4)])
    with Admin(topics.broker.bootstrap) as admin:
        admin.cluster.any().request(m.DeleteRecordsRequest(topics=[deleted], timeout_ms=10_000))
    start = f'{{"{topic}":{{"0":2}}}}'
    with pytest.raises(Exception) as caught:
        topics.read(topic, startingOffsets=start).collect()
    assert f"{topic}-0 was to be read from offset 2 to 10, but begins at 4 now" in said(caught)
    assert values(topics.read(topic, startingOffsets=start, failOnDataLoss=False)) == [str(n) for n in range(4, 10)]
    assert values(topics.read(topic)) == [str(n) for n in range(4, 10)]


def test_a_wrong_option_fails_before_anything_is_read(topics: Topics) -> None:
    """A wrong option fails before a record is read, and Spark shows the sentence."""
    with pytest.raises(Exception) as caught:
        topics.spark.read.format("pybroker").option("subscribe", "t").load().collect()
    assert "kafka.bootstrap.servers is missing" in said(caught)


def test_nobody_answers_at_the_address(topics: Topics) -> None:
    """An address where no broker answers is named in the error, which comes quickly."""
    with pytest.raises(Exception) as caught:
        topics.read("t", **{"kafka.bootstrap.servers": "127.0.0.1:1", "fetchOffset.numRetries": 0}).collect()
    assert "127.0.0.1:1" in said(caught)


def test_there_is_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Java that is missing, or too old, is reported in one sentence."""
    from pybroker.spark import java

    monkeypatch.setattr(java.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(KafkaError, match="but JAVA_HOME and PATH have none"):
        java.find_java({"PATH": str(tmp_path)})
    with pytest.raises(KafkaError, match="where there is no bin/java"):
        java.find_java({"JAVA_HOME": str(tmp_path)})
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(KafkaError, match="JAVA_HOME has Java 8, and Spark needs 17"):
        java.find_java({"JAVA_HOME": str(tmp_path)})
    old.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(KafkaError, match="does not report its version"):
        java.find_java({"JAVA_HOME": str(tmp_path)})
    release = tmp_path / "release"  # saves the start of a JVM
    release.write_text('IMPLEMENTOR="x"\nJAVA_VERSION="1.8.0_392"\n')
    with pytest.raises(KafkaError, match="JAVA_HOME has Java 8, and Spark needs 17"):
        java.find_java({"JAVA_HOME": str(tmp_path)})
    release.write_text('JAVA_VERSION="21.0.2"\n')
    assert java.find_java({"JAVA_HOME": str(tmp_path)}) == tmp_path
