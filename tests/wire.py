"""Kafka's wire format by hand: one socket, a few requests and record batches written byte by byte.

It does not use pybroker's codec, so that tests find mistakes there. It can send what no client library would: wrong
lengths, wrong checksums, sequences out of order. Layouts: Kafka protocol guide; batches: KIP-98.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.harness import HOST

PRODUCE, FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR = 0, 1, 2, 3, 10
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 18, 19, 20, 21, 22
ANSWER_S_MAX = 15.0

# -- record batches: magic 2 ---------------------------------------------------------------------------------------

HEAD = struct.Struct(">qiib")  # base offset, length of what follows it, leader epoch, magic
CRC_AT, ATTRIBUTES_AT = HEAD.size, HEAD.size + 4
TAIL = struct.Struct(
    ">hiqqqhii"
)  # attributes, last offset delta, base and max timestamp, producer id, epoch, sequence, count
BATCH_OVERHEAD = ATTRIBUTES_AT + TAIL.size
BASE_MS = int(time.time() * 1000)
"""A timestamp of today, so that retention keeps the records."""

_CRC_TABLE = []
for _n in range(256):
    for _ in range(8):
        _n = _n >> 1 ^ (0x82F63B78 if _n & 1 else 0)
    _CRC_TABLE.append(_n)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def varint(n: int) -> bytes:
    """Encode a zigzag varint, as records use it."""
    n = n << 1 if n >= 0 else (-n << 1) - 1
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(value: bytes | None, key: bytes | None = None, delta: int = 0, timestamp_delta: int = 0) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(delta) + nullable(key) + nullable(value) + varint(0)
    return varint(len(body)) + body


def batch(
    values: Sequence[bytes | None],
    *,
    key: bytes | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    sequence: int = -1,
    payload: bytes | None = None,
    last_offset_delta: int | None = None,
    count: int | None = None,
    magic: int = 2,
    base_offset: int = 0,
    base_ms: int = BASE_MS,
) -> bytes:
    """A batch with a right checksum; each header field can be set to another value than the records imply."""
    payload = b"".join(record(v, key, i) for i, v in enumerate(values)) if payload is None else payload
    last = len(values) - 1 if last_offset_delta is None else last_offset_delta
    number = len(values) if count is None else count
    tail = TAIL.pack(attributes, last, base_ms, base_ms, producer_id, producer_epoch, sequence, number) + payload
    head = HEAD.pack(base_offset, len(tail) + 9, -1, magic)
    return head + struct.pack(">I", crc32c(tail)) + tail


class Batch(NamedTuple):
    """A batch from a response, with the fields that tests check."""

    base_offset: int
    attributes: int
    last_offset_delta: int
    max_timestamp_ms: int
    producer_id: int
    base_sequence: int
    count: int
    data: bytes

    @property
    def end(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def batches(data: bytes) -> list[Batch]:
    """The whole batches in data, each checked; a partial one at the end is left out, as clients do."""
    found, at = [], 0
    while len(data) - at >= BATCH_OVERHEAD:
        base_offset, length, _, magic = HEAD.unpack_from(data, at)
        if len(data) - at < 12 + length:
            break
        whole = data[at : at + 12 + length]
        assert magic == 2
        assert crc32c(whole[ATTRIBUTES_AT:]) == int.from_bytes(whole[CRC_AT:ATTRIBUTES_AT], "big"), f"bad CRC at {at}"
        attributes, last, _, max_ms, producer, _, sequence, count = TAIL.unpack_from(whole, ATTRIBUTES_AT)
        found.append(Batch(base_offset, attributes, last, max_ms, producer, sequence, count, whole))
        at += 12 + length
    return found


# -- requests and answers ---------------------------------------------------------------------------------------------


def string(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text.encode())) + text.encode()


def array(items: Iterable[bytes]) -> bytes:
    listed = list(items)
    return struct.pack(">i", len(listed)) + b"".join(listed)


class Reader:
    """A reader of an answer, from front to back."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(">" + layout, self.data, self.at)
        self.at += struct.calcsize(">" + layout)
        return values

    def int(self, layout: str) -> int:
        return int(self.take(layout)[0])

    def bytes(self, length: int) -> bytes:
        self.at += max(length, 0)
        return self.data[self.at - max(length, 0) : self.at]

    def string(self) -> str:
        return self.bytes(self.int("h")).decode()


class Produced(NamedTuple):
    error: int
    base_offset: int
    append_ms: int
    log_start: int


class Fetched(NamedTuple):
    error: int
    high_watermark: int
    log_start: int
    data: bytes


class Wire:
    """One connection that sends exactly its arguments and returns exactly the answers."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), ANSWER_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, api: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        """A request with its size and header; flexible adds the header's tag section."""
        self._correlation += 1
        head = struct.pack(">hhi", api, version, self._correlation) + string("wire") + (b"\0" if flexible else b"")
        return struct.pack(">i", len(head) + len(body)) + head + body

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> bytes:
        """Receive the next answer, without its size; ConnectionError if the broker closed instead."""
        (length,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            chunk = self.socket.recv(min(length - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError(f"closed after {len(data)} of {length} bytes")
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Wait for the broker to close; False if it sends something instead. TimeoutError if it does neither."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def call(self, api: int, version: int, body: bytes) -> Reader:
        self.send(self.frame(api, version, body))
        answer = Reader(self.receive())
        assert answer.int("i") == self._correlation, "the answer is not to this request"
        return answer

    def produce_frame(self, topic: str, records: bytes | None, partition: int = 0, acks: int = -1) -> bytes:
        data = struct.pack(">i", -1) if records is None else struct.pack(">i", len(records)) + records
        partitions = array([struct.pack(">i", partition) + data])
        return self.frame(
            PRODUCE, 7, string(None) + struct.pack(">hi", acks, 10_000) + array([string(topic) + partitions])
        )

    def produced(self) -> Produced:
        answer = Reader(self.receive())
        answer.take("ii")  # correlation id, one topic
        answer.string()
        answer.take("ii")  # one partition, its index
        return Produced(*answer.take("hqqq"))

    def produce(self, topic: str, records: bytes | None, partition: int = 0, acks: int = -1) -> Produced:
        self.send(self.produce_frame(topic, records, partition, acks))
        return self.produced()

    def fetch(
        self, topic: str, offset: int, partition: int = 0, *, max_wait_ms: int = 500, partition_bytes: int = 1 << 20
    ) -> Fetched:
        """Send a Fetch version 10, without a session."""
        asked = struct.pack(">iiqqi", partition, -1, offset, -1, partition_bytes)
        limits = struct.pack(">iiiibii", -1, max_wait_ms, 1, 50 << 20, 0, 0, -1)
        answer = self.call(FETCH, 10, limits + array([string(topic) + array([asked])]) + array([]))
        _, top_error, _, _ = answer.take("ihii")  # throttle, error, session, one topic
        assert top_error == 0
        answer.string()
        _, _, error, high_watermark, _, log_start = answer.take("iihqqq")
        answer.bytes(16 * max(answer.int("i"), 0))  # aborted transactions
        return Fetched(error, high_watermark, log_start, answer.bytes(answer.int("i")))

    def fetch_all(self, topic: str, start: int = 0, partition: int = 0) -> list[Batch]:
        """Fetch every batch from an offset to the high watermark."""
        found: list[Batch] = []
        while True:
            fetched = self.fetch(topic, start, partition, max_wait_ms=0)
            assert fetched.error == 0, f"error {fetched.error} at {start}"
            if start >= fetched.high_watermark:
                return found
            found += batches(fetched.data)
            start = found[-1].end

    def list_offset(self, topic: str, timestamp: int, partition: int = 0) -> tuple[int, int, int]:
        """The (error, timestamp, offset) of ListOffsets version 1; timestamp -1 asks for the end, -2 for the start."""
        asked = string(topic) + array([struct.pack(">iq", partition, timestamp)])
        answer = self.call(LIST_OFFSETS, 1, struct.pack(">i", -1) + array([asked]))
        answer.take("i")
        answer.string()
        _, _, error, found_ms, offset = answer.take("iihqq")
        return error, found_ms, offset

    def init_producer_id(self) -> tuple[int, int, int]:
        """The (error, producer id, epoch) of InitProducerId version 0."""
        _, error, producer_id, epoch = self.call(INIT_PRODUCER_ID, 0, string(None) + struct.pack(">i", 0)).take("ihqh")
        return error, producer_id, epoch

    def create_topic(self, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> int:
        """The error code of CreateTopics version 2."""
        settings = array(string(name) + string(value) for name, value in (config or {}).items())
        asked = string(topic) + struct.pack(">ih", partitions, 1) + array([]) + settings
        answer = self.call(CREATE_TOPICS, 2, array([asked]) + struct.pack(">i?", 30_000, False))
        answer.take("ii")
        answer.string()
        return answer.int("h")

    def delete_topic(self, topic: str) -> int:
        """The error code of DeleteTopics version 1."""
        answer = self.call(DELETE_TOPICS, 1, array([string(topic)]) + struct.pack(">i", 30_000))
        answer.take("ii")  # throttle, one topic
        answer.string()
        return answer.int("h")

    def delete_records(self, topic: str, before: int, partition: int = 0) -> tuple[int, int]:
        """The (error, new start) of DeleteRecords version 0."""
        asked = string(topic) + array([struct.pack(">iq", partition, before)])
        answer = self.call(DELETE_RECORDS, 0, array([asked]) + struct.pack(">i", 30_000))
        answer.take("ii")
        answer.string()
        _, _, low, error = answer.take("iiqh")
        return error, low

    def api_versions(self) -> dict[int, tuple[int, int]]:
        """The {api key: (lowest, highest version)} that the broker offers, by ApiVersions version 0."""
        answer = self.call(API_VERSIONS, 0, b"")
        assert answer.int("h") == 0
        listed = [answer.take("hhh") for _ in range(answer.int("i"))]
        return {key: (low, high) for key, low, high in listed}

    def metadata(self) -> tuple[list[int], dict[str, list[int]]]:
        """The (broker ids, {topic: leader of each partition}) of all topics, by Metadata version 1."""
        answer = self.call(METADATA, 1, struct.pack(">i", -1))
        ids, leaders = [], {}
        for _ in range(answer.int("i")):
            ids.append(answer.int("i"))
            answer.string()
            answer.take("i")
            answer.bytes(answer.int("h"))  # rack
        answer.take("i")  # controller
        for _ in range(answer.int("i")):
            answer.take("h")
            topic = answer.string()
            answer.take("b")  # internal
            leaders[topic] = [0] * answer.int("i")
            for _ in leaders[topic]:
                _, partition, leader = answer.take("hii")
                leaders[topic][partition] = leader
                for _ in ("replicas", "in sync"):
                    answer.bytes(4 * answer.int("i"))
        return ids, leaders
