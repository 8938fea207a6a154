"""Spans of the requests that Python executes."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry.trace import Span, Status, StatusCode, use_span

from pybroker.decisions.caller import Caller
from pybroker.server.api.quotas import Timed
from pybroker.server.api.responder import Answer, Responder, Waiting

ONE_NS: Final = 1_000_000_000


class Traced:
    """A responder that makes a span of each request that it passes on, from its arrival to its response."""

    def __init__(self, responder: Responder, begin: Callable[[bytes | memoryview, Caller], Span | None]) -> None:
        self._responder = responder
        self._begin = begin

    def respond(self, frame: bytes | memoryview, caller: Caller) -> Answer | Waiting:
        span = self._begin(frame, caller)
        if span is None:
            return self._responder.respond(frame, caller)
        began_ns = time.perf_counter_ns()
        try:
            with _current(span):
                answer = self._responder.respond(frame, caller)
        except BaseException as problem:
            _end(span, began_ns, time.perf_counter_ns() - began_ns, None, problem)
            raise
        local_ns = time.perf_counter_ns() - began_ns
        if isinstance(answer, Waiting):
            # The same object: what wraps this responder may change `abandon` while the request waits.
            answer.answer = self._later(answer.answer, span, began_ns, local_ns)
        else:
            _end(span, began_ns, local_ns, answer, None)
        return answer

    async def _later(
        self, answer: Coroutine[object, None, Answer], span: Span, began_ns: int, local_ns: int
    ) -> Answer:
        steps = Timed(answer)
        parts: Answer = None
        problem: BaseException | None = None
        try:
            with _current(span):
                parts = await steps
            return parts
        except BaseException as failed:
            problem = failed
            raise
        finally:
            _end(span, began_ns, local_ns + steps.spent_ns, parts, problem)


def _current(span: Span) -> AbstractContextManager[Span]:
    return use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False)


def _end(span: Span, began_ns: int, local_ns: int, answer: Answer, problem: BaseException | None) -> None:
    """End a span with its stages; `problem`: the request got no response."""
    whole_ns = time.perf_counter_ns() - began_ns
    span.set_attribute("pybroker.stage.local", local_ns / ONE_NS)
    span.set_attribute("pybroker.stage.remote", max(whole_ns - local_ns, 0) / ONE_NS)
    span.set_attribute("pybroker.response.bytes", sum(map(len, answer or ())))
    if problem is not None:
        span.set_attribute("error.type", type(problem).__name__)
        span.set_status(Status(StatusCode.ERROR, str(problem)))
    span.end()
