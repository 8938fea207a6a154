"""The broker that coordinates a group: found when it is needed, and anew when it says that it is another."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from pybroker import errors
from pybroker.client.metadata import Node
from pybroker.client.network import ANY, Network
from pybroker.client.promise import Promise
from pybroker.client.requests import PLAIN, Done, How, tell
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.protocol import messages as m

LANE: Final = "group"
JOIN_LANE: Final = "join"
"""A join waits at the broker for the others; heartbeats and commits must not wait behind it."""

SILENT_S: Final = 5.0
"""Without a coordinator for so long, a client says why; while a cluster starts or a leader moves there is none."""
_log = unfailing(__name__)

_MOVED: Final = frozenset(
    {errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE, errors.NETWORK_EXCEPTION, errors.REQUEST_TIMED_OUT}
)


class Coordinator:
    """Sends a group's requests to its coordinator. Methods are for the loop's thread, but for `call`."""

    def __init__(self, network: Network, group_id: str) -> None:
        self.group_id = group_id
        self.node = -1
        self._at = Node(-1, "", -1, None)
        """As FindCoordinator told of it: metadata may be older, or not there yet."""
        self.failure: KafkaError | None = None
        """Why it is not known, since it was known last."""
        self._failing_s, self._said = 0.0, False
        self._network = network
        self._waiting: list[Callable[[KafkaError | None], object]] = []

    def call(self, message: Any, *, lane: str = LANE, how: How = PLAIN) -> Future[Any]:
        """From any thread: a future of the answer, or KafkaError."""
        promise: Promise[Any] = Promise()
        self._network.loop.call_surely(partial(self.send, message, promise.settle, lane=lane, how=how))
        return promise

    def send(self, message: Any, done: Done, *, lane: str = LANE, how: How = PLAIN) -> None:
        """Send a request as soon as the coordinator is known; it fails if that cannot be found now."""

        def go(error: KafkaError | None) -> None:
            if error is not None:
                tell(done, None, error)
                return
            self._network.send(self._at, message, partial(self._answered, done), lane=lane, how=how)

        if self.node >= 0 and self._network.knows(self._at):
            go(None)
            return
        self._waiting.append(go)
        if len(self._waiting) == 1:
            request = m.FindCoordinatorRequest(key=self.group_id, key_type=0, coordinator_keys=[self.group_id])
            self._network.send(ANY, request, self._found)

    def moved(self, code: int) -> bool:
        """Whether this answer says that the coordinator is another, which is then looked for."""
        if code in _MOVED or code == errors.BROKER_NOT_AVAILABLE:
            self.node = -1
            return True
        return False

    def _answered(self, done: Done, answer: Any, error: KafkaError | None) -> None:
        code = error.code if error is not None else getattr(answer, "error_code", errors.NONE)
        self.moved(code)
        done(answer, error)

    def _found(self, answer: Any, error: KafkaError | None) -> None:
        if error is None:
            told = answer.coordinators[0] if answer.coordinators else answer
            if told.error_code:
                words = told.error_message or errors.lookup(told.error_code).meaning
                error = KafkaError(told.error_code, f"the coordinator of group {self.group_id!r}: {words}")
            else:
                self.node = told.node_id
                self._at = Node(told.node_id, told.host, told.port, None)
                if not self._network.knows(self._at):
                    self._network.tell_of(self._at)
                    self._network.refresh()
        self._note(error)
        waiting, self._waiting = self._waiting, []
        for go in waiting:
            go(error)

    def _note(self, failure: KafkaError | None) -> None:
        """Keep why it is not known, and say so once where that lasts."""
        if failure is None or self.failure is None:
            self._failing_s, self._said = time.monotonic(), False
        elif not self._said and time.monotonic() - self._failing_s > SILENT_S:
            _log.warning("%s", failure)
            self._said = True
        self.failure = failure
