"""With sessions in front of a plain Fetch handler, answers include changed partitions only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.server.api.dispatch import Dispatcher
from tests.oracle.sessions import with_sessions
from tests.server.handlers.desk import Desk
from tests.server.handlers.test_fetch import A, B, stock
from tests.server.handlers.test_large_fetch import ask, told, wanted
from tests.server.live import fetch_fields


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = await Desk(tmp_path / "data").begin()
    made.table = dict(with_sessions(10)(made.table))
    yield made
    await made.end()

async def session(desk: Desk, number: int, epoch: int, *offsets: int, forgotten: list[Any] | None = None) -> Any:
    fields = fetch_fields("t", *offsets) if offsets else {**fetch_fields("t"), "topics": []}
    return await desk.ask(
        "Fetch", 12, session_id=number, session_epoch=epoch, forgotten_topics_data=forgotten or [], **fields
    )


async def test_a_session_tells_news_alone(desk: Desk) -> None:
    """A session's answer omits a partition until it changes, and a forgotten partition is never included."""
    await stock(desk, "t", (A,), (A,))
    first = await session(desk, 0, 0, 1, 1)
    number = first.session_id
    assert number and len(first.responses[0].partitions) == 2
    assert (await session(desk, number, 1)).responses == []
    await desk.replica("t", 1).append(B, 1)
    [topic] = (await session(desk, number, 2)).responses
    assert [p.partition_index for p in topic.partitions] == [1]
    gone = [m.FetchRequest.ForgottenTopicsData(topic="t", partitions=[1])]
    assert (await session(desk, number, 3, forgotten=gone)).responses == []


async def test_sessions_that_there_are_not(desk: Desk) -> None:
    await stock(desk, "t", (A,))
    assert (await session(desk, 99, 1)).error_code == errors.FETCH_SESSION_ID_NOT_FOUND
    number = (await session(desk, 0, 0, 1)).session_id
    assert (await session(desk, number, 7)).error_code == errors.INVALID_FETCH_SESSION_EPOCH


async def test_a_session_of_very_many_partitions(desk: Desk) -> None:
    await desk.topic("t", partitions=3)
    dispatcher, count = Dispatcher(desk.table), 20_001
    first = await ask(dispatcher, wanted({"t": count}, session_epoch=0))
    assert first.session_id and len(told(first)) == count
    number = first.session_id
    more = await ask(dispatcher, wanted({"u": count}, session_id=number, session_epoch=1))
    assert len(told(more)) == 2 * count - 3, "partitions without an error or a change are left out"
    gone = [m.FetchRequest.ForgottenTopicsData(topic=name, partitions=list(range(count))) for name in "tu"]
    ends = await ask(dispatcher, wanted({}, session_id=number, session_epoch=2, forgotten_topics_data=gone))
    assert (ends.error_code, ends.session_id, told(ends)) == (0, 0, [])
    after = await ask(dispatcher, wanted({}, session_id=number, session_epoch=3))
    assert after.error_code == errors.FETCH_SESSION_ID_NOT_FOUND
