"""A Fetch of very many partitions is answered, and the work for it is done in parts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.caller import Caller
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.bounds import FETCHED_TOPICS
from pybroker.security.access import Access
from pybroker.server.api.dispatch import Dispatcher
from pybroker.server.api.guards.auth_helper import AuthHelper
from pybroker.server.api.guards.table import guarded
from pybroker.server.api.responder import Waiting
from pybroker.tasks import SHARE
from tests.server.handlers.desk import KEYS, Desk
from tests.server.live import batch, values

ANN = Caller("127.0.0.1", 1, "CLIENTS", "User:ann")
FETCH = KEYS["Fetch"]
TOPICS = m.FetchRequest.Topics
VERSION = 12


def wanted(topics: dict[str, int], **fields: Any) -> Any:
    """A Fetch from offset 0 of this many partitions of each topic."""
    kind = TOPICS.Partitions
    named = [
        TOPICS(topic=name, partitions=[kind(partition=p, fetch_offset=0, partition_max_bytes=1000) for p in range(n)])
        for name, n in topics.items()
    ]
    return m.FetchRequest(
        **{"replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1} | fields,
        topics=named,
    )


async def ask(dispatcher: Dispatcher, request: Any) -> Any:
    answer: Any = dispatcher.respond(codec.encode_request(FETCH, VERSION, 3, "test", request), ANN)
    if isinstance(answer, Waiting):
        answer = await answer.answer
    parts = [part if isinstance(part, bytes) else part.tobytes() for part in answer]
    return codec.decode_response(FETCH, VERSION, b"".join(parts))[1]


def told(answer: Any) -> list[tuple[str, int, int]]:
    return [(t.topic, p.partition_index, p.error_code) for t in answer.responses for p in t.partitions]


def guard(desk: Desk, super_users: frozenset[str] = frozenset()) -> Any:
    return guarded(AuthHelper(Access(super_users, False, lambda *_: None), desk.stage.metadata), desk.table, True)


@pytest.mark.parametrize(
    "topics",
    [{"t": 20_001}, {f"t{n}": 1 for n in range(10_001)}, {"t": 200_000}],
    ids=["one topic", "many topics", "as many as Kafka's largest clusters have"],
)
async def test_a_consumer_of_very_many_partitions_is_served(desk: Desk, topics: dict[str, int]) -> None:
    await desk.topic("t", partitions=3)
    await desk.replica("t", 2).append(batch(b"x"), 1)
    for table in (desk.table, guard(desk, frozenset({ANN.principal}))):
        answer = await ask(Dispatcher(table), wanted(topics))
        assert answer.error_code == 0 and len(told(answer)) == sum(topics.values())
        found = {(name, p) for name, p, code in told(answer) if not code}
        assert found == ({("t", 0), ("t", 1), ("t", 2)} if "t" in topics else set())
        read = [values(p.records) for topic in answer.responses for p in topic.partitions if p.records]
        assert read == ([[b"x"]] if "t" in topics else [])


async def test_a_fetch_that_waited_for_many_leaves_them_all(desk: Desk) -> None:
    count = 3 * SHARE + 1
    await desk.topic("t", partitions=count)
    replicas = [desk.replica("t", p) for p in range(count)]
    for cancels in (False, True):
        waiting = asyncio.create_task(desk.ask("Fetch", VERSION, **vars_of(wanted({"t": count}, max_wait_ms=60_000))))
        while not all(replica.waited_for for replica in replicas[:count]):
            await asyncio.sleep(0)
        if cancels:
            waiting.cancel()
            await asyncio.wait([waiting])
        else:
            await replicas[count - 1].append(batch(b"x"), 1)
            assert len(told(await asyncio.wait_for(waiting, 10))) == count
            count -= 1
        assert not any(replica.waited_for for replica in replicas)


def vars_of(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.__slots__}


@pytest.mark.parametrize("topics", [{"t": 5_001, "u": 0, "v": 3}, {f"t{n}": 3 for n in range(1_000)}])
async def test_what_is_denied_is_refused_in_shares(desk: Desk, topics: dict[str, int]) -> None:
    """Denied partitions are refused in parts of bounded size; the answer has all, in the request's order."""
    most = 0

    def failed(request: Any, code: int, message: str) -> Any:
        nonlocal most
        most = max(most, sum(len(topic.partitions) for topic in request.topics))
        return fails(request, code, message)

    fails = desk.table[FETCH].failed
    desk.table[FETCH] = desk.table[FETCH]._replace(failed=failed)
    answer = await ask(Dispatcher(guard(desk)), wanted(topics))
    denied = errors.TOPIC_AUTHORIZATION_FAILED
    assert told(answer) == [(name, p, denied) for name, count in topics.items() for p in range(count)]
    assert [topic.topic for topic in answer.responses] == list(topics)
    assert 0 < most <= SHARE


async def test_topics_that_rights_are_asked_for_are_bounded(desk: Desk) -> None:
    dispatcher = Dispatcher(guard(desk))
    for count, code in ((FETCHED_TOPICS, 0), (FETCHED_TOPICS + 1, errors.INVALID_REQUEST)):
        answer = await ask(dispatcher, wanted({f"t{n}": 0 for n in range(count)}))
        assert (answer.error_code, len(answer.responses)) == (code, 0 if code else count)
