"""Finds the partitions whose last in-sync replicas lost power, and elects the longest log; for one term.

    a broker registers ──> it is asked about the partitions without a leader in whose ISR it is
                           ──> its logs are whole: the usual election
                           ──> power was lost: all live replicas are asked, absent ones are awaited, the best log leads

decisions/last_replica.py decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from pybroker.controller.context import ControllerContext
from pybroker.decisions import last_replica
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.decisions.rollback import Known
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

AGAIN_S = 0.5
"""Pause before brokers that did not answer are asked again."""


class Ears(Protocol):
    """The part of the controller that asks brokers about their replicas."""

    async def hear(self, asked: Mapping[int, Collection[TopicPartition]]) -> set[int]:
        """Ask brokers about partitions; return those that answered."""

    def heard(self, key: TopicPartition) -> dict[int, Known]:
        """The answers of brokers in their current registration."""


class LastReplicas:
    """Elects leaders among replicas that may have lost records with the power."""

    def __init__(
        self, context: ControllerContext, ears: Ears, unclean: Callable[[str], bool], timeout_ms: Callable[[], int]
    ) -> None:
        self._context = context
        self._ears = ears
        self._unclean = unclean
        self._timeout_ms = timeout_ms
        self._since: dict[TopicPartition, float] = {}
        """When each partition that waits began to, by the loop's clock."""
        self._silent: dict[int, int] = {}
        """Brokers that did not answer, each with its broker epoch."""
        self._waits = asyncio.Event()

    async def came(self, brokers: Iterable[int]) -> None:
        """Ask brokers that registered about the partitions without a leader in whose ISR they are. Those of a broker
        that does not answer count as power lost until it does."""
        came, asked = set(brokers), defaultdict[int, list[TopicPartition]](list)
        for key, state in self._context.states():
            if state.leader == NO_LEADER and len(state.replicas) > 1:
                for broker in came.intersection(state.isr):
                    asked[broker].append(key)
        self.silent(asked, await self._ears.hear(asked))

    def silent(self, asked: Mapping[int, Collection[TopicPartition]], answered: Collection[int]) -> None:
        """Note the brokers that did not answer, in their current registration."""
        context = self._context
        for broker in asked.keys() - set(answered):
            if broker in context.epochs:
                self._silent[broker] = context.epochs[broker]
                for key in asked[broker]:
                    context.power_lost.note(broker, key, context.state(key))
                self._waits.set()

    async def ask_again(self, look: Callable[[], object]) -> None:
        """Call `look` from time to time while partitions wait for replicas."""
        while True:
            await self._waits.wait()
            await asyncio.sleep(AGAIN_S)
            self._waits.clear()
            look()

    async def decide(self, force: Collection[TopicPartition] = ()) -> dict[TopicPartition, PartitionState]:
        """The next states of partitions whose live in-sync replicas all lost power, for now without those that wait.
        With `force` these do not wait."""
        context, now_s = self._context, asyncio.get_running_loop().time()
        await self._ask_silent()
        unsure = dict[TopicPartition, PartitionState]()
        for key, lost in context.power_lost.items():
            state = context.state(key)
            if state is None or key.topic in context.deleting or key in context.doubted:
                continue
            if last_replica.is_unsure(state, context.live(key), lost):
                unsure[key] = state
        self._since = {key: self._since.get(key, now_s) for key in unsure}
        await self._ask_all(unsure)
        changes = dict[TopicPartition, PartitionState]()
        for key, state in unsure.items():
            heard, lasts_s = self._ears.heard(key), now_s - self._since[key]
            hasty = key in force or lasts_s * 1000 >= self._timeout_ms() or self._unclean(key.topic)
            if last_replica.missing(state, heard) and not hasty:
                self._say_waits(key, state, heard, lasts_s)
                self._waits.set()
                continue
            after = last_replica.elected(state, heard, context.usable(key))
            if after is None:  # no replica reports its log: elect as if power had not been lost
                context.power_lost.pop(key, None)
                self._waits.set()
            else:
                self._say_elected(key, after, heard)
                changes[key] = after
        return changes

    async def _ask_silent(self) -> None:
        """Ask brokers again that did not answer, as long as they are registered."""
        context = self._context
        again = [broker for broker, epoch in self._silent.items() if context.epochs.get(broker) == epoch]
        self._silent.clear()
        asked = {broker: [key for key, lost in context.power_lost.items() if broker in lost] for broker in again}
        asked = {broker: keys for broker, keys in asked.items() if keys}
        if asked:
            self.silent(asked, await self._ears.hear(asked))

    async def _ask_all(self, unsure: Mapping[TopicPartition, PartitionState]) -> None:
        """Ask the live replicas of these partitions that have not answered yet."""
        asked = defaultdict[int, list[TopicPartition]](list)
        for key, state in unsure.items():
            for broker in last_replica.missing(state, self._ears.heard(key)):
                if broker in self._context.brokers and broker not in self._silent:
                    asked[broker].append(key)
        await self._ears.hear(asked)

    def _say_waits(self, key: TopicPartition, state: PartitionState, heard: Collection[int], lasts_s: float) -> None:
        if lasts_s == 0:
            absent = ",".join(map(str, last_replica.missing(state, heard)))
            event(log, logging.WARNING, "partition waits for replicas", partition=key, brokers=absent,
                  isr=",".join(map(str, state.isr)), cause="power was lost at each live in-sync replica",
                  timeout_ms=self._timeout_ms())  # fmt: skip

    def _say_elected(self, key: TopicPartition, state: PartitionState, heard: Mapping[int, Known]) -> None:
        logs = " ".join(f"{b}:{each.log_epoch}/{each.log_end}" for b, each in sorted(heard.items()))
        event(log, logging.WARNING, "longest log elected", partition=key, leader=state.leader, logs=logs)
