"""Topics that a controller leaves out, as what the store holds of them is damaged or its own work failed on them.

    led ──judged damaged, or an exception about it──> left out: said once with the reason, brokers go on as they know it
     ^                                                   │
     └── judged sound: its node changed, or the timer ───┘

All that a controller does about one topic goes through `about` of its context, which notes here what fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple, TypeVar

from pybroker import errors
from pybroker.controller import nodes
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

log = logging.getLogger(__name__)

T = TypeVar("T")

AGAIN_S: Final = 10.0
"""How often topics that are left out are judged again, as are nodes that could not be read."""


class _Why(NamedTuple):
    reason: str
    judged: bool
    """True where the nodes themselves are damaged; False where work on the topic failed."""


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
        """Leave a topic out. An unexpected exception is our mistake, and is logged with its traceback."""
        known = isinstance(problem, StoreError | KafkaError)
        reason = str(problem).replace(nodes.DAMAGED, "") if known else f"unexpected: {problem!r}"
        self._why[topic] = _Why(reason, judged)
        if self._said.get(topic) != reason:
            self._said[topic] = reason
            mistake = None if known else problem
            event(log, logging.WARNING, "topic damaged", topic=topic, reason=reason, exc_info=mistake)

    def sound(self, topic: str) -> bool:
        """Judge that a topic's nodes are sound; True if it was left out. Where work on it failed, the same failure is
        not logged again."""
        why = self._why.pop(topic, None)
        if why is not None and why.judged:
            self._said.pop(topic, None)
            event(log, logging.INFO, "topic mended", topic=topic)
        return why is not None

    def forget(self, topic: str) -> None:
        """There is no such topic any more."""
        self._why.pop(topic, None)
        self._said.pop(topic, None)


def is_of_one_topic(problem: Exception) -> bool:
    """True unless a failure in work on one topic ends all work: the session is over, another broker controls, or the
    store as a whole fails."""
    if isinstance(problem, KafkaError):
        cause = problem.__cause__
        return problem.code != errors.NOT_CONTROLLER and (not isinstance(cause, StoreError) or is_of_one_node(cause))
    return not isinstance(problem, SessionExpired | ConnectionLoss | StoreClosed) and getattr(problem, "index", 1) != 0


def is_of_one_node(problem: StoreError) -> bool:
    """True if a multi behind the controller's fence failed because of what it writes, not of the store."""
    return bool(problem.index) or isinstance(problem, BadArguments | StoreDamaged)
