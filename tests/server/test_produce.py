"""Produce: what is stored, what is refused with which code, and requests without an answer."""

from __future__ import annotations

import asyncio
import gzip
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from pybroker import core, errors
from pybroker.protocol import messages as m
from pybroker.protocol.compression import compress
from tests.marks import long
from tests.rows import with_each
from tests.server.live import BASE_MS, Live, Wire, batch, produce_data, values

pytestmark = pytest.mark.both_planes

CRC, ATTRIBUTES, LAST_DELTA, PRODUCER_ID, COUNT = 17, 21, 23, 43, 57


async def test_records_come_back_at_the_offsets_that_were_acknowledged(wire: Wire) -> None:
    await wire.create("t")
    for n in range(3):
        answer = await wire.produce("t", batch(b"a%d" % n, b"b%d" % n))
        assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2 * n, -1)
    found = await wire.fetch("t", 0)
    assert values(found.records) == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2"]
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (6, 6, 0)


async def test_by_topic_id(wire: Wire) -> None:
    """From v13 on a topic is named only by its id; an id that no topic has gets UNKNOWN_TOPIC_ID."""
    created = await wire.create("t")
    kind = m.ProduceRequest.TopicData
    data = [
        kind(topic_id=topic_id, partition_data=[kind.PartitionData(index=0, records=batch(b"v"))])
        for topic_id in (created.topic_id, b"\7" * 16)
    ]
    response = await wire.call("Produce", 13, acks=-1, timeout_ms=1000, topic_data=data)
    assert [r.topic_id for r in response.responses] == [created.topic_id, b"\7" * 16]
    codes = [r.partition_responses[0].error_code for r in response.responses]
    assert codes == [0, errors.UNKNOWN_TOPIC_ID]


async def test_each_partition_of_a_request_has_its_own_outcome(wire: Wire) -> None:
    await wire.create("t", 2)
    data = produce_data("t", {1: batch(b"b"), 7: batch(b"c"), 0: None, -1: batch(b"d")})
    response = await wire.call("Produce", 9, acks=1, timeout_ms=1000, topic_data=[*data, *produce_data("u", {0: b""})])
    outcome = [(p.index, p.error_code) for p in response.responses[0].partition_responses]
    assert outcome == [(1, 0), (7, 3), (0, errors.INVALID_RECORD), (-1, 3)]
    assert response.responses[1].partition_responses[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION


async def test_acks_0_is_not_answered(wire: Wire) -> None:
    """The next answer is the next request's, and the records are there."""
    await wire.create("t")
    for n in range(10):
        wire.send("Produce", 9, acks=0, timeout_ms=1000, topic_data=produce_data("t", {0: batch(b"%d" % n)}))
    assert len(values((await wire.fetch("t", 0)).records)) == 10


@pytest.mark.parametrize(
    "fields", [{"topic": "unknown"}, {"records": b"garbage that is no batch"}, {"acks": 0, "records": None}]
)
async def test_an_error_with_acks_0_closes_the_connection(wire: Wire, fields: dict[str, Any]) -> None:
    """The connection is closed, as a request without an answer has no other way to report an error."""
    await wire.create("t")
    data = produce_data(fields.get("topic", "t"), {0: fields.get("records", batch(b"v"))})
    wire.send("Produce", 9, acks=0, timeout_ms=1000, topic_data=data)
    assert await wire.closed()


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_acks_that_are_none(wire: Wire, acks: int) -> None:
    await wire.create("t")
    assert (await wire.produce("t", batch(b"v"), acks=acks)).error_code == errors.INVALID_REQUIRED_ACKS
    assert (await wire.fetch("t", 0)).high_watermark == 0


def sealed(data: bytes | bytearray) -> bytes:
    """The batch with its checksum corrected, so that only the test's change is wrong."""
    return bytes(data[:CRC]) + struct.pack(">I", core.crc32c(bytes(data[ATTRIBUTES:]))) + bytes(data[ATTRIBUTES:])


def patched(at: int, format_: str, value: int, *, seal: bool = True) -> Callable[[bytes], bytes]:
    def patch(data: bytes) -> bytes:
        changed = bytearray(data)
        struct.pack_into(format_, changed, at, value)
        return sealed(changed) if seal else bytes(changed)

    return patch


BAD = [
    pytest.param(lambda b: b[:-1], 2, id="cut"),
    pytest.param(lambda b: b[:30], 2, id="cut in the header"),
    pytest.param(lambda b: b + b"x", 87, id="trailing bytes"),
    pytest.param(lambda b: b + b, 87, id="two batches"),
    pytest.param(patched(CRC, ">I", 1, seal=False), 2, id="checksum"),
    pytest.param(patched(16, ">b", 0, seal=False), 43, id="magic 0"),
    pytest.param(patched(16, ">b", 1, seal=False), 43, id="magic 1"),
    pytest.param(patched(16, ">b", 3, seal=False), 2, id="magic 3"),
    pytest.param(patched(COUNT, ">i", -1), 87, id="negative count"),
    pytest.param(patched(COUNT, ">i", 2**31 - 1), 87, id="huge count"),
    pytest.param(patched(LAST_DELTA, ">i", 5), 87, id="last delta"),
    pytest.param(patched(ATTRIBUTES, ">h", 0x20), 87, id="control batch"),
    pytest.param(patched(ATTRIBUTES, ">h", 0x10), 87, id="transactional without producer"),
    pytest.param(patched(ATTRIBUTES, ">h", 0x08), 32, id="log append time"),
    pytest.param(patched(0, ">q", 7, seal=False), 87, id="base offset"),
    pytest.param(patched(8, ">i", -5, seal=False), 2, id="negative length"),
    pytest.param(patched(8, ">i", 2**31 - 1, seal=False), 2, id="huge length"),
]


@with_each(("spoil", "code"), BAD)
async def test_bad_batches_are_refused_and_nothing_is_appended(
    live: Live, spoil: Callable[[bytes], bytes], code: int
) -> None:
    """Each kind of damage has its own error code, never UNKNOWN_SERVER_ERROR; the connection goes on."""
    wire = await live.connect()
    topic = await wire.topic()
    answer = await wire.produce(topic, spoil(batch(b"value")))
    assert (answer.error_code, answer.base_offset) == (code, -1), answer.error_message
    assert (await wire.produce(topic, batch(b"good"))).base_offset == 0


async def test_a_transactional_batch_without_a_transactional_id(wire: Wire) -> None:
    """The batch is refused, whichever plane gets it."""
    await wire.create("t")
    records = batch(b"v", producer_id=7, producer_epoch=0, base_sequence=0, attributes=0x10)
    assert (await wire.produce("t", records)).error_code == errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_the_size_limit_and_one_byte_more(wire: Wire) -> None:
    size = len(batch(b"x" * 1000))
    await wire.create("t", max_message_bytes=str(size))
    assert (await wire.produce("t", batch(b"x" * 1000))).error_code == 0
    assert (await wire.produce("t", batch(b"x" * 1001))).error_code == errors.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [0, 1, 4], ids=["plain", "gzip", "zstd"])
async def test_a_size_limit_of_zero_closes_a_topic(live: Live, wire: Wire, codec: int) -> None:
    """No batch is accepted and existing records can be read; a broker's limit of 0 works the same way."""
    how: dict[str, Any] = {"attributes": codec, "compress": lambda data: compress(codec, data)} if codec else {}
    records = batch(b"v" * 100, **how)
    await wire.create("t")
    assert (await wire.produce("t", records)).error_code == 0
    await wire.create("closed", max_message_bytes="0")
    assert (await wire.produce("closed", records)).error_code == errors.MESSAGE_TOO_LARGE
    await live.restart("message.max.bytes=0")
    wire = await live.connect()
    assert (await wire.produce("t", records)).error_code == errors.MESSAGE_TOO_LARGE
    assert (await wire.fetch("t", 0)).high_watermark == 1


async def test_zstd_needs_a_version_that_knows_it(wire: Wire) -> None:
    await wire.create("t")
    records = batch(b"v" * 100, attributes=4, compress=lambda data: compress(4, data))
    assert (await wire.produce("t", records, version=6)).error_code == errors.UNSUPPORTED_COMPRESSION_TYPE
    assert (await wire.produce("t", records, version=7)).error_code == 0
    assert (await wire.fetch("t", 0, version=9)).error_code == 0  # the topic's own compression.type is not zstd


async def test_duplicates_of_the_last_five_batches_get_their_offsets(live: Live, wire: Wire) -> None:
    """Duplicates get their offsets after a restart too; an older batch or a gap gets OUT_OF_ORDER_SEQUENCE_NUMBER."""
    await wire.create("t")
    response = await wire.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1)
    who = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
    assert (response.error_code, response.producer_epoch) == (0, 0)
    for n in range(6):
        assert (await wire.produce("t", batch(b"v", base_sequence=n, **who))).base_offset == n
    for _ in range(2):
        for n in range(1, 6):
            answer = await wire.produce("t", batch(b"v", base_sequence=n, **who))
            assert (answer.error_code, answer.base_offset) == (0, n)
        for n in (0, 8):
            answer = await wire.produce("t", batch(b"v", base_sequence=n, **who))
            assert answer.error_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER
        await live.restart()
        wire = await live.connect()
    assert (await wire.fetch("t", 0)).high_watermark == 6


async def test_producer_ids_are_never_given_twice(live: Live, wire: Wire) -> None:
    """No two clients get the same producer id, at the same time or after a restart."""
    await wire.create("t")
    seen: set[int] = set()
    for _ in range(2):
        wires = [await live.connect() for _ in range(5)]
        calls = [w.call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=1) for w in wires]
        drawn = [response.producer_id for response in await asyncio.gather(*calls)]
        assert len(set(drawn)) == 5 and not seen & set(drawn)
        seen |= set(drawn)
        await live.restart()
    wire = await live.connect()
    empty = await wire.call("InitProducerId", 4, transactional_id="", transaction_timeout_ms=1000)
    assert empty.error_code == errors.INVALID_REQUEST


async def test_a_compacted_topic_wants_keys(wire: Wire) -> None:
    """The first record without a key is reported, compressed or not, and nothing is appended."""
    await wire.create("t", cleanup_policy="compact")
    for how in ({}, {"attributes": 1, "compress": gzip.compress}):
        records = core.build_batch([(BASE_MS, b"k", b"v", ()), (BASE_MS, None, b"v", ())], **how)  # type: ignore[arg-type]
        answer = await wire.produce("t", records)
        assert answer.error_code == errors.INVALID_RECORD
        assert [(e.batch_index, "key" in e.batch_index_error_message) for e in answer.record_errors] == [(1, True)]
    assert (await wire.produce("t", batch(b"v", key=b"k"))).base_offset == 0


async def test_timestamps_within_the_topics_limits(wire: Wire) -> None:
    await wire.create("t", message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    now = time.time_ns() // 1_000_000
    assert (await wire.produce("t", batch(b"v", timestamp_ms=now))).error_code == 0
    for wrong in (now - 100_000, now + 100_000):
        answer = await wire.produce("t", batch(b"v", timestamp_ms=wrong))
        assert answer.error_code == errors.INVALID_TIMESTAMP
        assert [e.batch_index for e in answer.record_errors] == [0]


async def test_log_append_time(wire: Wire) -> None:
    """The broker's time replaces the producer's, in the answer and in the batch."""
    await wire.create("t", message_timestamp_type="LogAppendTime")
    before = time.time_ns() // 1_000_000
    answer = await wire.produce("t", batch(b"v"))
    assert before <= answer.log_append_time_ms <= before + 10_000
    header = core.check_batch(bytes((await wire.fetch("t", 0)).records))
    assert header.is_log_append_time and header.max_timestamp == answer.log_append_time_ms


@with_each("stored", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
@with_each("sent", range(5))
async def test_a_topics_codec_wins(live: Live, stored: str, sent: int) -> None:
    """Batches in any codec are stored in the topic's codec, with the same records."""
    wire = await live.connect()
    topic = await wire.topic(compression_type=stored)
    squeeze = {"attributes": sent, "compress": lambda data: compress(sent, data)} if sent else {}
    assert (await wire.produce(topic, batch(b"a" * 100, b"b", **squeeze))).error_code == 0  # type: ignore[arg-type]
    data = bytes((await wire.fetch(topic, 0)).records)
    header = core.check_batch(data)
    assert header.codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(stored)
    from pybroker.protocol.compression import decompress

    plain = decompress(header.codec, data[61:], 1 << 20)
    assert [record[3] for record in core.walk_records(plain, header)] == [b"a" * 100, b"b"]


@pytest.mark.parametrize("codec", [long(1), 2, long(3), 4])
async def test_a_decompression_bomb_is_refused_while_others_are_served(live: Live, wire: Wire, codec: int) -> None:
    """A batch that decompresses to 300 MB is refused; the event loop answers another client meanwhile."""
    await wire.create("bomb", compression_type="uncompressed", max_message_bytes="20000000")
    await wire.create("t")
    if codec == 4:  # a batch with its size in the header is refused at once
        payload = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(300_000_000))
    else:
        payload = compress(codec, bytes(300_000_000))
    records = batch(b"v", attributes=codec, compress=lambda _: payload)
    other = await live.connect()
    wire.send("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data("bomb", {0: records}))
    refusal = asyncio.create_task(wire.receive("Produce", 9))
    answered = 0
    while not refusal.done():
        await other.call("ApiVersions", 2)
        answered += 1
    _, response = await refusal
    [answer] = response.responses[0].partition_responses
    assert answer.error_code in (errors.MESSAGE_TOO_LARGE, errors.CORRUPT_MESSAGE)
    assert answered > 5  # with decompression on the event loop there are two answers, one before and one after


async def test_garbage_behind_a_codec_is_refused_for_good(wire: Wire) -> None:
    """Data that the codec did not write gets INVALID_RECORD: with CORRUPT_MESSAGE a client would send it again."""
    await wire.create("t", compression_type="uncompressed")
    for codec in range(1, 5):
        records = batch(b"v", attributes=codec, compress=lambda _: b"\xff\x00garbage" * 10)
        assert (await wire.produce("t", records)).error_code == errors.INVALID_RECORD
    assert (await wire.produce("t", batch(b"good"))).base_offset == 0


async def test_requests_of_one_connection_are_appended_in_order(wire: Wire) -> None:
    """Requests of one connection are appended in order, also where a thread must recompress some of them."""
    await wire.create("plain")
    await wire.create("worked", compression_type="gzip")
    for n in range(60):
        topic = "worked" if n % 3 == 0 else "plain"
        wire.send("Produce", 9, acks=1, timeout_ms=1000, topic_data=produce_data(topic, {0: batch(b"%d" % n)}))
    for _ in range(60):
        _, response = await wire.receive("Produce", 9)
        assert response.responses[0].partition_responses[0].error_code == 0
    sent = [b"%d" % n for n in range(60)]
    assert values((await wire.fetch("plain", 0)).records) == [v for n, v in enumerate(sent) if n % 3]


async def test_flush_messages_makes_every_append_durable(live: Live, wire: Wire) -> None:
    """With flush.messages=1 every acknowledged record is on disk."""
    await wire.create("t", flush_messages="1")
    await wire.produce("t", batch(b"a", b"b"))
    assert live.broker is not None and live.broker.replicas is not None
    replica = live.broker.replicas.leader("t", 0)
    assert replica.partition().durable_offset == 2
