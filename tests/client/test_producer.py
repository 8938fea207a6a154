"""A producer's records and their outcomes, against our broker and Apache Kafka."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pybroker
from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.client.columns.arrow import HEADERS
from pybroker.client.producing import sender
from pybroker.client.producing.producer import Delivery, Producer, RecordMetadata
from pybroker.config import ConfigError
from pybroker.core import ByteColumn, partitions_of
from pybroker.errors import KafkaError
from pybroker.testing import BrokerHandle
from tests.client.kit import WAIT_S, create, find_nobody, read_all
from tests.harness import BrokerProcess, Server, until
from tests.rows import with_each

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_sent_is_there(target: Server, topic: str, codec: str) -> None:
    """Sent keys, values, headers, tombstones and timestamps are stored unchanged, with every codec."""
    create(target, topic)
    with pybroker.Producer(bootstrap_servers=target.bootstrap, compression_type=codec) as producer:
        sent = [
            producer.send(
                topic, b"value", key="key", headers=[("h", b"1"), ("h", None)], timestamp_ms=1_700_000_000_000
            ),
            producer.send(topic, None, key=b"\0\xff", timestamp_ms=1_700_000_000_001),
            producer.send(topic, "text", timestamp_ms=1_700_000_000_002),
            *(producer.send(topic, f"{n}" * 100, timestamp_ms=1_700_000_000_003) for n in range(500)),
        ]
    assert sent[0].result(0) == RecordMetadata(topic, 0, 0, 1_700_000_000_000)
    assert [delivery.result(0).offset for delivery in sent] == list(range(503))
    found = read_all(target, topic, 503)
    assert [(r.key, r.value, r.headers, r.timestamp_ms) for r in found[:3]] == [
        (b"key", b"value", [("h", b"1"), ("h", None)], 1_700_000_000_000),
        (b"\0\xff", None, [], 1_700_000_000_001),
        (None, b"text", [], 1_700_000_000_002),
    ]
    assert [r.value for r in found[3:]] == [b"%d" % n * 100 for n in range(500)]


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_acknowledgements(target: Server, topic: str, acks: object) -> None:
    """acks=0 gives no offset, as no answer comes; the record is stored all the same."""
    create(target, topic)
    with Producer(bootstrap_servers=target.bootstrap, acks=acks) as producer:
        delivery = producer.send(topic, b"1")
        producer.flush(10)
        assert delivery.result(0).offset == (-1 if acks == 0 else 0)
    assert [r.value for r in read_all(target, topic, 1)] == [b"1"]


def test_records_of_one_key_share_a_partition(target: Server, topic: str) -> None:
    """Records of one key share a partition: murmur2, as in Java's producer; without a key, records spread over
    partitions by batch."""
    create(target, topic, partitions=4)
    with Producer(bootstrap_servers=target.bootstrap, linger_ms=0) as producer:
        by_key = [producer.send(topic, b"", key=f"key-{n}").result(10).partition for n in range(8)]
        spread = {producer.send(topic, b"").result(10).partition for _ in range(60)}
    keys = ByteColumn.of_list([b"key-%d" % n for n in range(8)])
    assert by_key == memoryview(partitions_of(keys, 4)).cast("i").tolist()
    assert spread == {0, 1, 2, 3}


def test_a_callback_hears_the_outcome(target: Server, topic: str) -> None:
    """on_delivery is called once for each record; a callback that fails, or is added late, affects no other."""
    create(target, topic)
    heard: list[int] = []

    def note(delivery: Delivery) -> None:
        heard.append(delivery.result(0).offset)

    with Producer(bootstrap_servers=target.bootstrap) as producer:
        deliveries = [producer.send(topic, b"x", on_delivery=note) for _ in range(3)]
        producer.flush(10)
    deliveries[0].add_done_callback(note)
    assert heard == [0, 1, 2, 0] and all(delivery.done() for delivery in deliveries)


def test_what_a_broker_refuses(target: Server, topic: str) -> None:
    """A record without a key for a compacted topic fails with the broker's code; other records are not affected."""
    create(target, topic, config={"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        refused = producer.send(topic, b"no key")
        assert isinstance(refused.exception(10), KafkaError)
        with pytest.raises(KafkaError) as caught:
            refused.result(0)
        assert caught.value.code == errors.INVALID_RECORD and not caught.value.retriable and topic in str(caught.value)
        assert producer.send(topic, b"with a key", key=b"k").result(10).offset == 0


def test_a_refusal_at_the_very_end_of_its_time(target: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that expires between its last refusal and the next try has the same error as every expired one."""
    later, words_of = SimpleNamespace(monotonic=lambda: time.monotonic() + 120), sender._refusal

    def late(*refused: Any) -> KafkaError:
        monkeypatch.setattr(sender, "time", later)
        return words_of(*refused)

    monkeypatch.setattr(sender, "_refusal", late)
    create(target, topic)
    with Producer(bootstrap_servers=target.bootstrap, linger_ms=500, delivery_timeout_ms=100_000) as producer:
        producer.partitions_for(topic)
        with Admin(target.bootstrap) as admin:
            admin.delete_topic(topic)
        error = producer.send(topic, b"").exception(WAIT_S)
    assert isinstance(error, KafkaError) and error.code == errors.REQUEST_TIMED_OUT
    assert "not acknowledged within 100 s: UNKNOWN_TOPIC_" in error.message


def test_a_mistake_of_ours_at_an_answer(shared_broker: Server, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours in handling an answer fails its batch with that error; other batches of the answer get their
    outcomes."""
    create(shared_broker, topic, partitions=2)
    settle, failed = sender.Sender._settle, []

    def wrong(self: sender.Sender, *args: Any) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("wrong")
        settle(self, *args)

    monkeypatch.setattr(sender.Sender, "_settle", wrong)
    with Producer(bootstrap_servers=shared_broker.bootstrap, linger_ms=100) as producer:
        sent = [producer.send(topic, b"x", partition=partition) for partition in (0, 1)]
        outcomes = [delivery.exception(WAIT_S) for delivery in sent]
    assert sorted(str(outcome).partition(": ")[0] for outcome in outcomes) == ["None", "UNKNOWN_SERVER_ERROR"]


def test_partitions_that_are_not_there(target: Server, topic: str) -> None:
    """A partition beyond the last is refused at once, with the range, and so is an invalid topic name."""
    create(target, topic, partitions=2)
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        assert producer.partitions_for(topic) == [0, 1]
        with pytest.raises(KafkaError, match="has partitions 0 to 1, not 2") as caught:
            producer.send(topic, b"", partition=2)
        assert caught.value.code == errors.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(KafkaError) as caught:
            producer.send("no/such name", b"")
        assert caught.value.code == errors.INVALID_TOPIC_EXCEPTION


def test_records_that_are_too_large(shared_broker: Server, topic: str) -> None:
    """A record one byte above max_request_size is refused before it is sent, with both numbers."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, max_request_size=1000) as producer:
        largest = 1000 - 9  # its length, five fields, and the length of the value
        assert producer.send(topic, b"x" * largest).result(10).offset == 0
        with pytest.raises(KafkaError, match="1001 bytes, where max_request_size allows 1000") as caught:
            producer.send(topic, b"x" * (largest + 1))
        assert caught.value.code == errors.MESSAGE_TOO_LARGE
        with pytest.raises(TypeError, match="value is bytes, str or None, not int"):
            producer.send(topic, 7)  # type: ignore[arg-type]


def test_headers_as_a_mapping(shared_broker: Server, topic: str) -> None:
    """Headers may be a mapping: a dict's pairs, with text as UTF-8; in columns too, one for each row."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        producer.send(topic, b"0", headers={"ab": b"1", "c": "\u00e4", "d": None}).result(10)
        producer.send_columns(topic, [b"1", b"2"], headers=[{"ab": b"2"}, None])
    found = [record.headers for record in read_all(shared_broker, topic, 3)]
    assert found == [[("ab", b"1"), ("c", b"\xc3\xa4"), ("d", None)], [("ab", b"2")], []]


@pytest.mark.parametrize("headers", [["ab"], [("a", b"1", b"2")], [7]])
def test_headers_that_are_no_pairs(shared_broker: Server, topic: str, headers: Any) -> None:
    """Headers that are no pairs are refused: a text of two letters must not become a header."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        with pytest.raises(TypeError, match="header is a pair of a key and a value, not "):
            producer.send(topic, b"", headers=headers)
        with pytest.raises(TypeError, match="header is a pair of a key and a value, not "):
            producer.send_columns(topic, [b""], headers=[headers])
        assert producer.send(topic, b"", headers=[["ab", b"1"]]).result(10).offset == 0  # type: ignore[list-item]


def test_a_topic_whose_name_is_no_text(shared_broker: Server, topic: str) -> None:
    """A topic name that is no text is refused by the call, and affects no other topic."""
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for call in (producer.partitions_for, lambda name: producer.send_columns(name, [b""])):
            with pytest.raises(TypeError, match="a topic's name is a str, not int"):
                call(7)  # type: ignore[operator]
        create(shared_broker, topic)
        assert producer.send(topic, b"").result(10).offset == 0


@with_each(
    ("settings", "sentence"),
    [
        ({}, "a producer needs bootstrap_servers"),
        ({"ack": 1}, "'ack' is no setting of a producer; did you mean acks?"),
        ({"linger.ms": 1}, "did you mean linger_ms?"),
        ({"acks": 2}, "acks = '2' .* it takes one of all, -1, 1, 0"),
        ({"batch_size": 0}, "batch_size = '0' .* it takes an integer from 1 to 2147483647"),
        ({"acks": 1, "enable_idempotence": True}, "enable_idempotence needs acks=all, not 1"),
        ({"max_in_flight_requests_per_connection": 6, "enable_idempotence": True}, "of at most 5"),
        ({"compression_type": "brotli"}, "it takes one of none, gzip, snappy, lz4, zstd"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], sentence: str) -> None:
    """A wrong setting is refused with its allowed values, an unknown one with the nearest name."""
    where = {} if not settings else {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match=sentence):
        Producer(**where, **settings)


def test_nobody_is_there() -> None:
    """Without a broker send() fails after max_block_ms, and close() does not wait for it."""
    with Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer:
        find_nobody(producer._network)
        with pytest.raises(KafkaError, match=r"no metadata of topic 't' .* could not reach 127\.0\.0\.1:1: .*refused"):
            producer.send("t", b"")


def test_columns_instead_of_records(target: Server, topic: str) -> None:
    """Columns from Arrow, NumPy and lists are sent as the same records one by one."""
    create(target, topic, partitions=3)
    keys = [b"k%d" % (n % 7) for n in range(40)]
    with Producer(bootstrap_servers=target.bootstrap, batch_size=500, compression_type="lz4") as producer:
        one_by_one = [producer.send(topic, b"v%d" % n, key=keys[n], timestamp_ms=n) for n in range(40)]
        producer.flush()
        sent = producer.send_columns(
            topic,
            pa.array([b"v%d" % n for n in range(40)]),
            np.array(keys),
            headers=[[("n", b"%d" % n)] if n % 2 else [] for n in range(40)],
            timestamps_ms=np.arange(40),
        )
        producer.flush()
        assert {delivery.result(0).partition for delivery in sent} == {d.result(0).partition for d in one_by_one}
    found = read_all(target, topic, 80, partitions=3)
    for partition in range(3):
        rows = [(r.key, r.value, r.timestamp_ms) for r in found if r.partition == partition]
        half = len(rows) // 2
        assert rows[:half] == rows[half:]
    assert [r.headers for r in found if r.headers and r.value == b"v3"] == [[("n", b"3")]]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", None, "ccc"]),
        pa.chunked_array([["a"], [None, "ccc"]], pa.large_string()),
        pa.array(["x", "a", None, "ccc"]).dictionary_encode()[1:],
        ["a", None, b"ccc"],
    ],
    ids=["string", "large, chunked", "dictionary, sliced", "list"],
)
def test_what_is_a_column(shared_broker: Server, topic: str, values: object) -> None:
    """A column may have nulls and be a slice; rows without a key go to one partition a batch, or to the given one."""
    create(shared_broker, topic, partitions=2)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        [delivery] = producer.send_columns(topic, values, partition=1)
        assert delivery.result(10) == RecordMetadata(topic, 1, 0, delivery.result(0).timestamp_ms)
        producer.send_columns(topic, values)
    assert [r.value for r in read_all(shared_broker, topic, 6, partitions=2)] == [b"a", None, b"ccc"] * 2


def test_chunks_are_one_column(shared_broker: Server, topic: str) -> None:
    """Chunks make one column, wherever each column's chunks end: rows stay together, and batches ignore chunk
    borders."""
    create(shared_broker, topic, partitions=2)
    numbers = range(100)
    headers = pa.array([[{"key": "n", "value": b"%d" % n}] for n in numbers], HEADERS)

    def chunked(column: Any, *ends: int) -> pa.ChunkedArray:
        whole = column if isinstance(column, pa.Array) else pa.array(column)
        starts = (0, *ends)
        return pa.chunked_array([whole[a:b] for a, b in zip(starts, (*ends, len(whole)), strict=True)])

    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        sent = producer.send_columns(
            topic,
            chunked([b"v%d" % n for n in numbers], 10, 11, 90),
            chunked([b"k%d" % n if n % 3 else None for n in numbers], 50),
            headers=chunked(headers, 7),
            partition=chunked([n % 2 for n in numbers], 33),
            timestamps_ms=chunked(list(numbers), 20, 80),
        )
        assert len(sent) == 2
        producer.flush()
        with pytest.raises(ValueError, match=f"topic '{topic}': row 60: partition 2, and there are 2"):
            producer.send_columns(
                topic, chunked([b"v"] * 100, 40), partition=chunked([0] * 60 + [2] + [0] * 39, 40), timestamps_ms=0
            )
        with pytest.raises(ValueError, match="keys expected length 2 but got length 1"):
            producer.send_columns(topic, chunked([b"v"] * 2, 1), chunked([b"k"]))
    found = read_all(shared_broker, topic, 100, partitions=2)
    rows = [(r.timestamp_ms, r.partition, r.key, r.value, r.headers) for r in found if r.value != b"v"]
    assert sorted(rows) == [
        (n, n % 2, b"k%d" % n if n % 3 else None, b"v%d" % n, [("n", b"%d" % n)]) for n in numbers
    ]


def test_columns_of_one_width(shared_broker: Server, topic: str) -> None:
    """Columns of one width: NumPy's S type loses trailing zeros, as in NumPy, and V keeps every byte; (data, offsets)
    is Arrow's layout."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        producer.send_columns(topic, np.array([b"a\0", b"bbb"]))
        producer.send_columns(topic, np.arange(2, dtype="<i4").view("V4"))
        producer.send_columns(topic, (b"abc", np.array([0, 1, 3], np.int64)))
    values = [r.value for r in read_all(shared_broker, topic, 6)]
    assert values == [b"a", b"bbb", b"\0\0\0\0", b"\1\0\0\0", b"a", b"bc"]


def test_headers_in_large_lists(shared_broker: Server, topic: str) -> None:
    """Headers in Arrow's large lists belong to their rows, as in lists."""
    create(shared_broker, topic)
    rows = [[{"key": f"k{n}", "value": b"v%d" % n}] * (n % 3) for n in range(20)]
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        producer.send_columns(topic, [b"x"] * 20, headers=pa.array(rows, pa.large_list(HEADERS.value_type)))
    found = read_all(shared_broker, topic, 20)
    assert [r.headers for r in found] == [[(f"k{n}", b"v%d" % n)] * (n % 3) for n in range(20)]


def test_columns_that_cannot_be(shared_broker: Server, topic: str) -> None:
    """An invalid column, with a wrong type, length or partition, is refused before anything of it is sent."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, max_request_size=1000) as producer:
        for values, how, error, sentence in (
            (b"bytes", {}, TypeError, "not bytes"),
            (pa.array([1]), {}, TypeError, "binary or string, not int64"),
            (np.arange(2), {}, TypeError, "dtype S or V"),
            ([b"a"], {"keys": [b"k", b"l"]}, ValueError, "2 keys beside 1"),
            ([b"a"], {"partition": [0, 0]}, ValueError, "2 partitions beside 1 values"),
            ([b"a"], {"partition": [1]}, ValueError, "row 0: partition 1, and there are 1"),
            ([b"a"], {"timestamps_ms": [1, 2]}, ValueError, "2 timestamps beside 1 values"),
            ([b"a"], {"partition": [2**32]}, ValueError, "partitions that are no whole numbers of 32 bits"),
            ([b"a"], {"partition": [0.5]}, ValueError, "partitions that are no whole numbers of 32 bits"),
            ([b"a"], {"partition": np.array([2**32 - 1], np.uint32)}, ValueError, "no whole numbers of 32 bits"),
            ([b"a"], {"timestamps_ms": pa.array([None], pa.timestamp("ms"))}, ValueError, "timestamps that are null"),
            ([b"a", b"b"], {"timestamps_ms": pa.array([None, 1])}, ValueError, "no whole numbers of 64 bits"),
            ([b"a"], {"headers": pa.array([[None]], HEADERS)}, ValueError, "a header that is null"),
            ([b"a"], {"headers": pa.array([[b"h"]])}, TypeError, "not list<"),
            ([b"a"], {"headers": pa.array([b"h"])}, TypeError, "struct<key, value>, not binary"),
            ([b"x" * 1000], {}, KafkaError, "where max_request_size allows 1000"),
        ):
            with pytest.raises(error, match=sentence):
                producer.send_columns(topic, values, **how)  # type: ignore[arg-type]
        assert producer.send_columns(topic, []) == []


def test_memory_is_bounded(shared_broker: Server, topic: str) -> None:
    """Memory is bounded: more than buffer_memory is sent, by record and by column, and all of it arrives."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, buffer_memory=20_000, linger_ms=60_000) as producer:
        for _ in range(300):
            producer.send(topic, b"x" * 1000)
            assert producer._accumulator.appender.used <= 20_000
        producer.send_columns(topic, [b"y" * 1000] * 300)
    assert [r.value[:1] for r in read_all(shared_broker, topic, 600) if r.value] == [b"x"] * 300 + [b"y"] * 300


@pytest.mark.parametrize("acks", ["0", "1"])
def test_a_queue_of_many_small_batches(shared_broker: Server, topic: str, acks: Any) -> None:
    """A queue of many small batches is sent quickly: the cost of a batch does not grow with the queue. With acks=0
    sending does not recurse."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, batch_size=500, acks=acks) as producer:
        sent = producer.send_columns(topic, [b"x" * 400] * 10_000)
        assert len(sent) == 10_000
        producer.flush(15)
    assert all(delivery.exception(0) is None for delivery in sent)


@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt])
def test_an_exception_leaves_the_block(target: Server, topic: str, problem: type[BaseException]) -> None:
    """An exception that leaves the `with` block does not lose records that were sent before it."""
    create(target, topic)
    with pytest.raises(problem), Producer(bootstrap_servers=target.bootstrap, linger_ms=60_000) as producer:
        sent = [producer.send(topic, b"%d" % n) for n in range(100)]
        raise problem
    assert [delivery.result(0).offset for delivery in sent] == list(range(100))


def test_memory_that_nobody_frees(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """Memory that is never freed: without a broker send() fails after max_block_ms, with a retriable error, and waiting
    records expire in time."""
    broker = start_broker()
    create(broker, topic)
    settings = {"buffer_memory": 3000, "max_block_ms": 300, "delivery_timeout_ms": 5000}
    with Producer(bootstrap_servers=broker.bootstrap, **settings) as producer:
        producer._network.want([topic])
        until("the topic is known, for which send() waits no longer", lambda: topic in producer._network.view.topics)
        assert producer.send(topic, b"").result(10).offset == 0
        broker.kill()
        waiting = [producer.send(topic, b"x" * 1400) for _ in range(2)]
        with pytest.raises(KafkaError, match=r"buffer_memory of 3000 bytes was full for 0\.3 s") as caught:
            producer.send(topic, b"x" * 1400)
        assert caught.value.retriable
        for delivery in waiting:
            error = delivery.exception(20)
            assert isinstance(error, KafkaError) and error.code == errors.REQUEST_TIMED_OUT
            assert "were not acknowledged within 5 s" in error.message


def test_a_broker_that_comes_back(start_broker: Callable[..., BrokerProcess], topic: str) -> None:
    """Records that are sent while the broker is killed and started again are stored once each, and in order."""
    broker = start_broker()
    create(broker, topic)
    with Producer(bootstrap_servers=broker.bootstrap, linger_ms=1, batch_size=2000) as producer:
        sent = []
        for n in range(3000):
            sent.append(producer.send(topic, b"%d" % n))
            if n in (1000, 2000):
                sent[500].result(30)
                broker.kill()
                broker.start()
        producer.flush(60)
        assert [delivery.result(0).offset for delivery in sent] == list(range(3000))
    assert [r.value for r in read_all(broker, topic, 3000)] == [b"%d" % n for n in range(3000)]


@pytest.mark.parametrize("how", [{}, {"acks": 1}, {"compression_type": "lz4"}], ids=["idempotent", "acks=1", "lz4"])
def test_batches_above_what_the_topic_takes(target: Server, topic: str, how: dict[str, Any]) -> None:
    """A batch above the topic's limit is split and sent in order; only a record that is too large alone is refused."""
    create(target, topic, config={"max.message.bytes": "2000"})
    values = [f"{n}-".encode() + random.randbytes(90) for n in range(300)]
    with Producer(bootstrap_servers=target.bootstrap, **how) as producer:
        sent = [producer.send(topic, value) for value in values]
        refused = producer.send(topic, random.randbytes(3000))
        last = producer.send(topic, b"last")
        producer.flush(WAIT_S)
        assert [delivery.result(0).offset for delivery in sent] == list(range(300))
        assert getattr(refused.exception(0), "code", None) == errors.MESSAGE_TOO_LARGE
        assert last.result(0).offset == 300
    assert [r.value for r in read_all(target, topic, 301)] == [*values, b"last"]


def test_a_new_epoch_overtakes_nothing() -> None:
    """A new epoch overtakes nothing: one batch is out of sequence, the next fails for a while, and both are sent again
    before later ones."""
    with BrokerHandle() as broker:
        broker.create_topic("t")
        settings = {"batch_size": 1, "max_in_flight_requests_per_connection": 2}
        with Producer(bootstrap_servers=broker.bootstrap_servers, **settings) as producer:
            producer.send("t", b"first").result(10)
            expected = [b"first"]
            for turn in range(10):
                broker.faults.fail("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER")
                broker.faults.fail("Produce", "KAFKA_STORAGE_ERROR")
                values = [b"%d %d" % (turn, n) for n in range(6)]
                for sent in [producer.send("t", value) for value in values]:
                    sent.result(30)
                expected += values
        assert [record.value for record in broker.records("t")] == expected


@pytest.mark.parametrize(("codec", "low", "high"), [("gzip", -1, 9), ("lz4", -1, 17), ("zstd", -131072, 22)])
def test_levels_that_a_codec_has(shared_broker: Server, topic: str, codec: Any, low: int, high: int) -> None:
    """An invalid compression level is refused by the constructor, and not by deliveries."""
    create(shared_broker, topic)
    made: dict[str, Any] = {"bootstrap_servers": shared_broker.bootstrap, "compression_type": codec}
    for level in (low, 0, 1, high):
        with Producer(**made, compression_level=level) as producer:
            producer.send(topic, b"x" * 1000).result(WAIT_S)
    for level in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"compression_level of {codec} is {low} to {high}, not {level}"):
            Producer(**made, compression_level=level)
