"""Reads of committed records: their bound, and the aborted transactions that consumers leave out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import Partition
from tests.core.logs import KAFKA_STORAGE_ERROR, NOW, Home, batch, code_of, end_of
from tests.core.slow_transactions import as_java_reads
from tests.core.stage import FETCH, PRODUCE, Client, Stage
from tests.core.test_transaction_index import INTERLEAVED, TORN, interleaved
from tests.core.test_transactions import end, write
from tests.core.transactional import ABORT, COMMIT, data
from tests.harness import until


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path, {"index.interval.bytes": 0})
    made.open(flush_idle_ms=1)
    yield made
    if made.broker is not None:
        made.crash()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


def aborted(partition: Partition, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, int]]:
    """The list of aborted transactions of one read."""
    found = partition.read(offset, max_bytes, isolation_level=1)
    if found.slice is not None:
        found.slice.close()
    return found.aborted_transactions


def test_the_list_has_the_aborted_transactions_among_the_records(home: Home) -> None:
    """The list is in the order of the markers; a transaction whose marker is before the offset is not in it, nor one
    that begins behind the records; without the isolation level there is none."""
    p = home.partition
    interleaved(p)
    p.append(batch(5), now_ms=NOW)
    both = [(pid, first) for pid, first, *_ in INTERLEAVED]
    assert [aborted(p, offset) for offset in (0, 5, 9)] == [both] * 3
    assert [aborted(p, offset) for offset in (10, 11)] == [both[1:], []]
    assert aborted(p, 0, 1) in ([], both[1:])  # the first batch alone; the next one is named in its index entry
    found = p.read(0, 1 << 20)
    assert found.slice is not None and found.aborted_transactions == []
    found.slice.close()


def test_a_reader_sees_nothing_of_an_open_transaction(home: Home) -> None:
    """Up to the last stable offset records are returned, from it on none, without an error; an abort behind it is not
    needed."""
    p = home.partition
    p.append(batch(2), now_ms=NOW)
    write(p, 7, 0)
    write(p, 8, 0)
    end(p, 8, ABORT)
    for offset in (2, 3, 4, 5):
        found = p.read(offset, 1000, isolation_level=1)
        assert (found.slice, found.last_stable_offset, found.aborted_transactions) == (None, 2, [])
    found = p.read(0, 1000, isolation_level=1)
    assert found.slice is not None and end_of(found.slice.tobytes()) == 2
    found.slice.close()
    end(p, 7, COMMIT)
    assert as_java_reads(p, 0, 1) == [0, 1, 2]


def test_markers_in_later_segments_are_found(home: Home) -> None:
    """The marker that ends a transaction may lie in a later segment than the records that are read; after a restart the
    indexes are read from their files."""
    p = home.partition
    write(p, 7, 0)
    for _ in range(3):
        p.roll()
        p.append(batch(), now_ms=NOW)
    p.roll()
    end(p, 7, ABORT)
    p.roll()
    p.append(batch(), now_ms=NOW)
    for _ in range(2):
        assert [aborted(p, offset, 1) for offset in range(6)] == [[(7, 0)]] * 5 + [[]]
        assert as_java_reads(p, 0, 1 << 20) == [1, 2, 3, 5]
        p = home.reopen(clean=True, flush_idle_ms=1)


def test_a_long_list_costs_only_what_is_in_range(home: Home) -> None:
    """With thousands of aborted transactions, and one that was open all the time, a fetch lists those in its range and
    not the others (fault 39)."""
    p = home.partition
    write(p, 9, 0)
    for i in range(3000):
        write(p, 7, i)
        end(p, 7, ABORT)
    end(p, 9, ABORT)
    assert aborted(p, 0, 1)[-1] == (9, 0) and len(aborted(p, 0, 1)) <= 2
    for offset in (1, 2999, 6000):
        listed = aborted(p, offset, 200)
        assert (9, 0) in listed and len(listed) <= 4
    assert as_java_reads(p, 0, 1 << 20) == []


def test_ten_thousand_open_transactions_are_cheap(home: Home) -> None:
    """With 10,000 open transactions the last stable offset follows whichever ends, oldest first or last (fault 39)."""
    p = home.partition
    for pid in range(10_000):
        write(p, pid, 0)
    for pid in range(9_999, 5_000, -1):
        end(p, pid, COMMIT)
    assert p.last_stable_offset == 0
    for pid in range(5_000):
        assert p.last_stable_offset == pid
        end(p, pid, COMMIT)
    assert p.last_stable_offset == 5_000
    assert home.reopen(clean=False).last_stable_offset == 5_000


@pytest.mark.parametrize("damage", TORN)
def test_a_bad_index_of_a_sealed_segment_is_built_again(home: Home, damage: str) -> None:
    """A reader that meets a bad index of an older segment gets an error that it retries, never a list that lacks
    transactions, until the flusher has built the index again (fault 31)."""
    p = home.partition
    write(p, 6, 0)
    p.roll()
    p.append(batch(4), now_ms=NOW)
    assert [write(p, 7, 0, 2), write(p, 8, 0, 2), end(p, 8, ABORT), end(p, 7, ABORT)] == [5, 7, 9, 10]
    assert end(p, 6, COMMIT) == 11
    p.roll()
    p.append(batch(), now_ms=NOW)
    home.stop()
    path = home.directory / f"{1:020}.txnindex"
    good = path.read_bytes()
    path.write_bytes(TORN[damage](good))
    p = home.open(flush_idle_ms=1)
    assert code_of(p.read, 1, 1 << 20, isolation_level=1) == KAFKA_STORAGE_ERROR
    until("the index is built again", lambda: code_of(aborted, p, 1) == 0)
    assert aborted(p, 1) == [(8, 7), (7, 5)]
    assert path.read_bytes() == good
    assert not p.offline


# -- without Python ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 18))
def test_the_plane_lists_aborted_transactions(stage: Stage, version: int) -> None:
    """A Fetch of committed records that the plane answers has the list, empty if there is none, and null for other
    readers, at every version."""
    interleaved(stage.log)
    client = Client(stage)
    for offset, isolation, expected in ((0, 1, [(8, 7), (7, 5)]), (11, 1, []), (0, 0, None)):
        client.fetch(offset, version=version, isolation_level=isolation)
        stage.step()
        part = client.receive(FETCH, version)[1].responses[0].partitions[0]
        listed = part.aborted_transactions
        assert (listed if listed is None else [(t.producer_id, t.first_offset) for t in listed]) == expected
        assert (part.error_code, part.last_stable_offset, bool(part.records)) == (0, 11, offset == 0)
    assert not stage.plane.take()


def test_the_plane_leaves_an_unread_index_to_python(tmp_path: Path) -> None:
    """A reactor does not read an index from the disk: Python answers, and then the index is in memory."""
    home = Home(tmp_path, topic="t")
    interleaved(home.open())
    home.partition.roll()
    home.partition.append(batch(), now_ms=NOW)
    home.stop()
    stage = Stage(tmp_path, clean=True)
    client = Client(stage)
    client.fetch(0, isolation_level=1)
    stage.step()
    assert len(stage.plane.take()) == 1
    assert aborted(stage.log, 0) == [(8, 7), (7, 5)]
    other = Client(stage)
    other.fetch(0, isolation_level=1)
    stage.step()
    part = other.receive(FETCH, 12)[1].responses[0].partitions[0]
    assert [(t.producer_id, t.first_offset) for t in part.aborted_transactions] == [(8, 7), (7, 5)]
    stage.close()


def test_the_plane_appends_to_an_open_transaction(stage: Stage) -> None:
    """The batches of an open transaction are appended without Python; the first one, which must be verified, and one
    that names no transactional id go to Python."""
    client = Client(stage)
    assert write(stage.log, 7, 0) == 0
    for sequence in (1, 2):
        client.produce(data(7, sequence), transactional_id="tx", acks=-1)
        stage.step()
        part = client.receive(PRODUCE, 9)[1].responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (0, sequence)
    assert stage.log.last_stable_offset == 0 and not stage.plane.take()
    for sent, name in ((data(8, 0), "tx"), (data(7, 3, epoch=1), "tx"), (data(7, 3), None)):
        turned = Client(stage)
        turned.produce(sent, transactional_id=name)
        stage.step()
        assert len(stage.plane.take()) == 1
    assert stage.log.log_end_offset == 3
