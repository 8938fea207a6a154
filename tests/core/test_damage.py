"""Damage in the middle of a log costs only the batches that it hit; those before and behind it can be read."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.core import LogError, Partition, SegmentScan, bad_spots, mark_damaged
from tests.core.logs import CORRUPT_MESSAGE, NOW, Home, batch, batch_of, code_of, end_of, read
from tests.core.slow_log import stamp

SIZE = 100
COUNT = 12


def write(home: Home, count: int = COUNT) -> Partition:
    """Write `count` batches of one record and 100 bytes, each filled with its own byte."""
    partition = home.open()
    for i in range(count):
        partition.append(batch_of(SIZE, fill=bytes([65 + i])), now_ms=NOW)
    return partition


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def read_around(partition: Partition) -> tuple[list[int], set[int]]:
    """Read all offsets, seeking past refused ones; return those with the right byte, and those refused."""
    good, lost, offset = [], set(), partition.log_start_offset
    while offset < partition.log_end_offset:
        if code_of(read, partition, offset):
            assert code_of(read, partition, offset) == CORRUPT_MESSAGE
            lost.add(offset)
            offset += 1
            continue
        data = read(partition, offset, 250)
        for at in range(0, len(data), SIZE):
            (base,) = struct.unpack_from(">q", data, at)
            assert data[at + SIZE - 2] == 65 + base
            good.append(base)
        offset = end_of(data)
    return good, lost


KINDS: dict[str, Callable[[Path, int], None]] = {
    "a record": lambda path, at: change(path, at + 80, b"\xff"),
    "the CRC": lambda path, at: change(path, at + 18, b"\xff"),
    "the offset": lambda path, at: change(path, at + 6, b"\x01"),
    "the length, too small": lambda path, at: change(path, at + 8, struct.pack(">i", 60)),
    "the length, too large": lambda path, at: change(path, at + 8, struct.pack(">i", 250)),
    "the length, beyond the file": lambda path, at: change(path, at + 8, struct.pack(">i", 1 << 28)),
    "the magic": lambda path, at: change(path, at + 16, b"\x00"),
    "all of it, zeros": lambda path, at: change(path, at, bytes(SIZE)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_crash_and_a_bad_batch_cost_that_batch(tmp_path: Path, kind: str) -> None:
    home = Home(tmp_path, {"index.interval.bytes": 250})
    write(home)
    home.crash()
    KINDS[kind](home.log_file(), 4 * SIZE)
    partition = home.open()
    assert bad_spots(partition) == [(0, 4 * SIZE, 5 * SIZE, 4, 5)]
    assert read_around(partition) == ([i for i in range(COUNT) if i != 4], {4})
    assert partition.append(batch_of(SIZE, fill=bytes([65 + COUNT])), now_ms=NOW).base_offset == COUNT
    assert partition.offset_for_timestamp(NOW, bound=COUNT) == (0, NOW, -1)
    assert partition.recovery == ""
    home.crash()


def test_zeros_over_several_batches_are_one_bad_spot(tmp_path: Path) -> None:
    home = Home(tmp_path)
    write(home)
    home.crash()
    change(home.log_file(), 250, bytes(400))
    partition = home.open()
    assert bad_spots(partition) == [(0, 200, 700, 2, 7)]
    assert read_around(partition) == ([0, 1, 7, 8, 9, 10, 11], {2, 3, 4, 5, 6})
    home.crash()


@pytest.mark.parametrize("cut", [False, True], ids=["damaged", "cut short"])
def test_a_bad_end_of_a_segment_does_not_cost_the_next_ones(tmp_path: Path, cut: bool) -> None:
    home = Home(tmp_path, {"segment.bytes": 2 * SIZE})
    write(home, 8)
    home.crash()
    if cut:
        os.truncate(home.log_file(2), 150)
    else:
        change(home.log_file(2), 180, b"\xff")
    partition = home.open()
    assert bad_spots(partition) == [(2, 100, 150 if cut else 200, 3, 4)]
    assert read_around(partition) == ([0, 1, 2, 4, 5, 6, 7], {3})
    known = bad_spots(partition)
    home.stop()
    partition = home.open()
    for spot in known:
        assert mark_damaged(partition, *spot)
    assert read_around(partition)[0] == [0, 1, 2, 4, 5, 6, 7]
    home.crash()


def test_a_bad_last_batch_is_cut_and_kept_in_a_file_beside(tmp_path: Path) -> None:
    """A damaged last batch is cut, and kept in a file beside the log, as it may have been acknowledged."""
    home = Home(tmp_path)
    write(home)
    home.crash()
    change(home.log_file(), 11 * SIZE + 80, b"\xff")
    damaged = home.log_file().read_bytes()[11 * SIZE :]
    partition = home.open()
    assert (partition.log_end_offset, bad_spots(partition)) == (11, [])
    name = f"{0:020}.log"
    assert partition.recovery == (
        f"cut 100 bytes of a damaged tail at position 1100 of {name}: the log ends at offset 11, "
        f"they are kept in {name}.1100.damaged"
    )
    assert (home.directory / f"{name}.1100.damaged").read_bytes() == damaged
    home.crash()
    os.truncate(home.log_file(), 10 * SIZE + 70)
    partition = home.open()
    assert partition.recovery == f"cut 70 bytes of a torn tail at position 1000 of {name}: the log ends at offset 10"
    assert [p.name for p in home.files(".damaged")] == [f"{name}.1100.damaged"]
    home.crash()


def test_batches_in_the_value_of_a_torn_batch_are_no_batches(tmp_path: Path) -> None:
    """Batches within a record's value are never taken for batches of the log, even if the outer batch is torn."""
    home = Home(tmp_path)
    partition = write(home)
    inside = b"".join(stamp(batch_of(SIZE), COUNT + 5 + i, -1) for i in range(5))
    partition.append(batch(fill=inside, size=1), now_ms=NOW)
    home.crash()
    os.truncate(home.log_file(), home.log_file().stat().st_size - 50)
    partition = home.open()
    assert (partition.log_end_offset, bad_spots(partition)) == (COUNT, [])
    home.crash()


def test_a_wrong_length_before_a_torn_end_costs_its_batch(tmp_path: Path) -> None:
    """A wrong length costs only its batch: the CRC shows where the batch ended, and only the torn end is cut."""
    home = Home(tmp_path)
    write(home)
    home.crash()
    KINDS["the length, beyond the file"](home.log_file(), 4 * SIZE)
    os.truncate(home.log_file(), (COUNT - 1) * SIZE + 70)
    partition = home.open()
    assert bad_spots(partition) == [(0, 4 * SIZE, 5 * SIZE, 4, 5)]
    assert read_around(partition) == ([i for i in range(COUNT - 1) if i != 4], {4})
    assert partition.recovery.startswith("cut 70 bytes of a torn tail")
    home.crash()


def test_producers_are_known_across_a_bad_batch(tmp_path: Path) -> None:
    home = Home(tmp_path)
    partition = home.open()
    for i in range(8):
        partition.append(batch(producer=(7, 0, i)), now_ms=NOW)
    size = partition.size // 8
    home.crash()
    change(home.log_file(), 3 * size + 70, b"\xff")
    partition = home.open()
    assert partition.append(batch(producer=(7, 0, 7)), now_ms=NOW).duplicate
    assert partition.append(batch(producer=(7, 0, 8)), now_ms=NOW).base_offset == 8
    home.crash()


@pytest.mark.parametrize("kind", ["the magic", "all of it, zeros", "the length, beyond the file"])
@pytest.mark.parametrize("batch_number", [0, 5, 9])
def test_bad_headers_in_sealed_segments_do_not_keep_a_log_from_opening(
    tmp_path: Path, kind: str, batch_number: int
) -> None:
    """A bad header in a sealed segment does not keep the log from opening; only its batch is passed over."""
    home = Home(tmp_path, {"segment.bytes": 10 * SIZE, "index.interval.bytes": 250})
    write(home)
    home.stop()
    KINDS[kind](home.log_file(), batch_number * SIZE)
    partition = home.open()
    SegmentScan(str(home.log_file()), partition=partition, next_base=10).step()
    assert read_around(partition) == ([i for i in range(COUNT) if i != batch_number], {batch_number})
    home.crash()


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_two_bad_batches_of_a_sealed_segment_cost_those_two(tmp_path: Path, clean: bool) -> None:
    """Two bad batches of a sealed segment cost only those two, even if an offset is beyond the next segment."""
    home = Home(tmp_path, {"segment.bytes": 10 * SIZE})
    write(home).flush()
    home.checkpoint()
    home.stop() if clean else home.crash()
    KINDS["the length, beyond the file"](home.log_file(), 3 * SIZE)
    KINDS["the offset"](home.log_file(), 4 * SIZE)
    partition = home.open()
    assert read_around(partition) == ([i for i in range(COUNT) if i not in (3, 4)], {3, 4})
    home.crash()


@pytest.mark.parametrize("offset", [1, 2, 9])
def test_a_wrong_offset_at_the_end_of_a_sealed_segment_costs_its_batch(tmp_path: Path, offset: int) -> None:
    """A wrong offset in a sealed segment's last header costs only that batch after a clean stop."""
    home = Home(tmp_path, {"segment.bytes": 4 * SIZE})
    write(home)
    home.stop()
    change(home.log_file(), 3 * SIZE + 7, bytes([offset]))
    partition = home.open()
    assert bad_spots(partition) == [(0, 3 * SIZE, 4 * SIZE, 3, 4)]
    assert read_around(partition) == ([i for i in range(COUNT) if i != 3], {3})
    home.stop()


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_a_batch_of_a_compacted_log_does_not_leap_behind_the_next_segment(tmp_path: Path, clean: bool) -> None:
    """A batch of a compacted log whose offset lies beyond the next segment is found as damage.

    Offsets have gaps there, so no header in the segment shows the fault; only a scan with the next base offset does.
    """
    home = Home(tmp_path, {"segment.bytes": 4 * SIZE})
    write(home)
    home.stop() if clean else home.crash()
    change(home.log_file(), 3 * SIZE + 7, bytes([9]))
    assert SegmentScan(str(home.log_file())).step() == []
    assert SegmentScan(str(home.log_file()), next_base=4).step() == [(3 * SIZE, 4 * SIZE, 3, 4)]
    partition = home.open(compacted=True)
    assert bad_spots(partition) == [(0, 3 * SIZE, 4 * SIZE, 3, 4)]
    assert read_around(partition) == ([i for i in range(COUNT) if i != 3], {3})
    home.stop()


@pytest.mark.parametrize("batches", [3, 5], ids=["too few", "too many"])
def test_a_sealed_segment_of_sound_batches_that_does_not_fit_is_not_taken(tmp_path: Path, batches: int) -> None:
    """A sealed segment of sound batches whose neighbour is missing or wrong keeps the log from opening."""
    home = Home(tmp_path, {"segment.bytes": 4 * SIZE})
    write(home)
    home.stop()
    data = home.log_file().read_bytes() + home.log_file(4).read_bytes()
    home.log_file().write_bytes(data[: batches * SIZE])
    with pytest.raises(LogError):
        home.open()


def test_a_scan_finds_what_the_headers_do_not_show(tmp_path: Path) -> None:
    """A scan reports each bad spot once, step by step; the spots can be marked again after a restart."""
    home = Home(tmp_path, {"segment.bytes": 10 * SIZE})
    partition = write(home)
    for at in (2, 3, 7):
        change(home.log_file(), at * SIZE + 80, b"\xff")
    scan = SegmentScan(str(home.log_file()), partition=partition, strict=True, next_base=10)
    found = []
    while not scan.done:
        found.append(scan.step(300))
    assert found == [[(200, 400, 2, 4)], [], [(700, 800, 7, 8)]]
    assert (scan.size, scan.end_offset) == (1000, 10)
    assert read_around(partition) == ([0, 1, 4, 5, 6, 8, 9, 10, 11], {2, 3, 7})
    known = bad_spots(partition)
    assert known == [(0, 200, 400, 2, 4), (0, 700, 800, 7, 8)]
    home.stop()
    partition = home.open()
    assert read_around(partition)[1] == set()
    for spot in known:
        assert mark_damaged(partition, *spot)
    assert not mark_damaged(partition, 5, 200, 400, 2, 4)
    assert read_around(partition)[1] == {2, 3, 7}
    home.crash()


def test_a_segment_that_was_replaced_is_not_marked(tmp_path: Path) -> None:
    """Spots of a segment that compaction replaced during the scan are not marked."""
    home = Home(tmp_path, {"segment.bytes": 10 * SIZE})
    partition = write(home)
    sound = tmp_path / "sound"
    shutil.copy(home.log_file(), sound)
    change(home.log_file(), 280, b"\xff")
    scan = SegmentScan(str(home.log_file()), partition=partition)
    sound.rename(home.log_file())
    assert scan.step() == []
    assert bad_spots(partition) == []
    home.crash()


def test_a_truncation_forgets_what_was_bad_behind_it(tmp_path: Path) -> None:
    """A truncation forgets the bad spots behind it, where other batches are then written."""
    home = Home(tmp_path)
    write(home)
    home.crash()
    change(home.log_file(), 480, b"\xff")
    partition = home.open()
    assert bad_spots(partition) == [(0, 400, 500, 4, 5)]
    partition.truncate(4)
    assert bad_spots(partition) == []
    assert partition.append(batch_of(SIZE, fill=bytes([69])), now_ms=NOW).base_offset == 4
    assert read_around(partition) == ([0, 1, 2, 3, 4], set())
    home.crash()


def four_segments(path: Path) -> Home:
    """A log after a crash: 400 bytes a batch, 100 batches a segment, all of leader epoch 1."""
    home = Home(path, {"segment.bytes": 40_000})
    partition = home.open()
    partition.become_leader(1, 0)
    for number in range(400):
        partition.append(batch_of(400, at=NOW + number), now_ms=NOW)
    home.crash()
    assert len(home.files(".log")) == 4
    return home


@pytest.mark.parametrize("field", ["epoch", "offset"])
@pytest.mark.parametrize("place", [5, 103, 399])
def test_a_field_that_no_crc_covers_costs_its_batch(tmp_path: Path, field: str, place: int) -> None:
    """An offset or leader epoch that leaps ahead costs only its batch.

    Neither a start nor a scan takes the batches behind it for older ones, and no segment is removed.
    """
    home = four_segments(tmp_path)
    files = home.files(".log")
    path = files[place // 100]
    data = bytearray(path.read_bytes())
    at = place % 100 * 400
    if field == "epoch":
        data[at + 15] = 3
    else:
        data[at + 6] += 4
    path.write_bytes(data)
    scan = SegmentScan(str(path))
    found = scan.step()
    assert found == ([(at, at + 400, place, place + 1)] if place < 399 else [])
    partition = home.open(compacted=field == "offset")
    assert len(home.files(".log")) >= 4
    if place < 399:
        assert partition.log_end_offset == 400
        assert bad_spots(partition) == [(place // 100 * 100, at, at + 400, place, place + 1)]
        assert all(read(partition, number, 1) for number in range(400) if number != place)
    home.crash()


def test_a_segment_that_a_truncation_had_removed_bounds_no_later_batch(tmp_path: Path) -> None:
    """A removed segment that a loss of power brought back makes the log refuse to open, and no batch is cut.

    Batches written in its place, in a later epoch, are not taken for damage, even with a gap before them.
    """
    home = Home(tmp_path, {"segment.bytes": 4 * SIZE})
    write(home)
    home.crash()
    change(home.log_file(), 3 * SIZE + 7, bytes([9]))
    change(home.log_file(), 3 * SIZE + 12, (5).to_bytes(4, "big"))
    kept = {path: path.read_bytes() for path in home.files(".log")}
    with pytest.raises(LogError, match=r"overlap|order|begin"):
        home.open(compacted=True)
    assert {path: path.read_bytes() for path in home.files(".log")} == kept
    assert home.broker is not None
    home.broker.close(clean=False)
    home.broker = None


def test_a_wrong_epoch_before_the_last_segment_does_not_cost_that_segment(tmp_path: Path) -> None:
    """A sound last segment is not cut because the batch before it has a wrong, later leader epoch."""
    home = four_segments(tmp_path)
    change(home.files(".log")[2], 99 * 400 + 15, bytes([3]))
    kept = {path: path.read_bytes() for path in home.files(".log")}
    with pytest.raises(LogError, match=r"overlap|order|begin"):
        home.open()
    assert {path: path.read_bytes() for path in home.files(".log")} == kept
    assert home.broker is not None
    home.broker.close(clean=False)
    home.broker = None


def test_where_two_segments_contradict_each_other_none_is_removed(tmp_path: Path) -> None:
    """Two segments that contradict each other keep the log from opening, and neither is removed."""
    home = four_segments(tmp_path)
    files = home.files(".log")
    data = bytearray(files[0].read_bytes())
    data[98 * 400 + 15] = 3
    data[99 * 400 + 100] ^= 0xFF
    files[0].write_bytes(data)
    kept = {path: path.read_bytes() for path in files}
    with pytest.raises(LogError, match=r"overlap|order|begin"):
        home.open()
    assert {path: path.read_bytes() for path in home.files(".log")} == kept
    assert home.broker is not None
    home.broker.close(clean=False)
    home.broker = None
