"""Moves replicas between brokers (KIP-455), for one term as controller: each step is one write.

    a request, or REASSIGNMENTS ──begin──> LeaderAndIsr to present and added replicas; the added ones copy the log
    the ISR changes ──advance──> the target is in sync: LeaderAndIsr to the target, UpdateMetadata to all brokers
                                 StopReplica to the others, which stop at once, and then delete their logs
    a log is deleted ──forget──> it is no longer in the topic's node

decisions/reassignment.py decides. What is under way is in the topics' nodes: the next controller continues there, after
it has elected leaders. A log that was given up on a dead broker is deleted when the broker is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from pybroker import errors
from pybroker.controller.broker_channel import BrokerChannel, Stop
from pybroker.controller.context import ControllerContext
from pybroker.controller.damage import is_of_one_topic
from pybroker.controller.inbox import Inbox
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import BadVersion, Delete, NoNode, Op, Set, StoreFailed
from pybroker.decisions import reassignment
from pybroker.decisions.image import PartitionState
from pybroker.decisions.metadata_cache import UNTOLD
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import write
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

Target = Sequence[int] | None
"""The replicas that a request asks for; None cancels a reassignment."""
TRIES = 3
"""Repeated requests to a replica that cannot delete its log, per registration of its broker."""
DELETED = (errors.NONE, errors.UNKNOWN_TOPIC_OR_PARTITION)
BUSY = KafkaError(errors.NOT_CONTROLLER, "the partition changed at the same time: retry")
REQUESTED = "requested by a client"
MIN_ISR = "min.insync.replicas"


class MovingController(Protocol):
    """The controller, which writes new states, and has the channels to brokers."""

    @property
    def channels(self) -> Mapping[int, BrokerChannel]: ...

    async def change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]: ...


class Reassignments:
    """The reassignments of one term."""

    def __init__(
        self, *, context: ControllerContext, controller: MovingController, inbox: Inbox,
        setting: Callable[[str, str], int],
    ) -> None:  # fmt: skip
        """`setting` returns a topic's value of a setting."""
        self._context = context
        self._controller = controller
        self._inbox = inbox
        self._setting = setting
        self._due: set[TopicPartition] = set()
        """Partitions to step."""
        self.changed_s = float("-inf")
        """The loop's time of the last step of a reassignment, or change of a partition while it is reassigned."""
        self._left: set[TopicPartition] = set()
        """Partitions that were stepped: replicas may have been given up."""
        self._stopped: dict[TopicPartition, dict[int, int]] = {}
        """By partition and broker: the broker epoch in which a given-up replica was asked to stop."""
        self._asked: dict[TopicPartition, dict[int, int]] = {}
        """By partition and broker: the broker epoch in which a given-up replica was asked to delete its log."""
        self._failed: Counter[tuple[int, TopicPartition]] = Counter()
        self._deleted: set[tuple[int, TopicPartition]] = set()
        """Replicas whose logs are deleted, which is not written yet."""
        self._in_node: set[TopicPartition] = set()
        """Partitions in the node REASSIGNMENTS."""

    # -- requests ----------------------------------------------------------------------------------------------------

    async def alter(
        self, targets: Mapping[TopicPartition, Target], *, same_factor: bool = False, cause: str = REQUESTED
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin, replace or cancel reassignments. Return the error of each partition, None if it was accepted. Raises
        NOT_CONTROLLER."""
        if cause == REQUESTED and self._in_node & targets.keys():  # the latest request counts
            self._in_node -= targets.keys()
            await self._write_node()
        found = dict[TopicPartition, KafkaError | None]()
        changes = dict[TopicPartition, PartitionState]()
        for key, wanted in targets.items():
            found[key] = None
            try:
                after = self._begun(key, wanted, same_factor)
                if after is not None:
                    changes[key] = after
            except KafkaError as problem:
                found[key] = problem
        done = await self._controller.change(changes, cause) if changes else set[TopicPartition]()
        return found | dict.fromkeys(changes.keys() - done, BUSY)

    def _begun(self, key: TopicPartition, wanted: Target, same_factor: bool) -> PartitionState | None:
        """The state in which a reassignment has begun; None if nothing changes. Raises KafkaError."""
        context = self._context
        state = context.state(key)
        is_known = state is not None and key.topic not in context.deleting
        if wanted is not None:  # Kafka checks the target first, also that of a partition which does not exist
            live = context.brokers.keys() - context.leaving
            reassignment.check(state or UNTOLD, wanted, live, same_factor=same_factor and is_known)
            if state is None or not is_known:
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist")
        elif state is None or not is_known or not reassignment.is_under_way(state):
            raise KafkaError(errors.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of the partition is in progress")
        else:
            wanted = reassignment.original(state)
        if state.leader_epoch < 0 or key in context.doubted:
            raise KafkaError(errors.LEADER_NOT_AVAILABLE, "the partition waits for its first leader or for replicas")
        return reassignment.begin(state, wanted)

    def under_way(self, keys: Iterable[TopicPartition] | None) -> dict[TopicPartition, PartitionState]:
        """The states of those of these partitions, or of all, that are being reassigned."""
        context = self._context
        if keys is None:
            found = dict(context.states())
        else:
            found = {key: state for key in keys if (state := context.state(key)) is not None}
        return {key: state for key, state in found.items() if reassignment.is_under_way(state)}

    # -- steps -------------------------------------------------------------------------------------------------------

    def changed(self, keys: Iterable[TopicPartition]) -> None:
        """Step these partitions, whose states have changed, if they are being reassigned."""
        for key in keys:
            state = self._context.state(key)
            moves = state is not None and reassignment.is_under_way(state)
            if state is not None and (moves or state.given_up or key in self._in_node):
                self._due.add(key)
            if moves:
                self.changed_s = asyncio.get_running_loop().time()
        if self._due:
            self._inbox.once("reassignments", self._step)

    async def resume(self) -> None:
        """Continue all reassignments, in a new term or after brokers have registered. Raises NOT_CONTROLLER."""
        self.changed(key for key, _ in self._context.states())
        await self.read_node()

    async def _step(self) -> None:
        """Do the next step of the partitions that are due. Raises NOT_CONTROLLER."""
        due, self._due = sorted(self._due), set()
        context, changes = self._context, dict[TopicPartition, PartitionState]()
        setting = functools.cache(self._setting)
        for key in due:
            with context.about(key.topic):
                state = context.state(key)
                if state is None or key.topic in context.deleting:
                    continue
                after = reassignment.advance(
                    state, context.live(key), leaving=context.leaving_of(key), min_isr=setting(key.topic, MIN_ISR)
                )
                if after is not None:
                    changes[key] = after
        if changes:
            self._stop(await self._controller.change(changes, "the target is in sync"))
        self._left |= set(due)
        self._inbox.once("logs of moved replicas", self._delete_logs)  # after the metadata: clients find the others
        if self._in_node.intersection(due):
            self._in_node = set(self.under_way(self._in_node))
            await self._write_node()

    def _stop(self, keys: Iterable[TopicPartition]) -> None:
        """Have replicas that were given up stop at once: one of them may have led, and no LeaderAndIsr names another
        leader to it. It would answer with an earlier end of the log for as long as it believes to lead."""
        by_broker: dict[int, dict[TopicPartition, Stop]] = {}
        for key in keys:
            if (state := self._context.state(key)) is not None:
                for broker in reassignment.to_delete(state):
                    if (epoch := self._context.epochs.get(broker)) is not None:
                        self._stopped.setdefault(key, {})[broker] = epoch
                        by_broker.setdefault(broker, {})[key] = Stop(state.leader_epoch, False)
        for broker, stops in by_broker.items():
            self._controller.channels[broker].stop_replicas(stops)

    async def _delete_logs(self) -> None:
        """Ask replicas that were given up to stop, then to delete their logs: once in a registration of their broker.
        """
        keys, self._left = sorted(self._left), set()
        by_broker: dict[int, dict[TopicPartition, int]] = {}
        running: dict[int, dict[TopicPartition, Stop]] = {}
        for key in keys:
            state, stopped = self._context.state(key), self._stopped.pop(key, {})
            doomed = () if state is None or key.topic in self._context.deleting else reassignment.to_delete(state)
            asked = {broker: epoch for broker, epoch in self._asked.pop(key, {}).items() if broker in doomed}
            for broker in doomed:
                epoch = self._context.epochs.get(broker)
                if epoch is None or asked.get(broker) == epoch or state is None:
                    continue
                if broker in asked:
                    self._failed.pop((broker, key), None)
                asked[broker] = epoch
                by_broker.setdefault(broker, {})[key] = state.leader_epoch
                if stopped.get(broker) != epoch:
                    running.setdefault(broker, {})[key] = Stop(state.leader_epoch, False)
            if asked:
                self._asked[key] = asked
        for broker, its in by_broker.items():
            channel = self._controller.channels[broker]
            if broker in running:
                channel.stop_replicas(running[broker])
            channel.stop_replicas({key: Stop(leader_epoch, True) for key, leader_epoch in its.items()})

    def stopped(self, broker: int, key: TopicPartition, deleted: bool, code: int) -> None:
        """Handle a broker's StopReplica result for one partition."""
        each = broker, key
        if not deleted or broker not in self._asked.get(key, {}):
            return
        if code in DELETED:
            self._deleted.add(each)
            self._inbox.once("deleted logs", self._forget)
        elif self._failed[each] < TRIES:
            self._failed[each] += 1
            del self._asked[key][broker]
            self._due.add(key)
            self._inbox.once("reassignments", self._step)
        else:
            name = errors.lookup(code).name
            event(log, logging.ERROR, "replica not deleted", broker=broker, partition=key, error=name)

    def ask_again(self, broker: int) -> None:
        """Ask a broker whose log dirs have changed for the logs that it could not delete: they may have room again."""
        for each in [each for each in self._failed if each[0] == broker]:
            del self._failed[each]
            self._asked.get(each[1], {}).pop(broker, None)
            self._due.add(each[1])
            self._inbox.once("reassignments", self._step)

    async def _forget(self) -> None:
        """Write that logs are deleted. Raises NOT_CONTROLLER."""
        deleted, self._deleted = self._deleted, set()
        changes = dict[TopicPartition, PartitionState]()
        brokers: dict[TopicPartition, list[int]] = {}
        for broker, key in sorted(deleted):
            state = self._context.state(key)
            asked = self._asked.get(key, {}).pop(broker, None)
            if not self._asked.get(key):
                self._asked.pop(key, None)
            if asked is None or state is None or key.topic in self._context.deleting:
                continue
            after = reassignment.forget(changes.get(key, state), {broker})
            if after is not None:  # else it has become a replica again meanwhile
                changes[key] = after
                brokers.setdefault(key, []).append(broker)
        done = await self._context.write_states(changes)
        for key in done:
            names = ",".join(map(str, brokers[key]))
            event(log, logging.INFO, "logs of moved replicas deleted", partition=key, brokers=names)
        self.changed(changes.keys() - done.keys())

    # -- the node REASSIGNMENTS --------------------------------------------------------------------------------------

    async def read_node(self) -> None:
        """Begin the reassignments in the node, and watch it. Raises NOT_CONTROLLER, SessionExpired."""
        context, path = self._context, nodes.REASSIGNMENTS
        try:
            if await until_answered(lambda: context.session.exists(path, watch=self._on_node)) is None:
                self._in_node = set()
                return
            targets = nodes.load_reassignments((await until_answered(lambda: context.session.get(path)))[0])
        except NoNode:
            return  # the watch has fired
        except StoreFailed as problem:  # the node is damaged, or access is denied
            context.not_read(path, problem)
            return
        context.unread.pop(path, None)
        found = await self.alter(targets, cause=f"{path} asks for it")
        for key, refusal in found.items():
            if refusal is not None:
                event(log, logging.WARNING, "reassignment refused", partition=key, node=path, reason=refusal.message)
        self._in_node = set(targets)  # until its step, also where nothing is left to do
        self._due |= self._in_node
        self._inbox.once("reassignments", self._step)

    def _on_node(self, _: object) -> None:
        self._inbox.once("requested reassignments", self.read_node)

    async def _write_node(self) -> None:
        """Leave only the partitions of `_in_node` in the node; delete it if there are none. Its watch has it read again
        if another program changed it. Raises NOT_CONTROLLER."""
        path, session = nodes.REASSIGNMENTS, self._context.session
        with contextlib.suppress(NoNode, BadVersion, StoreFailed):
            data, stat = await until_answered(lambda: session.get(path))
            targets = nodes.load_reassignments(data)
            left = {key: replicas for key, replicas in targets.items() if key in self._in_node}
            op: Op = Set(path, nodes.dump_reassignments(left), stat.version) if left else Delete(path, stat.version)
            if left.keys() != targets.keys() or not left:
                await self._write(op)

    async def _write(self, op: Op) -> None:
        try:
            await write(self._context.session, self._context.fence, [op])
        except KafkaError as problem:
            if not is_of_one_topic(problem):
                raise
            event(log, logging.WARNING, "node not deleted", node=op.path, reason=problem.message)
