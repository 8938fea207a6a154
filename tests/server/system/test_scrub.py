"""Damaged batches in a running broker: scrubbing finds them, and clients can read what comes after them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.config.settings import Source
from pybroker.errors import CORRUPT_MESSAGE
from pybroker.replication.scrub import checkpoint_of, read_last, read_last_ms
from tests.server.live import Live, Wire, batch, values

SIZE = 101
COUNT = 12
BAD = 5


@pytest.fixture
async def live(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with a log of twelve batches of one size, four to a segment."""
    made = Live(tmp_path / "data", native_plane=getattr(request, "param", "native") == "native")
    await made.start()
    wire = await made.connect()
    assert (await wire.create("t", segment_bytes=str(4 * SIZE))).error_code == 0
    for n in range(COUNT):
        records = batch(b"%02d" % n + bytes(30))
        assert len(records) == SIZE
        assert (await wire.produce("t", records)).base_offset == n
    yield made
    await made.stop()


def segment(live: Live, base: int) -> Path:
    return live.data_dir / "t-0" / f"{base:020}.log"


def spoil(live: Live, at: int, data: bytes = b"\xff") -> None:
    """Overwrite bytes of the batch BAD, the second of its segment."""
    with segment(live, 4).open("r+b") as file:
        file.seek(SIZE + at)
        file.write(data)


async def scrubbed(live: Live) -> None:
    """Start a scrub and wait for its end."""
    path = Path(checkpoint_of(live.data_dir))
    path.write_text("0\n0\n")
    async with asyncio.timeout(20):
        while not read_last_ms(live.data_dir):
            await asyncio.sleep(0.02)


async def read(wire: Wire) -> tuple[list[int], set[int]]:
    """Read with seeks past refused offsets; return the numbers read and the refused offsets."""
    good, refused, offset = [], set(), 0
    while offset < COUNT:
        answer = await wire.fetch("t", offset, partition_max_bytes=2 * SIZE)
        if answer.error_code:
            assert answer.error_code == CORRUPT_MESSAGE
            refused.add(offset)
            offset += 1
            continue
        numbers = [int(value[:2]) for value in values(answer.records) if value is not None]
        good += numbers
        offset = numbers[-1] + 1
    return good, refused


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "damaged batches skipped" in r.getMessage()]


async def test_scrubbing_finds_a_batch_with_a_wrong_crc(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    """Only reads of the bad offset fail, also after a restart; one log line has file, position and lost offsets."""
    spoil(live, 80)
    await scrubbed(live)
    for _ in range(2):
        await scrubbed(live)
        assert await read(await live.connect()) == ([n for n in range(COUNT) if n != BAD], {BAD})
        await live.restart()
    [line] = told(caplog)
    assert f"partition=t-0 file={segment(live, 4)} position={SIZE} bytes={SIZE} offsets_lost=5..5" in line
    assert live.broker is not None and live.broker.replicas is not None
    await scrubbed(live)
    assert live.broker.replicas.scrubbed.bytes == 8 * SIZE


@pytest.mark.parametrize("live", ["native", "python"], indirect=True)
async def test_a_read_that_meets_damage_has_its_segment_checked(
    live: Live, caplog: pytest.LogCaptureFixture
) -> None:
    """A destroyed header hides the batches after it until a scrub of the segment, which the failed read starts."""
    await live.stop()
    spoil(live, 8, bytes(60))
    await live.start()
    wire = await live.connect()
    async with asyncio.timeout(10):
        while await read(wire) != ([n for n in range(COUNT) if n != BAD], {BAD}):
            await asyncio.sleep(0.05)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("size", [2 * SIZE, 2 * SIZE + 9, 0])
async def test_scrubbing_finds_a_segment_that_was_cut(live: Live, size: int) -> None:
    """Scrubbing finds a truncated segment, even one whose remaining batches are valid."""
    os.truncate(segment(live, 4), size)
    await scrubbed(live)
    good = size // SIZE
    lost = {4, 5, 6, 7} - set(range(4, 4 + good))
    assert await read(await live.connect()) == ([n for n in range(COUNT) if n not in lost], lost)


async def test_a_segment_that_is_gone_is_no_segment_without_damage(live: Live) -> None:
    """Scrubbing checks the log's other segments and reports one unchecked segment."""
    await live.restart()
    segment(live, 4).unlink()
    with segment(live, 0).open("r+b") as file:
        file.seek(SIZE + 80)
        file.write(b"\xff")
    await scrubbed(live)
    last = read_last(live.data_dir)
    assert last is not None and last.unchecked == 1
    wire = await live.connect()
    assert (await wire.fetch("t", 1)).error_code == CORRUPT_MESSAGE


async def test_who_asks_for_a_pass_over_a_log_dir_that_is_offline_is_answered(live: Live) -> None:
    assert live.broker is not None
    live.broker.log_dirs[0].fail("a test says so")
    await scrubbed(live)
    last = read_last(live.data_dir)
    assert last is not None and last.unchecked >= 1


async def test_a_slow_pass_goes_by_the_rate_that_is_set_meanwhile(live: Live) -> None:
    """A scrub that would take minutes ends soon when its rate is raised or the broker stops."""
    await live.restart("log.scrub.io.max.bytes.per.second=1")
    path = Path(checkpoint_of(live.data_dir))
    path.write_text("0\n0\n")
    assert live.broker is not None and live.broker.replicas is not None
    async with asyncio.timeout(10):
        while not live.broker.replicas.scrubbed.bytes:
            await asyncio.sleep(0.02)
    live.broker.config.overlay(Source.DYNAMIC_BROKER, {"log.scrub.io.max.bytes.per.second": "1000000"})
    async with asyncio.timeout(10):
        while not read_last_ms(live.data_dir):
            await asyncio.sleep(0.02)


async def test_what_somebody_put_right_is_read_again(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    whole = segment(live, 4).read_bytes()
    spoil(live, 80)
    await scrubbed(live)
    await live.stop()
    segment(live, 4).write_bytes(whole)
    await live.start()
    assert await read(await live.connect()) == (list(range(COUNT)), set())
    assert (live.data_dir / "damage-checkpoint").read_text() == "0\n0\n"


async def test_a_pass_is_due_after_its_interval(live: Live) -> None:
    """A new log dir's interval starts at its first check; the interval can change while the broker runs."""
    path = Path(checkpoint_of(live.data_dir))
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.02)
    first = read_last_ms(live.data_dir)
    await live.restart("log.scrub.interval.ms=1")
    async with asyncio.timeout(10):
        while read_last_ms(live.data_dir) == first:
            await asyncio.sleep(0.02)
