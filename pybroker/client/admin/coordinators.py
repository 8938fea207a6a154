"""Asking the coordinators of groups and of transactional ids: found, asked, and asked again while they move or load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from pybroker import errors
from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import GROUP, RETRY_BACKOFF_S, TRANSACTION, Node
from pybroker.protocol import apis
from pybroker.protocol import messages as m

BATCH_FROM_VERSION: Final = 4
"""From here on one FindCoordinator asks for several keys (KIP-699)."""
NOUNS: Final = {GROUP: "group", TRANSACTION: "transactional id"}

MOVED: Final = (errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR, errors.COORDINATOR_LOAD_IN_PROGRESS)


T = TypeVar("T")


class CoordinatorOutcome(NamedTuple, Generic[T]):
    """A coordinator's answer about one group, or one transactional id."""

    code: int
    message: str | None
    answer: T | None
    coordinator: Node


Ask = Callable[[BrokerConnection, Sequence[str]], Iterable[tuple[str, int, str | None, T | None]]]
"""A request to a coordinator about some of its keys; yields (key, error code, message, answer) of each."""


class CoordinatorsAdmin(AdminBase):
    """Requests to the coordinators of groups and of transactional ids: the brokers that lead their partitions of
    __consumer_offsets and __transaction_state."""

    def _ask_coordinators(
        self, keys: Iterable[str], ask: Ask[T], key_type: int = GROUP
    ) -> dict[str, CoordinatorOutcome[T]]:
        """The answer of each key's coordinator, in the order of `keys`; codes of MOVED are retried until the time is
        over."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, CoordinatorOutcome[T]] = {}
        deadline = time.monotonic() + self.timeout_s
        while unanswered := [group for group in wanted if group not in found or found[group].code in MOVED]:
            if found and time.monotonic() > deadline:
                break
            if found:
                time.sleep(RETRY_BACKOFF_S)
            nobody = Node(-1, "", -1, None)
            by_node: dict[Node, list[str]] = {}
            for group, code, message, node in self._find(unanswered, key_type):
                if code:
                    found[group] = CoordinatorOutcome(code, message, None, nobody)
                else:
                    by_node.setdefault(node, []).append(group)
            for node, its_own in by_node.items():
                for group, code, message, answer in ask(self.cluster.connect(node.host, node.port), its_own):
                    found[group] = CoordinatorOutcome(code, message, answer, node)
            for group in unanswered:
                only([found[group]] if group in found else [], f"{NOUNS[key_type]} {group}")
        return {group: found[group] for group in wanted}

    def _ask_coordinator(self, group: str, ask: Callable[[BrokerConnection], tuple[int, str | None]]) -> None:
        """Ask the coordinator of one group. KafkaError with the group's name in its sentence."""

        def one(connection: BrokerConnection, _: Sequence[str]) -> Iterable[tuple[str, int, str | None, None]]:
            code, message = ask(connection)
            return [(group, code, message, None)]

        outcome: CoordinatorOutcome[None] = self._ask_coordinators([group], one)[group]
        raise_for(outcome.code, f"group {group}", outcome.message)

    def _find(self, keys: Sequence[str], key_type: int) -> Iterable[tuple[str, int, str | None, Node]]:
        """(key, error code, message, coordinator) of each."""
        connection = self.cluster.any()
        if connection.version_of(apis.SPOKEN[m.FindCoordinatorRequest.SCHEMA.key]) < BATCH_FROM_VERSION:
            for key in keys:
                one = connection.request(m.FindCoordinatorRequest(key=key, key_type=key_type))
                yield key, one.error_code, one.error_message, Node(one.node_id, one.host, one.port, None)
            return
        request = m.FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)
        for c in connection.request(request).coordinators:
            yield c.key, c.error_code, c.error_message, Node(c.node_id, c.host, c.port, None)
