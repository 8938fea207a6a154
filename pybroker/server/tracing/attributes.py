"""The attributes of spans: what a request asks for, and how it ends.

Names are those of OpenTelemetry's semantic conventions for messaging. What these lack begins with `pybroker.`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Final, TypeAlias

from opentelemetry.trace import Span, Status, StatusCode, get_current_span

from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError, lookup
from pybroker.protocol.apis import KNOWN
from pybroker.protocol.message import Message
from pybroker.server.api.dispatch import A, Answered, AnyHandler, Handler, Q, done

ERRORS_LOOKED_AT_MAX: Final = 1000
"""Elements of a response that are searched for an error code."""
OPERATIONS: Final = {"Produce": "send", "Fetch": "receive", "OffsetCommit": "settle"}
"""The types of operation of OpenTelemetry's conventions, by API."""
Facts: TypeAlias = dict[str, str | int | float]
TOPICS: Final = ("topics", "topic_data")


def facts_of(key: int, version: int, correlation_id: int, client_id: str | None, size: int) -> Facts:
    """Return the attributes that every request has."""
    api = KNOWN.get(key)
    facts: Facts = {
        "messaging.system": "kafka",
        "messaging.operation.name": "unknown" if api is None else api.name,
        "pybroker.api.key": key,
        "pybroker.api.version": version,
        "pybroker.correlation.id": correlation_id,
        "pybroker.request.bytes": size,
    }
    if api is not None and api.name in OPERATIONS:
        facts["messaging.operation.type"] = OPERATIONS[api.name]
    if client_id is not None:
        facts["messaging.client.id"] = client_id
    return facts


def fail(span: Span, code: int) -> None:
    """Note an error code in a span; 0: none."""
    span.set_attribute("pybroker.error.code", code)
    if code:
        span.set_attribute("error.type", lookup(code).name)
        span.set_status(Status(StatusCode.ERROR))


def described(table: Mapping[int, AnyHandler]) -> dict[int, AnyHandler]:
    """Return the table with each handler wrapped so that it describes its request in the current span."""
    return {key: handler._replace(by=_describing(handler)) for key, handler in table.items()}


def _describing(handler: Handler[Q, A]) -> Callable[[Q, Call], Answered[A]]:
    def described(request: Q, call: Call) -> Answered[A]:
        span = get_current_span()
        if not span.is_recording():
            return handler.by(request, call)
        _describe(span, request)
        try:
            answer = handler.by(request, call)
        except KafkaError as problem:
            fail(span, problem.code)
            raise
        if isinstance(answer, Coroutine):
            return _concluded(span, answer)
        _conclude(span, answer)
        return answer

    return described


async def _concluded(span: Span, waiting: Coroutine[object, None, A | None]) -> A | None:
    try:
        answer = await done(waiting)
    except KafkaError as problem:
        fail(span, problem.code)
        raise
    _conclude(span, answer)
    return answer


def _describe(span: Span, request: Message) -> None:
    group = getattr(request, "group_id", None)
    if isinstance(group, str):
        span.set_attribute("messaging.consumer.group.name", group)
    for name in TOPICS:
        topics = getattr(request, name, None)
        if isinstance(topics, list):
            span.set_attribute("pybroker.topics", len(topics))
            if len(topics) == 1 and (only := _name_of(topics[0])):
                span.set_attribute("messaging.destination.name", only)


def _name_of(topic: object) -> str:
    found = topic if isinstance(topic, str) else getattr(topic, "name", None) or getattr(topic, "topic", None)
    return found if isinstance(found, str) else ""


def _conclude(span: Span, answer: Message | None) -> None:
    if answer is not None:
        fail(span, _first_error(answer))


def _first_error(answer: Message) -> int:
    """The first error code of a response that is not 0, among ERRORS_LOOKED_AT_MAX of its elements; 0: none."""
    look, at = [answer], 0
    while at < len(look) and at < ERRORS_LOOKED_AT_MAX:
        each = look[at]
        at += 1
        if code := getattr(each, "error_code", 0):
            return int(code)
        for field in each.STRUCT.fields:
            if field.struct is not None and (inside := getattr(each, field.name)):
                found = inside if field.is_array else [inside]
                look.extend(found[: ERRORS_LOOKED_AT_MAX - len(look)])
    return 0
