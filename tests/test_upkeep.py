"""Tasks that a broker needs for as long as it lives."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pybroker import upkeep
from pybroker.tasks import cancel_and_wait
from pybroker.upkeep import keep_up


async def test_work_that_fails_is_said_and_begins_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its traceback, at once; what ends by itself, or is cancelled, stays ended."""
    monkeypatch.setattr(upkeep, "AGAIN_S", 0.01)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("nobody foresaw it")

    await asyncio.wait_for(keep_up(work, "the work"), 5)
    assert begun == 3
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.ERROR, 'task failed task="the work" reason="nobody foresaw it"')
    ] * 2
    assert all(r.exc_info for r in caplog.records)
    kept = asyncio.create_task(keep_up(asyncio.Event().wait, "a wait"))
    await asyncio.sleep(0)
    await cancel_and_wait(kept)
    assert kept.cancelled()
