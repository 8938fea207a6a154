"""Batches with a valid CRC and invalid records are refused on both planes, so consumers can read all that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pybroker import core
from pybroker.protocol.compression import compress
from tests.poisons import CODECS, POISONS, SOUND
from tests.server.live import Live, produce_data
from tests.server.test_alter_configs import SET, TOPIC, alter

PLANES = {"native": True, "python": False}
MESSAGE_TOO_LARGE, INVALID_RECORD = 10, 87


@asynccontextmanager
async def started(home: Path, plane: str, *sets: str) -> AsyncIterator[Live]:
    live = Live(home, sets, native_plane=PLANES[plane])
    await live.start()
    try:
        yield live
    finally:
        await live.stop()


async def told(home: Path, plane: str) -> dict[str, tuple[int, str | None]]:
    """Send each poison in turn; return its error code and message. None is stored."""
    async with started(home, plane) as live:
        wire = await live.connect()
        await wire.create("t", compression_type="producer")
        said = {}
        for name, poison in POISONS.items():
            answer = await wire.produce("t", poison)
            said[name] = answer.error_code, answer.error_message
        for name, sound in SOUND.items():
            answer = await wire.produce("t", sound)
            assert (answer.error_code, answer.error_message) == (0, None), name
        assert (await wire.fetch("t", 0)).high_watermark == sum(
            core.check_batch(sound).count for sound in SOUND.values()
        )
        return said


async def test_what_nobody_can_read_is_refused_and_both_planes_say_it_alike(tmp_path: Path) -> None:
    """Every poison is refused for good, with the same sentence on both planes; valid batches after it are stored."""
    native, python = [await told(tmp_path / plane, plane) for plane in PLANES]
    other = {name: code for name, (code, _) in native.items() if code != INVALID_RECORD}
    assert other == {"snappy: raw, a size of 4 GiB": MESSAGE_TOO_LARGE}
    assert all(message for _, message in native.values())
    assert native == python


@pytest.mark.parametrize("plane", PLANES)
async def test_an_envelope_is_all_that_is_looked_at_where_the_topic_says_so(tmp_path: Path, plane: str) -> None:
    """record.validation=envelope skips only the inside of compressed batches; a topic's setting comes first."""
    async with started(tmp_path, plane, "record.validation=envelope") as live:
        wire = await live.connect()
        await wire.create("envelope")
        await wire.create("full", record_validation="full")
        for codec in CODECS:
            poison = POISONS[f"{codec}: garbage"]
            assert (await wire.produce("envelope", poison)).error_code == 0
            assert (await wire.produce("full", poison)).error_code == INVALID_RECORD
        assert (await wire.produce("envelope", POISONS["plain: garbage"])).error_code == INVALID_RECORD


@pytest.mark.parametrize("plane", PLANES)
async def test_a_topic_changes_how_it_is_looked_at(tmp_path: Path, plane: str) -> None:
    """After the answer to the change, the next batch is validated by the new setting."""
    async with started(tmp_path, plane) as live:
        wire = await live.connect()
        await wire.create("t")
        poison = POISONS["lz4: garbage"]
        for setting, code in (("envelope", 0), ("full", INVALID_RECORD)):
            await alter(wire, TOPIC, "t", ("record.validation", SET, setting))
            assert (await wire.produce("t", poison)).error_code == code


@pytest.mark.parametrize("plane", PLANES)
async def test_every_bad_record_is_named(tmp_path: Path, plane: str) -> None:
    """Ten of a hundred records without a key in a compacted topic give ten entries, in Kafka's words."""
    records = [(1_700_000_000_000, None if n % 10 == 3 else b"k", b"v", ()) for n in range(100)]
    async with started(tmp_path, plane) as live:
        wire = await live.connect()
        await wire.create("t", cleanup_policy="compact")
        answer = await wire.produce("t", core.build_batch(records))
        assert answer.error_code == INVALID_RECORD
        assert [e.batch_index for e in answer.record_errors] == list(range(3, 100, 10))
        sentence = "Compacted topic cannot accept message without key in topic partition t-0"
        assert {e.batch_index_error_message for e in answer.record_errors} == {sentence}
        assert "due to 10 record errors in total" in answer.error_message
        assert (await wire.fetch("t", 0)).high_watermark == 0


async def test_requests_behind_one_that_takes_long_keep_their_order_and_others_do_not_wait(tmp_path: Path) -> None:
    """While a thread validates a large batch, the next ones of its connection wait, and other connections do not."""
    large = core.build_batch(
        [(1_700_000_000_000, None, b"x" * 1000, ())] * 20_000, attributes=1, compress=lambda data: compress(1, data)
    )
    async with started(tmp_path, "native") as live:
        one, other = await live.connect(), await live.connect()
        await one.create("t", 2)
        for records in (large, SOUND["lz4"], SOUND["plain"]):
            one.send("Produce", 9, acks=-1, timeout_ms=9000, topic_data=produce_data("t", {0: records}))
        first = asyncio.create_task(one.receive("Produce", 9))
        answered = 0
        while not first.done():
            assert (await other.produce("t", SOUND["plain"], partition=1)).error_code == 0
            answered += 1
        assert answered > 5
        answers = [await first, await one.receive("Produce", 9), await one.receive("Produce", 9)]
        offsets = [response.responses[0].partition_responses[0].base_offset for _, response in answers]
        assert offsets == [0, 20_000, 20_003]
