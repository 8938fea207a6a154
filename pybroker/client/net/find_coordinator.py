"""The coordinator of a group, or of a transactional id: found when it is needed, and again once it has moved."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from pybroker import errors
from pybroker.client.net.metadata import GROUP, Node
from pybroker.client.net.network import ANY, NetworkClient
from pybroker.client.net.promise import Promise
from pybroker.client.net.requests import PLAIN, Answered, Done, RequestOptions, complete
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message, R, Request

LANE: Final = "group"
JOIN_LANE: Final = "join"
"""A lane for joins, which wait at the broker for other members, so that heartbeats and commits do not wait."""

SILENT_S: Final = 5.0
"""Seconds without a coordinator before the client logs why; there is none while a cluster starts or a leader moves."""
_log = unfailing(__name__)

_MOVED: Final = frozenset(
    {errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE, errors.NETWORK_EXCEPTION, errors.REQUEST_TIMED_OUT}
)


class CoordinatorClient:
    """Sends requests about a group, or a transactional id, to its coordinator. Methods are for the loop's thread, but
    for `call`."""

    def __init__(self, network: NetworkClient, key: str, key_type: int = GROUP) -> None:
        self.key = key
        self._key_type = key_type
        self.node = -1
        self._at = Node(-1, "", -1, None)
        """As FindCoordinator told of it: metadata may be older, or not there yet."""
        self.failure: KafkaError | None = None
        """Why it is not known, since it was known last."""
        self._failing_s, self._said = 0.0, False
        self._network = network
        self._waiting: list[Callable[[KafkaError | None], object]] = []

    def call(self, message: Request[R], *, lane: str = LANE, how: RequestOptions = PLAIN) -> Future[R]:
        """From any thread: a future of the answer, or KafkaError."""
        promise: Promise[R] = Promise()
        self._network.loop.call_surely(partial(self.send, message, promise.settle, lane=lane, how=how))
        return promise

    def send(self, message: Request[R], done: Answered[R], *, lane: str = LANE, how: RequestOptions = PLAIN) -> None:
        """Send a request as soon as the coordinator is known; it fails if that cannot be found now."""

        def go(error: KafkaError | None) -> None:
            if error is not None:
                complete(done, None, error)
                return
            self._network.send(self._at, message, partial(self._answered, done), lane=lane, how=how)

        if self.node >= 0 and self._network.knows(self._at):
            go(None)
            return
        self._waiting.append(go)
        if len(self._waiting) == 1:
            request = m.FindCoordinatorRequest(key=self.key, key_type=self._key_type, coordinator_keys=[self.key])
            self._network.send(ANY, request, self._found)

    def moved(self, code: int) -> bool:
        """Whether this answer says that the coordinator is another, which is then looked for."""
        if code in _MOVED or code == errors.BROKER_NOT_AVAILABLE:
            self.node = -1
            return True
        return False

    def _answered(self, done: Done, answer: Message | None, error: KafkaError | None) -> None:
        code = error.code if error is not None else getattr(answer, "error_code", errors.NONE)
        self.moved(code)
        done(answer, error)

    def _found(self, answer: m.FindCoordinatorResponse | None, error: KafkaError | None) -> None:
        if error is None:
            assert answer is not None
            told = answer.coordinators[0] if answer.coordinators else answer
            if told.error_code:
                words = told.error_message or errors.lookup(told.error_code).meaning
                kind = "group" if self._key_type == GROUP else "transactional id"
                error = KafkaError(told.error_code, f"the coordinator of {kind} {self.key!r}: {words}")
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
