"""Consumers read exactly what producers send: codecs, keys, headers, acks, sizes, timestamps, order."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests import wire
from tests.brokers.server import ThreeBrokers
from tests.clients.adapters.neutral import CODECS, Client, Record, Refused
from tests.clients.conftest import CLIENTS
from tests.harness import Server

MESSAGE_TOO_LARGE, INVALID_RECORD = 10, 87
START_MS = int(time.time() * 1000) - 3_600_000

VARIED = [
    Record(b"plain", timestamp_ms=START_MS),
    Record(b"keyed", b"key", timestamp_ms=START_MS + 1),
    Record(b"headed", b"k", (("one", b"1"), ("two", b""), ("naïve ключ", b"\x00\xff")), START_MS + 2),
    Record(b"", b"", timestamp_ms=START_MS + 3),
    Record(None, b"a tombstone", timestamp_ms=START_MS + 4),
    Record(b"a" * 10_000, b"b" * 1_000, (("same", b"1"), ("same", b"2")), START_MS + 6),
    Record(bytes(range(256)) * 8, timestamp_ms=START_MS + 7),
]
"""Records of every kind: null is not empty, header names may repeat and are Unicode, values are any bytes."""


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_brings_back_what_was_sent(client: Client, topic: str, codec: str) -> None:
    """Records of every codec come back unchanged at the acknowledged offsets, with keys, headers, nulls and timestamps,
    in all clients."""
    sent = [r._replace(value=r.value and r.value + b" %d" % i) for i in range(50) for r in VARIED]
    client.create_topic(topic)
    offsets = client.send_all(topic, sent, codec=codec)
    assert offsets == list(range(len(sent)))
    for reader in CLIENTS.values():
        other = reader(client.bootstrap)
        try:
            read = other.read(topic, len(sent))
        finally:
            other.close()
        assert [r.content for r in read] == [r.content for r in sent]
        assert [r.timestamp_ms for r in read] == [r.timestamp_ms for r in sent]
        assert [r.offset for r in read] == offsets


@pytest.mark.parametrize("codec", CODECS)
def test_the_codec_is_kept_in_the_log(client: Client, target: Server, topic: str, codec: str) -> None:
    """The log keeps the producer's codec with compression.type=producer."""
    with wire.Wire(target.port) as w:
        coordinates = wire.FIND_COORDINATOR in w.api_versions()
    if client.name == "confluent-kafka" and codec == "lz4" and not coordinates:
        pytest.skip("librdkafka takes a broker without FindCoordinator for one too old for lz4, and sends none")
    client.create_topic(topic)
    client.send_all(topic, [Record(b"the same old story " * 20)] * 20, codec=codec)
    with wire.Wire(target.port_of(topic)) as w:
        found = w.fetch_all(topic)
    assert {b.attributes & 7 for b in found} == {CODECS.index(codec)}


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_with_a_codec_of_its_own_stores_in_it(client: Client, target: Server, topic: str, codec: str) -> None:
    """A topic's compression.type wins over the producer's codec; the records are the same."""
    stored = {"none": "uncompressed"}.get(codec, codec)
    sent_in = "gzip" if codec == "none" else "none"
    client.create_topic(topic, config={"compression.type": stored})
    client.send_all(topic, VARIED, codec=sent_in)
    with wire.Wire(target.port_of(topic)) as w:
        assert {b.attributes & 7 for b in w.fetch_all(topic)} == {CODECS.index(codec)}
    assert [r.content for r in client.read(topic, len(VARIED))] == [r.content for r in VARIED]


@pytest.mark.on_cluster
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(client: Client, target: Server, topic: str, acks: int | str) -> None:
    """acks=0 gets no answer and no offset, acks=1 and all get the offset; the records are there."""
    client.create_topic(topic)
    if acks == 0 and isinstance(target, ThreeBrokers):
        target.cluster.until_in_sync(topic)  # with acks=0, a leader without the newest metadata may drop records
    offsets = client.send_all(topic, [Record(b"%d" % i) for i in range(100)], acks=acks)
    assert offsets == ([-1] * 100 if acks == 0 else list(range(100)))
    assert [r.value for r in client.read(topic, 100)] == [b"%d" % i for i in range(100)]


@pytest.mark.on_cluster
def test_partitions_keep_their_order(client: Client, topic: str) -> None:
    """Each partition keeps its order when records go to several in turn, with its own offsets."""
    client.create_topic(topic, partitions=5)
    sent = [Record(b"%d" % i, partition=i % 5) for i in range(1000)]
    offsets = client.send_all(topic, sent)
    assert offsets == [i // 5 for i in range(1000)]
    for p in range(5):
        assert [r.value for r in client.read(topic, 200, partition=p)] == [b"%d" % i for i in range(p, 1000, 5)]
        assert client.offsets(topic, p) == (0, 200)


@pytest.mark.on_cluster
def test_an_idempotent_producer_writes_each_record_once(client: Client, target: Server, topic: str) -> None:
    """An idempotent producer's batches carry a producer id and sequences without a gap."""
    client.create_topic(topic)
    sent = [Record(b"%d" % i) for i in range(500)]
    assert client.send_all(topic, sent, idempotent=True, batch_bytes=512) == list(range(500))
    with wire.Wire(target.port_of(topic)) as w:
        found = w.fetch_all(topic)
    assert len({b.producer_id for b in found}) == 1
    assert found[0].producer_id >= 0
    assert [b.base_sequence for b in found] == [b.base_offset for b in found]
    assert [r.value for r in client.read(topic, 500)] == [r.value for r in sent]


def test_two_idempotent_producers_have_two_ids(client: Client, target: Server, topic: str) -> None:
    """Two idempotent producers have two ids: InitProducerId never returns the same id twice."""
    client.create_topic(topic)
    for _ in range(3):
        client.send_all(topic, [Record(b"x")], idempotent=True)
    with wire.Wire(target.port_of(topic)) as w:
        assert len({b.producer_id for b in w.fetch_all(topic)}) == 3


def value_for(batch_bytes: int) -> bytes:
    """A value whose batch, alone and without key and headers, has exactly this size."""
    length = batch_bytes - wire.BATCH_OVERHEAD
    too_much = wire.BATCH_OVERHEAD + len(wire.record(b"v" * length)) - batch_bytes
    value = b"v" * (length - too_much)
    assert wire.BATCH_OVERHEAD + len(wire.record(value)) == batch_bytes
    return value


@pytest.mark.parametrize("limit", [5_000, 1_048_588, 4_000_000])
def test_max_message_bytes_is_exact(client: Client, topic: str, limit: int) -> None:
    """max.message.bytes is exact: a batch of that size is accepted, one byte more is MESSAGE_TOO_LARGE. Large batches
    can be read."""
    client.create_topic(topic, config={} if limit == 1_048_588 else {"max.message.bytes": str(limit)})
    largest = value_for(limit)
    with pytest.raises(Refused) as refused:
        client.send_all(topic, [Record(largest + b"v")])
    assert refused.value.code == MESSAGE_TOO_LARGE
    assert client.send_all(topic, [Record(largest)]) == [0]
    assert client.send_all(topic, [Record(b"small")]) == [1]
    assert [r.value for r in client.read(topic, 2)] == [largest, b"small"]


def test_log_append_time_is_the_brokers(client: Client, topic: str) -> None:
    """message.timestamp.type=LogAppendTime replaces the producer's timestamps with the broker's clock."""
    client.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    client.send_all(topic, [Record(b"x", timestamp_ms=START_MS)] * 3)
    after = int(time.time() * 1000)
    stamps = {r.timestamp_ms for r in client.read(topic, 3)}
    assert all(before <= stamp <= after for stamp in stamps if stamp is not None), (before, stamps, after)
    assert None not in stamps


def test_a_compacted_topic_wants_keys(client: Client, topic: str) -> None:
    """A compacted topic requires keys: a record without one is INVALID_RECORD, and nothing of its batch is written."""
    client.create_topic(topic, config={"cleanup.policy": "compact"})
    for codec in ("none", "lz4"):
        with pytest.raises(Refused) as refused:
            client.send_all(topic, [Record(b"keyless")], codec=codec)
        assert refused.value.code == (-1 if client.name == "aiokafka" else INVALID_RECORD)  # aiokafka lacks the code
    assert client.offsets(topic) == (0, 0)
    assert client.send_all(topic, [Record(b"v", b"k"), Record(None, b"k")], codec="lz4") == [0, 1]


@pytest.mark.on_cluster
def test_a_missing_topic_is_made_when_a_producer_asks(client: Client, topic: str) -> None:
    """A missing topic is created by a producer's first metadata request with auto.create.topics.enable, with
    num.partitions."""
    assert client.send_all(topic, [Record(b"first")]) == [0]
    assert client.topics()[topic] == [0]
    assert [r.value for r in client.read(topic, 1)] == [b"first"]


def test_no_topic_is_made_where_the_broker_forbids_it(
    start_broker: Callable[..., Server], connect: Callable[[Server], Client], topic: str
) -> None:
    """No topic is created with auto.create.topics.enable=false: the client keeps asking, and the broker keeps
    refusing."""
    client = connect(start_broker(sets={"auto.create.topics.enable": "false"}))
    client.create_topic(topic)
    with client.producer() as producer:
        missing = producer.send(topic, Record(b"x"))
        producer.flush()
        assert missing.result(0) == 0
    assert client.topics() == {topic: [0]}
