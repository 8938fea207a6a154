"""A partition's transactions: what opens, continues and ends them, and what of them is seen by readers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.core import LogError, Partition
from tests.core.logs import (
    INVALID_PRODUCER_EPOCH,
    NOW,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    Home,
    batch,
    code_of,
    follow,
    read,
)
from tests.core.slow_batch import HEADER, Batch, seal
from tests.core.transactional import (
    ABORT,
    COMMIT,
    INVALID_TXN_STATE,
    TRANSACTION_COORDINATOR_FENCED,
    VERIFIED,
    data,
    marker,
    stored,
)

NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, INVALID_REQUEST, INVALID_RECORD = 19, 6, 42, 87


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.open()
    yield made
    if made.broker is not None:
        made.crash()


def write(
    partition: Partition, pid: int, sequence: int, count: int = 1, *, epoch: int = 0, guard: int | None = None
) -> int:
    """Append as a broker does that verifies with a willing coordinator; the base offset, or minus the error code."""
    if guard is None:
        guard = partition.verify(pid, epoch, sequence)
    try:
        return partition.append(data(pid, sequence, count, epoch=epoch), now_ms=NOW, guard=guard).base_offset
    except LogError as e:
        return -e.code


def end(partition: Partition, pid: int, kind: int, *, epoch: int = 0, coordinator_epoch: int = 0) -> int:
    """Append a marker; its offset, or minus the error code."""
    try:
        return partition.append_marker(pid, epoch, coordinator_epoch, kind == COMMIT, now_ms=NOW).base_offset
    except LogError as e:
        return -e.code


def open_since(partition: Partition) -> dict[int, int]:
    """The first offset of each producer's open transaction."""
    return {p.producer_id: p.transaction_start_offset for p in partition.producers() if p.transaction_start_offset >= 0}


# -- markers -----------------------------------------------------------------------------------------------------------


def test_a_marker_has_the_bytes_of_kafkas(home: Home) -> None:
    """The COMMIT at offset 2 is byte for byte the one that Kafka 3.9.1 wrote, but for the time and so the CRC."""
    p = home.partition
    p.become_leader(0, 0)
    assert [write(p, 0, 0, 2), end(p, 0, COMMIT)] == [0, 2]
    found = read(p, 2)
    time = NOW.to_bytes(8, "big").hex()
    assert found[:17].hex() == "0000000000000002000000420000000002"
    header = f"0030 00000000 {time} {time} 0000000000000000 0000 ffffffff 00000001"
    assert found[21:].hex() == f"{header} 20 00 00 00 08 00000001 0c 000000000000 00".replace(" ", "")
    assert end(p, 0, ABORT, coordinator_epoch=7) == 3
    assert read(p, 3)[61:].hex() == "20 00 00 00 08 00000000 0c 000000000007 00".replace(" ", "")


def test_a_marker_needs_replicas_in_sync_and_a_leader(home: Home) -> None:
    """A marker is refused like a batch with acks=all: without enough replicas in sync, and by a replica that does not
    lead."""
    p = home.partition
    p.become_leader(1, 1, followers=[2], isr=[])
    p.min_isr = 2
    assert end(p, 7, COMMIT) == -NOT_ENOUGH_REPLICAS
    follow(p)
    assert end(p, 7, COMMIT) == -NOT_LEADER_OR_FOLLOWER
    assert p.log_end_offset == 0


def test_a_marker_is_appended_whatever_the_limits_of_sizes(tmp_path: Path) -> None:
    """max.message.bytes and segment.bytes below the size of a marker refuse none: a transaction would never end."""
    home = Home(tmp_path, {"max.message.bytes": 10, "segment.bytes": 20})
    p = home.open()
    assert [end(p, 7, COMMIT), end(p, 8, ABORT)] == [0, 1]
    home.crash()


@pytest.mark.parametrize(("pid", "epoch"), [(-1, 0), (7, -1)])
def test_a_marker_for_no_producer_is_refused(home: Home, pid: int, epoch: int) -> None:
    """A marker with a negative producer id or epoch is refused (fault 46)."""
    assert end(home.partition, pid, COMMIT, epoch=epoch) == -INVALID_REQUEST


def test_markers_are_fenced_by_both_epochs(home: Home) -> None:
    """A marker of an older producer epoch or coordinator epoch is refused, one of the same is appended again (fault 14:
    an old coordinator is fenced by each partition that has seen the new one)."""
    p = home.partition
    write(p, 7, 0, epoch=3)
    assert end(p, 7, ABORT, epoch=2) == -INVALID_PRODUCER_EPOCH
    assert open_since(p) == {7: 0}
    assert end(p, 7, ABORT, epoch=3, coordinator_epoch=5) == 1
    assert end(p, 7, ABORT, epoch=3, coordinator_epoch=4) == -TRANSACTION_COORDINATOR_FENCED
    assert end(p, 7, ABORT, epoch=3, coordinator_epoch=5) == 2
    assert end(p, 7, ABORT, epoch=4, coordinator_epoch=6) == 3
    assert p.producers() == [(7, 4, -1, NOW, -1, 6)]


def test_a_marker_for_an_unknown_producer_makes_it_known(home: Home) -> None:
    """A marker without a transaction is appended: its epochs count from then on."""
    p = home.partition
    assert end(p, 7, COMMIT, epoch=2, coordinator_epoch=3) == 0
    assert p.producers() == [(7, 2, -1, NOW, -1, 3)]
    assert p.last_stable_offset == 1


def test_a_control_batch_of_a_client_is_refused(home: Home) -> None:
    """A client cannot end a transaction with a marker of its own."""
    p = home.partition
    write(p, 7, 0)
    assert code_of(p.append, marker(7, COMMIT), now_ms=NOW) == INVALID_RECORD
    assert open_since(p) == {7: 0}


def test_other_control_records_end_no_transaction(home: Home) -> None:
    """A control batch of another type, without a record, or that cannot be read ends no transaction (fault 37)."""
    p = follow(home.partition)
    empty = bytearray(marker(7, COMMIT)[:61])
    odd = [marker(7, 2), marker(7, COMMIT, versions=(0xFFFF, 0)), batch_without_records(empty)]
    p.append_replica(stored(data(7, 0), *odd))
    assert open_since(p) == {7: 0}
    p.append_replica(stored(marker(7, COMMIT, versions=(1, 1), coordinator_epoch=9), base=4))
    assert p.producers() == [(7, 0, 0, NOW, -1, 9)]


def batch_without_records(header: bytearray) -> bytes:
    """A batch that compaction emptied."""
    return seal(Batch(*HEADER.unpack_from(header))._replace(count=0), b"")


# -- data --------------------------------------------------------------------------------------------------------------


def test_sequences_run_on_through_transactions(home: Home) -> None:
    """A marker of the same epoch resets no sequence; one of a new epoch does."""
    p = home.partition
    assert [write(p, 7, 0, 2), end(p, 7, COMMIT), write(p, 7, 2), end(p, 7, ABORT)] == [0, 2, 3, 4]
    assert p.append(data(7, 2), now_ms=NOW).duplicate
    assert end(p, 7, ABORT, epoch=1) == 5
    assert write(p, 7, 3, epoch=1) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(p, 7, 0, epoch=1) == 6


def test_a_plain_batch_in_a_transaction_is_refused(home: Home) -> None:
    """A plain batch of a producer with an open transaction is refused, after its sequence was judged."""
    p = home.partition
    write(p, 7, 0)
    assert code_of(p.append, batch(producer=(7, 0, 1)), now_ms=NOW) == INVALID_TXN_STATE
    assert code_of(p.append, batch(producer=(7, 0, 2)), now_ms=NOW) == OUT_OF_ORDER_SEQUENCE_NUMBER
    end(p, 7, COMMIT)
    assert p.append(batch(producer=(7, 0, 1)), now_ms=NOW).base_offset == 2


def test_an_unverified_batch_opens_nothing(home: Home) -> None:
    """A batch that comes after its transaction's marker opens no transaction without the coordinator's knowledge
    (faults 2 and 4: hanging transactions), and one that was appended before it is a duplicate (fault 3)."""
    p = home.partition
    assert [write(p, 7, 0), end(p, 7, ABORT)] == [0, 1]
    assert write(p, 7, 1, guard=0) == -INVALID_TXN_STATE
    again = p.append(data(7, 0), now_ms=NOW)
    assert (again.duplicate, again.base_offset) == (True, 0)
    assert end(p, 7, ABORT, epoch=1) == 2
    assert write(p, 7, 1, guard=VERIFIED) == -INVALID_PRODUCER_EPOCH
    assert open_since(p) == {} and p.last_stable_offset == 3


@pytest.mark.parametrize("transactions", [0, 1, 2])
def test_a_guard_is_void_once_the_producer_appended(home: Home, transactions: int) -> None:
    """Verified, then a marker, then the append: the guard refuses it, also if whole transactions lay in between (fault
    5)."""
    p = home.partition
    guard = p.verify(7, 0, 0)
    assert guard > 0 and p.verify(7, 0, 0) == guard
    for i in range(transactions):
        assert [write(p, 7, i), end(p, 7, COMMIT)] == [2 * i, 2 * i + 1]
    if not transactions:
        end(p, 7, ABORT)
    assert write(p, 7, transactions, guard=guard) == -INVALID_TXN_STATE
    assert p.verify(7, 0, transactions) not in (0, guard)


def test_a_guard_belongs_to_one_leader_and_producer(home: Home) -> None:
    """A guard opens the transaction of its producer alone, and not after another broker led."""
    p = home.partition
    guard = p.verify(7, 0, 0)
    assert write(p, 8, 0, guard=guard) == -INVALID_TXN_STATE
    follow(p)
    p.become_leader(p.leader_epoch + 1, 1)
    assert write(p, 7, 0, guard=guard) == -INVALID_TXN_STATE
    assert write(p, 7, 0) == 0
    assert p.verify(7, 0, 1) == 0
    assert write(p, 7, 1, guard=0) == 1


def test_a_later_batch_is_not_appended_before_one_that_failed_its_verification(home: Home) -> None:
    """If the question for the first batch failed, the next one is refused: else the first could never be appended
    (fault 6)."""
    p = home.partition
    p.verify(7, 0, 0)
    assert write(p, 7, 1) == -OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [write(p, 7, 0), write(p, 7, 1)] == [0, 1]


def test_a_new_epoch_does_not_go_on_with_an_older_ones_transaction(home: Home) -> None:
    """A transaction of an older epoch that hangs is ended by the newer one's marker, before anything is added to it
    (fault 33)."""
    p = home.partition
    write(p, 7, 0)
    assert p.verify(7, 1, 0) > 0
    assert write(p, 7, 0, epoch=1) == -INVALID_TXN_STATE
    assert end(p, 7, ABORT, epoch=1) == 1
    assert write(p, 7, 0, epoch=1) == 2


def test_offsets_of_a_group_are_appended_without_sequences(home: Home) -> None:
    """The broker's own transactional batches need a guard and a known epoch, but their sequences may repeat."""
    p = home.partition
    own = {"now_ms": NOW, "internal": True}
    assert code_of(p.append, data(7, 0), **own) == INVALID_TXN_STATE
    assert p.append(data(7, 0), **own, guard=p.verify(7, 0, 0)).base_offset == 0
    assert p.append(data(7, 0), **own).base_offset == 1
    assert code_of(p.append, data(7, 0, epoch=1), **own) == INVALID_TXN_STATE
    end(p, 7, COMMIT, epoch=2)
    assert code_of(p.append, data(7, 0, epoch=1), **own, guard=VERIFIED) == INVALID_PRODUCER_EPOCH


def test_a_batch_without_a_sequence_opens_a_transaction_on_replicas(home: Home) -> None:
    """A transactional batch without a sequence opens a transaction; the next sequence of its producer is 0."""
    p = follow(home.partition)
    p.append_replica(stored(data(7, -1)))
    assert open_since(p) == {7: 0}
    p.become_leader(p.leader_epoch + 1, 1)
    assert write(p, 7, 0) == 1


# -- the last stable offset --------------------------------------------------------------------------------------------


def test_the_oldest_open_transaction_holds_back_readers(home: Home) -> None:
    """The last stable offset is the beginning of the oldest open transaction, whichever ends first."""
    p = home.partition
    for pid in range(5):
        write(p, pid, 0)
    stable = []
    for pid in (3, 0, 2, 1, 4):
        end(p, pid, COMMIT)
        stable.append(p.last_stable_offset)
    assert stable == [0, 1, 1, 4, 10]


def test_a_transaction_counts_until_its_marker_is_replicated(home: Home) -> None:
    """A transaction whose marker is at or above the high watermark holds back the last stable offset: a failover that
    loses the marker takes nothing back from readers (fault 27)."""
    p = home.partition
    p.become_leader(1, 1, followers=[2])
    write(p, 7, 0)
    write(p, 8, 0)
    end(p, 8, COMMIT)
    end(p, 7, COMMIT)
    seen = []
    for offset in range(5):
        p.note_fetch(2, offset, leader_epoch=1, now_ms=0)
        seen.append((p.last_stable_offset, p.high_watermark))
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3), (4, 4)]


def test_the_marker_that_a_failover_lost_is_sent_again(home: Home) -> None:
    """After a truncation of its marker a transaction is open again; readers, and the high watermark, lose nothing
    (fault 27)."""
    p = follow(home.partition)
    p.append_replica(stored(data(7, 0), batch(), marker(7, COMMIT)), high_watermark=2)
    assert (p.last_stable_offset, p.high_watermark) == (0, 2)
    p.truncate(2)
    assert open_since(p) == {7: 0}
    p.become_leader(p.leader_epoch + 1, 1)
    assert end(p, 7, COMMIT) == 2
    assert p.last_stable_offset == 3


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("roll", [True, False])
def test_an_unreplicated_marker_is_remembered_across_a_restart(tmp_path: Path, clean: bool, roll: bool) -> None:
    """A restart finds the transactions again whose markers are above the high watermark on record."""
    home = Home(tmp_path)
    home.follows = True
    p = home.open()
    p.append_replica(stored(data(7, 0), data(8, 0), marker(8, COMMIT)), high_watermark=1)
    if roll:
        p.roll()
    p.append_replica(stored(marker(7, COMMIT), base=3), high_watermark=1)
    p.flush()
    home.high_watermark = 1
    for high_watermark, stable in ((1, 0), (3, 0), (4, 4)):
        p = home.reopen(clean=clean)
        p.append_replica(b"", high_watermark=high_watermark)
        assert (p.last_stable_offset, p.high_watermark) == (stable, high_watermark)
        home.high_watermark = high_watermark
    home.crash()


def test_the_log_start_passes_an_open_transaction(home: Home) -> None:
    """DeleteRecords goes beyond the beginning of an open transaction: readers go on behind it, and the transaction can
    still be committed (fault 34)."""
    p = home.partition
    p.append(batch(3), now_ms=NOW)
    write(p, 7, 0, 2)
    p.append(batch(3), now_ms=NOW)
    assert p.set_log_start(-1) == 8
    assert (p.last_stable_offset, open_since(p)) == (8, {7: 3})
    p.append(batch(), now_ms=NOW)
    assert (p.last_stable_offset, p.high_watermark) == (8, 9)
    assert end(p, 7, COMMIT) == 9
    assert p.last_stable_offset == 10


def test_a_log_that_begins_elsewhere_has_no_open_transaction(home: Home) -> None:
    """A follower without records, whose leader's begin at a later offset, forgets transactions that were open: their
    markers may be in between, and the last stable offset would wait for them for ever."""
    for base in (10, 1 << 40):
        p = follow(home.partition)
        end_offset = p.log_end_offset
        p.append_replica(stored(data(7, 0), marker(8, COMMIT), base=end_offset))
        assert open_since(p) == {7: end_offset}
        p.set_log_start(p.log_end_offset)
        p.append_replica(stored(batch(2), base=base))
        assert (p.last_stable_offset, open_since(p)) == (base + 2, {})


def test_retention_loses_no_open_transaction(home: Home) -> None:
    """Retention of all of a transaction's records, after a crash that lost the snapshot of the roll, and then another
    crash: the transaction is still open, with its first offset (faults 29 and 34)."""
    p = home.partition
    write(p, 7, 0)
    end(p, 8, COMMIT, coordinator_epoch=4)
    p.roll()
    p.append(batch(), now_ms=NOW)
    home.crash()
    for path in home.files(".snapshot"):
        path.unlink()
    p = home.open()
    p.set_log_start(2)
    assert p.enforce_retention(NOW) == 1
    home.checkpoint()
    p = home.reopen(clean=False)
    assert sorted(p.producers()) == [(7, 0, 0, NOW, 0, -1), (8, 0, -1, NOW, -1, 4)]
    assert p.last_stable_offset == 2
    assert [write(p, 7, 1, guard=0), end(p, 7, COMMIT)] == [3, 4]


# -- restarts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("roll", [True, False])
def test_an_open_transaction_survives(home: Home, clean: bool, roll: bool) -> None:
    """A transaction stays open with its first offset, and coordinator epochs stay known, after a clean stop and after a
    crash, whether a snapshot was written between its data and its marker or not (fault 29)."""
    p = home.partition
    write(p, 8, 0)
    end(p, 8, ABORT, coordinator_epoch=4)
    write(p, 7, 0)
    if roll:
        p.roll()
        p.flush()
    write(p, 7, 1)
    p = home.reopen(clean=clean)
    assert sorted(p.producers()) == [(7, 0, 1, NOW, 2, -1), (8, 0, 0, NOW, -1, 4)]
    assert p.last_stable_offset == 2
    assert end(p, 8, ABORT, coordinator_epoch=3) == -TRANSACTION_COORDINATOR_FENCED
    assert [write(p, 7, 2, guard=0), end(p, 7, COMMIT)] == [4, 5]
    assert p.last_stable_offset == 6


@pytest.mark.parametrize("clean", [True, False])
def test_lower_epochs_in_the_log_are_taken_over(home: Home, clean: bool) -> None:
    """A follower and a start take over a marker with lower epochs than the known ones, and go on (fault 30)."""
    p = follow(home.partition)
    p.append_replica(
        stored(data(7, 0, epoch=5), marker(7, COMMIT, epoch=5, coordinator_epoch=9), marker(7, ABORT, epoch=4))
    )
    assert p.producers() == [(7, 4, -1, NOW, -1, 0)]
    assert home.reopen(clean=clean).producers() == [(7, 4, -1, NOW, -1, 0)]


def test_a_producer_with_an_open_transaction_is_kept(home: Home) -> None:
    """Silent producers are forgotten, counted from their last marker; one with an open transaction never (fault 32)."""
    p = home.partition
    for pid in (7, 8):
        write(p, pid, 0)
    day = 86_400_000
    p.configure({"producer.id.expiration.ms": day})
    p.append_marker(8, 0, 0, True, now_ms=NOW + day)
    assert p.expire_producers(NOW + day + 1) == 0
    assert p.expire_producers(NOW + 2 * day + 1) == 1
    assert [q.producer_id for q in p.producers()] == [7]
