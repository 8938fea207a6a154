"""A controller's actions depend only on its inputs, its clock and its seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


async def live(seed: int, hashes: int) -> bytes:
    """The store's tree at the end of a life, in a process with this hash seed."""
    command = (sys.executable, "-m", "tests.controller.life", str(seed))
    environment = os.environ | {"PYTHONHASHSEED": str(hashes)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    tree, _ = await process.communicate()
    assert process.returncode == 0
    return tree


async def test_one_seed_is_one_life() -> None:
    """Two lives with one seed leave the same store, byte for byte; another seed gives other ids and placements."""
    one, again, other = await asyncio.gather(live(7, 1), live(7, 2), live(8, 1))
    assert one == again
    assert b"/brokers/topics/topic-5/partitions/4/state" in one and b"/brokers/topics/left-over" in one
    assert one != other
