"""Topics that a controller leaves out, because their nodes are damaged or its own work on them failed.

    handled ──nodes damaged, or work on it failed──> left out: logged once a reason; brokers go on serving it
     ^                                                   │
     └── judged sound: its node changed, or the timer ───┘

All work of a controller on one topic goes through `about` of its context, which notes failures here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.coordination.store import (
    BadArguments,
    ConnectionLoss,
    SessionExpired,
    StoreClosed,
    StoreDamaged,
    StoreError,
)
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata.node_json import DAMAGED

log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN_S: Final = 10.0
"""Seconds until topics that are left out, and unreadable nodes, are read again."""


class _Why(NamedTuple):
    reason: str
    judged: bool
    """True if the nodes themselves are damaged; False if work on the topic failed."""


class Damaged(Set[str]):
    """The topics that one controller leaves out. Each reason of a topic is logged once."""

    def __init__(self) -> None:
        self._why: dict[str, _Why] = {}
        self._said: dict[str, str] = {}

    @classmethod
    def _from_iterable(cls, it: Iterable[T]) -> Set[T]:
        return set(it)

    def __contains__(self, topic: object) -> bool:
        return topic in self._why

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._why))

    def __len__(self) -> int:
        return len(self._why)

    def note(self, topic: str, problem: Exception, *, judged: bool = False) -> None:
        """Leave a topic out. An unexpected exception is a defect of the broker, and is logged with its traceback."""
        known = isinstance(problem, StoreError | KafkaError)
        reason = str(problem).replace(DAMAGED, "") if known else f"unexpected: {problem!r}"
        self._why[topic] = _Why(reason, judged)
        if self._said.get(topic) != reason:
            self._said[topic] = reason
            mistake = None if known else problem
            event(log, logging.WARNING, "topic damaged", topic=topic, reason=reason, exc_info=mistake)

    def sound(self, topic: str) -> bool:
        """Take back a topic whose nodes are sound. True if it was left out. If work on it had failed, the same failure
        is not logged again."""
        why = self._why.pop(topic, None)
        if why is not None and why.judged:
            self._said.pop(topic, None)
            event(log, logging.INFO, "topic repaired", topic=topic)
        return why is not None

    def forget(self, topic: str) -> None:
        """Forget a topic that no longer exists."""
        self._why.pop(topic, None)
        self._said.pop(topic, None)


def is_of_one_topic(problem: Exception) -> bool:
    """True unless a failure in work on one topic ends all work: the session is over, another broker is the controller,
    or the store as a whole fails."""
    if isinstance(problem, KafkaError):
        cause = problem.__cause__
        return problem.code != errors.NOT_CONTROLLER and (not isinstance(cause, StoreError) or is_of_one_node(cause))
    return not isinstance(problem, SessionExpired | ConnectionLoss | StoreClosed) and getattr(problem, "index", 1) != 0


def is_of_one_node(problem: StoreError) -> bool:
    """True if a multi behind the controller's fence failed because of the nodes it writes, not because of the store."""
    return bool(problem.index) or isinstance(problem, BadArguments | StoreDamaged)
