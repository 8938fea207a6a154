"""Handles what brokers respond to the controller's requests: replicas that they cannot use, states and epochs that they
know, and addresses that refuse."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.controller import broker_failures
from pybroker.controller.context import ControllerContext
from pybroker.controller.inbox import Inbox
from pybroker.controller.reassignments import Reassignments
from pybroker.controller.restoration import Restoration
from pybroker.controller.topic_deletion import Deletions
from pybroker.decisions import election as elections
from pybroker.decisions.rollback import Known
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)


class TermParts(NamedTuple):
    """The parts of one term as controller."""

    context: ControllerContext
    inbox: Inbox
    deletions: Deletions
    restoration: Restoration
    reassignments: Reassignments


class ElectingController(Protocol):
    """The controller, which elects leaders where brokers can no longer, or again, use their replicas."""

    async def elect_again(self, cause: str) -> None: ...

    async def logs_changed(self, broker: int, cause: str) -> None: ...

    async def raise_epoch(self) -> None: ...


class Responses:
    """See broker_channel.Reports. Responses after the end of a term are ignored."""

    def __init__(
        self, config: BrokerConfig, controller: ElectingController, term: Callable[[], TermParts | None]
    ) -> None:  # fmt: skip
        """`term` returns the parts of the present term."""
        self._config = config
        self._controller = controller
        self._term = term
        self._refusals: set[tuple[int, int]] = set()
        """(broker, code) of each refusal that was logged, in any term, until the broker executes a request again."""

    def answered(self, broker: int, code: int) -> None:
        if (broker, code) not in self._refusals:
            name = errors.lookup(code).name
            event(log, logging.WARNING, "broker refused request", broker=broker, error=name)
        self._refusals.add((broker, code))
        if code == errors.STALE_CONTROLLER_EPOCH and (term := self._term()) is not None:
            term.inbox.once("reign", self._controller.raise_epoch)

    def knows(self, broker: int, known: Mapping[TopicPartition, Known]) -> None:
        if (term := self._term()) is not None:
            term.restoration.knows(broker, known)

    def led(self, broker: int, partition: TopicPartition, code: int) -> None:
        if (term := self._term()) is None:
            return
        context, inbox, controller = term.context, term.inbox, self._controller
        if (code == elections.TAKES_NO_APPENDS) != ((broker, partition) in context.full):
            context.full ^= {(broker, partition)}
            inbox.once(f"full {broker}", lambda: self._room_changed(context, broker))
        if code in (errors.NONE, elections.TAKES_NO_APPENDS):  # the broker can use a log that may have failed before
            self._refusals = {each for each in self._refusals if each[0] != broker}
            if (broker, partition) in context.failed:
                context.failed.discard((broker, partition))
                cause = f"broker {broker} can use a log again"
                inbox.once(f"usable {broker}", lambda: controller.logs_changed(broker, cause))
        elif code in (errors.KAFKA_STORAGE_ERROR, errors.INCONSISTENT_TOPIC_ID):  # other errors are stale epochs
            context.failed.add((broker, partition))  # now: the queued election covers all failures reported so far
            inbox.once(f"failed {broker}", lambda: controller.elect_again(f"broker {broker} cannot use a log"))

    async def _room_changed(self, context: ControllerContext, broker: int) -> None:
        what = "has a full log dir" if any(its == broker for its, _ in context.full) else "has room again"
        await self._controller.logs_changed(broker, f"broker {broker} {what}")

    def stopped(self, broker: int, partition: TopicPartition, deleted: bool, code: int) -> None:
        if (term := self._term()) is not None:
            term.inbox.put(functools.partial(term.deletions.stopped, broker, partition, deleted, code))
            term.reassignments.stopped(broker, partition, deleted, code)

    def refused(self, broker: int, epoch: int) -> None:
        """Delete the node of a broker whose address refuses: its process is dead, so its session need not expire."""
        if self._config["broker.death.proof.enable"] and (term := self._term()) is not None:
            term.inbox.once(f"bury {broker}", lambda: broker_failures.bury(term.context, broker, epoch))
