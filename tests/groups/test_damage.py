"""A damaged log of groups: an unreadable batch loses its own records, and the coordinator goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pybroker import core
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.state_log.placement import partition_of
from tests.groups.members import commit, committed
from tests.harness import eventually
from tests.server.live import Live, Wire

GROUPS = [name for name in (f"g{n}" for n in range(99)) if partition_of(name, 4) == partition_of("g0", 4)][:6]
"""Six groups in one partition."""


def log_file(live: Live) -> Path:
    return live.data_dir / f"{OFFSETS_TOPIC}-{partition_of('g0', 4)}" / f"{0:020}.log"


def batches(path: Path) -> list[tuple[int, int]]:
    """(position, size) of each batch in a file."""
    return [(position, header.size) for position, header in core.iter_batches(path.read_bytes())]


def spoil(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


async def loaded(live: Live) -> Wire:
    wire = await live.connect()

    async def is_loaded() -> bool:
        return (await wire.call("ListGroups", 4)).error_code == 0

    await eventually("the groups are loaded", is_loaded)
    return wire


@pytest.mark.parametrize("end", ["stop", "abort"])
@pytest.mark.parametrize("kind", ["a record", "the length", "zeros"])
async def test_a_bad_batch_costs_what_it_held(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture, end: str, kind: str
) -> None:
    """One group of six has lost its offset; all can commit, and all offsets are there after the next start."""
    for number, group in enumerate(GROUPS):
        assert await commit(wire, group, {"t0": number}) == [0]
    assert live.broker is not None
    if end == "stop":
        await live.stop()
    else:
        await live.broker.abort()
        live.broker = None
    path = log_file(live)
    position, size = batches(path)[2]
    if kind == "zeros":
        spoil(path, position, bytes(size))
    else:
        spoil(path, position + (size - 5 if kind == "a record" else 9), b"\xff")
    for life in range(2):
        caplog.clear()
        await live.start()
        wire = await loaded(live)
        told = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
        for number, group in enumerate(GROUPS):
            assert await committed(wire, group) == ({"t0": number} if number != 2 or life else {})
        assert await commit(wire, GROUPS[2], {"t0": 2}) == [0]
        assert not life or not told
        assert life or [line for line in told if f"file={path} position={position} " in line and "lost=2..2" in line]
        await live.stop()


async def test_a_bad_batch_at_the_end_of_the_log_is_passed_by(live: Live, wire: Wire) -> None:
    """Below the recovery point nothing is truncated: the log continues after the bad batch."""
    assert await commit(wire, GROUPS[0], {"t0": 1}) == [0]
    await live.stop()
    spoil(log_file(live), log_file(live).stat().st_size - 5, b"\xff")
    for expected in ({}, {"t0": 2}):
        await live.start()
        wire = await loaded(live)
        assert await committed(wire, GROUPS[0]) == expected
        assert await commit(wire, GROUPS[0], {"t0": 2}) == [0]
        await live.stop()


async def test_a_record_that_nobody_understands_costs_itself(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """A record with a valid CRC and unknown content, of a later version or a faulty broker, is skipped alone."""
    assert await commit(wire, GROUPS[0], {"t0": 1}) == [0]
    assert live.broker is not None and live.broker.replicas is not None
    replica = live.broker.replicas.leader(OFFSETS_TOPIC, partition_of("g0", 4))
    nonsense = [(0, b"\0\2nonsense", b"\0\3", ()), (0, b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x63future", ())]
    await replica.append(core.build_batch(nonsense), 0)
    assert await commit(wire, GROUPS[1], {"t0": 2}) == [0]
    await live.restart()
    wire = await loaded(live)
    assert [await committed(wire, group) for group in GROUPS[:2]] == [{"t0": 1}, {"t0": 2}]
    assert "damaged group records skipped" in caplog.text and "records=2" in caplog.text
