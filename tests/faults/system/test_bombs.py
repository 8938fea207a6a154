"""Decompression bombs and invalid topic names do no harm."""

from __future__ import annotations

import functools
import gzip
import struct
import threading
import zlib

import lz4.frame
import pytest
import zstandard

from tests.faults.system.test_frames import resident_kb
from tests.harness import BrokerProcess, until
from tests.marks import long
from tests.wire import METADATA, Wire, array, batch, record, string

BOMB_BYTES = 512 << 20
INVALID_TOPIC, TOPIC_ALREADY_EXISTS = 17, 36
REFUSED = {2, 10, 87}
GZIP, LZ4, ZSTD = 1, 3, 4


@functools.cache
def gzip_bomb() -> bytes:
    """Half a gigabyte of zeros in two megabytes, compressed in pieces."""
    packer = zlib.compressobj(1, wbits=31)
    chunk = bytes(1 << 20)
    return b"".join(packer.compress(chunk) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


@functools.cache
def zstd_bomb() -> bytes:
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    chunk = bytes(1 << 20)
    return b"".join(packer.compress(chunk) for _ in range(BOMB_BYTES >> 20)) + packer.flush()


@functools.cache
def lz4_bomb() -> bytes:
    with lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB, block_linked=False) as packer:
        parts = [packer.begin()]
        chunk = bytes(4 << 20)
        parts += [packer.compress(chunk) for _ in range(16)]  # lz4 compresses by 255 : 1 at most
        return b"".join([*parts, packer.flush()])


BOMBS = {"gzip": (GZIP, gzip_bomb), "lz4": (LZ4, lz4_bomb), "zstd": (ZSTD, zstd_bomb)}
CONFIGS = {"plain": {}, "keys": {"cleanup.policy": "compact"}, "codec": {"compression.type": "snappy"}}
PAIRS = [
    long("gzip", "plain"), long("gzip", "keys"), ("gzip", "codec"),
    ("lz4", "plain"), long("lz4", "keys"), ("lz4", "codec"),
    ("zstd", "plain"), long("zstd", "keys"), ("zstd", "codec"),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "config"), PAIRS)
def test_a_decompression_bomb_is_refused(shared_broker: BrokerProcess, topic: str, codec: str, config: str) -> None:
    """A decompression bomb is refused within bounded memory, and other clients are answered meanwhile."""
    number, make = BOMBS[codec]
    bomb = batch([b"x"], attributes=number, payload=make())
    answered, done = [0], threading.Event()

    def watch() -> None:
        with Wire(shared_broker.port) as w:
            while not done.is_set():
                w.api_versions()
                answered[0] += 1

    with Wire(shared_broker.port) as w:
        assert w.create_topic(topic, config={"max.message.bytes": str(8 << 20), **CONFIGS[config]}) == 0
        before_kb = resident_kb(shared_broker)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            produced = [w.produce(topic, bomb) for _ in range(8)]
            served = answered[0]
        finally:
            done.set()
            watcher.join()
        assert {p.error for p in produced} <= REFUSED
        assert w.list_offset(topic, -1)[2] == 0
    assert resident_kb(shared_broker) - before_kb < 300_000
    # An event loop that decompresses by itself would answer twice between two bombs; there is time for hundreds.
    assert served > 20


def test_a_bomb_is_a_batch_like_any_other_where_nobody_looks(shared_broker: BrokerProcess, topic: str) -> None:
    """With record.validation=envelope a bomb is stored as it came, and the broker's memory does not grow."""
    bomb = batch([b"x"], attributes=GZIP, payload=gzip_bomb())
    with Wire(shared_broker.port) as w:
        config = {"max.message.bytes": str(8 << 20), "record.validation": "envelope"}
        assert w.create_topic(topic, config=config) == 0
        before_kb = resident_kb(shared_broker)
        assert w.produce(topic, bomb)[:2] == (0, 0)
        assert w.fetch(topic, 0).data == bomb[:12] + b"\0\0\0\0" + bomb[16:]
        assert resident_kb(shared_broker) - before_kb < 50_000


def test_what_honest_clients_compress_is_no_bomb(shared_broker: BrokerProcess, topic: str) -> None:
    """A thousand similar records that compress a hundredfold are accepted."""
    payload = b"".join(record(b"the same again " * 20, b"k", i) for i in range(1000))
    packed = batch([b""] * 1000, attributes=GZIP, payload=gzip.compress(payload))
    assert len(payload) > 50 * len(packed)
    with Wire(shared_broker.port) as w:
        assert w.create_topic(topic, config={"cleanup.policy": "compact"}) == 0
        assert w.produce(topic, packed)[:2] == (0, 0)
        assert w.list_offset(topic, -1)[2] == 1000


NAMES = [
    "",
    ".",
    "..",
    "a/b",
    "/",
    "../up",
    "../../etc/x",
    "a" * 250,
    "nul\0nul",
    "space bar",
    "ünïcode",
    "back\\slash",
    "a\nb",
    "x*",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_topics_cannot_have(broker: BrokerProcess, name: str) -> None:
    """An invalid topic name is refused in create, metadata, produce, fetch and delete requests."""
    before = sorted(broker.data_dir.parent.rglob("*"))
    with Wire(broker.port) as w:
        assert w.create_topic(name) == INVALID_TOPIC
        answer = w.call(METADATA, 1, array([string(name)]))
        assert answer.data.count(struct.pack(">h", INVALID_TOPIC) + string(name)) == 1
        assert w.produce(name, batch([b"x"])).error in (3, INVALID_TOPIC)
        assert w.fetch(name, 0, max_wait_ms=0).error in (3, INVALID_TOPIC)
        assert w.delete_topic(name) in (3, INVALID_TOPIC)
        assert w.metadata()[1] == {}
    assert sorted(broker.data_dir.parent.rglob("*")) == before


def test_the_longest_name_and_odd_ones_that_are_allowed(broker: BrokerProcess) -> None:
    """Names of 249 characters, dots and dashes, and names that look like partitions or like our files are allowed."""
    names = ["a" * 249, "...", "-", "_", "topic-0", "a-1-2", "meta.properties", "x.-delete", "0"]
    with Wire(broker.port) as w:
        for name in names:
            assert w.create_topic(name) == 0, name
            assert w.produce(name, batch([name.encode()]))[:2] == (0, 0)
    broker.kill()
    broker.restart()
    with Wire(broker.port) as w:
        assert sorted(w.metadata()[1]) == sorted(names)
        for name in names:
            assert name.encode() in w.fetch_all(name)[0].data
            assert w.delete_topic(name) == 0
        until("all connections are closed", lambda: w.metadata()[1] == {})
    broker.stop()
    broker.restart()
    with Wire(broker.port) as w:
        assert w.metadata()[1] == {}
