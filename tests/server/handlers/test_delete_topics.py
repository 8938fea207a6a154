"""DeleteTopics, without sockets: by name, by id, and with entries that match no topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.server.api.handlers.topics import NO_ID, DeleteTopics
from tests.harness import eventually
from tests.server.handlers.desk import Desk

NAMED = m.DeleteTopicsRequest.Topics


async def delete(desk: Desk, *topics: Any, version: int = 6) -> list[tuple[str | None, int]]:
    answer = await desk.ask("DeleteTopics", version, topics=list(topics), timeout_ms=5000)
    return [(topic.name, topic.error_code) for topic in answer.responses]


async def test_by_name_and_by_id(desk: Desk) -> None:
    """The answer has name and id of each deleted topic; its replicas are removed and its name can be used again."""
    first, second = await desk.topic("t"), await desk.topic("u")
    asked = [NAMED(name="t", topic_id=NO_ID), NAMED(name=None, topic_id=second)]
    answer = await desk.ask("DeleteTopics", 6, topics=asked, timeout_ms=5000)
    assert [(t.name, t.topic_id, t.error_code) for t in answer.responses] == [("t", first, 0), ("u", second, 0)]
    assert desk.stage.metadata.image.topic("t") is None
    await eventually("the replicas are gone", lambda: not list(desk.replicas))
    await eventually("the name is free", lambda: "t" not in desk.stage.context.topics)
    assert await desk.topic("t") != first


@pytest.mark.parametrize("version", [1, 5])
async def test_old_versions_know_names_alone(desk: Desk, version: int) -> None:
    await desk.topic("t")
    answer = await desk.ask("DeleteTopics", version, topic_names=["t", "none"], timeout_ms=5000)
    codes = [("t", 0), ("none", errors.UNKNOWN_TOPIC_OR_PARTITION)]
    assert [(topic.name, topic.error_code) for topic in answer.responses] == codes


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (NAMED(name="none", topic_id=NO_ID), errors.UNKNOWN_TOPIC_OR_PARTITION),
        (NAMED(name=None, topic_id=b"x" * 16), errors.UNKNOWN_TOPIC_ID),
        (NAMED(name=None, topic_id=NO_ID), errors.INVALID_REQUEST),
        (NAMED(name="t", topic_id=b"x" * 16), errors.INVALID_REQUEST),
    ],
)
async def test_what_names_no_topic(desk: Desk, asked: Any, code: int) -> None:
    """An entry that matches no topic deletes nothing, and the next topic of the request is deleted."""
    await desk.topic("t")
    await desk.topic("u")
    found = await delete(desk, asked, NAMED(name="u", topic_id=NO_ID))
    assert found == [(asked.name, code), ("u", 0)]
    await eventually("the log is gone", lambda: desk.replicas.get("u", 0) is None)
    assert desk.replicas.get("t", 0) is not None


async def test_a_topic_that_is_named_twice_goes_once(desk: Desk) -> None:
    named = NAMED(name="t", topic_id=NO_ID)
    await desk.topic("t")
    assert await delete(desk, named, named) == [("t", 0), ("t", 0)]
    await eventually("the log is gone", lambda: desk.replicas.get("t", 0) is None)


async def test_an_empty_request(desk: Desk) -> None:
    assert await delete(desk) == [] and await delete(desk, version=5) == []


@pytest.mark.parametrize(
    ("version", "code"), [(1, errors.INVALID_REQUEST), (5, errors.TOPIC_DELETION_DISABLED), (6, 73)]
)
async def test_where_deletion_is_disabled(desk: Desk, version: int, code: int) -> None:
    """The request is refused with an error code that its version knows."""
    await desk.topic("t")
    off = DeleteTopics(desk.stage.topics, desk.stage.metadata, enabled=False)
    key = next(key for key, handler in desk.table.items() if isinstance(handler.by, DeleteTopics))
    desk.table[key] = desk.table[key]._replace(by=off)
    asked: dict[str, Any] = {"topic_names": ["t"]} if version < 6 else {"topics": [NAMED(name="t", topic_id=NO_ID)]}
    answer = await desk.ask("DeleteTopics", version, timeout_ms=5000, **asked)
    assert [topic.error_code for topic in answer.responses] == [code]
    assert desk.replicas.get("t", 0) is not None


async def test_a_deletion_that_takes_long_goes_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client gets REQUEST_TIMED_OUT after the timeout, at least one second, and the deletion continues."""
    await desk.topic("t")
    go, began = asyncio.Event(), asyncio.get_running_loop().time()
    whole = desk.stage.topics.delete

    async def slow(name: str, topic_id: bytes) -> Any:
        await go.wait()
        return await whole(name, topic_id)

    monkeypatch.setattr(desk.stage.topics, "delete", slow)
    answer = await desk.ask("DeleteTopics", 6, topics=[NAMED(name="t", topic_id=NO_ID)], timeout_ms=0)
    assert [topic.error_code for topic in answer.responses] == [errors.REQUEST_TIMED_OUT]
    assert asyncio.get_running_loop().time() - began >= 1 and desk.replicas.get("t", 0) is not None
    go.set()
    await eventually("it is deleted", lambda: desk.replicas.get("t", 0) is None, every_s=0)
