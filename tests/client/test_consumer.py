"""A consumer without a group, against our broker and Apache Kafka: its positions and records."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka as ck
import pytest

import pybroker
from pybroker import errors
from pybroker.client.consuming.consumer import Consumer, OffsetAndTimestamp
from pybroker.client.consuming.fetcher import Chunk
from pybroker.client.net import list_offsets
from pybroker.client.net.network import ClusterView
from pybroker.config import ConfigError
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.client.kit import consumer_of, create, fill, find_nobody, read
from tests.harness import Server, until


def test_assigned_partitions_are_read_in_order(target: Server, topic: str) -> None:
    """Assigned partitions are read from their given offsets, in order, with any max_records."""
    create(target, topic, partitions=2)
    fill(target, topic, 0, [b"a%d" % n for n in range(700)])
    fill(target, topic, 1, [b"b%d" % n for n in range(300)])
    with pybroker.Consumer(bootstrap_servers=target.bootstrap) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        consumer.seek_to_beginning((topic, 0))
        consumer.seek((topic, 1), 290)
        found = read(consumer, 710, max_records=7)
        assert [r.value for r in found if r.partition == 0] == [b"a%d" % n for n in range(700)]
        assert [(r.offset, r.value) for r in found if r.partition == 1] == [(n, b"b%d" % n) for n in range(290, 300)]
        assert consumer.poll(0) == []
        assert {consumer.position((topic, p)) for p in (0, 1)} == {700, 300}
        assert consumer.lag() == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}


def test_one_that_is_closed_keeps_nothing_that_it_fetched(shared_broker: Server, topic: str) -> None:
    """A closed consumer frees its fetched batches, half-read ones too; otherwise the garbage collector complains of
    memory in use."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"%d" % n for n in range(10)])

    def kept() -> list[Chunk]:
        chunks = [each for each in gc.get_objects() if isinstance(each, Chunk)]
        return [each for each in chunks if each.asked.place.tp.topic == topic]

    consumer = consumer_of(shared_broker, topic)
    read(consumer, 3, max_records=3)
    assert kept()
    consumer.close()
    assert kept() == []


def test_the_end_is_where_it_begins_by_default(target: Server, topic: str) -> None:
    """A consumer begins at the end by default, as in Kafka (auto_offset_reset=latest): it reads only new records."""
    create(target, topic)
    fill(target, topic, 0, [b"old"])
    with Consumer(bootstrap_servers=target.bootstrap) as consumer:
        consumer.assign([(topic, 0)])
        assert consumer.position((topic, 0)) == 1
        fill(target, topic, 0, [b"new"])
        assert [r.value for r in read(consumer, 1)] == [b"new"]


def test_seeking(target: Server, topic: str) -> None:
    """A seek applies from the next poll on, back and forth, and discards records that were fetched ahead."""
    create(target, topic)
    fill(target, topic, 0, [b"%d" % n for n in range(100)])
    with consumer_of(target, topic) as consumer:
        read(consumer, 10, max_records=10)
        consumer.seek((topic, 0), 95)
        assert [r.offset for r in read(consumer, 5)] == [95, 96, 97, 98, 99]
        consumer.seek_to_beginning()
        assert read(consumer, 1, max_records=1)[0].offset == 0
        consumer.seek_to_end()
        assert consumer.position((topic, 0)) == 100
        with pytest.raises(ValueError, match="an offset is 0 or more, not -1"):
            consumer.seek((topic, 0), -1)
        with pytest.raises(ValueError, match="is not assigned"):
            consumer.seek((topic, 1), 0)


def test_pausing(target: Server, topic: str) -> None:
    """A paused partition returns no records and keeps its position; the others go on."""
    create(target, topic, partitions=2)
    for partition in (0, 1):
        fill(target, topic, partition, [b"%d" % n for n in range(50)])
    with consumer_of(target, topic, partitions=2) as consumer:
        read(consumer, 2, max_records=2)
        consumer.pause((topic, 0))
        rest = read(
            consumer,
            100 - consumer.position((topic, 0)) - consumer.position((topic, 1)) - 50 + consumer.position((topic, 0)),
        )
        assert {r.partition for r in rest} <= {1} and consumer.paused() == {TopicPartition(topic, 0)}
        before = consumer.position((topic, 0))
        consumer.resume((topic, 0))
        assert [r.offset for r in read(consumer, 50 - before)] == list(range(before, 50))


def test_offsets_by_time(target: Server, topic: str) -> None:
    """Offsets by time: the first record not older than a time, None after the last; beginning and end offsets beside
    it."""
    create(target, topic)
    fill(target, topic, 0, [b"a", b"b", b"c"], times=[1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000])
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=target.bootstrap) as consumer:
        assert consumer.offsets_for_times({tp: 1_700_000_000_500}) == {tp: OffsetAndTimestamp(1, 1_700_000_001_000)}
        assert consumer.offsets_for_times({tp: 1_700_000_002_001}) == {tp: None}
        assert consumer.beginning_offsets([tp]) == {tp: 0} and consumer.end_offsets([tp]) == {tp: 3}
        with pytest.raises(KafkaError, match="has partitions 0 to 0, not 5"):
            consumer.end_offsets([(topic, 5)])


def test_a_position_out_of_range(target: Server, topic: str) -> None:
    """A position out of range is reset by auto_offset_reset; with none, poll() raises, and a seek repairs it."""
    create(target, topic)
    fill(target, topic, 0, [b"only"])
    with Consumer(bootstrap_servers=target.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1000)
        assert [r.value for r in read(consumer, 1)] == [b"only"]
    with Consumer(bootstrap_servers=target.bootstrap, auto_offset_reset="none") as consumer:
        consumer.assign([(topic, 0)])
        with pytest.raises(KafkaError, match="has no position, and auto_offset_reset is none"):
            consumer.poll(1000)
        consumer.seek((topic, 0), 1000)
        for _ in range(2):  # each poll() until a seek
            with pytest.raises(KafkaError, match="offset 1000 is outside") as caught:
                consumer.poll(10_000)
            assert caught.value.code == errors.OFFSET_OUT_OF_RANGE
        consumer.seek((topic, 0), 0)
        assert [r.value for r in read(consumer, 1)] == [b"only"]


def test_topics_that_are_not_there(target: Server, topic: str) -> None:
    """A topic that does not exist is an error at once, if it may not be created."""
    with (
        Consumer(bootstrap_servers=target.bootstrap, allow_auto_create_topics=False) as consumer,
        pytest.raises(KafkaError) as caught,
    ):
        consumer.partitions_for(topic)
    assert caught.value.code == errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("partition", [2, -1])
def test_partitions_that_are_not_there(target: Server, topic: str, partition: int) -> None:
    """A partition that the topic lacks is an error at once, with the existing ones."""
    create(target, topic, partitions=2)
    with (
        Consumer(bootstrap_servers=target.bootstrap) as consumer,
        pytest.raises(KafkaError, match=f"has partitions 0 to 1, not {partition}") as caught,
    ):
        consumer.end_offsets([(topic, partition)])
    assert caught.value.code == errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "a consumer needs bootstrap_servers"),
        ({"group": "g"}, "'group' is no setting of a consumer; did you mean group_id?"),
        ({"auto_offset_reset": "newest"}, "it takes one of earliest, latest, none"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], sentence: str) -> None:
    where = {} if not settings else {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match=sentence):
        Consumer(**where, **settings)


@pytest.mark.parametrize("pair", ["t", "ab", ("t", "0"), ("t",), (0, "t"), 7, ("t", 0, 1), ("t", 0.5)])
def test_what_is_no_partition(shared_broker: Server, topic: str, pair: Any) -> None:
    """An invalid partition argument is refused by the call, with an example of a valid one; the assignment stays."""
    create(shared_broker, topic)
    fill(shared_broker, topic, 0, [b"v"])
    with consumer_of(shared_broker, topic) as consumer:
        for call in (
            lambda: consumer.assign([pair]),
            lambda: consumer.seek(pair, 0),
            lambda: consumer.end_offsets([pair]),
            lambda: consumer.offsets_for_times({pair: 0}),
        ):
            with pytest.raises(TypeError, match=r"a partition is a topic and a number, like \('orders', 0\), not "):
                call()
        assert [record.value for record in read(consumer, 1)] == [b"v"]


def test_nobody_is_there() -> None:
    """Without a broker poll() waits, as brokers come back; calls that need an answer fail with the address."""
    with Consumer(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=300) as consumer:
        consumer.assign([("t", 0)])
        find_nobody(consumer._network)
        assert consumer.poll(50) == []
        with pytest.raises(KafkaError, match=r"could not be had in time: could not reach 127\.0\.0\.1:1"):
            consumer.end_offsets([("t", 0)])


def test_an_assignment_that_changes_under_the_fetcher(
    shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An assignment that changes while positions are looked up does no harm: the new partitions are read."""
    create(shared_broker, topic, partitions=2)
    fill(shared_broker, topic, 1, [b"other"])
    by_leader, changes = list_offsets.by_leader, iter([[(topic, 1)]])
    with Consumer(bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest") as consumer:

        def changing(view: ClusterView, times: Mapping[TopicPartition, int]) -> dict[int, dict[TopicPartition, int]]:
            if times and (change := next(changes, None)):
                consumer.assign(change)
            return by_leader(view, times)

        monkeypatch.setattr(list_offsets, "by_leader", changing)
        consumer.assign([(topic, 0)])
        assert [r.value for r in read(consumer, 1)] == [b"other"]
    assert next(changes, None) is None and not caplog.records


def test_a_closed_consumer_says_so_at_once() -> None:
    """A closed consumer raises at once in calls that would ask brokers; a second close() does nothing."""
    consumer = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", default_api_timeout_ms=86_400_000)
    consumer.close()
    consumer.close()
    calls: list[Callable[[], object]] = [
        lambda: consumer.poll(86_400_000),
        lambda: consumer.end_offsets([("t", 0)]),
        lambda: consumer.partitions_for("t"),
        lambda: consumer.committed([("t", 0)]),
        lambda: consumer.commit({("t", 0): 1}),
        lambda: consumer.commit_async({("t", 0): 1}),
    ]
    for call in calls:
        with pytest.raises(KafkaError, match="the consumer is closed"):
            call()


def test_columns_instead_of_objects(target: Server, topic: str) -> None:
    """Columns have the same records as objects do, as Arrow and NumPy, of several partitions, all columns or the
    requested ones."""
    create(target, topic, partitions=2)
    fill(target, topic, 0, [b"a", None, b"ccc"], times=[1_700_000_000_000 + n for n in range(3)])
    fill(target, topic, 1, [b"dd"], times=[1_700_000_000_009])
    with consumer_of(target, topic, partitions=2) as consumer:
        tables = []
        while sum(table.num_rows for table in tables) < 4:
            tables.append(consumer.poll_arrow(10_000, 2))
        rows = sorted((r for table in tables for r in table.to_pylist()), key=lambda r: (r["partition"], r["offset"]))
        assert max(table.num_rows for table in tables) <= 2
        assert [(r["topic"], r["partition"], r["offset"], r["value"]) for r in rows] == [
            (topic, 0, 0, b"a"),
            (topic, 0, 1, None),
            (topic, 0, 2, b"ccc"),
            (topic, 1, 0, b"dd"),
        ]
        assert [r["timestamp"].timestamp() for r in rows] == [1.7e9, 1.7e9 + 0.001, 1.7e9 + 0.002, 1.7e9 + 0.009]
        assert {(r["key"], tuple(r["headers"]), r["timestamp_type"]) for r in rows} == {(None, (), 0)}
        assert consumer.lag() == {TopicPartition(topic, p): 0 for p in (0, 1)}
        assert consumer.poll_arrow(0).num_rows == 0
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 1)
        arrays = consumer.poll_numpy(10_000, columns=["offset", "value"])
        assert arrays.runs == [(TopicPartition(topic, 0), 2)] and arrays.rows == 2
        assert arrays.offset is not None and arrays.offset.tolist() == [1, 2]
        assert arrays.value is not None and list(arrays.value) == [None, b"ccc"]
        assert arrays.timestamp is None and arrays.key is None and arrays.headers is None
        assert consumer.poll_numpy(0).rows == 0


def test_the_columns_that_are_always_there_may_be_named(shared_broker: Server, topic: str) -> None:
    """topic and partition come first, named or not; a single string is not a list of names."""
    create(shared_broker, topic)
    with pybroker.Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        producer.send(topic, b"v", partition=0).result(10)
    with consumer_of(shared_broker, topic) as consumer:
        named = consumer.poll_arrow(10_000, columns=["value", "topic"])
        assert named.select(["topic", "partition", "value"]).to_pylist() == [
            {"topic": topic, "partition": 0, "value": b"v"}
        ]
        for poll in (consumer.poll_arrow, consumer.poll_numpy):
            with pytest.raises(TypeError, match=r"columns is a list of names, like \['value'\]"):
                poll(0, columns="value")


@pytest.mark.parametrize("where", ["looked up", "given"])
def test_a_partition_that_is_not_there_is_told_once(
    shared_broker: Server, topic: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing partition is reported once, and read once it exists: partitions may be added to a topic."""
    create(shared_broker, topic)
    with consumer_of(shared_broker, topic, 2) as consumer:
        if where == "given":
            consumer.seek((topic, 1), 0)

        def told() -> list[str]:
            consumer.poll(10)
            return [record.getMessage() for record in caplog.records if "the consumer waits for" in record.getMessage()]

        until("the partition is logged", told)
        consumer.poll(500)
        assert told() == [f"topic {topic!r} has partitions 0 to 0: the consumer waits for partition 1"]
        with pybroker.Admin(bootstrap_servers=shared_broker.bootstrap) as admin:
            admin.create_partitions(topic, 2)
        with pybroker.Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
            producer.send(topic, b"v", partition=1).result(10)
        until("it is read", lambda: [r.value for r in consumer.poll(100)] == [b"v"])


def test_columns_of_a_long_topic_come_in_pieces(target: Server, topic: str) -> None:
    """Columns of a long topic come in pieces: without max_records a poll takes megabytes, not all that is fetched
    meanwhile."""
    create(target, topic)
    with pybroker.Producer(bootstrap_servers=target.bootstrap) as producer:
        producer.send_columns(topic, [bytes(100_000)] * 300)
    with consumer_of(target, topic) as consumer:
        found = consumer.poll_arrow(10_000, 1).num_rows
        chunks = consumer._fetcher.chunks
        until("most of it is fetched", lambda: sum(len(chunk.data) for chunk in tuple(chunks)) > 20 << 20)
        while found < 300:
            table = consumer.poll_arrow(10_000)
            assert 0 < table.nbytes < 10 << 20
            found += table.num_rows


def test_columns_that_were_compressed_very_well_come_in_pieces(target: Server, topic: str) -> None:
    """Columns that were compressed very well come in pieces: a poll ends with the batch that brings it to 64 MiB."""
    create(target, topic)
    big = (16 << 20) - 10_000
    how = {"compression_type": "zstd", "max_request_size": 1 << 25}
    with pybroker.Producer(bootstrap_servers=target.bootstrap, **how) as producer:
        for _ in range(9):
            producer.send(topic, bytes(big), partition=0).result(30)
    with consumer_of(target, topic) as consumer:
        sizes: list[int] = []
        while sum(sizes) < 9:
            sizes.append(consumer.poll_arrow(10_000, columns=["value"]).num_rows)
            assert 0 < sizes[-1] <= 5


@pytest.mark.java
@pytest.mark.xdist_group("kafka391")
def test_columns_behind_a_long_aborted_transaction(kafka391: Server, topic: str) -> None:
    """Columns behind a long aborted transaction are found: batches without rows do not count, and a poll goes on to
    later fetched ones."""
    create(kafka391, topic)
    producer = ck.Producer({"bootstrap.servers": kafka391.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    for values, end in (([bytes(100_000)] * 150, producer.abort_transaction), ([b"kept"], producer.commit_transaction)):
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value)
        producer.flush(60)
        end(60)
    with consumer_of(kafka391, topic, isolation_level="read_committed") as consumer:
        chunks = consumer._fetcher.chunks
        until("all of it is fetched", lambda: any(b"kept" in bytes(chunk.data) for chunk in tuple(chunks)))
        assert consumer.poll_arrow(0)["value"].to_pylist() == [b"kept"]
