"""DataFrames into topics: how columns become records, and when a row is written."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pybroker.client.net.connection import BrokerConnection
from pybroker.testing import Record, records
from tests.harness import HOST, until
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

PATIENCE_S = 60.0


def write(topics: Topics, frame: Any, **options: object) -> None:
    given = {name: str(value) for name, value in options.items()}
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap}
    frame.write.format("pybroker").options(**servers, **given).mode("append").save()


def said(caught: pytest.ExceptionInfo[Any]) -> str:
    found = re.search(r"KafkaError: (.*)", str(caught.value))
    assert found and "Traceback" not in str(caught.value)[: found.start()], str(caught.value)
    return found[1]


def bare(records: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.partition, r.key, r.value, r.headers) for r in records]


def test_columns_become_records(topics: Topics, topic: str) -> None:
    """Columns become records: text, bytes, nulls, headers and the row's partition; other columns are ignored."""
    topics.create(topic, 2)
    frame = topics.spark.sql(
        "select * from values"
        " (1, 'k', 'v', array(struct('h' as key, X'01' as value), struct('n' as key, cast(null as binary) as value)),"
        " 1),"
        " (0, cast(null as string), cast(null as string), null, 2) as t(partition, key, value, headers, unused)"
    )
    write(topics, frame.coalesce(1), topic=topic, includeHeaders=True)
    assert bare(topics.held(topic)) == [(0, None, None, ()), (1, b"k", b"v", (("h", b"\x01"), ("n", None)))]
    write(topics, topics.spark.sql("select X'ff00' as value"), topic=topic)
    assert Counter(r.value for r in topics.held(topic)) == {None: 1, b"v": 1, b"\xff\x00": 1}


def test_the_topic_is_in_the_row_or_in_the_option(topics: Topics, topic: str) -> None:
    """The topic is the option's, or else the row's, as with Spark's connector; a row without either fails the job."""
    topics.create(f"{topic}-a")
    topics.create(f"{topic}-b")
    frame = topics.spark.sql(f"select * from values ('{topic}-a', '1'), ('{topic}-b', '2') as t(topic, value)")
    write(topics, frame)
    write(topics, frame, topic=f"{topic}-b")
    assert [r.value for r in topics.held(f"{topic}-a")] == [b"1"]
    assert sorted(r.value for r in topics.held(f"{topic}-b")) == [b"1", b"2", b"2"]
    with pytest.raises(Exception) as caught:
        write(topics, topics.spark.sql("select cast(null as string) as topic, 'v' as value"))
    assert "row 0 has no topic" in said(caught)


def test_keys_choose_the_partition_as_in_java(topics: Topics, topic: str) -> None:
    """Keys choose partitions as Kafka's Java client does, so Spark's records lie beside other clients'."""
    from confluent_kafka import Producer

    topics.create(topic, 5)
    frame = topics.spark.range(100).selectExpr("concat('key ', id) as key", "'spark' as value")
    write(topics, frame, topic=topic)
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap, "partitioner": "murmur2_random"})
    for number in range(100):
        producer.produce(topic, "other", key=f"key {number}")
    producer.flush()
    places: dict[bytes, set[int]] = {}
    for record in topics.held(topic):
        assert isinstance(record.key, bytes)
        places.setdefault(record.key, set()).add(record.partition)
    assert len(places) == 100 and all(len(found) == 1 for found in places.values())


@pytest.mark.parametrize(
    ("query", "options", "sentence"),
    [
        ("select 'k' as key", {"topic": "t"}, "column value is missing"),
        ("select 'v' as value", {}, "no topic is given"),
        ("select 1 as value", {"topic": "t"}, "column value is int; it can be string or binary"),
        ("select 'v' as value, 'a' as partition", {"topic": "t"}, "column partition is string; it can be int"),
        ("select 'v' as value", {"topic": "t", "kafka.acks": "1"}, "only acks=all is supported"),
        ("select 'v' as value", {"topic": "t", "repeatHeaders": "true"}, "repeatHeaders is for streams"),
    ],
)
def test_what_cannot_be_written_is_told(topics: Topics, query: str, options: dict[str, str], sentence: str) -> None:
    """A column that cannot be written is refused before any row is written."""
    with pytest.raises(Exception) as caught:
        write(topics, topics.spark.sql(query), **options)
    assert sentence in said(caught)


def test_a_refused_row_fails_the_job(topics: Topics, topic: str) -> None:
    """A record that the topic refuses fails the job, with the broker's reason."""
    topics.create(topic, 1, max_message_bytes=1000)
    with pytest.raises(Exception) as caught:
        write(topics, topics.spark.sql("select repeat('x', 5000) as value"), topic=topic)
    assert "MESSAGE_TOO_LARGE" in str(caught.value)


def test_a_complete_result_is_appended_each_time(topics: Topics, topic: str, tmp_path: Path) -> None:
    """A complete result is appended whole with each batch by outputMode("complete"), as with Spark's connector."""
    topics.create(topic)
    topics.create(f"{topic}-counts")
    write(topics, topics.spark.sql("select 'v' as value"), topic=topic)
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap}
    events = topics.spark.readStream.format("pybroker").options(**servers, subscribe=topic, startingOffsets="earliest")
    counts = events.load().groupBy("topic").count().selectExpr("cast(count as string) as value")
    sink = counts.writeStream.format("pybroker").options(**servers, topic=f"{topic}-counts").outputMode("complete")
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for _ in range(2):
        sink.start().awaitTermination(PATIENCE_S)
        write(topics, topics.spark.sql("select 'v' as value"), topic=topic)
    assert [r.value for r in topics.held(f"{topic}-counts")] == [b"1", b"2"]


def test_overwrite_is_refused(topics: Topics, topic: str) -> None:
    """Overwrite mode is refused, as a topic is not a table that can be replaced."""
    topics.create(topic)
    options = {"kafka.bootstrap.servers": topics.broker.bootstrap, "topic": topic}
    with pytest.raises(Exception) as caught:
        topics.spark.sql("select 'v' as value").write.format("pybroker").options(**options).mode("overwrite").save()
    assert 'use mode("append")' in said(caught)


def test_a_stream_from_topic_to_topic(topics: Topics, topic: str, checkpoint: str) -> None:
    """A stream from topic to topic writes each batch by its commit, and the next run does not write it again."""
    source, sink = topics.create(f"{topic}-in", 2), topics.create(f"{topic}-out", 2)
    for begin in (0, 10):
        topics.produce(source, range(begin, begin + 5), partition=0)
        topics.produce(source, range(begin + 5, begin + 10), partition=1)
        run(topics, source, sink, checkpoint)
        assert sorted(int(r.value or b"") for r in topics.held(sink)) == list(range(begin + 10))


def run(topics: Topics, source: str, sink: str, checkpoint: str, fails: bool = False, **options: object) -> str:
    """Run once with AvailableNow from topic to topic; return the query's id. One that `fails` does so at the row
    "poison", after the other tasks have written their rows."""
    frame = topics.stream(source).selectExpr("value", "partition")
    given = {name: str(value) for name, value in options.items()}
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap, "topic": sink}
    if fails:
        frame = frame.select(poisoned(topics.broker.port, sink)("value").alias("value"), "partition")
    writer = frame.writeStream.format("pybroker").options(**servers, **given).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    if fails:
        with pytest.raises(Exception, match="poisoned"):
            query.awaitTermination(PATIENCE_S)
    else:
        assert query.awaitTermination(PATIENCE_S)
    return str(query.id)


def poisoned(port: int, sink: str) -> Any:
    """A Spark function that fails at "poison" after a and b, which another task reads, are in the sink. Without the
    wait Spark sometimes stops the other task before it has written them."""
    from pyspark.sql.functions import udf

    def value(given: bytearray) -> str:
        if given == b"poison":
            with BrokerConnection(HOST, port) as connection:

                def written() -> bool:
                    return {b"a", b"b"} <= {r.value for r in records.read(connection, sink, None)}

                until("a and b are written", written, PATIENCE_S)
            raise ValueError("poisoned")
        return given.decode()

    return udf(value, "string", useArrow=False)


@pytest.mark.long
def test_repeats_can_be_dropped(topics: Topics, topic: str, checkpoint: str) -> None:
    """A task that fails half way is run again by its query's next run: its rows are there twice, with the same headers,
    by which a reader drops repeats."""
    source, sink = topics.create(f"{topic}-in", 2), topics.create(f"{topic}-out", 2)
    topics.produce(source, ["a", "b"], partition=0)
    topics.produce(source, ["c", "poison"], partition=1)
    query = run(topics, source, sink, checkpoint, fails=True, repeatHeaders=True)
    first = topics.held(sink)
    assert {b"a", b"b"} <= {r.value for r in first} <= {b"a", b"b", b"c"}
    assert run(topics, source, sink, checkpoint, repeatHeaders=True) == query
    written = topics.held(sink)
    assert len(written) == len(first) + 4
    kept = {r.headers: r.value for r in written}
    assert sorted(v for v in kept.values() if isinstance(v, bytes)) == [b"a", b"b", b"c", b"poison"]
    for headers in kept:
        told = dict(headers)
        assert told["pybroker.query"] == query.encode() and told["pybroker.batch"] == b"0"
        assert told["pybroker.partition"] in (b"0", b"1") and told["pybroker.index"] in (b"0", b"1")


def workers() -> list[int]:
    """The Python workers that Spark runs for this test process: its daemons' forks."""
    parents, daemons = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, parent = int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
            parents[pid] = parent
            if stat.with_name("comm").read_text().strip() == "pyspark.daemon":  # as warm_python names its processes
                daemons.add(pid)

    def is_ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in daemons if parents[pid] in daemons and is_ours(pid)]


def test_executors_are_killed_at_work(topics: Topics, topic: str, checkpoint: str) -> None:
    """SIGKILL of every Python worker while a query reads and writes ends the query with an error; the next run loses no
    row."""
    source, sink = topics.create(f"{topic}-in"), topics.create(f"{topic}-out")
    topics.produce(source, range(500))
    limited = topics.stream(source, maxOffsetsPerTrigger=10).select("value")
    servers = {"kafka.bootstrap.servers": topics.broker.bootstrap, "topic": sink}
    writer = limited.writeStream.format("pybroker").options(**servers).option("checkpointLocation", checkpoint)
    query = writer.start()
    struck: set[int] = set()

    def killed() -> bool:
        """True if the kill has ended the query; Spark does not notice the death of an idle worker."""
        for pid in workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                struck.add(pid)
        return query.exception() is not None

    try:
        until("some rows are written", lambda: len(topics.held(sink)) >= 20, PATIENCE_S)
        until("the query ends", killed, PATIENCE_S)
    finally:
        query.stop()
    # Spark may still use an idle worker that was killed and has not ended yet.
    until("the killed ones are gone", lambda: not any(Path(f"/proc/{pid}").exists() for pid in struck), PATIENCE_S)
    run(topics, source, sink, checkpoint)
    assert {int(r.value or b"") for r in topics.held(sink)} == set(range(500))
