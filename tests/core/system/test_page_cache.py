"""Data that is read once does not stay in the page cache: scans, compaction, and consumers that catch up."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.core import SegmentScan, build_batch, iter_batches
from tests.core.logs import NOW, Home, batch_of
from tests.core.page_cache import cached_bytes, chill
from tests.core.slow_clean import one_round
from tests.core.stage import FETCH, Client, Stage
from tests.harness import until

SEGMENT_BYTES = 64 << 20
BATCH_BYTES = 1 << 20
LEFT_BYTES = 18 << 20
"""Bytes of a file that may stay cached after a read: what a reader keeps behind it, and a folio that was split."""


GONE_BYTES = 4 << 20
"""Bytes of a file that may be missing without an eviction, as a virtual machine loses single pages by itself."""


def is_warm(path: Path) -> bool:
    return cached_bytes(path) >= path.stat().st_size - GONE_BYTES


def warm(path: Path) -> None:
    path.read_bytes()
    assert is_warm(path)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A log on a real disk with three segments, the last of them active."""
    made = Home(tmp_path_factory.mktemp("disk"), {"segment.bytes": SEGMENT_BYTES})
    partition = made.open()
    for number in range(3 * SEGMENT_BYTES // BATCH_BYTES - 2):
        partition.append(batch_of(BATCH_BYTES, at=NOW + number, fill=random.randbytes(1)), now_ms=NOW)
    assert len(made.files(".log")) == 3
    yield made
    if made.broker is not None:
        made.crash()


def test_recovery(home: Home) -> None:
    """Recovery leaves only the last segment in the page cache, as it is read next."""
    home.crash()
    first, second, last = home.files(".log")
    chill(first, last)
    warm(second)
    home.open()
    assert cached_bytes(first) <= LEFT_BYTES
    assert is_warm(second)
    assert is_warm(last)


def test_a_scrub(home: Home) -> None:
    first, second, _ = home.files(".log")
    home.partition.flush()
    chill(first)
    warm(second)
    for path in (first, second):
        scan = SegmentScan(str(path))
        assert scan.step() == [] and scan.done
        assert cached_bytes(first) <= LEFT_BYTES
    assert is_warm(second)
    del scan
    assert cached_bytes(first) <= BATCH_BYTES


@pytest.mark.parametrize("cold", [True, False])
def test_compaction(tmp_path_factory: pytest.TempPathFactory, cold: bool) -> None:
    """A compacted segment stays in the page cache only if the segments that it replaces were there."""
    home = Home(tmp_path_factory.mktemp("disk"), {"segment.bytes": SEGMENT_BYTES, "cleanup.policy": 2})
    partition = home.open(compacted=True)
    for number in range(60):
        record = (NOW, b"key-%d" % (number % 30), os.urandom(BATCH_BYTES - 200), [])
        partition.append(build_batch([record]), now_ms=NOW)
    partition.roll()
    partition.flush()
    if cold:
        chill(*home.files(".log"))
    one_round(partition, 0, map_bytes=1 << 20)
    cleaned = home.files(".log")[0]
    assert cleaned.stat().st_size >= 28 * BATCH_BYTES
    assert cached_bytes(cleaned) <= BATCH_BYTES if cold else is_warm(cleaned)
    home.crash()


@pytest.fixture
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("disk"))
    made.log.configure({"segment.bytes": 2 * SEGMENT_BYTES})
    for number in range(4 * SEGMENT_BYTES // BATCH_BYTES - 2):
        made.log.append(batch_of(BATCH_BYTES - 100, at=NOW + number), now_ms=NOW)
    made.log.roll()
    made.log.flush()
    yield made
    made.close()


def read_all(stage: Stage, client: Client, seen: Callable[[], None]) -> None:
    offset = 0
    while offset < stage.log.log_end_offset:
        client.fetch(offset)
        data = bytes(client.receive(FETCH, 12)[1].responses[0].partitions[0].records)
        assert data
        offset += len(list(iter_batches(data)))
        seen()


def test_a_consumer_that_catches_up(stage: Stage) -> None:
    """A consumer that catches up keeps at most 64 MiB of a cold segment cached, and little in the end."""
    first, second, _ = sorted(Path(stage.log.directory).glob("*.log"))
    chill(first)
    warm(second)
    client, most = Client(stage), [0]
    stage.plane.start()

    def seen() -> None:
        most.append(cached_bytes(first))

    read_all(stage, client, seen)
    assert 16 << 20 <= max(most) <= 64 << 20
    assert is_warm(second)

    def closed() -> bool:
        stage.broker.close_idle_files()
        return cached_bytes(first) <= 8 * BATCH_BYTES

    until("the idle file is closed", closed)


def test_a_page_that_stays_keeps_no_others(stage: Stage) -> None:
    """A mapped page in each 8 MiB of a cold segment does not keep its other pages in the page cache."""
    first = min(Path(stage.log.directory).glob("*.log"))
    chill(first)
    with first.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        assert sum(mapped[:: 8 << 20]) >= 0
        assert 0 < cached_bytes(first) <= BATCH_BYTES
        client, most = Client(stage), [0]
        stage.plane.start()
        read_all(stage, client, lambda: most.append(cached_bytes(first)))
        assert max(most) <= 64 << 20


def test_space_is_reserved_in_whole_folios(tmp_path: Path) -> None:
    """Space for a large segment is reserved in multiples of 2 MiB, the size of a kernel folio, for any batch size."""
    home = Home(tmp_path, {"segment.bytes": 64 << 20})
    partition = home.open()
    for _ in range(9):
        partition.append(batch_of(777_777), now_ms=NOW)
        reserved = home.log_file().stat().st_blocks * 512
        assert reserved < 2 << 20 or reserved % (2 << 20) == 0
    assert reserved >= home.log_file().stat().st_size
    home.crash()


def test_space_that_was_reserved_before_a_crash_is_given_back(tmp_path: Path) -> None:
    home = Home(tmp_path, {"segment.bytes": 64 << 20})
    partition = home.open()
    partition.append(batch_of(BATCH_BYTES), now_ms=NOW)
    partition.append(batch_of(BATCH_BYTES), now_ms=NOW)

    def unused_bytes() -> int:
        found = home.log_file().stat()
        return found.st_blocks * 512 - found.st_size

    assert unused_bytes() >= BATCH_BYTES
    home.reopen(clean=False)
    assert unused_bytes() <= 64 << 10
    home.crash()
