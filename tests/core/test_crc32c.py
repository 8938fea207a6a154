"""CRC-32C gives the RFC's vectors, and each implementation agrees with the bitwise one."""

import importlib
import random

import pytest

from tests.core import slow_batch

crc = importlib.import_module("pybroker.core.base.crc32c")  # the package exports a function of this name

RFC_3720 = [  # appendix B.4, and the check value that CRC catalogues list
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (
        b"\x01\xc0" + bytes(14) + bytes.fromhex("14000000000004000000001400000018280000000000000002") + bytes(7),
        0xD9963A56,
    ),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.fixture(params=crc.FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize(("data", "expected"), RFC_3720)
def test_the_vectors_of_rfc_3720(form: str, data: bytes, expected: int) -> None:
    assert crc.checksum_by(form, data) == expected
    assert crc.checksum(data) == expected
    assert slow_batch.crc32c(data) == expected


def test_tables_agree_with_the_bitwise_form_at_all_lengths() -> None:
    data = random.Random(1).randbytes(300)
    for n in range(len(data) + 1):
        assert crc.checksum_by("table", data[:n]) == slow_batch.crc32c(data[:n]), n


def test_a_form_agrees_with_the_tables_at_all_lengths_and_alignments(form: str) -> None:
    rng = random.Random(2)
    data = memoryview(rng.randbytes(5000 + 64))
    for n in range(5001):
        at = rng.randrange(64)
        piece, initial = data[at : at + n], rng.getrandbits(32)
        assert crc.checksum_by(form, piece, initial) == crc.checksum_by("table", piece, initial), (n, at, initial)


def test_a_form_agrees_with_the_tables_on_large_inputs(form: str) -> None:
    rng = random.Random(3)
    data = memoryview(rng.randbytes(1 << 20))
    for _ in range(20):
        at, end = sorted(rng.sample(range(len(data) + 1), 2))
        assert crc.checksum_by(form, data[at:end]) == crc.checksum_by("table", data[at:end]), (at, end)


def test_a_crc_continues_from_any_cut(form: str) -> None:
    data = random.Random(4).randbytes(4321)
    whole = crc.checksum_by("table", data)
    for cut in [*range(0, 600, 7), 1024, 3072, 4320, 4321]:
        assert crc.checksum_by(form, data[cut:], crc.checksum_by(form, data[:cut])) == whole, cut


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_contiguous_buffer_will_do(kind: type) -> None:
    assert crc.checksum(kind(b"123456789")) == 0xE3069283
    with pytest.raises(BufferError):
        crc.checksum(memoryview(b"123456789")[::2])
    with pytest.raises(TypeError):
        crc.checksum("123456789")


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError):
        crc.checksum_by("quantum", b"")


def test_two_stretches_joined() -> None:
    """The CRC of two stretches is joined right for each length up to some thousands, and for large ones."""
    rng = random.Random(4)
    data = memoryview(rng.randbytes(1 << 20))
    for n in (*range(4200), *(rng.randrange(1 << 20) for _ in range(200))):
        at = rng.randrange(min(300, len(data) - n + 1))
        first, second = crc.checksum(data[:at]), crc.checksum(data[at : at + n])
        assert crc.joined(first, second, n) == crc.checksum(data[: at + n]), (at, n)


def test_a_join_over_the_largest_batch() -> None:
    """A CRC is joined right with a second stretch of nearly 2 GiB, the largest batch."""
    first, piece = crc.checksum(b"first"), random.Random(5).randbytes((1 << 24) - 1)
    second, whole = 0, first
    for _ in range(128):
        second, whole = crc.checksum(piece, second), crc.checksum(piece, whole)
    assert crc.joined(first, second, 128 * len(piece)) == whole
