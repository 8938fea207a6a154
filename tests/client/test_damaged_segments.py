"""One definition of damage: every reader of segments finds the damage of a file at the same byte."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

import pybroker
from pybroker.cli.files.batches import Damage
from pybroker.cli.files.batches import read_batches as dump
from pybroker.client.columns.arrays import record_arrays
from pybroker.core import Columns, LogError, LogManager, SegmentScan, build_batch
from pybroker.errors import CORRUPT_MESSAGE
from pybroker.spark.reading.segment_reader import SegmentReader

OFFSET_BYTES = 8
ATTRIBUTES_AT, CONTROL = 21, 0x20
HEADER_BYTES = 61
RECORDS = 10  # a batch


class Batch(NamedTuple):
    base: int
    position: int
    size: int


def batches_of(path: Path) -> list[Batch]:
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        found.append(Batch(int.from_bytes(data[at : at + OFFSET_BYTES], "big"), at, size))
        at += size
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed partition of several segments."""
    broker = LogManager()
    home = tmp_path_factory.mktemp("sound")
    log = broker.open(str(home), "t", 0, topic_id=bytes(16), config={"segment.bytes": 20_000})
    log.become_leader(0, 0)
    for i in range(60):
        log.append(build_batch([(0, b"%d" % i, b"v" * 100, [])] * RECORDS), now_ms=0)
    directory = Path(log.directory)
    broker.close()
    return directory


@pytest.fixture
def log(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "t-0")


def set_base(base: Callable[[Batch], int]) -> Callable[[bytearray, Batch], None]:
    def damage(data: bytearray, batch: Batch) -> None:
        data[batch.position : batch.position + OFFSET_BYTES] = base(batch).to_bytes(OFFSET_BYTES, "big")

    return damage


def zeros(data: bytearray, batch: Batch) -> None:
    data[batch.position : batch.position + batch.size] = bytes(batch.size)


def flip(data: bytearray, batch: Batch) -> None:
    data[batch.position + batch.size - 1] ^= 1


def be_control(data: bytearray, batch: Batch) -> None:
    data[batch.position + ATTRIBUTES_AT + 1] ^= CONTROL


DAMAGES = {
    "zeros": zeros,
    "zeros of a page": lambda data, batch: data.__setitem__(slice(batch.position, batch.position + 4096), bytes(4096)),
    "falls back to 0": set_base(lambda _: 0),
    "falls back by one": set_base(lambda batch: batch.base - 1),
    "leaps beyond any segment": set_base(lambda _: 1 << 40),
    "leaps over two batches": set_base(lambda batch: batch.base + 3 * RECORDS),
    "leaps behind the next segment": set_base(lambda batch: batch.base + 200),
    "a bit of a record": flip,
    "the bit of a control batch": be_control,
}


def by_read_log(log: Path, path: Path) -> tuple[list[int], int]:
    """The offsets that were read, and the byte of the damage; -1 for none."""
    found: list[int] = []
    try:
        for made in pybroker.read_log(log, columns=["offset"]):
            found += made.column("offset").to_pylist()
    except LogError as error:
        assert error.code == CORRUPT_MESSAGE
        return found, int(re.findall(r"byte (\d+)", str(error))[-1])
    return found, -1


def by_spark(log: Path, path: Path) -> tuple[list[int], int]:
    bounds = SimpleNamespace(tp="t-0", start=0, end=int(sorted(log.glob("*.log"))[-1].stem))
    partition = SimpleNamespace(range=bounds, leader=SimpleNamespace(topic_id=bytes(16)))
    options = SimpleNamespace(read_committed=False, log_dirs=(str(log.parent),), fetch_bytes=1 << 20)
    reader: Any = SegmentReader(options, partition, 0)  # type: ignore[arg-type]
    columns, found = Columns(["offset"]), list[int]()
    try:
        while (batches := reader.next_batches()) is not None:
            while not batches.finished:
                try:
                    columns.read(batches)
                finally:
                    offsets = record_arrays(columns.take()).offset
                    found += [] if offsets is None else offsets.tolist()
            reader.go_on(batches.next_offset)
    except LogError as error:
        assert error.code == CORRUPT_MESSAGE
        return found, int(re.findall(r"byte (\d+)", str(error))[-1])
    finally:
        reader.close()
    return found, -1


def by_dump(path: Path) -> int:
    damages = [item for item in dump(path, False) if isinstance(item, Damage)]
    return damages[0].position if damages else -1


def by_scan(path: Path, next_base: int) -> int:
    """The result of the scan that scrubbing, `pybroker doctor` and a start use for a segment."""
    spots = SegmentScan(str(path), next_base=next_base).step()
    return spots[0][0] if spots else -1


@pytest.mark.parametrize("place", [4, -2, -1])
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_reader_finds_the_damage_of_a_sealed_segment_at_the_same_byte(
    log: Path, damage: str, place: int
) -> None:
    """Every reader finds the damage of a sealed segment at the same byte: records before it are returned, then
    CORRUPT_MESSAGE, and never the end."""
    path, after = sorted(log.glob("*.log"))[1:3]
    batch = batches_of(path)[place]
    data = bytearray(path.read_bytes())
    size = len(data)
    DAMAGES[damage](data, batch)
    path.write_bytes(data[:size])
    before = list(range(batch.base))
    assert by_read_log(log, path) == (before, batch.position)
    assert by_scan(path, int(after.stem)) == batch.position
    assert by_dump(path) == batch.position
    assert by_spark(log, path) == (before, batch.position)


def test_every_reader_passes_what_is_sound(log: Path) -> None:
    """Every reader returns the whole of an undamaged partition."""
    paths = sorted(log.glob("*.log"))
    assert by_read_log(log, paths[0]) == (list(range(60 * RECORDS)), -1)
    assert by_spark(log, paths[0]) == (list(range(int(paths[-1].stem))), -1)
    assert {by_dump(path) for path in paths} == {-1}


@pytest.mark.parametrize("damage", ["zeros", "zeros of a page", "length"])
def test_the_last_segment_ends_where_nothing_sound_follows(log: Path, damage: str) -> None:
    """The last segment ends at zeros or an incomplete batch, unless valid batches follow."""
    path = sorted(log.glob("*.log"))[-1]
    batches = batches_of(path)
    sound = path.read_bytes()
    path.write_bytes(sound + bytes(5000))
    assert by_read_log(log, path) == (list(range(60 * RECORDS)), -1)
    batch = batches[1]
    data = bytearray(sound)
    if damage == "length":
        data[batch.position + 8 : batch.position + 12] = (1 << 20).to_bytes(4, "big")
    else:
        DAMAGES[damage](data, batch)
    path.write_bytes(data)
    follows = damage != "zeros of a page" or batch.position + 4096 + HEADER_BYTES < len(data)
    at = batch.position if follows else -1
    assert by_read_log(log, path) == (list(range(batch.base)), at)
    assert by_scan(path, -1) == batch.position


def test_a_wrong_length_is_told_before_a_torn_end(log: Path) -> None:
    """A wrong length is damage if valid batches follow, although the very last batch may be torn, as in a power
    failure."""
    path = sorted(log.glob("*.log"))[-1]
    batches = batches_of(path)
    data = bytearray(path.read_bytes())
    data[batches[1].position + 8 : batches[1].position + 12] = (1 << 20).to_bytes(4, "big")
    path.write_bytes(data[: batches[-1].position + HEADER_BYTES + 9])
    assert by_read_log(log, path) == (list(range(batches[1].base)), batches[1].position)
    assert by_scan(path, -1) == batches[1].position
    torn = path.read_bytes()[: batches[1].position + 200]
    path.write_bytes(torn)
    assert by_read_log(log, path) == (list(range(batches[1].base)), -1), "nothing follows: it is being written"
