"""Tasks that a broker needs as long as it runs."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pybroker import retries
from pybroker.retries import PAUSE_S_MAX, SAID_AGAIN_S, Pauses, keep_up
from pybroker.tasks import cancel_and_wait
from tests.virtual import Loop


async def test_work_that_fails_is_said_and_begins_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that fails is logged with its traceback and begins again at once; work that returns, or is cancelled, does
    not."""
    monkeypatch.setattr(retries, "AGAIN_S", 0.01)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("an unforeseen error")

    await asyncio.wait_for(keep_up(work, "the work"), 5)
    assert begun == 3
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.ERROR, 'task failed task="the work" reason="an unforeseen error"')
    ] * 2
    assert all(r.exc_info for r in caplog.records)
    kept = asyncio.create_task(keep_up(asyncio.Event().wait, "a wait"))
    await asyncio.sleep(0)
    await cancel_and_wait(kept)
    assert kept.cancelled()


def test_what_fails_again_and_again_is_tried_less_often() -> None:
    """Work that fails repeatedly is retried less often: each pause doubles up to the longest, and a change ends it at
    once. The same reason is logged once a minute."""

    async def fails() -> None:
        loop, pauses, never = asyncio.get_running_loop(), Pauses(), asyncio.Event()
        waited, said = [], 0
        for _ in range(20):
            said += pauses.is_news("the same")
            before = loop.time()
            await pauses.wait(never)
            waited.append(loop.time() - before)
        assert waited[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
        assert waited[-1] == pytest.approx(PAUSE_S_MAX)
        assert 2 <= said <= 1 + loop.time() / SAID_AGAIN_S
        assert pauses.is_news("another")
        changed = asyncio.Event()
        changed.set()
        before = loop.time()
        await pauses.wait(changed)
        await pauses.wait(never)
        assert loop.time() - before == pytest.approx(0.1)
        await asyncio.sleep(3 * PAUSE_S_MAX)
        assert pauses.is_news("another")
        before = loop.time()
        await pauses.wait(never)
        assert loop.time() - before == pytest.approx(0.1)

    loop = Loop()
    try:
        loop.run_until_complete(fails())
    finally:
        loop.close()
