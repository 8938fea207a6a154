"""No request waits for the disk of another partition: checked for every file call that core can make.

Each failpoint in turn takes a second, for one part of the files. Meanwhile the 99th percentile of Produce and Fetch of
other partitions, Metadata and heartbeats stays under 50 ms, as does that of appends to a partition whose log is flushed
and retained just then. `make stalls` uses this limit. `make test-all` uses most of the delay, which a wait for a CPU
core does not reach.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker import core
from pybroker.replication.replica import Replica
from tests.marks import long
from tests.server.slow_disk import CACHED, DELAY_MS, NEVER, Trial, p99, trial, under

LIMIT_MS = float(os.environ.get("PYBROKER_STALLS_MS", 0.8 * DELAY_MS))
SHARES = 4
"""The number of tests that the failpoints are divided among, so that they run in parallel."""
POINTS = [point for point in core.FAILPOINTS[1:] if point not in (*NEVER, *CACHED)]


async def problems(scene: Trial, point: str) -> list[str]:
    """The kinds of request that took too long while this failpoint was slow."""
    took = {kind: p99(times) for kind, times in (await scene.put_to(point)).items()}
    print(f"{point:20}", ", ".join(f"{kind} {ms:.0f} ms" for kind, ms in took.items()))
    return [f"{point}: {kind} took {ms:.0f} ms" for kind, ms in took.items() if ms >= LIMIT_MS]


@pytest.mark.parametrize("share", [0, *map(long, range(1, SHARES))])  # make stalls runs all of them
async def test_nobody_waits_for_somebody_elses_disk(tmp_path: Path, share: int) -> None:
    """Every failpoint is tried, new ones included; the test fails for one that no call reaches."""
    async with trial(tmp_path) as scene:
        found = [problem for point in POINTS[share::SHARES] for problem in await problems(scene, point)]
    assert not found


async def test_some_failpoints_are_never_passed(tmp_path: Path) -> None:
    """The failpoints left out above are reached by no call."""
    async with trial(tmp_path) as scene:
        for point in NEVER:
            scene.core.arm(point, "sleep", DELAY_MS, times=1_000_000, under=under(point))
        assert not await scene.comes_by(0.5)


async def test_who_holds_the_event_loop_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With reads on the event loop, Metadata and heartbeats wait, and the check above fails."""

    async def on_the_loop(self: Replica, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    async with trial(tmp_path) as scene:
        monkeypatch.setattr(Replica, "at_disk", on_the_loop)
        with pytest.raises(AssertionError, match="too few are served"):
            await scene.put_to("segment.read", patience_s=3)
        monkeypatch.undo()
