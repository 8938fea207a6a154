"""The rule that nobody waits for somebody else's disk, put to every file call that core can make.

Each failpoint in turn takes a second, for one part of the files. Meanwhile the 99th percentile of Produce and Fetch of
other partitions, of Metadata and of heartbeats stays under 50 ms. So does that of appends to a partition whose log is
flushed and retained just then. `make stalls` judges by that. `make test-all` judges by most of
the delay: who waits for the disk waits for longer, who waits for a core does not.
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
"""The failpoints are tried in so many tests, which run beside each other."""
POINTS = [point for point in core.FAILPOINTS[1:] if point not in (*NEVER, *CACHED)]


async def problems(scene: Trial, point: str) -> list[str]:
    """What took too long while this failpoint was slow."""
    took = {kind: p99(times) for kind, times in (await scene.put_to(point)).items()}
    print(f"{point:20}", ", ".join(f"{kind} {ms:.0f} ms" for kind, ms in took.items()))
    return [f"{point}: {kind} took {ms:.0f} ms" for kind, ms in took.items() if ms >= LIMIT_MS]


@pytest.mark.parametrize("share", [0, *map(long, range(1, SHARES))])  # make stalls is all of it
async def test_nobody_waits_for_somebody_elses_disk(tmp_path: Path, share: int) -> None:
    """Every failpoint that there is: one that is new is tried as well, and fails here while nothing comes to it."""
    async with trial(tmp_path) as scene:
        found = [problem for point in POINTS[share::SHARES] for problem in await problems(scene, point)]
    assert not found


async def test_some_failpoints_are_never_passed(tmp_path: Path) -> None:
    """What is left out above is left out with reason."""
    async with trial(tmp_path) as scene:
        for point in NEVER:
            scene.core.arm(point, "sleep", DELAY_MS, times=1_000_000, under=under(point))
        assert not await scene.comes_by(0.5)


async def test_who_holds_the_event_loop_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule is not judged blindly: with reads on the event loop, Metadata and heartbeats wait."""

    async def on_the_loop(self: Replica, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    async with trial(tmp_path) as scene:
        monkeypatch.setattr(Replica, "at_disk", on_the_loop)
        with pytest.raises(AssertionError, match="so few are served"):
            await scene.put_to("segment.read", patience_s=3)
        monkeypatch.undo()
