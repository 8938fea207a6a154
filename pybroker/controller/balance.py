"""The leader balance: preferred replicas become leaders again if others lead too many of a broker's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from pybroker.config import BrokerConfig
from pybroker.controller.context import ControllerContext
from pybroker.controller.inbox import Inbox
from pybroker.decisions import election as elections
from pybroker.decisions.image import PartitionState
from pybroker.decisions.reassignment import is_under_way
from pybroker.model import TopicPartition


class LeaderWriter(Protocol):
    """The controller, which writes new partition states."""

    async def change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]: ...


class Balance:
    """Checks each broker's share of preferred leaders every `leader.imbalance.check.interval.seconds`."""

    def __init__(
        self, config: BrokerConfig, context: ControllerContext, controller: LeaderWriter, inbox: Inbox
    ) -> None:
        self._config = config
        self._context = context
        self._controller = controller
        self._inbox = inbox

    async def run(self) -> None:
        """Queue a check at each interval, if auto.leader.rebalance.enable is set."""
        while True:
            await asyncio.sleep(self._config["leader.imbalance.check.interval.seconds"])
            if self._config["auto.leader.rebalance.enable"]:
                self._inbox.once("balance", self._balance)

    async def _balance(self) -> None:
        """Elect preferred replicas of each broker whose share of partitions led by others is above the limit."""
        context = self._context
        states = dict(context.states())
        share = self._config["leader.imbalance.per.broker.percentage"] / 100
        for broker in sorted(context.brokers.keys() - context.leaving):
            if elections.imbalance(list(states.values()), broker) <= share:
                continue
            changes = context.decide(
                lambda key, state, broker=broker: (  # type: ignore[misc]
                    elections.preferred(state, context.live(key) - context.leaving_of(key))
                    if state.replicas[0] == broker and not is_under_way(state)
                    else None
                )
            )
            await self._controller.change(changes, "the preferred replica is in sync")
