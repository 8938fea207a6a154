"""The transaction index of each segment: written, cut, carried on and built again, as Kafka does."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import Partition
from tests.core.logs import NOW, Home, batch, follow
from tests.core.test_transactions import end, write
from tests.core.transactional import ABORT, COMMIT, data, marker, stored

ENTRY = struct.Struct(">hqqqq")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.open()
    yield made
    if made.broker is not None:
        made.crash()


def index_of(home: Home, base: int = 0) -> list[tuple[int, ...]]:
    """The entries in the index file of a segment: producer id, first, last, last stable offset."""
    path = home.directory / f"{base:020}.txnindex"
    if not path.exists():
        return []
    entries = list(ENTRY.iter_unpack(path.read_bytes()))
    assert all(version == 0 for version, *_ in entries)
    return [tuple(rest) for _, *rest in entries]


def interleaved(partition: Partition) -> None:
    """Write what Kafka 3.9.1 wrote in the run whose index is in INTERLEAVED: two aborts, one within the other."""
    partition.append(batch(5), now_ms=NOW)
    assert [write(partition, 7, 0, 2), write(partition, 8, 0, 2)] == [5, 7]
    assert [end(partition, 8, ABORT), end(partition, 7, ABORT)] == [9, 10]


INTERLEAVED = [(8, 7, 9, 5), (7, 5, 10, 11)]


def test_the_index_of_interleaved_aborts_is_kafkas(home: Home) -> None:
    """An entry has the oldest other open transaction, or the offset after the marker; a flush writes the file."""
    p = home.partition
    interleaved(p)
    p.flush()
    assert index_of(home) == INTERLEAVED
    assert (home.directory / f"{0:020}.txnindex").read_bytes() == bytes.fromhex(
        "0000 0000000000000008 0000000000000007 0000000000000009 0000000000000005"
        "0000 0000000000000007 0000000000000005 000000000000000a 000000000000000b".replace(" ", "")
    )


def test_only_aborted_transactions_are_indexed(home: Home) -> None:
    """A commit, an abort without a transaction, and an abort that is sent again leave no entry, and no file (fault 27:
    no two entries of one transaction)."""
    p = home.partition
    assert [end(p, 7, ABORT), write(p, 7, 0), end(p, 7, COMMIT), end(p, 7, ABORT)] == [0, 1, 2, 3]
    p.flush()
    assert not list(home.directory.glob("*.txnindex"))
    assert [write(p, 7, 1), end(p, 7, ABORT), end(p, 7, ABORT)] == [4, 5, 6]
    p.flush()
    assert index_of(home) == [(7, 4, 5, 6)]


def test_follower_and_leader_have_the_same_index(tmp_path: Path) -> None:
    """A follower that gets many batches at once writes the entries of its leader, whatever began after a marker in the
    same answer (fault 28)."""
    both = [data(7, 0, 2), data(8, 0, 2), marker(8, ABORT), marker(7, ABORT)]
    history = stored(batch(5), *both, batch(3), data(9, 0), marker(9, ABORT))
    homes = []
    for name, pieces in (("one", [history]), ("many", split(history))):
        (tmp_path / name).mkdir()
        home = Home(tmp_path / name)
        p = follow(home.open())
        for piece in pieces:
            p.append_replica(piece)
        p.flush()
        homes.append((index_of(home), sorted(p.producers())))
        home.crash()
    assert homes[0] == homes[1]
    assert homes[0][0] == [*INTERLEAVED, (9, 14, 15, 16)]


def split(history: bytes) -> list[bytes]:
    """The batches one by one."""
    out = []
    while history:
        size = 12 + int.from_bytes(history[8:12], "big")
        out.append(history[:size])
        history = history[size:]
    return out


def test_an_entry_lies_beside_its_marker(home: Home) -> None:
    """The entry is in the index of the segment that has the marker, and goes with it; the data may be in earlier ones,
    deleted or not."""
    p = home.partition
    write(p, 7, 0)
    p.roll()
    write(p, 7, 1)
    p.roll()
    end(p, 7, ABORT)
    p.roll()
    p.append(batch(), now_ms=NOW)
    p.flush()
    assert [index_of(home, base) for base in (0, 1, 2, 3)] == [[], [], [(7, 0, 2, 3)], []]
    p.set_log_start(2)
    p.enforce_retention(NOW)
    assert index_of(home, 2) == [(7, 0, 2, 3)]
    p.set_log_start(3)
    p.enforce_retention(NOW)
    assert not list(home.directory.glob("*.txnindex*"))


def test_a_truncation_cuts_the_index(home: Home) -> None:
    """A truncation drops the entries of markers that it cuts, in the file too; those transactions are open again."""
    p = home.partition
    interleaved(p)
    p.flush()
    p.truncate(10)
    assert p.last_stable_offset == 5
    p.flush()
    p.append(batch(), now_ms=NOW)
    p.flush()
    assert index_of(home) == INTERLEAVED[:1]
    p.truncate(9)
    p.append(batch(), now_ms=NOW)
    p.flush()
    assert index_of(home) == []
    assert [end(p, 7, ABORT), end(p, 8, ABORT)] == [10, 11]
    p.flush()
    assert index_of(home) == [(7, 5, 10, 7), (8, 7, 11, 12)]


def test_a_truncation_to_an_earlier_segment_keeps_its_index(home: Home) -> None:
    """The segment that becomes active again goes on with its index."""
    p = home.partition
    interleaved(p)
    p.append(batch(), now_ms=NOW)
    p.roll()
    write(p, 7, 2)
    end(p, 7, ABORT)
    p.flush()
    p.truncate(11)
    assert [write(p, 9, 0), end(p, 9, ABORT)] == [11, 12]
    p.flush()
    assert index_of(home) == [*INTERLEAVED, (9, 11, 12, 13)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("roll", [True, False])
def test_the_index_survives(home: Home, clean: bool, roll: bool) -> None:
    """A clean stop and a crash keep the index: read from its file, or built from the log."""
    p = home.partition
    interleaved(p)
    if roll:
        p.roll()
    p = home.reopen(clean=clean)
    base = p.segments()[-1][0]
    write(p, 9, 0)
    assert end(p, 9, ABORT) == 12
    p.flush()
    entries = index_of(home, 0) + (index_of(home, base) if base else [])
    assert entries == [*INTERLEAVED, (9, 11, 12, 13)]


TORN = {
    "torn": lambda data: data[:-1],
    "longer than the log": lambda data: data + ENTRY.pack(0, 9, 11, 40, 41),
    "not rising": lambda data: data + data[:34],
    "another version": lambda data: b"\x01" + data[1:],
    "no producer": lambda data: data[:2] + b"\xff" * 8 + data[10:],
    "first after last": lambda data: data[:10] + (99).to_bytes(8, "big") + data[18:],
}


@pytest.mark.parametrize("damage", TORN)
def test_a_bad_index_is_built_again(home: Home, damage: str) -> None:
    """An index file that is torn or wrong is never trusted: it is built again from the log, with the right last stable
    offsets, and takes no log dir offline (fault 31)."""
    p = home.partition
    write(p, 6, 0)
    p.roll()
    p.append(batch(4), now_ms=NOW)
    assert [write(p, 7, 0, 2), write(p, 8, 0, 2), end(p, 8, ABORT), end(p, 7, ABORT)] == [5, 7, 9, 10]
    home.stop()
    path = home.directory / f"{1:020}.txnindex"
    good = path.read_bytes()
    assert index_of(home, 1) == [(8, 7, 9, 0), (7, 5, 10, 0)]
    path.write_bytes(TORN[damage](good))
    p = home.open()
    assert path.read_bytes() == good
    write(p, 9, 0)
    end(p, 9, ABORT)
    p.flush()
    assert path.read_bytes() == good + ENTRY.pack(0, 9, 11, 12, 0)
    assert not p.offline


def test_an_index_that_cannot_be_written_is_not_lost(home: Home) -> None:
    """A full disk at the index, after the marker was appended, costs no entry: the next flush writes it, and a crash
    before that builds it from the log (fault 40)."""
    p = home.partition
    interleaved(p)
    assert home.broker is not None
    home.broker.arm("index.write", "errno", 28, times=1)
    with pytest.raises(OSError, match="No space"):
        p.flush()
    assert index_of(home) == []
    p = home.reopen(clean=False)
    p.flush()
    assert index_of(home) == INTERLEAVED
