"""A start after a crash ends the log after its last whole batch, with any tail, and the log goes on there."""

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

import pytest

from pybroker.core import LogError, LogManager, bad_spots, iter_batches
from tests.core import slow_log
from tests.core.logs import (
    KAFKA_STORAGE_ERROR,
    NOW,
    TOPIC_ID,
    Home,
    assert_same,
    assert_windows,
    batch,
    batch_of,
    read,
    read_all,
)
from tests.core.slow_log import SlowLog, stamp

EPOCH_MAX = 4
LONG = {"index.interval.bytes": 200}


class Crashed(NamedTuple):
    """A log after a crash, never flushed."""

    home: Home
    model: SlowLog

    @property
    def segments(self) -> list[tuple[int, bytes]]:
        return [(int(p.stem), p.read_bytes()) for p in self.home.files(".log")]


def write_log(path: Path, *, fresh: bool) -> Crashed:
    """Write batches of producers 7, 8 and none in leader epochs 0, 3 and 4; `fresh` rolls before the last batch."""
    home, model = Home(path, LONG), SlowLog()
    partition = home.open()
    sequences = {7: 2**31 - 5, 8: 0}
    plan = [(0, 7, 3), (0, 7, 1), (0, None, 5), (3, 8, 2), (3, 7, 4), (3, 8, 1), (3, None, 9), (4, 7, 2), (4, 8, 3)]
    plan += [(4, 7, 1), (4, None, 2), (4, 7, 6)]
    for i, (epoch, pid, count) in enumerate(plan):
        partition.become_leader(epoch, 0)
        data = batch(count, size=3 * i, at=NOW + i, producer=pid and (pid, 0, sequences[pid]))
        if pid:
            sequences[pid] = (sequences[pid] + count) % 2**31
        if fresh and i == len(plan) - 1:
            partition.roll()
        assert partition.append(data, now_ms=NOW).base_offset == model.append(data, epoch)
    home.crash()
    return Crashed(home, model)


@pytest.fixture(scope="module", params=["one segment", "last batch in a fresh segment"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    return write_log(tmp_path_factory.mktemp("crashed"), fresh=request.param != "one segment")


@pytest.fixture
def damaged(crashed: Crashed, tmp_path: Path) -> Iterator[Callable[[int, bytes], None]]:
    """Replace the segment with this base offset by `content`, open, compare with the model, and append more."""
    home = Home(tmp_path, LONG)

    def check(base: int, content: bytes) -> None:
        shutil.rmtree(home.directory, ignore_errors=True)
        shutil.copytree(crashed.home.directory, home.directory)
        home.log_file(base).write_bytes(content)
        segments = [(b, content if b == base else data) for b, data in crashed.segments]
        model = SlowLog(slow_log.recover(segments, EPOCH_MAX))
        assert_same(home.open(epoch_max=EPOCH_MAX), model)
        more = batch(2, producer=(9, 0, 0))
        home.partition.become_leader(EPOCH_MAX, 0)
        assert home.partition.append(more, now_ms=NOW).base_offset == model.append(more, EPOCH_MAX)
        assert_same(home.reopen(clean=False, epoch_max=EPOCH_MAX), model)
        home.crash()

    yield check
    if home.broker is not None:
        home.crash()


def tail(crashed: Crashed) -> tuple[int, bytes, int]:
    """(base offset of the last segment, its bytes, position of its last batch)."""
    base, data = crashed.segments[-1]
    return base, data, len(data) - len(crashed.model.batches[-1].data)


def test_a_crash_alone_loses_nothing(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    damaged(*crashed.segments[0])


def test_cut_at_every_byte_of_the_last_three_batches(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    base, data = crashed.segments[-1]
    boundaries = [at for at, _ in iter_batches(data)]
    for size in range(boundaries[-3:][0], len(data)):
        damaged(base, data[:size])


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80], ids=hex)
def test_every_flipped_byte_of_the_last_batch_is_noticed(
    crashed: Crashed, damaged: Callable[[int, bytes], None], mask: int
) -> None:
    base, data, last = tail(crashed)
    for at in range(last, len(data)):
        damaged(base, data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])


@pytest.mark.parametrize("size", [1, 12, 16, 61, 4096, 300_000])
def test_a_tail_of_zeros_or_random_bytes_is_cut(
    crashed: Crashed, damaged: Callable[[int, bytes], None], size: int
) -> None:
    base, data, last = tail(crashed)
    for junk in (bytes(size), os.urandom(size), b"\xff" * size):
        damaged(base, data + junk)
        damaged(base, data[:last] + junk)


def test_an_old_batch_of_the_same_log_is_cut(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    """An old batch of the same log at its end is cut: its CRC is right, but its offset was already used."""
    base, data, _ = tail(crashed)
    for old in crashed.model.batches:
        damaged(base, data + old.data)
        damaged(base, data + old.data + crashed.model.batches[-1].data)


def test_a_good_crc_with_a_wrong_offset_is_cut(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    base, data, _ = tail(crashed)
    end = crashed.model.end
    for offset in (0, end - 1, end + 1, end + 1000, 2**31, 2**62, 2**63 - 1, 2**64 - 1):
        wrong = offset.to_bytes(8, "big") + stamp(batch(3), 0, EPOCH_MAX)[8:]
        damaged(base, data + wrong)
    damaged(base, data + stamp(batch(3), end, EPOCH_MAX) + stamp(batch(3), end, EPOCH_MAX))


def test_a_good_crc_with_a_wrong_epoch_is_cut(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    base, data, _ = tail(crashed)
    for epoch in (-1, 0, EPOCH_MAX - 1, EPOCH_MAX + 1, 2**31 - 1, -(2**31)):
        damaged(base, data + stamp(batch(3), crashed.model.end, epoch))


def test_a_length_is_checked_before_it_is_believed(crashed: Crashed, damaged: Callable[[int, bytes], None]) -> None:
    base, data, _ = tail(crashed)
    good = stamp(batch(3), crashed.model.end, EPOCH_MAX)
    for length in (-(2**31), -1, 0, 48, 49, len(good) - 11, 2**20, 2**31 - 13, 2**31 - 1):
        damaged(base, data + good[:8] + length.to_bytes(4, "big", signed=True) + good[12:])


def test_what_follows_a_cut_goes_too_where_nothing_in_it_is_sound(tmp_path: Path) -> None:
    """Segments behind a cut are removed, the last one first."""
    home, model = Home(tmp_path, {"segment.bytes": 200}), SlowLog()
    partition = home.open()
    for i in range(8):
        data = batch_of(100, fill=bytes([i]))
        partition.append(data, now_ms=NOW)
        model.append(data, -1)
    assert partition.segment_count == 4
    home.crash()
    damaged = bytearray(home.log_file(2).read_bytes())
    damaged[150] ^= 1
    home.log_file(2).write_bytes(damaged)
    home.log_file(4).write_bytes(bytes(200))
    home.log_file(6).write_bytes(b"\xff" * 200)
    partition = home.open()
    model.truncate(3)
    assert_same(partition, model)
    assert "cut 100 bytes" in partition.recovery
    assert [p.name for p in home.files(".log")] == [f"{0:020}.log", f"{2:020}.log"]
    home.crash()


@pytest.mark.parametrize("base", [5, 7, 9], ids=["within the last segment", "at its end", "behind its lost tail"])
def test_a_log_goes_on_after_an_empty_file(tmp_path: Path, base: int) -> None:
    """A log goes on after an empty segment file, which is removed or becomes the last.

    A roll had created the file before the crash, and a loss of power may have taken the data before it.
    """
    home, model = Home(tmp_path, {"segment.bytes": 400}), SlowLog()
    partition = home.open()
    for data in (batch_of(300), batch_of(100), batch_of(300), batch_of(100), batch(3)):
        model.append(data, -1)
        partition.append(data, now_ms=NOW)
    assert partition.segment_count == 3 and partition.log_end_offset == 7
    home.crash()
    home.log_file(base).touch()
    partition = home.open()
    for _ in range(5):
        data = batch_of(100)
        assert partition.append(data, now_ms=NOW).base_offset == model.append(data, -1)
    assert_same(partition, model)
    assert_same(home.reopen(clean=False), model)
    home.crash()


@pytest.mark.parametrize("believed", [0, 5, 7])
def test_wherever_the_data_ends_appends_go_on(tmp_path: Path, believed: int) -> None:
    """Appends go on wherever the data ends: at any batch or within the next, with later files empty or gone.

    One more empty file may be anywhere; `believed` batches lie below the recovery point.
    """
    sizes = (300, 100, 200, 150, 120, 250, 90, 100, 110)
    batches = [batch_of(size, fill=bytes([n])) for n, size in enumerate(sizes)]
    whole = Home(tmp_path, {"segment.bytes": 400}, topic="whole")
    partition = whole.open()
    for n, data in enumerate(batches, 1):
        partition.append(data, now_ms=NOW)
        if n == believed:
            partition.flush()
            whole.checkpoint()
    whole.crash()
    bases = [int(file.stem) for file in whole.files(".log")]
    assert bases == [0, 2, 4, 6]
    for kept, emptied, torn in product(range(believed + 1, len(sizes) + 1), (False, True), (0, 61)):
        for extra in {1, 3, 5, kept - 1, kept, kept + 2} - set(bases):
            home, model = Home(tmp_path, whole.config, topic=f"{kept}-{extra}-{emptied}-{torn}"), SlowLog()
            shutil.copytree(whole.directory, home.directory)
            home.recovery_point = whole.recovery_point
            for base, after in pairwise([*bases, len(sizes)]):
                size = sum(sizes[base : min(after, kept)])
                os.truncate(home.log_file(base), size + torn if base <= kept < after else size)
                if base >= kept and not emptied:
                    home.log_file(base).unlink()
            home.log_file(extra).touch()
            partition = home.open()
            for data in batches[:kept]:
                model.append(data, -1)
            for _ in range(6):
                data = batch_of(100)
                assert partition.append(data, now_ms=NOW).base_offset == model.append(data, -1)
            assert_same(partition, model)
            assert_same(home.reopen(clean=False), model)
            home.crash()


# -- what is scanned ---------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


def test_only_what_lies_past_the_recovery_point_is_scanned(tmp_path: Path) -> None:
    """A start scans only what lies past the recovery point: a flipped byte below it is not found, one above it is."""
    home = Home(tmp_path)
    partition = home.open()
    for _ in range(4):
        partition.append(batch_of(100), now_ms=NOW)
    assert partition.flush() == 4
    home.checkpoint()
    for _ in range(4):
        partition.append(batch_of(100), now_ms=NOW)
    home.crash()
    flip(home.log_file(), 399)
    partition = home.open()
    assert (partition.log_end_offset, partition.recovery, partition.recovery_point) == (8, "", 4)
    home.crash()
    flip(home.log_file(), 499)
    partition = home.open()
    assert (partition.log_end_offset, bad_spots(partition)) == (8, [(0, 400, 500, 4, 5)])
    home.crash()


def test_segments_below_the_recovery_point_are_not_scanned(tmp_path: Path) -> None:
    home = Home(tmp_path, {"segment.bytes": 200})
    partition = home.open()
    for _ in range(6):
        partition.append(batch_of(100), now_ms=NOW)
    partition.flush()
    home.checkpoint()
    home.crash()
    flip(home.log_file(0), 99)
    flip(home.log_file(4), 99)
    partition = home.open()
    assert (partition.log_end_offset, partition.recovery) == (6, "")
    home.crash()


def test_a_clean_stop_skips_the_scan(tmp_path: Path) -> None:
    home = Home(tmp_path, {"segment.bytes": 300})
    partition = home.open()
    for _ in range(5):
        partition.append(batch_of(100), now_ms=NOW)
    home.stop()
    flip(home.log_file(3), 199)
    home.recovery_point = 0
    partition = home.open()
    assert (partition.log_end_offset, partition.recovery) == (5, "")
    home.crash()


def test_a_clean_marker_is_not_believed_by_a_file_that_ends_inside_a_batch(tmp_path: Path) -> None:
    home = Home(tmp_path)
    partition = home.open()
    for _ in range(5):
        partition.append(batch_of(100), now_ms=NOW)
    home.stop()
    os.truncate(home.log_file(), 450)
    partition = home.open()
    assert partition.log_end_offset == 4
    assert len(read_all(partition)) == 400
    home.crash()


def test_recovery_of_a_batch_larger_than_the_scan_buffer(tmp_path: Path) -> None:
    home, model = Home(tmp_path), SlowLog()
    partition = home.open()
    for size in (100, 300_000, 262_144, 700_000, 100):
        data = batch_of(size)
        partition.append(data, now_ms=NOW)
        model.batches.append(slow_log.Stored(slow_log.Batch(*slow_log.HEADER.unpack_from(data)), data))
    home.crash()
    partition = home.open()
    assert (partition.log_end_offset, partition.recovery) == (5, "")
    home.crash()
    flip(home.log_file(), 100 + 300_000 + 262_144 + 699_999)
    partition = home.open()
    assert bad_spots(partition) == [(0, 562_244, 1_262_244, 3, 4)]
    home.crash()


# -- what is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_missing_in_the_middle_keeps_its_partition_offline(tmp_path: Path, clean: bool) -> None:
    """A segment missing in the middle keeps its partition offline until it is back; the error names offsets."""
    home = Home(tmp_path, {"segment.bytes": 200})
    partition = home.open()
    for _ in range(8):
        partition.append(batch_of(100), now_ms=NOW)
    home.stop()
    home.clean = clean
    home.recovery_point = 0
    moved = tmp_path / "moved"
    home.log_file(2).rename(moved)
    broker = LogManager()
    with pytest.raises(LogError, match=r"a segment is missing: one ends at offset 2, the next begins at 4") as e:
        home.open_in(broker)
    assert e.value.code == KAFKA_STORAGE_ERROR
    assert sorted(int(p.stem) for p in home.files(".log")) == [0, 4, 6]
    other = broker.open(str(tmp_path), "other", 0, topic_id=TOPIC_ID, config={})
    other.become_leader(0, 0)
    assert other.append(batch(), now_ms=NOW).base_offset == 0
    moved.rename(home.log_file(2))
    assert home.open_in(broker).log_end_offset == 8
    home.crash()


def test_the_first_segments_may_be_gone(tmp_path: Path) -> None:
    """A log without its first segments, as after retention, starts at the first that is left."""
    home = Home(tmp_path, {"segment.bytes": 200})
    partition = home.open()
    for _ in range(6):
        partition.append(batch_of(100), now_ms=NOW)
    home.crash()
    home.log_file(0).unlink()
    partition = home.open()
    assert (partition.log_start_offset, partition.log_end_offset) == (2, 6)
    home.crash()


def test_a_log_start_beyond_the_log_begins_anew_there(tmp_path: Path) -> None:
    """A log start beyond the log end is kept, as readers may have seen it, and the log begins again there."""
    home = Home(tmp_path)
    partition = home.open()
    for _ in range(6):
        partition.append(batch_of(100), now_ms=NOW)
    assert partition.set_log_start(5) == 5
    home.checkpoint()
    home.crash()
    os.truncate(home.log_file(), 250)
    partition = home.open()
    assert (partition.log_start_offset, partition.log_end_offset) == (5, 5)
    assert partition.append(batch(), now_ms=NOW).base_offset == 5
    partition = home.reopen(clean=False)
    assert (partition.log_start_offset, partition.log_end_offset) == (5, 6)
    assert read(partition, 5)
    home.crash()


def test_a_torn_epoch_checkpoint_is_made_from_the_batches(tmp_path: Path) -> None:
    """A torn or missing leader epoch checkpoint is rebuilt from the scanned batches."""
    crashed = write_log(tmp_path, fresh=False)
    checkpoint = crashed.home.directory / "leader-epoch-checkpoint"
    for text in (None, "", "0\n", "0\n2\n0 0\n", "0\n1\n9 x\n", "junk", "0\n1\n77 5\n"):
        checkpoint.unlink(missing_ok=True)
        if text is not None:
            checkpoint.write_text(text)
        partition = crashed.home.open(epoch_max=EPOCH_MAX)
        assert partition.epochs() == crashed.model.epochs()
        assert partition.leader_epoch == 4
        crashed.home.crash()


def test_windows_survive_a_stop_and_a_crash(tmp_path: Path) -> None:
    crashed = write_log(tmp_path, fresh=True)
    home, model = crashed
    home.open(epoch_max=EPOCH_MAX)
    for clean in (True, False, True, True, False, False):
        assert_windows(home.reopen(clean=clean, epoch_max=EPOCH_MAX), model)
    home.crash()
