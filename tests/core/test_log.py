"""Segments and indexes follow Kafka's rules: rolls, refusals, and look-ups of offsets and times."""

import errno
import random

import pytest

from pybroker.core import Partition, check_batch, read_index, read_timeindex
from tests.core.logs import (
    CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE,
    NOW,
    OFFSET_OUT_OF_RANGE,
    RECORD_LIST_TOO_LARGE,
    Home,
    batch,
    batch_of,
    code_of,
    end_of,
    follow,
    read,
    read_all,
)
from tests.core.slow_log import SlowLog, stamp

DAY = 86_400_000


def bases(partition: Partition) -> list[int]:
    return [base for base, _, _ in partition.segments()]


def fill(partition: Partition, sizes: list[int]) -> None:
    for size in sizes:
        partition.append(batch_of(size), now_ms=NOW)


# -- rolling -----------------------------------------------------------------------------------------------------------


def test_a_segment_takes_segment_bytes_and_not_one_more(home: Home) -> None:
    home.config["segment.bytes"] = 300
    p = home.open()
    fill(p, [100, 100, 100])
    assert bases(p) == [0]
    fill(p, [100, 201])
    assert bases(p) == [0, 3, 4]
    fill(p, [99])
    assert bases(p) == [0, 3, 4]
    fill(p, [100])
    assert bases(p) == [0, 3, 4, 6]


def test_limits_on_batches_at_the_limit_and_one_more(home: Home) -> None:
    """A batch above max.message.bytes gets MESSAGE_TOO_LARGE, one above segment.bytes RECORD_LIST_TOO_LARGE."""
    home.config |= {"max.message.bytes": 300, "segment.bytes": 250}
    p = home.open()
    fill(p, [250])
    assert code_of(p.append, batch_of(251), now_ms=NOW) == RECORD_LIST_TOO_LARGE
    assert code_of(p.append, batch_of(300), now_ms=NOW) == RECORD_LIST_TOO_LARGE
    assert code_of(p.append, batch_of(301), now_ms=NOW) == MESSAGE_TOO_LARGE
    p.configure({**home.config, "segment.bytes": 1000})
    fill(p, [300])
    assert code_of(p.append, batch_of(301), now_ms=NOW) == MESSAGE_TOO_LARGE
    assert (p.log_end_offset, p.size) == (2, 550)


def test_a_log_rolls_by_the_records_own_time(home: Home) -> None:
    """A log rolls when a record is more than segment.ms later than the segment's first; the clock does not count."""
    home.config |= {"segment.ms": 1000, "segment.jitter.ms": 0}
    p = home.open()
    for at, rolled in ((5000, [0]), (6000, [0]), (100, [0]), (6001, [0, 3]), (7001, [0, 3]), (7002, [0, 3, 5])):
        p.append(batch(at=at), now_ms=NOW)
        assert bases(p) == rolled


def test_without_timestamps_it_rolls_by_the_clock(home: Home) -> None:
    home.config |= {"segment.ms": 1000}
    p = home.open()
    p.append(batch(at=-1), now_ms=NOW)
    made = int(home.log_file().stat().st_mtime * 1000)
    p.append(batch(at=-1), now_ms=made)
    assert bases(p) == [0]
    p.append(batch(at=-1), now_ms=made + 5000)
    assert bases(p) == [0, 2]


def test_jitter_brings_a_roll_forward(home: Home) -> None:
    """segment.jitter.ms brings a roll forward by a random time below it."""
    home.config |= {"segment.ms": 1000, "segment.jitter.ms": 900}
    p = home.open()
    waited = []
    at = 10
    p.append(batch(at=at), now_ms=NOW)
    for _ in range(30):
        begun, count = at, p.segment_count
        while p.segment_count == count:
            at += 10
            p.append(batch(at=at), now_ms=NOW)
        waited.append(at - begun)
    assert min(waited) > 90
    assert max(waited) <= 1010
    assert len(set(waited)) > 10


def test_a_full_index_rolls(home: Home) -> None:
    """A full index rolls the segment: four entries of eight bytes fit, and a fifth would not, as in Kafka."""
    home.config |= {"index.interval.bytes": 0, "segment.index.bytes": 4 * 8 + 7}
    p = home.open()
    fill(p, [100] * 12)
    assert bases(p) == [0, 5, 10]
    p.flush()
    assert [len(read_index(str(f))) for f in home.files(".index")] == [4, 4, 1]


def test_a_full_time_index_rolls(home: Home) -> None:
    """A full time index rolls the segment; its entries are larger, and one place is reserved for the seal."""
    home.config |= {"index.interval.bytes": 0, "segment.index.bytes": 48}
    p = home.open()
    for i in range(11):
        p.append(batch_of(100, at=NOW + i), now_ms=NOW)
    assert bases(p) == [0, 4, 8]
    p.flush()
    assert [len(read_timeindex(str(f))) for f in home.files(".timeindex")] == [3, 3, 2]


def test_an_offset_too_far_for_32_bits_rolls(home: Home) -> None:
    """An offset above base + 2^31 - 1, the last that an index entry can hold, rolls the segment."""
    home.config["cleanup.policy"] = 2
    p = follow(home.open())
    p.append_replica(stamp(batch(), 0, 0))
    p.append_replica(stamp(batch(), 2**31 - 2, 0))
    p.append_replica(stamp(batch(1), 2**31 - 1, 0))
    assert bases(p) == [0]
    p.append_replica(stamp(batch(), 2**31, 0))
    assert bases(p) == [0, 2**31]
    p.append_replica(stamp(batch(), 2**32, 0))
    assert bases(p) == [0, 2**31, 2**31 + 1]
    for clean in (False, True):
        p = home.reopen(clean=clean)
        assert (p.log_end_offset, p.recovery) == (2**32 + 1, "")
        assert check_batch(read(p, 2**31 - 5)).base_offset == 2**31 - 2
        assert check_batch(read(p, 2**31)).base_offset == 2**31
        assert check_batch(read(p, 2**31 + 1)).base_offset == 2**32


def test_an_offset_that_no_segment_could_name_is_refused(home: Home) -> None:
    """An offset more than 2^31 - 1 beyond the log end is refused, alone or behind a good batch.

    A segment begins at the log end and could not hold that offset. (A log without records restarts there.)
    """
    start = 5
    p = follow(home.open())
    p.append_replica(stamp(batch(start), 0, 0))
    before = bases(p)
    for far in (start + 2**31, 2**40, 2**62):
        assert code_of(p.append_replica, stamp(batch(), far, 0)) == 87
        assert code_of(p.append_replica, stamp(batch(), start, 0) + stamp(batch(), far + 1, 0)) == 87
    assert (p.log_end_offset, bases(p)) == (start, before)
    assert p.append_replica(stamp(batch(), start + 2**31 - 1, 0)) == start + 2**31
    assert check_batch(read(p, start + 2**31 - 1)).base_offset == start + 2**31 - 1


def test_a_roll_of_an_empty_segment_is_none(home: Home) -> None:
    p = home.open()
    p.roll()
    assert bases(p) == [0]
    fill(p, [100])
    p.roll()
    p.roll()
    assert bases(p) == [0, 1]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_bad_batch_leaves_no_trace(home: Home) -> None:
    p = home.open()
    good = batch(3)
    bad = [b"", good[:60], good[:-1], good + b"\0", good[:-1] + b"\xff", good[:16] + b"\1" + good[17:], good + good]
    for data in bad:
        assert code_of(p.append, data, now_ms=NOW) in (CORRUPT_MESSAGE, 43, 87)
    assert (p.log_end_offset, p.size) == (0, 0)
    assert p.append(good, now_ms=NOW).base_offset == 0


def test_leader_epochs_fence(home: Home) -> None:
    """A lower leader epoch gets FENCED_LEADER_EPOCH, a higher one UNKNOWN_LEADER_EPOCH; -1 skips the check."""
    p = home.open()
    p.become_leader(5, 1)
    assert code_of(p.append, batch(), now_ms=NOW, leader_epoch=4) == 74
    assert code_of(p.append, batch(), now_ms=NOW, leader_epoch=6) == 75
    assert p.append(batch(), now_ms=NOW, leader_epoch=5).base_offset == 0
    assert p.append(batch(), now_ms=NOW).base_offset == 1
    assert code_of(p.become_leader, 4, 9) == 74
    assert p.leader_epoch == 5
    assert check_batch(read_all(p)).partition_leader_epoch == 5


def test_a_replica_takes_only_what_continues(home: Home) -> None:
    """A replica appends several batches at once, drops a partial last one, and refuses one that overlaps."""
    p = follow(home.open())
    assert p.epochs() == []
    data = stamp(batch(2), 0, 3) + stamp(batch(3), 2, 3) + stamp(batch(1), 5, 4)
    assert p.append_replica(data[:-10]) == 5
    assert code_of(p.append_replica, stamp(batch(2), 4, 4)) == 87
    assert p.append_replica(stamp(batch(1), 5, 4)) == 6
    assert read_all(p) == data
    assert p.epochs() == [(3, 0), (4, 5)]


def test_a_replica_takes_nothing_that_was_asked_for_before_it_was_cut(home: Home) -> None:
    """A replica ignores records that were fetched before a truncation, as they would leave a gap; it is no error."""
    p = follow(home.open())
    p.append_replica(stamp(batch(4), 0, 3), log_end=0)
    late = stamp(batch(1), 4, 3)
    p.truncate(0)
    assert p.append_replica(late, log_end=4) == 0 == p.size
    assert p.append_replica(stamp(batch(2), 0, 3), log_end=0) == 2


def test_a_replica_takes_all_that_came_together_or_nothing(home: Home) -> None:
    """A replica appends nothing of an answer with a wrong CRC, a lower offset, or an epoch above its leader's."""
    p = home.open()
    p.become_follower(2, 4, 1)
    good = stamp(batch(2), 0, 4)
    for bad, code in ((stamp(batch(2), 2, 4)[:-1] + b"!", 2), (stamp(batch(2), 1, 4), 87), (stamp(batch(2), 2, 5), 2)):
        assert code_of(p.append_replica, good + bad, leader_epoch=4) == code
        assert (p.log_end_offset, p.size) == (0, 0)
    assert p.append_replica(good + stamp(batch(2), 7, 4), leader_epoch=4) == 9


def test_a_replica_rolls_in_the_middle_of_what_came_together(home: Home) -> None:
    """Batches of one answer go into the same segments as single appends."""
    home.config["segment.bytes"] = 4 * len(batch())
    p = follow(home.open())
    assert p.append_replica(b"".join(stamp(batch(), n, 0) for n in range(150))) == 150
    assert bases(p) == list(range(0, 150, 4))
    assert home.reopen(clean=False).log_end_offset == 150


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_a_replica_that_could_not_write_has_seen_nothing(home: Home) -> None:
    """A replica that could not write for lack of space leaves producer and log end unchanged, and a retry works."""
    p = follow(home.open())
    assert home.broker is not None
    p.append_replica(stamp(batch(2, producer=(7, 0, 0)), 0, 3))
    before = p.producers()
    home.broker.arm("segment.write", "errno", errno.ENOSPC)
    with pytest.raises(OSError, match="space"):
        p.append_replica(stamp(batch(2, producer=(7, 0, 2)), 2, 3))
    assert p.producers() == before and p.log_end_offset == 2
    assert p.append_replica(stamp(batch(2, producer=(7, 0, 2)), 2, 3)) == 4


def test_where_a_leader_epoch_ends(home: Home) -> None:
    """The end of a leader epoch is (the largest known epoch up to it, the start of the next), as in KIP-101."""
    p = home.open()
    assert p.end_offset_for_epoch(0) == (-1, -1)
    for epoch, count in ((2, 10), (5, 3), (6, 1)):
        p.become_leader(epoch, 0)
        p.append(batch(count), now_ms=NOW)
    asked = {epoch: p.end_offset_for_epoch(epoch) for epoch in range(-1, 8)}
    assert asked == {
        -1: (-1, -1), 0: (0, 0), 1: (1, 0), 2: (2, 10), 3: (2, 10), 4: (2, 10), 5: (5, 13), 6: (6, 14), 7: (-1, -1),
    }  # fmt: skip
    p.set_log_start(11)
    assert p.epochs() == [(5, 11), (6, 13)]
    assert [p.epoch_at(o) for o in (10, 11, 12, 13)] == [-1, 5, 5, 6]
    assert p.end_offset_for_epoch(2) == (2, 11)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_every_offset_is_found_in_many_tiny_segments(home: Home) -> None:
    """Every offset is found, also within a batch, in a log with one batch a segment."""
    home.config |= {"segment.bytes": 200, "index.interval.bytes": 0}
    p = home.open(flush_idle_ms=1)
    for i in range(300):
        p.append(batch(1 + i % 4, size=20), now_ms=NOW)
    assert p.segment_count > 150
    for clean in (False, True):
        for offset in random.Random(1).sample(range(p.log_end_offset), 200):
            header = check_batch(read(p, offset, 1))
            assert header.base_offset <= offset <= header.last_offset
        p = home.reopen(clean=clean)


def test_answers_end_at_batch_boundaries_within_their_limit(home: Home) -> None:
    """A read ends at a batch boundary within its limit, and has at least one batch while minimum_one holds."""
    p = home.open()
    fill(p, [100, 200, 300])
    for most, size in ((-5, 100), (0, 100), (99, 100), (100, 100), (299, 100), (300, 300), (599, 300), (600, 600)):
        assert len(read(p, 0, most)) == size
        assert len(read(p, 0, most, minimum_one=False)) == (size if most >= 100 else 0)
    assert end_of(read(p, 1, 2**62)) == 3


def test_the_ends_of_the_log(home: Home) -> None:
    p = home.open()
    assert read(p, 0) == b""
    for wrong in (-1, 1):
        assert code_of(p.read, wrong, 100) == OFFSET_OUT_OF_RANGE
    fill(p, [100])
    assert read(p, 1) == b""
    found = p.read(0, 100)
    assert (found.log_start_offset, found.last_stable_offset, found.high_watermark, found.log_end_offset) == (
        0,
        1,
        1,
        1,
    )
    assert p.set_log_start(-1) == 1
    assert code_of(p.read, 0, 100) == OFFSET_OUT_OF_RANGE
    for wrong in (2, -2):
        assert code_of(p.set_log_start, wrong) == OFFSET_OUT_OF_RANGE
    assert p.set_log_start(0) == 1


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 300, 1 << 20])
def test_times_are_found_as_the_model_finds_them(home: Home, interval: int) -> None:
    """Times are found as in the model: unordered or missing, across segments, after a restart, from any log start."""
    home.config |= {"segment.bytes": 700, "index.interval.bytes": interval}
    p, model, chance = home.open(), SlowLog(), random.Random(interval)
    for _ in range(120):
        at = chance.choice([-1, NOW + chance.randrange(1000)])
        data = batch(chance.randint(1, 3), at=at)
        p.append(data, now_ms=NOW)
        model.append(data, -1)
    for clean in (True, False, None):
        for _ in range(200):
            at, bound = NOW + chance.randrange(-5, 1005), chance.choice([model.end, chance.randrange(model.end)])
            found = p.offset_for_timestamp(at, bound=bound)
            assert (found and found[0]) == model.find_time(at, bound)
        largest = p.max_timestamp()
        assert (largest and largest[:2]) == model.largest()
        model.delete_before(p.set_log_start(min(model.end, model.start + 70)))
        home.checkpoint()
        if clean is not None:
            p = home.reopen(clean=clean)


def test_log_append_time(home: Home) -> None:
    """LogAppendTime puts the broker's clock into the batch, with a right CRC, and look-ups by time use it."""
    home.config["message.timestamp.type"] = 1
    p, model = home.open(), SlowLog()
    for i in range(5):
        data = batch(3, at=7)
        went = p.append(data, now_ms=NOW + i)
        assert went.log_append_time_ms == NOW + i
        model.append(data, -1, append_time_ms=NOW + i)
    assert read_all(p) == b"".join(b.data for b in model.batches)
    header = check_batch(read_all(p))
    assert (header.is_log_append_time, header.max_timestamp) == (True, NOW)
    assert p.offset_for_timestamp(NOW + 3, bound=100) == (9, NOW + 3, -1)
    assert p.max_timestamp() == (12, NOW + 4, -1)
    home.reopen(clean=False)


def test_nothing_to_find(home: Home) -> None:
    p = home.open()
    assert p.max_timestamp() is None
    assert p.offset_for_timestamp(0, bound=100) is None
    p.append(batch(at=-1), now_ms=NOW)
    assert p.max_timestamp() is None
    assert p.offset_for_timestamp(0, bound=100) is None


def test_indexes_by_kafkas_conventions(home: Home) -> None:
    """Index entries have the offsets, positions and timestamps that Kafka would write.

    After more than index.interval.bytes, the offset index gets the batch's last offset and position, and the time index
    gets the largest timestamp so far, if it grew. The seal adds the segment's largest timestamp.
    """
    home.config["index.interval.bytes"] = 199
    p = home.open()
    for at in (5, 9, 3, 4, 8, 12, 2):
        p.append(batch_of(100, at=at), now_ms=NOW)
    p.roll()
    p.flush()
    assert read_index(str(home.files(".index")[0])) == [(2, 200), (4, 400), (6, 600)]
    assert read_timeindex(str(home.files(".timeindex")[0])) == [(9, 1), (12, 5)]
    p.append(batch_of(100, at=20), now_ms=NOW)
    p.roll()
    p.flush()
    assert read_index(str(home.files(".index")[1])) == []
    assert read_timeindex(str(home.files(".timeindex")[1])) == [(20, 7)]


# -- retention ---------------------------------------------------------------------------------------------------------


def test_retention_by_time(home: Home) -> None:
    """Retention by time removes the oldest segments past retention.ms, up to the first younger one."""
    home.config |= {"segment.bytes": 200, "retention.ms": 1000, "segment.ms": DAY}
    p = home.open()
    for at in (0, 100, 200, 50, 900, 10, 40, 30, 500):
        p.append(batch_of(100, at=NOW + at), now_ms=NOW)
    assert p.enforce_retention(NOW + 1100) == 0
    assert p.enforce_retention(NOW + 1101) == 1
    assert p.enforce_retention(NOW + 1800) == 1
    assert (p.log_start_offset, bases(p)) == (4, [4, 6, 8])
    assert p.enforce_retention(NOW + 1901) == 3
    assert (p.log_start_offset, p.log_end_offset, bases(p)) == (9, 9, [9])
    assert p.enforce_retention(NOW + DAY) == 0
    assert p.append(batch(), now_ms=NOW).base_offset == 9


def test_retention_by_size(home: Home) -> None:
    """Retention by size removes segments as long as at least retention.bytes are left."""
    home.config |= {"segment.bytes": 200, "retention.ms": -1, "retention.bytes": 500}
    p = home.open()
    fill(p, [100] * 9)
    assert p.enforce_retention(NOW) == 2
    assert (p.size, p.log_start_offset) == (500, 4)
    p.configure({**home.config, "retention.bytes": 499})
    assert p.enforce_retention(NOW) == 0
    p.configure({**home.config, "retention.bytes": 0})
    assert p.enforce_retention(NOW) == 3
    assert (p.size, p.log_start_offset) == (0, 9)


def test_without_timestamps_the_files_age_counts(home: Home) -> None:
    home.config |= {"segment.bytes": 200, "retention.ms": 1000}
    p = home.open()
    for _ in range(5):
        p.append(batch_of(100, at=-1), now_ms=NOW)
    made = int(home.log_file().stat().st_mtime * 1000)
    assert p.enforce_retention(made) == 0
    assert p.enforce_retention(made + 60_000) == 3


def test_a_compacted_topic_loses_only_what_lies_below_its_log_start(home: Home) -> None:
    home.config |= {"segment.bytes": 200, "retention.ms": 0, "retention.bytes": 0, "cleanup.policy": 2}
    p = home.open()
    fill(p, [100] * 5)
    assert p.enforce_retention(NOW + DAY) == 0
    p.set_log_start(3)
    assert p.enforce_retention(NOW + DAY) == 1
    assert bases(p) == [2, 4]
