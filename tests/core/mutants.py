"""Produce and Fetch requests as lists of typed pieces, and ways to spoil them as a hostile client would.

    pieces = produce(rng, 9); spoil(pieces, rng); frame = joined(pieces)

A piece is a number of some width, a length or a count, a section of tags, or bytes. How a piece is spoiled depends on
its kind: a length becomes a false one, a varint gets too many bytes, a tag section gets a thousand tags. Pieces are
also dropped or repeated. This reaches every field of every version. Random bytes would not: they fail at the first
length.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import NamedTuple

from pybroker import core

PRODUCE, FETCH = 0, 1
VERSIONS = {PRODUCE: range(3, 14), FETCH: range(4, 18)}
FLEXIBLE = {PRODUCE: 9, FETCH: 12}
IDS = 13
WIDTHS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q", "len16": ">h", "len32": ">i"}
ATTRIBUTES_AT, CRC_AT, HEADER_BYTES = 21, 17, 61
HEADER_FIELDS = {0: ">q", 8: ">i", 12: ">i", 16: ">b", 21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 51: ">h",
                 53: ">i", 57: ">i"}  # fmt: skip
"""Fields of a batch header by offset: base offset, length, leader epoch, magic, attributes, last offset delta, base and
largest timestamp, producer id and epoch, base sequence, count."""


class Piece(NamedTuple):
    kind: str  # a name of WIDTHS, or uvar, tags, batch, raw
    data: bytes


def number(kind: str, value: int) -> Piece:
    return Piece(kind, struct.pack(WIDTHS[kind], value))


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


# -- good requests ---------------------------------------------------------------------------------------------------


class Request:
    """The pieces of one request; `flexible` uses compact lengths and tag sections."""

    def __init__(self, api: int, version: int, correlation: int) -> None:
        self.version = version
        self.flexible = version >= FLEXIBLE[api]
        self.pieces: list[Piece] = []
        self.put("i16", api, "i16", version, "i32", correlation, "len16", 1)
        self.pieces.append(Piece("raw", b"c"))
        self.tags()

    def put(self, *what: object) -> None:
        """Add pieces, given as kinds and values in turn."""
        for kind, value in zip(what[::2], what[1::2], strict=True):
            self.pieces.append(number(str(kind), int(str(value))))

    def tags(self) -> None:
        if self.flexible:
            self.pieces.append(Piece("tags", b"\0"))

    def length(self, n: int, short: bool = False) -> None:
        """Add the length of an array or bytes, or of a string (short); -1 is null."""
        if self.flexible:
            self.pieces.append(Piece("uvar", uvarint(n + 1)))
        else:
            self.put("len16" if short else "len32", n)

    def text(self, data: bytes | None) -> None:
        self.length(-1 if data is None else len(data), short=True)
        self.pieces.append(Piece("raw", data or b""))

    def topic(self, name: bytes, topic_id: bytes) -> None:
        if self.version >= IDS:
            self.pieces.append(Piece("raw", topic_id))
        else:
            self.text(name)


def produce(
    rng: random.Random, version: int, name: bytes, topic_id: bytes, correlation: int = 1, *, plain: bool = False
) -> list[Piece]:
    """Build a Produce of one or two topics with one to three partitions each. Plain: acks=1, not idempotent."""
    q = Request(PRODUCE, version, correlation)
    q.text(None)
    q.put("i16", 1 if plain else rng.choice([1, 1, -1, 0]), "i32", 1000)
    topics = rng.choice([1, 1, 2])
    q.length(topics)
    for _ in range(topics):
        q.topic(name, topic_id)
        partitions = rng.choice([1, 1, 2, 3])
        q.length(partitions)
        for _ in range(partitions):
            q.put("i32", rng.randrange(2))
            data = a_batch(rng, plain)
            q.length(len(data))
            q.pieces.append(Piece("batch", data))
            q.tags()
        q.tags()
    q.tags()
    return q.pieces


def a_batch(rng: random.Random, plain: bool = False) -> bytes:
    count = rng.randint(1, 4)
    records = [(1000 + n, rng.choice([None, b"k"]), rng.randbytes(rng.randrange(40)), ()) for n in range(count)]
    if plain or rng.random() < 0.5:
        return core.build_batch(records)
    return core.build_batch(
        records, producer_id=rng.randrange(4), producer_epoch=rng.randrange(2), base_sequence=rng.randrange(6)
    )


def fetch(
    rng: random.Random,
    version: int,
    name: bytes,
    topic_id: bytes,
    session: tuple[int, int] = (0, -1),
    *,
    plain: bool = False,
) -> list[Piece]:
    """Build a Fetch; a session (id, epoch) may begin, go on or forget partitions. Plain: one topic, once."""
    q = Request(FETCH, version, 2)
    if version < 15:
        q.put("i32", -1)
    q.put("i32", rng.choice([0, 5]), "i32", rng.choice([0, 1, 1 << 20]), "i32", rng.choice([0, 100, 1 << 24]))
    q.put("i8", rng.randrange(2))
    if version >= 7:
        q.put("i32", session[0], "i32", session[1])
    topics = 1 if plain else rng.choice([0, 1, 1, 2])
    q.length(topics)
    for _ in range(topics):
        q.topic(name, topic_id)
        partitions = rng.choice([1, 2])
        q.length(partitions)
        for index in range(partitions):
            q.put("i32", index)
            if version >= 9:
                q.put("i32", rng.choice([-1, 0]))
            q.put("i64", rng.randrange(4))
            if version >= 12:
                q.put("i32", -1 if plain else rng.choice([-1, -1, 0]))
            if version >= 5:
                q.put("i64", -1)
            q.put("i32", rng.choice([0, 200, 1 << 20]))
            q.tags()
        q.tags()
    if version >= 7:
        forgotten = 0 if plain else rng.choice([0, 0, 1])
        q.length(forgotten)
        for _ in range(forgotten):
            q.topic(name, topic_id)
            q.length(1)
            q.put("i32", rng.randrange(2))
            q.tags()
    if version >= 11:
        q.text(b"")
    q.tags()
    return q.pieces


# -- ways to spoil a request -----------------------------------------------------------------------------------------


def spoil_number(piece: Piece, rng: random.Random) -> Piece:
    layout = WIDTHS[piece.kind]
    bits = 8 * struct.calcsize(layout)
    (value,) = struct.unpack(layout, piece.data)
    top = (1 << (bits - 1)) - 1
    wrong = rng.choice([value + 1, value - 1, 0, -1, -2, top, -top - 1, 127, rng.randint(-top, top)])
    return number(piece.kind, max(-top - 1, min(top, wrong)))


def spoil_uvar(piece: Piece, rng: random.Random) -> Piece:
    value = piece.data[0]
    numbers = [value + 1, max(value - 1, 0), 0, 1, 127, 128, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, rng.getrandbits(32)]
    crooked = [b"\xff" * 5, b"\xff" * 10, b"\x80" * 9 + b"\0", bytes([value & 0x7F | 0x80, 0]), b"\xff\xff\xff\xff\x1f"]
    return Piece("uvar", rng.choice([uvarint(rng.choice(numbers)), rng.choice(crooked)]))


def spoil_tags(_: Piece, rng: random.Random) -> Piece:
    """Add tags that no version has: the plane skips a tag's content, the codec reads the tags that it knows."""
    some = b"".join(uvarint(t) + uvarint(n) + rng.randbytes(n) for t in (90, 91, 300) for n in [rng.randrange(4)])
    many = b"".join(uvarint(90 + t) + b"\0" for t in range(1000))
    return Piece("tags", rng.choice([
        b"\1\x5a\0", b"\3" + some, b"\3" + some[:-2], b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f",
        b"\1\x5a" + uvarint((1 << 32) - 1), b"\1\x5a" + uvarint(1 << 31), uvarint(1000) + many,
        b"\1\x5a\x10" + bytes(16),
    ]))  # fmt: skip


def spoil_batch(piece: Piece, rng: random.Random) -> Piece:
    """Change some bytes or header fields, usually with the right CRC, as a wrong one ends the checks."""
    data = bytearray(piece.data or b"\0")  # the request may have been cut before
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.4 and len(data) >= HEADER_BYTES:
            at, layout = rng.choice([*HEADER_FIELDS.items()])
            top = (1 << 8 * struct.calcsize(layout) - 1) - 1
            struct.pack_into(layout, data, at, rng.choice([0, -1, 1, top, -top - 1, rng.randint(-top, top)]))
            continue
        at = rng.randrange(len(data))
        spoil = rng.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0", rng.randbytes(2)])
        data[at : at + len(spoil)] = spoil[: len(data) - at]
    if rng.random() < 0.2:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.8 and len(data) > ATTRIBUTES_AT:
        data[CRC_AT:ATTRIBUTES_AT] = struct.pack(">I", core.crc32c(bytes(data[ATTRIBUTES_AT:])))
    return Piece("batch", bytes(data))


def spoil_raw(piece: Piece, rng: random.Random) -> Piece:
    data = bytearray(piece.data or b"\0")
    data[rng.randrange(len(data))] = rng.randrange(256)
    return Piece("raw", rng.choice([bytes(data), b"", piece.data * 2, rng.randbytes(rng.choice([1, 300]))]))


BY_KIND: dict[str, Callable[[Piece, random.Random], Piece]] = {
    "uvar": spoil_uvar, "tags": spoil_tags, "batch": spoil_batch, "raw": spoil_raw,
}  # fmt: skip


def spoil(pieces: list[Piece], rng: random.Random) -> None:
    """Spoil one to three places behind the api key and the version."""
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(2, len(pieces)) if len(pieces) > 2 else 0
        how = rng.random()
        if how < 0.7:
            pieces[at] = BY_KIND.get(pieces[at].kind, spoil_number)(pieces[at], rng)
        elif how < 0.78:
            del pieces[at:]  # cut the request
        elif how < 0.86:
            del pieces[at : at + rng.randint(1, 3)]
        elif how < 0.94:
            pieces[at:at] = pieces[at : at + rng.randint(1, 4)]
        else:
            pieces.append(Piece("raw", rng.randbytes(rng.randint(1, 40))))
        if not pieces[3:]:
            return


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)
