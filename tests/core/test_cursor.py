"""The cursor reads what Python reads, returns SHORT at each cut, and moves only if it returns OK."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import probes, slow_batch
from tests.rows import with_each

pytestmark = pytest.mark.xdist_group("probe")
probe = probes.load()
OK, SHORT, BAD = probe.OK, probe.SHORT, probe.BAD

INTEGERS = {"i8": ">b", "i16": ">h", "i32": ">i", "i64": ">q"}
UNTOUCHED = {0x55, 0x5555, 0x55555555, 0x5555555555555555}
VARINT_BITS = {"varint": 32, "varlong": 64, "uvarint": 32, "uvarlong": 64}

VARINTS = [  # the vectors of the format's description
    (0, "00"),
    (-1, "01"),
    (1, "02"),
    (-2, "03"),
    (63, "7e"),
    (64, "8001"),
    (-65, "8101"),
    (300, "d804"),
    (2**31 - 1, "feffffff0f"),
    (-(2**31), "ffffffff0f"),
]


def uvarint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def assert_unmoved(data: bytes, what: str, status: int) -> None:
    reader = probe.Reader(data)
    got, value = reader.read(what)
    assert (got, reader.at) == (status, 0)
    assert value in UNTOUCHED


@pytest.mark.parametrize("what", INTEGERS)
@given(st.data())
def test_integers_are_big_endian(what: str, data: st.DataObject) -> None:
    form = INTEGERS[what]
    limit = 1 << 8 * struct.calcsize(form) - 1
    value = data.draw(st.integers(-limit, limit - 1))
    encoded = struct.pack(form, value)
    reader = probe.Reader(encoded + b"more")
    assert reader.read(what) == (OK, value)
    assert reader.at == len(encoded)
    for cut in range(len(encoded)):
        assert_unmoved(encoded[:cut], what, SHORT)
    assert probe.write(what, value, len(encoded)) == (OK, encoded)
    assert probe.write(what, value, len(encoded) - 1) == (SHORT, b"")


@with_each(("value", "encoded"), VARINTS)
def test_the_vectors_of_the_format(value: int, encoded: str) -> None:
    raw = bytes.fromhex(encoded)
    assert probe.Reader(raw).read("varint") == (OK, value)
    assert probe.Reader(raw).read("varlong") == (OK, value)
    assert probe.write("varlong", value, 5) == (OK, raw)
    assert slow_batch.varint(value) == raw


@pytest.mark.parametrize("what", VARINT_BITS)
@given(st.data())
def test_varints_round_trip_and_are_cut_nowhere(what: str, data: st.DataObject) -> None:
    bits = VARINT_BITS[what]
    if what.startswith("u"):
        value = data.draw(st.integers(0, 2**bits - 1))
        encoded = uvarint(value)
        assert probe.write("uvarlong", value, len(encoded)) == (OK, encoded)
    else:
        value = data.draw(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        encoded = slow_batch.varint(value)
        assert probe.write("varlong", value, len(encoded)) == (OK, encoded)
        assert probe.write("varlong", value, len(encoded) - 1) == (SHORT, b"")
    reader = probe.Reader(encoded + b"\xff")
    assert reader.read(what) == (OK, value)
    assert reader.at == len(encoded)
    for cut in range(len(encoded)):
        assert_unmoved(encoded[:cut], what, SHORT)


@pytest.mark.parametrize(("what", "bits"), VARINT_BITS.items())
def test_a_varint_ends_within_its_bits(what: str, bits: int) -> None:
    largest = uvarint(2**bits - 1)
    assert probe.Reader(largest).read(what)[0] == OK
    assert_unmoved(uvarint(2**bits), what, BAD)
    assert_unmoved(b"\xff" * 1000, what, BAD)
    assert_unmoved(b"\x80" * (len(largest) - 1), what, SHORT)
    assert_unmoved(b"\x80" * len(largest), what, BAD)


def test_longer_forms_than_needed_are_read_as_kafka_reads_them() -> None:
    assert probe.Reader(b"\x82\x80\x80\x80\x00").read("varint") == (OK, 1)
    assert probe.Reader(b"\x82" + b"\x80" * 8 + b"\x00").read("varlong") == (OK, 1)


@given(st.binary(max_size=12), st.sampled_from(sorted(VARINT_BITS)))
def test_any_bytes_give_a_status(data: bytes, what: str) -> None:
    reader = probe.Reader(data)
    status, _ = reader.read(what)
    assert status in (OK, SHORT, BAD)
    assert (reader.at > 0) == (status == OK)


def test_a_span_is_borrowed_only_if_it_is_there() -> None:
    reader = probe.Reader(b"abcdef")
    assert reader.span(0) == (OK, b"")
    assert reader.span(2) == (OK, b"ab")
    assert reader.span(5) == (SHORT, None)
    assert reader.span(-1) == (BAD, None)
    assert reader.skip(2**62) == SHORT
    assert reader.skip(-(2**63)) == BAD
    assert reader.at == 2
    assert reader.span(4) == (OK, b"cdef")
    assert reader.span(1) == (SHORT, None)
    assert reader.span(0) == (OK, b"")


def test_a_writer_stops_at_its_end() -> None:
    assert probe.write("span", b"abc", 3) == (OK, b"abc")
    assert probe.write("span", b"abc", 2) == (SHORT, b"")
    assert probe.write("span", b"", 0) == (OK, b"")
    assert probe.write("uvarlong", 2**64 - 1, 9) == (SHORT, b"")
    assert probe.write("uvarlong", 2**64 - 1, 10) == (OK, b"\xff" * 9 + b"\x01")
