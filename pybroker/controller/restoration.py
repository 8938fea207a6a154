"""Repairs a store that was restored from an older copy, with the states that live brokers have; for one term.

    a term begins       Before any election the controller asks replicas about states that were written before a member
                        of their ISR registered. After a restore these are all states, at a usual failover none.
    partitions missing  If a topic's node has lost partitions that the controller's own broker knows, they are written
                        back.
    a broker refuses    It answers a LeaderAndIsr with later states: the controller asks all live replicas of these
                        partitions, and restores them.
    state lost          If only logs show the last state, the partition is doubted: it has no leader until all its
                        replicas are alive.

decisions/rollback.py decides. The controller waits at most HEAR_S for a broker: one with later states refuses
LeaderAndIsr afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

from pybroker import errors
from pybroker.controller.channels import Channels
from pybroker.controller.context import ControllerContext
from pybroker.controller.inbox import Inbox
from pybroker.controller.last_replicas import LastReplicas
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, NoNode, Session, Set
from pybroker.decisions import election
from pybroker.decisions.image import NO_LEADER, PartitionState, TopicImage
from pybroker.decisions.rollback import NOTHING, Known, is_ahead, restored
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Fence, check_reign, write
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

HEAR_S = 1.0
STEP_MAX = 1 << 20
"""The largest step by which the controller epoch is raised."""
REASON = "was the store restored from an older copy, or were its nodes changed by hand?"


async def raise_above(session: Session, fence: Fence, step: int) -> None:
    """Raise the controller epoch by `step`, because a broker has a later one than the store; this ends the term. Raises
    NOT_CONTROLLER; does nothing if `step` is above STEP_MAX."""
    await check_reign(session, fence)
    if step > STEP_MAX:
        cause = "brokers still have a later controller epoch"
        event(log, logging.ERROR, "controller epoch not raised", epoch=fence.epoch, cause=cause)
        return
    epoch = min(fence.epoch + step, nodes.EPOCH_MAX - 1)
    with contextlib.suppress(BadVersion):
        await commit(session, [Set(nodes.CONTROLLER_EPOCH, str(epoch).encode(), fence.version)])
        event(log, logging.WARNING, "controller epoch raised", epoch=epoch, epoch_before=fence.epoch, cause=REASON)
    raise KafkaError(errors.NOT_CONTROLLER, f"brokers have a later controller epoch than {fence.epoch}")


async def add_lost_partitions(context: ControllerContext, known: Callable[[str], TopicImage | None]) -> bool:
    """Write back partitions that a topic's node has lost and that are in this broker's metadata under the topic's id.
    True if there were any: read the topics again; their epochs continue above the known ones. Raises NOT_CONTROLLER,
    StoreError."""
    added = False
    for topic in list(context.topics.values()):
        image, count = known(topic.name), len(topic.partitions)
        if image is None or image.id != topic.id or len(image.partitions) <= count or topic.name in context.deleting:
            continue
        with context.about(topic.name), contextlib.suppress(BadVersion, NoNode):  # the watch has it read again
            lost = {index: image.partitions[index] for index in range(count, len(image.partitions))}
            data, stat = await read(context.session, nodes.topic(topic.name))
            node = nodes.load_topic(data)
            if node.id != topic.id or len(node.replicas) != count:
                continue
            # A partition without known replicas never had a leader, so it has no records: any brokers can be replicas.
            replicas = {index: state.replicas or node.replicas[0] for index, state in lost.items()}
            changed = nodes.with_partitions(data, replicas)
            await write(context.session, context.fence, [Set(nodes.topic(topic.name), changed, stat.version)])
            told = ((TopicPartition(topic.name, i), (topic.id, state)) for i, state in lost.items() if state.replicas)
            context.lost.update(told)
            context.watched.discard(topic.name)
            added = True
            event(
                log, logging.WARNING, "partitions written back", topic=topic.name, partitions=len(lost), first=count,
                cause=REASON,
            )  # fmt: skip
    return added


class StateWriter(Protocol):
    """The controller, which writes new states."""

    async def change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]: ...


class Restoration:
    """Collects the states that brokers have, and restores partitions from them."""

    def __init__(
        self, context: ControllerContext, channels: Channels, unclean: Callable[[str], bool], controller: StateWriter,
        inbox: Inbox, timeout_ms: Callable[[], int],
    ) -> None:  # fmt: skip
        self.last = LastReplicas(context, self, unclean, timeout_ms)
        self._context = context
        self._channels = channels
        self._unclean = unclean
        self._controller = controller
        self._inbox = inbox
        self._known: defaultdict[TopicPartition, dict[int, tuple[int, Known]]] = defaultdict(dict)
        """By partition and broker: the broker epoch with which it answered, and the state that it has."""
        self._news: set[TopicPartition] = set()
        """Partitions to decide on, because a broker has a later state."""
        self._suspects: set[TopicPartition] = set()
        """Partitions of which a broker may have a later state, but has not sent it."""
        self.stale = False
        """True once a broker has refused this controller's epoch as stale."""

    # -- brokers' states ---------------------------------------------------------------------------------------------

    async def hear_old(self) -> None:
        """Query live replicas about doubted states, and about states written before a member of their ISR registered.
        At a usual failover there are none: a broker that comes back joins the ISR by a later write."""
        asked = defaultdict[int, list[TopicPartition]](list)
        epochs, doubted = self._context.epochs, self._context.doubted
        for key, state in self._context.states():
            written = self._context.written.get(key, -1)
            if key in doubted or any(written < epochs.get(broker, -1) for broker in state.isr or state.replicas):
                for broker in state.replicas:
                    asked[broker].append(key)
        self.last.silent(asked, await self.hear(asked))
        await self._hear_moved({key for keys in asked.values() for key in keys})
        if self._news:  # a store with one old state may have others
            self._news.update(*asked.values())
        self._news |= doubted

    async def hear(self, asked: Mapping[int, Collection[TopicPartition]]) -> set[int]:
        """Ask live brokers about partitions, and note their answers. Return the brokers that answered."""
        live = [broker for broker in asked if broker in self._channels]
        heard = await asyncio.gather(*(self._ask(broker, asked[broker]) for broker in live))
        return {broker for broker, answered in zip(live, heard, strict=True) if answered}

    async def _hear_moved(self, keys: Iterable[TopicPartition]) -> None:
        """Query all other live brokers about partitions of which a member of the ISR has no log: perhaps their replicas
        were moved after the store's copy was made, and the logs deleted."""
        asked = defaultdict[int, list[TopicPartition]](list)
        for key in keys:
            state, facts = self._context.state(key), self._facts(key)
            if state is not None and any(facts.get(broker, ())[:6] == NOTHING[:6] for broker in state.isr):
                for broker in self._channels.keys() - set(state.replicas):
                    asked[broker].append(key)
        await self.hear(asked)

    def heard(self, key: TopicPartition) -> dict[int, Known]:
        """The states that brokers reported in their current registration."""
        epochs = self._context.epochs
        return {broker: known for broker, (epoch, known) in self._known[key].items() if epochs.get(broker) == epoch}

    async def _ask(self, broker: int, keys: Collection[TopicPartition]) -> bool:
        """Ask a broker; True if it answered."""
        ids = {key: self._context.topics[key.topic].id for key in keys if key.topic in self._context.topics}
        try:
            async with asyncio.timeout(HEAR_S):
                known, latest_epoch = await self._channels[broker].ask(ids)
        except (OSError, KafkaError) as problem:
            if getattr(problem, "code", None) == errors.STALE_CONTROLLER_EPOCH:
                self.stale = True
            else:
                event(log, logging.WARNING, "broker state query failed", broker=broker, reason=problem)
            return False
        if latest_epoch >= 0:  # -1: a Kafka broker, which does not report its states
            known = dict.fromkeys(ids, NOTHING) | known
        self._take(broker, known, went_back=latest_epoch > self._context.epochs.get(broker, latest_epoch))
        return True

    def knows(self, broker: int, known: Mapping[TopicPartition, Known]) -> None:
        """Note the later states that a broker sent when it refused a LeaderAndIsr."""
        self._take(broker, known, went_back=False)
        self._inbox.once("restore", self.restore)

    def _take(self, broker: int, known: Mapping[TopicPartition, Known], *, went_back: bool) -> None:
        """Note a broker's states. `went_back`: its broker epoch is lower than an earlier one, so leaders may refuse its
        fetches; each of its partitions gets a new leader epoch, in which leaders accept them."""
        epoch = self._context.epochs.get(broker)
        if epoch is None:
            return
        for key, each in known.items():
            if not (each.leader_epoch < nodes.EPOCH_MAX and each.log_epoch <= each.leader_epoch):
                event(log, logging.ERROR, "broker state ignored", broker=broker, partition=key, known=each)
                continue
            state = self._context.state(key)
            self._known[key][broker] = epoch, each
            self._context.power_lost.note(broker, key, state, lost=each.power_lost)
            if state is not None and (went_back or is_ahead(each, state)):
                self._news.add(key)

    def suspect(self, key: TopicPartition) -> None:
        """Note that a leader sent later epochs than those in the store."""
        self._suspects.add(key)
        self._inbox.once("restore", self.restore)

    def came(self, brokers: Collection[int]) -> None:
        """Decide again on partitions that waited for these brokers."""
        for key in self._context.doubted:
            state = self._context.state(key)
            if state is not None and not set(brokers).isdisjoint(state.replicas):
                self._news.add(key)

    # -- decisions ---------------------------------------------------------------------------------------------------

    async def restore(self) -> set[TopicPartition]:
        """Restore partitions of which a broker has a later state, after querying all live replicas. Return the
        partitions that changed. Raises NOT_CONTROLLER, StoreError."""
        if not self._news and not self._suspects:
            return set()
        await self._hear_news()
        changes = self._decide(self._news)
        self._news.clear()
        if changes:
            self._say(changes)
        return await self._write(changes)

    async def force(self, keys: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Elect the best live replica of each of these partitions, though absent ones may have more records. Return the
        partitions that changed. Raises as `restore`."""
        doubted = self._context.doubted.intersection(keys := set(keys))
        done = await self._write(self._decide(doubted, unclean=True))
        return done | await self._controller.change(await self.last.decide(keys), "the longest log leads: forced")

    async def _write(self, states: Mapping[TopicPartition, PartitionState]) -> set[TopicPartition]:
        context = self._context
        missing = {key for key in states if (state := context.state(key)) is not None and state.leader_epoch < 0}
        if missing:
            await context.create_states({key: states[key]._replace(partition_epoch=0) for key in missing})
            self._channels.lead_and_follow(context, missing)
            self._channels.update_metadata(context, missing)
        there = {key: state for key, state in states.items() if key not in missing}
        return missing | await self._controller.change(there, "brokers have later states than the store")

    async def _hear_news(self) -> None:
        """Query all live replicas of the partitions to decide on."""
        asked = defaultdict[int, list[TopicPartition]](list)
        suspects, self._suspects = self._suspects, set()
        for key in self._news | suspects:
            state = self._context.state(key)
            for broker in state.replicas if state is not None else ():
                asked[broker].append(key)
        await self.hear(asked)

    def _decide(self, keys: Iterable[TopicPartition], *, unclean: bool = False) -> dict[TopicPartition, PartitionState]:
        """The next states of these partitions."""
        changes: dict[TopicPartition, PartitionState] = {}
        context = self._context
        for key in sorted(keys):
            with context.about(key.topic):
                state, facts = context.state(key), self._facts(key)
                if state is None or key.topic in context.deleting or not facts:
                    continue
                allowed, doubted = unclean or self._unclean(key.topic), key in context.doubted
                after, waits = restored(state, facts, context.usable(key), unclean=allowed, doubted=doubted)
                if doubted and waits and state.leader == NO_LEADER and after.leader_epoch == state.leader_epoch + 1:
                    continue  # still waiting for replicas
                (context.doubted.add if waits else context.doubted.discard)(key)
                changes[key] = after
        return changes

    def after_lost(self, key: TopicPartition) -> PartitionState | None:
        """The state of a partition whose node is missing, above the last one that is known; None if none is known."""
        context = self._context
        topic_id, was = context.lost.pop(key, (b"", None))
        if was is None or topic_id != context.topics[key.topic].id:
            return None
        after = election.after_change(was, context.live(key), unclean=self._unclean(key.topic))
        return (after or election.above(was, was.leader, was.isr))._replace(partition_epoch=0)

    def _facts(self, key: TopicPartition) -> dict[int, Known]:
        """The states that brokers with a usable log reported in their current registration."""
        return {broker: known for broker, known in self.heard(key).items() if known.log_end >= 0}

    def _say(self, changes: Mapping[TopicPartition, PartitionState]) -> None:
        key = min(changes)
        facts, state = self._facts(key), self._context.state(key)
        broker = max(facts, key=lambda each: (facts[each].leader_epoch, facts[each].partition_epoch))
        event(
            log, logging.WARNING, "the store is behind its brokers", partitions=len(changes), partition=key,
            leader_epoch=-1 if state is None else state.leader_epoch, known=facts[broker].leader_epoch, broker=broker,
            cause=REASON,
        )  # fmt: skip
        waiting = [key for key in changes if key in self._context.doubted]
        if waiting:
            absent = set(changes[waiting[0]].replicas) - self._facts(waiting[0]).keys()
            event(
                log, logging.WARNING, "partitions wait for absent replicas", partitions=len(waiting),
                partition=waiting[0], brokers=",".join(map(str, sorted(absent))),
            )  # fmt: skip
