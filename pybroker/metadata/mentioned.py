"""Topics that are created because a client names them (auto.create.topics.enable), in the background.

A topic is planned while the client's request is being answered, so an invalid one is refused in that answer. Clients
repeat their requests, so a refusal is logged once for each topic and reason.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from pybroker import errors
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event

log = logging.getLogger(__name__)

REFUSALS_MAX = 1_000
"""Refusals remembered; when full, all are forgotten, and may be logged again."""
P = TypeVar("P")


class Mentioned(Generic[P]):
    """Creates such topics, and keeps the creations in progress by name."""

    def __init__(self, plan: Callable[[str], P], make: Callable[[P], Coroutine[object, None, Topic]]) -> None:
        """`plan` judges a topic without waiting, and raises KafkaError; `make` creates a planned topic."""
        self._plan = plan
        self._make = make
        self._refused: dict[str, str] = {}
        self.making: dict[str, asyncio.Task[Topic]] = {}

    def create(self, name: str) -> None:
        """Begin to create a topic, unless it exists or is being created. Raises KafkaError if it cannot be created."""
        if name in self.making:
            return
        try:
            planned = self._plan(name)
        except KafkaError as problem:
            if problem.code == errors.TOPIC_ALREADY_EXISTS:  # created, but not yet in this broker's metadata
                return
            self._report(name, problem)
            raise
        task = self.making[name] = asyncio.get_running_loop().create_task(self._make(planned))
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: "asyncio.Task[Topic]") -> None:
        del self.making[name]
        problem = None if task.cancelled() else task.exception()
        if problem is None:
            self._refused.pop(name, None)
        elif getattr(problem, "code", None) != errors.TOPIC_ALREADY_EXISTS:
            self._report(name, problem)

    def _report(self, name: str, problem: BaseException) -> None:
        reason = str(problem)
        if self._refused.get(name) == reason:
            return
        if len(self._refused) >= REFUSALS_MAX:
            self._refused.clear()
        self._refused[name] = reason
        event(log, logging.WARNING, "topic not created", topic=name, reason=problem)
