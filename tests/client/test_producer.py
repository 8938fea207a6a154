"""What a producer sends, and what becomes of it: against our broker and Apache Kafka."""

from __future__ import annotations

import pytest

import pybroker
from pybroker import errors
from pybroker.client.partitioner import murmur2, partition_for_key
from pybroker.client.producer import Delivery, Producer, RecordMetadata
from pybroker.config import ConfigError
from pybroker.errors import KafkaError
from tests.client.kit import create, read_all
from tests.harness import Server

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_sent_is_there(target: Server, topic: str, codec: str) -> None:
    """Keys, values, headers, tombstones and times are stored as they were given, with every codec."""
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
    """acks=0 tells no offset, as nobody answers; the record is stored all the same."""
    create(target, topic)
    with Producer(bootstrap_servers=target.bootstrap, acks=acks) as producer:
        delivery = producer.send(topic, b"1")
        producer.flush(10)
        assert delivery.result(0).offset == (-1 if acks == 0 else 0)
    assert [r.value for r in read_all(target, topic, 1)] == [b"1"]


def test_records_of_one_key_share_a_partition(target: Server, topic: str) -> None:
    """Keys decide by murmur2 as Java's producer does; without one, records spread over partitions batch by batch."""
    create(target, topic, partitions=4)
    with Producer(bootstrap_servers=target.bootstrap, linger_ms=0) as producer:
        by_key = [producer.send(topic, b"", key=f"key-{n}").result(10).partition for n in range(8)]
        spread = {producer.send(topic, b"").result(10).partition for _ in range(60)}
    assert by_key == [partition_for_key(b"key-%d" % n, 4) for n in range(8)]
    assert spread == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("key", "hash_"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_hash_of_keys_is_javas(key: bytes, hash_: int) -> None:
    """What Kafka's own tests expect of its murmur2."""
    assert murmur2(key) == hash_ & 0xFFFFFFFF


def test_a_callback_hears_the_outcome(target: Server, topic: str) -> None:
    """on_delivery is called once a record; one that fails, or is added late, harms nobody."""
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
    """A record without a key on a compacted topic is refused with the broker's code; others are not harmed."""
    create(target, topic, config={"cleanup.policy": "compact"})
    with Producer(bootstrap_servers=target.bootstrap) as producer:
        refused = producer.send(topic, b"no key")
        assert isinstance(refused.exception(10), KafkaError)
        with pytest.raises(KafkaError) as caught:
            refused.result(0)
        assert caught.value.code == errors.INVALID_RECORD and not caught.value.retriable and topic in str(caught.value)
        assert producer.send(topic, b"with a key", key=b"k").result(10).offset == 0


def test_partitions_that_are_not_there(target: Server, topic: str) -> None:
    """A partition beyond the last is refused at once, with the range; so is a topic whose name cannot be."""
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
    """One byte above max_request_size is refused before it is sent, with both numbers."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, max_request_size=1000) as producer:
        largest = 1000 - 21
        assert producer.send(topic, b"x" * largest).result(10).offset == 0
        with pytest.raises(KafkaError, match="1001 bytes, where max_request_size allows 1000") as caught:
            producer.send(topic, b"x" * (largest + 1))
        assert caught.value.code == errors.MESSAGE_TOO_LARGE
        with pytest.raises(TypeError, match="value is bytes, str or None, not int"):
            producer.send(topic, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
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
    """A wrong setting is told with what it takes, an unknown one with the nearest."""
    where = {} if not settings else {"bootstrap_servers": "127.0.0.1:1"}
    with pytest.raises(ConfigError, match=sentence):
        Producer(**where, **settings)


def test_nobody_is_there() -> None:
    """Without a broker, send() says so once max_block_ms has passed, and close() does not wait for it."""
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300) as producer,
        pytest.raises(KafkaError, match=r"no metadata of topic 't' .* could not reach 127\.0\.0\.1:1: .*refused"),
    ):
        producer.send("t", b"")
