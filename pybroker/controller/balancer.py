"""The continuous balancer: moves replicas in small batches until the brokers are even, for one term as controller.

    look ──uneven──> note, throttle ──> a batch begins, by the door of AlterPartitionReassignments
     ^                                     │ all are there, or cancelled
     └──not enabled, even, not whole──  throttle and note are removed ──> the next batch is planned

decisions/planning/auto_balance.py decides. It runs beside the controller, which waits for none of its measuring and
planning. The note in the store (balance_note.py) lets the next controller go on. A move whose target is gone, or cannot
write, for an interval is taken back, and its target gets nothing for a while; after others cancelled a move, nothing
moves for a while.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig, Source
from pybroker.controller.broker_channel import OpenLink
from pybroker.controller.context import ControllerContext
from pybroker.controller.reassignments import Reassignments
from pybroker.coordination.store import Check, StoreError
from pybroker.decisions import reassignment
from pybroker.decisions.config_changes import VALUE_BYTES_MAX, AlterOperation, ConfigChange
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.planning.auto_balance import BalanceBatch, Rules, Situation, next_batch, why_not
from pybroker.decisions.planning.balance_note import (
    ENABLE,
    EXCLUDED,
    NOTE,
    ROLES,
    BalanceNote,
    is_by_hand,
    rate_name,
)
from pybroker.decisions.planning.measuring import LogDir, log_dirs_of, size_of, sizes_of, volumes
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanBroker, PlanPartition, Reassigned
from pybroker.decisions.planning.throttle_note import THROTTLE_NOTE, ThrottleNote
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import read_config
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

log = logging.getLogger(__name__)

T = TypeVar("T")
POLL_S: Final = 1.0
"""Seconds between two looks at the batch under way, and at the settings."""
DESCRIBE_LOG_DIRS: Final = 4
"""The version that has the sizes of disks."""
ASKED_AT_ONCE: Final = 32
HELD_INTERVALS: Final = 10
"""Check intervals for which nothing moves after a move was cancelled."""
MOVED_INTERVALS: Final = 100
"""Check intervals for which a partition that was moved stays where it is, while the brokers are uneven."""
CAUSE: Final = "the balancer evens out the brokers"


class SettingsWriter(Protocol):
    """Alters settings (metadata/config_admin.py). Raises KafkaError."""

    async def alter_topic(
        self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool, fence: Check | None
    ) -> None: ...

    async def alter_broker(
        self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool, fence: Check | None
    ) -> None: ...


class BalancedController(Protocol):
    """The controller, which executes requests in their turn, and has the reassignments of its term."""

    @property
    def reassignments(self) -> Reassignments: ...

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T: ...


@dataclass(slots=True)
class Progress:
    """The partitions that the balancer moves now, and the bytes that its last plan has yet to copy."""

    partitions: int = 0
    left_bytes: int = 0


NO_PROGRESS: Final = Progress()


class Balancer:
    """See the top of this module. `progress` may be read by any thread."""

    def __init__(
        self, *, config: BrokerConfig, context: ControllerContext, controller: BalancedController,
        settings: SettingsWriter, topic_config: Callable[[str], Mapping[str, str]], open_link: OpenLink,
    ) -> None:  # fmt: skip
        """`topic_config` returns a topic's own settings."""
        self._topic_config = topic_config
        self.progress = Progress()
        self._config = config
        self._context = context
        self._controller = controller
        self._settings = settings
        self._open_link = open_link
        self._next_s = float("-inf")
        """The loop's time of the next look at the brokers."""
        self._going_on = False
        self._moved: dict[TopicPartition, float] = {}
        """Partitions that were moved since the brokers were even, until this time of the loop."""
        self._begun: frozenset[TopicPartition] | None = None
        """The moves of the note that this controller has begun; None: an earlier one wrote the note."""
        self._own_s = float("-inf")
        """The loop's time at which the last own batch ended: steps of reassignments until then were its steps."""
        self._stuck_s: dict[TopicPartition, float] = {}
        """The loop's time since which a broker that a move adds is absent, or cannot write."""
        self._taken_back: set[TopicPartition] = set()
        """Moves of this batch that were taken back."""
        self._avoided: dict[int, float] = {}
        """Brokers that a move was taken back from, until this time of the loop."""
        self._left_alone: dict[str, float] = {}
        """Topics whose settings cannot be read or altered, until this time of the loop."""
        self._said = ""
        self._odd_note = ""
        """The text that was logged last of those that are no note of a throttle."""

    async def run(self) -> None:
        """Look at the batch under way and the settings each POLL_S, and at the brokers each interval. Wait until the
        controller has taken over: before that, it does not know which moves are under way."""
        await self._controller.ask(_taken_over)
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._step()
            except (KafkaError, StoreError, OSError) as problem:
                self._next_s = self._now_s() + self._interval_s()
                self._say(f"an attempt failed: {problem}")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _interval_s(self) -> float:
        return float(self._config["auto.balance.check.interval.seconds"])

    def _say(self, reason: str) -> None:
        """Log why nothing is moved, once for each reason."""
        if reason != self._said:
            self._said = reason
            event(log, logging.INFO, "balancer waits", reason=reason)

    async def _step(self) -> None:
        note = BalanceNote.parse(self._config.dynamic(Source.DYNAMIC_DEFAULT_BROKER).get(NOTE))
        if note is not None:
            under_way = self._under_way(note)
            self.progress.partitions = len(under_way)
            if under_way:
                await self._take_back_stuck(under_way)
                return
            await self._end(note)
            return
        if not self._config[ENABLE]:
            self._rest()
            self._next_s, self._said = float("-inf"), ""
        elif self._now_s() >= self._next_s:
            self._next_s = self._now_s() + self._interval_s()
            await self._look()

    def _rest(self) -> None:
        """Forget the way to an even cluster."""
        self._going_on, self.progress.left_bytes = False, 0
        self._moved.clear()

    # -- a batch -----------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Begin the next batch, or log why none begins."""
        if self._now_s() - self._others_moved_s() < self._interval_s():
            return self._say("others moved replicas since the last look")
        if self._command_throttles():
            return self._say("pybroker reassign has set a throttle, and not removed it yet")
        now = await asyncio.to_thread(self._situation)
        if reason := why_not(now):
            return self._say(reason)
        if len(now.live) < 2:
            return self._say("the cluster has one broker")
        found, silent = await self._log_dirs(list(self._context.brokers.values()))
        if silent:
            broker, reason = min(silent.items())
            return self._say(f"broker {broker} does not report its disks: {reason}")
        batch = await asyncio.to_thread(self._planned, now, found, self._now_s())
        if not batch.moves:
            if batch.even:
                self._rest()
            self._going_on, self.progress.left_bytes = False, 0
            return self._say(batch.idle)
        await self._begin(batch)
        return None

    def _command_throttles(self) -> bool:
        """True if `pybroker reassign` has set a throttle and not removed it. Log a note that is none once, as no
        command removes it."""
        text = self._config.dynamic(Source.DYNAMIC_DEFAULT_BROKER).get(THROTTLE_NOTE) or ""
        if not text or ThrottleNote.parse(text) is not None:
            return bool(text)
        if text != self._odd_note:
            self._odd_note = text
            event(log, logging.WARNING, "throttle note ignored", config=THROTTLE_NOTE, value=text)
        return False

    def _others_moved_s(self) -> float:
        """The loop's time at which others last moved replicas, as far as this term knows."""
        changed_s = self._controller.reassignments.changed_s
        return changed_s if changed_s > self._own_s else float("-inf")

    def _situation(self) -> Situation:
        """The cluster as the controller knows it. Called on a thread: it reads only what is replaced as a whole."""
        context = self._context
        states = list(context.states())
        return Situation(
            live=frozenset(context.brokers),
            partitions=tuple(
                PlanPartition(key, reassignment.target(state), state.leader, 0, state.isr) for key, state in states
            ),
            under_way=frozenset(key for key, state in states if reassignment.is_under_way(state)),
            offline=frozenset(
                (broker, key)
                for broker, key in context.failed | context.full
                if (state := context.state(key)) is not None and broker in state.replicas
            ),
            leaving=frozenset(context.leaving),
            unreadable=frozenset(context.damaged),
        )

    async def _log_dirs(self, brokers: Sequence[LiveBroker]) -> tuple[dict[int, list[LogDir]], dict[int, str]]:
        """The log dirs of each broker that answers, and why others do not."""
        found, silent, few = dict[int, list[LogDir]](), dict[int, str](), asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(broker: LiveBroker) -> None:
            async with few:
                try:
                    link = await self._open_link(broker)
                    try:
                        answer = await link.ask(m.DescribeLogDirsRequest(topics=None), DESCRIBE_LOG_DIRS)
                    finally:
                        link.close()
                except (OSError, KafkaError) as problem:
                    silent[broker.id] = str(problem) or type(problem).__name__
                    return
            if answer.error_code:
                silent[broker.id] = errors.lookup(answer.error_code).name
            else:
                found[broker.id] = log_dirs_of(broker.id, answer)

        await asyncio.gather(*map(ask, brokers))
        return found, silent

    def _planned(self, now: Situation, found: Mapping[int, list[LogDir]], now_s: float) -> BalanceBatch:
        """Plan the next batch. Called on a thread, as it may take seconds."""
        sizes, context = sizes_of(found.values()), self._context
        brokers = tuple(
            PlanBroker(b.id, _host(b), b.rack, volumes(found[b.id]))
            for b in list(context.brokers.values()) if b.id in found
        )  # fmt: skip
        partitions = tuple(
            p._replace(size_bytes=size_of(sizes, p.partition, p.leader, p.replicas)) for p in now.partitions
        )
        by_hand = {topic for topic in {p.partition.topic for p in partitions} if is_by_hand(self._topic_config(topic))}
        by_hand |= {topic for topic, until_s in self._left_alone.items() if now_s < until_s}
        pinned = frozenset(p.partition for p in partitions if p.partition.topic in by_hand)
        pinned |= {key for key, until_s in self._moved.items() if now_s < until_s}
        config = self._config
        rules = Rules(
            config["auto.balance.threshold.percentage"] / 100, config["auto.balance.disk.limit.percentage"] / 100,
            config["auto.balance.partitions.at.once"],
            self._excluded() | {broker for broker, until_s in self._avoided.items() if now_s < until_s},
        )  # fmt: skip
        return next_batch(ClusterSnapshot(brokers, partitions), rules, going_on=self._going_on, pinned=pinned)

    def _excluded(self) -> frozenset[int]:
        return frozenset(int(broker) for broker in self._config[EXCLUDED] if broker)

    async def _begin(self, batch: BalanceBatch) -> None:
        """Write the note, set the throttle, and begin the moves that the cluster still allows. Raises KafkaError."""
        default, _ = await read_config(self._context.session, nodes.broker_config(None))
        if default.get(NOTE):
            return self._say("this broker has yet to read the note of the controller before")
        own = {topic: await self._own_settings(topic) for topic in {move.partition.topic for move in batch.moves}}
        moves = [move for move in batch.moves if own[move.partition.topic] is not None]
        if not moves:
            self._next_s = float("-inf")  # plan again, without these topics
            return None
        roles = [role for role in ROLES if rate_name(role) not in default]
        rate = self._config["auto.balance.throttled.rate"]
        while len((note := BalanceNote.of(moves, rate, roles)).text().encode()) > VALUE_BYTES_MAX:
            moves.pop()
        self._going_on, self._begun, self._said = True, frozenset(), ""
        self._stuck_s.clear()
        changes = [_set(NOTE, note.text()), *(_set(rate_name(role), str(rate)) for role in roles)]
        await self._alter_all(changes)
        for topic, lists in note.lists().items():
            held = own[topic] or {}
            try:
                await self._alter_topic(topic, [_set(name, text) for name, text in lists.items() if not held.get(name)])
            except KafkaError as problem:
                self._leave_alone(topic, problem)
                raise
        begun = await self._controller.ask(functools.partial(self._alter, moves))
        self._begun, self.progress.partitions, self.progress.left_bytes = begun, len(begun), batch.left_bytes
        for move, why in zip(batch.moves, batch.why, strict=True):
            if move.partition in begun:
                self._moved[move.partition] = self._now_s() + MOVED_INTERVALS * self._interval_s()
                event(
                    log, logging.INFO, "balancer moves partition", partition=move.partition, before=_names(move.before),
                    after=_names(move.after), bytes=move.copied_bytes, reason=why,
                )  # fmt: skip
        if not begun:
            self._say("the controller accepts no move: the cluster has changed since it was measured")
        return None

    async def _own_settings(self, topic: str) -> dict[str, str] | None:
        """A topic's settings in the store; None if its node is damaged. Raises StoreError."""
        try:
            return (await read_config(self._context.session, nodes.topic_config(topic)))[0]
        except KafkaError as problem:
            self._leave_alone(topic, problem)
            return None

    def _leave_alone(self, topic: str, problem: KafkaError) -> None:
        """Move nothing of a topic for a while, or one whose settings are damaged would end each batch."""
        event(log, logging.WARNING, "balancer leaves topic as it is", topic=topic, reason=problem.message)
        self._left_alone[topic] = self._now_s() + HELD_INTERVALS * self._interval_s()

    async def _alter_all(self, changes: list[ConfigChange]) -> None:
        """Alter the settings of all brokers, as this controller. Raises KafkaError."""
        fence = self._context.fence.check
        await self._settings.alter_broker("", changes, replace=False, validate_only=False, fence=fence)

    async def _alter_topic(self, topic: str, changes: list[ConfigChange]) -> None:
        """Alter a topic's settings, as this controller. Raises KafkaError."""
        if changes:
            fence = self._context.fence.check
            await self._settings.alter_topic(topic, changes, replace=False, validate_only=False, fence=fence)

    async def _alter(self, moves: Sequence[Reassigned]) -> frozenset[TopicPartition]:
        """Begin the moves, in the controller's turn, where nothing has changed since they were planned. Return those
        that have begun."""
        context, excluded = self._context, self._excluded()
        targets: dict[TopicPartition, Sequence[int] | None] = {}
        if not self._config[ENABLE] or any(reassignment.is_under_way(state) for _, state in context.states()):
            return frozenset()
        for move in moves:
            state = context.state(move.partition)
            if state is None or state.replicas != move.before or not excluded.isdisjoint(move.adding):
                continue
            if {*state.replicas} <= {*state.isr} and {*state.replicas} <= context.live(move.partition):
                targets[move.partition] = move.after
        found = await self._controller.reassignments.alter(targets, same_factor=True, cause=CAUSE)
        return frozenset(key for key, refusal in found.items() if refusal is None)

    # -- its end -----------------------------------------------------------------------------------------------------

    def _under_way(self, note: BalanceNote) -> dict[TopicPartition, tuple[int, ...]]:
        """The moves of a note that are under way, with the brokers that they add."""
        found = {}
        for key, (_, after) in note.moves.items():
            state = self._context.state(key)
            if state is not None and reassignment.is_under_way(state) and set(reassignment.target(state)) == {*after}:
                found[key] = state.adding
        return found

    async def _take_back_stuck(self, under_way: Mapping[TopicPartition, tuple[int, ...]]) -> None:
        """Take back the moves to brokers that are absent, or cannot write what they get, for an interval."""
        stuck = {key: found for key, adding in under_way.items() if (found := self._obstacle(key, adding))}
        now_s, interval_s = self._now_s(), self._interval_s()
        self._stuck_s = {key: self._stuck_s.get(key, now_s) for key in stuck}
        late = [key for key, since_s in self._stuck_s.items() if now_s - since_s >= interval_s]
        if not late:
            return
        reason = stuck[late[0]][1]
        event(log, logging.WARNING, "balancer takes moves back", partitions=len(late), first=late[0], reason=reason)
        for key in late:
            self._avoided[stuck[key][0]] = now_s + HELD_INTERVALS * interval_s
            del self._stuck_s[key]
            self._moved.pop(key, None)
        self._taken_back.update(late)
        cancel = functools.partial(self._controller.reassignments.alter, dict.fromkeys(late), cause=reason)
        await self._controller.ask(cancel)

    def _obstacle(self, key: TopicPartition, adding: Sequence[int]) -> tuple[int, str] | None:
        """The broker that cannot get a replica now, and a sentence that says why; None if all can."""
        context = self._context
        for broker in adding:
            if broker not in context.brokers:
                return broker, f"broker {broker} is absent"
            if (broker, key) in context.failed:
                return broker, f"broker {broker} cannot use its log dir"
            if (broker, key) in context.full:
                return broker, f"the log dir of broker {broker} is full"
        return None

    async def _end(self, note: BalanceNote) -> None:
        """Remove the throttle of a batch that has ended, then its note. What was changed by hand stays. Raises
        KafkaError."""
        session = self._context.session
        default, _ = await read_config(session, nodes.broker_config(None))
        if BalanceNote.parse(default.get(NOTE)) != note:
            return  # this broker has yet to read what another one wrote
        for topic, lists in note.lists().items():
            held = await self._own_settings(topic) or {}
            try:
                await self._alter_topic(topic, [_delete(n) for n, text in lists.items() if held.get(n) == text])
            except KafkaError as problem:
                if problem.code == errors.INVALID_CONFIG:  # of another setting, until it is corrected by hand
                    self._leave_alone(topic, problem)
                elif problem.code != errors.UNKNOWN_TOPIC_OR_PARTITION:  # a topic that was deleted
                    raise
        changes = [_delete(NOTE)]
        changes += [_delete(name) for name in map(rate_name, note.roles) if default.get(name) == str(note.rate)]
        await self._alter_all(changes)
        lost = [key for key, (before, after) in note.moves.items() if self._is_cancelled(key, before, after)]
        event(log, logging.INFO, "balancer batch ended", partitions=len(note.moves), cancelled=len(lost))
        self.progress.partitions, self._own_s = 0, self._now_s()
        if self._begun != frozenset():  # else no move began: the next attempt waits for its interval
            self._next_s = float("-inf")
        if others := [key for key in lost if key not in self._taken_back]:
            self._next_s = self._now_s() + HELD_INTERVALS * self._interval_s()
            self._say(f"the move of {others[0]} was cancelled, or went elsewhere")
        elif lost:
            self._next_s = self._now_s() + self._interval_s()
        self._taken_back.clear()
        self._going_on, self._begun = True, None

    def _is_cancelled(self, key: TopicPartition, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
        """True if a move that had begun did not end where it should."""
        state = self._context.state(key)
        if state is None or set(state.replicas) == {*after}:
            return False
        return key in self._begun if self._begun is not None else set(state.replicas) != {*before}


async def _taken_over() -> None:
    """Do nothing, in a turn of the controller: its first is after it has taken over."""


def _set(name: str, value: str) -> ConfigChange:
    return ConfigChange(name, AlterOperation.SET, value)


def _delete(name: str) -> ConfigChange:
    return ConfigChange(name, AlterOperation.DELETE, None)


def _host(broker: LiveBroker) -> str:
    return next((at.host for at in broker.endpoints.values()), "")


def _names(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
