"""Writes that outlive the request: the client gets REQUEST_TIMED_OUT while the write continues.

    requested -> done in time -> answered
               └─ not done, and the store does not respond -> REQUEST_TIMED_OUT; a later failure is logged
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pybroker import errors
from pybroker.coordination.store import Session
from pybroker.errors import KafkaError
from pybroker.logs import log_late_failure

SILENT = "the cluster's store does not answer"
WAIT_S = 5.0
"""Seconds that a change waits for a silent store, where the request has no timeout of its own."""
LOOK_S = 0.1


class InSession(Protocol):
    """An object whose methods write to the store in a session."""

    _session: Callable[[], Session]


S = TypeVar("S", bound=InSession)
P = ParamSpec("P")
T = TypeVar("T")


def not_done(task: asyncio.Task[object], why: str) -> KafkaError:
    """The error to answer while a change goes on; `why` it takes so long, if known. Log its failure."""
    task.add_done_callback(log_late_failure)
    reason = f" ({why})" if why else ""
    return KafkaError(errors.REQUEST_TIMED_OUT, f"not done in time{reason}; it may be done later")


def in_time(
    change: Callable[Concatenate[S, P], Coroutine[object, None, T]],
) -> Callable[Concatenate[S, P], Coroutine[object, None, T]]:
    """Decorate a change: if the store does not respond, raise REQUEST_TIMED_OUT and go on in the background."""

    @functools.wraps(change)
    async def changed(self: S, /, *args: P.args, **how: P.kwargs) -> T:
        task, wait_s = asyncio.get_running_loop().create_task(change(self, *args, **how)), WAIT_S
        try:
            while not (await asyncio.wait({task}, timeout=wait_s))[0]:
                if self._session().silent:
                    raise not_done(task, SILENT)
                wait_s = LOOK_S
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    return changed
