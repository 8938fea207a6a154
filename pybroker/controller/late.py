"""Changes that the store holds up: they go on, and whoever asked is told so in time.

    asked -> done in time -> answered
               └─ not done, and the store is silent -> REQUEST_TIMED_OUT; a failure after that is told in the log
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pybroker import errors
from pybroker.coordination.store import Session
from pybroker.errors import KafkaError
from pybroker.logs import tell_late

SILENT = "ZooKeeper does not answer"
WAIT_S = 5.0
"""How long a change waits while the store does not answer, where no request says how long its client does."""
LOOK_S = 0.1


class InSession(Protocol):
    """Whoever changes what the store has."""

    _session: Callable[[], Session]


S = TypeVar("S", bound=InSession)
P = ParamSpec("P")
T = TypeVar("T")


def not_done(task: asyncio.Task[Any], why: str) -> KafkaError:
    """What is answered of a change that goes on; `why` it takes so long, if that is known."""
    task.add_done_callback(tell_late)
    reason = f" ({why})" if why else ""
    return KafkaError(errors.REQUEST_TIMED_OUT, f"not done in time{reason}; it may be done later")


def in_time(
    change: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """The same, but that REQUEST_TIMED_OUT tells of a store that does not answer. The change goes on, if it can."""

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
