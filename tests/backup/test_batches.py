"""Batches out of files: each damage is found, and so are transactions that were not committed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pybroker.backup import batches
from pybroker.backup.batches import Fates, Transactions, checked, pieces, walked
from pybroker.core import iter_batches
from pybroker.errors import KafkaError
from tests.backup import kit
from tests.backup.kit import ABORT, COMMIT, batch, marker
from tests.cli.conftest import run

BATCHES = [batch(0, b"a"), batch(1, b"b" * 300, b"c"), batch(5, b"d"), batch(6, b"e" * 40, b"f", b"g")]


def test_pieces_are_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little is read at once, pieces are the file's batches, in order and whole."""
    data = b"".join(BATCHES)
    for size in (1, 7, 61, 100, len(data), 2 * len(data)):
        monkeypatch.setattr(batches, "READ_BYTES", size)
        found = list(walked(io.BytesIO(data), len(data), "a file"))
        assert b"".join(piece.data for piece in found) == data
        assert [b.base_offset for piece in found for _, b in piece.batches] == [0, 1, 5, 6]


def test_an_absurd_length_is_not_read() -> None:
    """A batch that says that it is larger than any can be ends the reading; one that is cut does at the file's end."""
    for length, words in ((batches.BATCH_BYTES_MAX - 11, "are possible"), (batches.BATCH_BYTES_MAX - 12, "the middle")):
        longer = bytearray(BATCHES[1])
        longer[8:12] = length.to_bytes(4, "big")
        data = BATCHES[0] + bytes(longer) + bytes(batches.READ_BYTES)
        with pytest.raises(KafkaError, match=words):
            list(walked(io.BytesIO(data), len(data), "a file"))


def test_every_flipped_byte_and_every_cut_is_found(tmp_path: Path) -> None:
    """A file with one byte changed, a cut one and a longer one are damaged, for `verify` too."""
    backup = kit.partition(tmp_path, "orders", 0, BATCHES)
    kit.write(tmp_path, "orders", backup)
    (file,) = backup.files
    path = tmp_path / backup.directory / file.name
    data = path.read_bytes()
    assert run("backup", "verify", tmp_path).code == 0
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], data[:at]):
            with pytest.raises(KafkaError):
                list(pieces(io.BytesIO(damaged), file, "a file"))
    with pytest.raises(KafkaError, match="more than"):
        list(pieces(io.BytesIO(data + b"x"), file, "a file"))
    path.write_bytes(data[:-1])
    done = run("backup", "verify", tmp_path)
    assert done.code == 1 and f"has {len(data) - 1} bytes, the manifest says {len(data)}" in done.err
    path.unlink()
    assert "is missing" in run("backup", "verify", tmp_path).err


def test_transactions_that_were_not_committed() -> None:
    """Records count if they are in no transaction, or in one with a COMMIT; the same producer may do both."""
    log = [
        batch(0, b"plain"), batch(1, b"x", producer_id=1), batch(2, b"y", producer_id=2), marker(3, 1, COMMIT),
        batch(4, b"x", b"x", producer_id=1), marker(6, 1, ABORT), batch(7, b"x", producer_id=1), marker(8, 1, COMMIT),
        batch(9, b"z", producer_id=3), marker(10, 9, ABORT), batch(11, b"y", producer_id=2),
    ]  # fmt: skip
    noted = Transactions()
    for each in log:  # in pieces, as they come
        noted.note(checked(memoryview(each), "a test"))
    assert [(t.producer_id, t.first_offset, t.last_offset) for t in noted.aborted] == [(1, 4, 6)]
    assert [(t.producer_id, t.first_offset) for t in noted.open] == [(2, 2), (3, 9)]
    fates = Fates(noted.aborted, noted.open)
    headers = [header for _, header in iter_batches(b"".join(log))]
    committed = [h.base_offset for h in headers if not h.is_control and fates.committed(h)]
    assert committed == [0, 1, 7]
