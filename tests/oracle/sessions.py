"""Fetch sessions in front of a Fetch handler without sessions, for a broker without core's.

A session's Fetch reaches the handler with all partitions named, and the client gets only the changed ones. Clients
under authorization have no sessions: the guard of Fetch answers that.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from pybroker import core
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.apis import SERVED
from pybroker.server.broker import Table
from tests.oracle.fetch_sessions import NO_EPOCH, NO_SESSION, Fetch, Key, News, Sessions, Wanted

FETCH = next(api.key for api in SERVED.values() if api.name == "Fetch")
IDS_VERSION = 13
KIND = m.FetchRequest.Topics


def with_sessions(slots: int, draw: Callable[[], int] = lambda: secrets.randbits(31)) -> Callable[[Table], Table]:
    """Return a function that puts sessions into a table of handlers, at most `slots` of them."""
    sessions = Sessions(slots, draw)

    def through(table: Table) -> Table:
        handler = table[FETCH]
        return {**table, FETCH: handler._replace(by=Remembering(sessions, handler.by))}

    return through


class Remembering:
    """A Fetch handler that adds sessions to another one."""

    def __init__(self, sessions: Sessions, by: Callable[[Any, Call], Any]) -> None:
        self._sessions = sessions
        self._by = by

    async def __call__(self, request: Any, call: Call) -> Any:
        if call.caller.rights is not None:
            return await self._ask(request, call)
        by_id = call.version >= IDS_VERSION
        named = {
            _key(topic, p.partition, by_id): Wanted(
                p.fetch_offset, p.partition_max_bytes, p.current_leader_epoch, p.last_fetched_epoch,
                log_start=p.log_start_offset,
            )
            for topic in request.topics for p in topic.partitions
        }  # fmt: skip
        gone = [_key(topic, p, by_id) for topic in request.forgotten_topics_data for p in topic.partitions]
        now = asyncio.get_running_loop().time()
        try:
            plan = self._sessions.begin(request.session_id, request.session_epoch, by_id, named, gone, now)
        except KafkaError as problem:
            return m.FetchResponse(error_code=problem.code)
        full = copy.copy(request)
        full.session_id, full.session_epoch, full.forgotten_topics_data = NO_SESSION, NO_EPOCH, []
        full.topics = list(_topics(plan.wanted, by_id))
        answer = await self._ask(full, call)
        if answer.error_code:
            return answer
        return self._throttled(plan, answer) if plan.wanted and not answer.responses else _told(plan, answer, by_id)

    async def _ask(self, request: Any, call: Call) -> Any:
        answer = self._by(request, call)
        return await answer if inspect.isawaitable(answer) else answer

    def _throttled(self, plan: Fetch, answer: Any) -> Any:
        """Keep a session as it was, and end one that would begin, for a throttled Fetch (KIP-219)."""
        if plan.incremental:
            answer.session_id = plan.session_id
        else:
            self._sessions.end(plan.session_id)
        return answer


def _key(topic: Any, partition: int, by_id: bool) -> Key:
    return Key(topic.topic_id if by_id else topic.topic, partition)


def _topics(wanted: dict[Key, Wanted], by_id: bool) -> Iterator[Any]:
    """Requested topics with their partitions in order; neighbours of one topic share an entry."""
    topic = None
    for key, want in wanted.items():
        if topic is None or _key(topic, key.partition, by_id) != key:
            if topic is not None:
                yield topic
            topic = KIND(topic_id=key.topic) if by_id else KIND(topic=key.topic)
        topic.partitions.append(
            KIND.Partitions(
                partition=key.partition, fetch_offset=want.fetch_offset, partition_max_bytes=want.max_bytes,
                current_leader_epoch=want.leader_epoch, last_fetched_epoch=want.last_fetched_epoch,
                log_start_offset=want.log_start,
            )
        )  # fmt: skip
    if topic is not None:
        yield topic


def _told(plan: Fetch, answer: Any, by_id: bool) -> Any:
    """The answer without unchanged partitions."""
    found = {_key(topic, p.partition_index, by_id): p for topic in answer.responses for p in topic.partitions}
    kept = set(plan.told([(key, _news(p)) for key, p in found.items()]))
    for key in found.keys() - kept:
        if isinstance(found[key].records, core.Slice):
            found[key].records.close()
    topics: list[Any] = []
    for topic in answer.responses:
        partitions = [p for p in topic.partitions if _key(topic, p.partition_index, by_id) in kept]
        if partitions and topics and (topics[-1].topic, topics[-1].topic_id) == (topic.topic, topic.topic_id):
            topics[-1].partitions += partitions
        elif partitions:
            topic.partitions = partitions
            topics.append(topic)
    answer.responses, answer.session_id = topics, plan.session_id
    return answer


def _news(p: Any) -> News:
    diverges = p.diverging_epoch is not None or p.preferred_read_replica >= 0
    return News(len(p.records) > 0, p.error_code, p.high_watermark, p.log_start_offset, diverges)
