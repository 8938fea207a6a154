"""The controller of a cluster: one task with one inbox, on the broker that was elected.

    standing ──/controller is free: elected──> reigning ──another's epoch, the session is over,
                                                  │              or /controller is no longer its own──> standing
        watches, answers, timers, requests ──> inbox ──one at a time──> cluster/election.py decides
                                                  ──> states are written by their versions, behind the epoch
                                                  ──> brokers are told, each by a queue of its own

It may die between any two steps: the next one finds all that it needs in the store. What it does when it is elected:
who is alive and what there is, is read behind watches; brokers are told who is alive; partitions without a live leader
get one; each broker is told all that it holds, and everybody all there is; then deletions go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from pybroker import errors
from pybroker.cluster import election as elections
from pybroker.cluster.changes import Changes
from pybroker.cluster.image import PartitionState, TopicImage
from pybroker.cluster.rollback import Known
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.controller import failures, nodes
from pybroker.controller.balance import Balance
from pybroker.controller.broker_channel import OpenLink
from pybroker.controller.candidacy import Candidacy
from pybroker.controller.channels import Channels
from pybroker.controller.cluster_context import ClusterContext
from pybroker.controller.damage import AGAIN_S
from pybroker.controller.election import Deposed, Fence, check_node
from pybroker.controller.inbox import Inbox
from pybroker.controller.restoration import Restoration, add_lost_partitions, raise_above
from pybroker.controller.topic_deletion import Deletions
from pybroker.coordination.store import ENDED, Session, SessionState, StoreError, WatchEvent
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.tasks import cancel_and_wait
from pybroker.upkeep import keep_up

log = logging.getLogger(__name__)

HAND_OVER_S = 1.0
"""How long a controller that stops leaves an election to others: they hold one in milliseconds, if there are any."""
STOPS = "this broker stops"


class Controller:
    """Of the broker `broker_id`, in one session."""

    def __init__(
        self, session: Session, broker_id: int, config: BrokerConfig,
        topic_config: Callable[[str], Mapping[str, str]], known: Callable[[str], TopicImage | None],
        open_link: OpenLink, wall_ms: Callable[[], int], changes: Changes,
    ) -> None:  # fmt: skip
        """`topic_config` gives a topic's own settings, `known` its partitions, as this broker knows them."""
        self._known = known
        self._changes = changes
        self._session = session
        self._broker_id = broker_id
        self._config = config
        self._topic_config = topic_config
        self._candidacy = Candidacy(session, broker_id, wall_ms, self._reign)
        self._inbox = Inbox(broker_id)  # a new one for each term
        self.channels = Channels(broker_id, open_link, self)
        self._task: asyncio.Task[None] | None = None
        self.context: ClusterContext | None = None  # while it is the controller
        self._deletions: Deletions | None = None
        self._restoration: Restoration | None = None
        self._refusals: set[tuple[int, int]] = set()
        """(broker, code) of each refusal that was logged, in any term, until the broker executes a request again."""
        self._step = 1
        """By how much the controller epoch is raised when a broker knows a later one: twice as much each time, because
        the broker does not say which."""

    @property
    def active(self) -> bool:
        """Is this broker the controller?"""
        return self.context is not None

    def start(self) -> None:
        """Stand for election, again and again, until the session ends."""
        self._task = asyncio.get_running_loop().create_task(self._candidacy.stand())

    async def stop(self) -> None:
        """Resign; the node of the controllership goes with the session."""
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def hand_over(self) -> None:
        """Resign if this broker is the controller, and let the others stand for election first."""
        if self.context is not None:
            self._candidacy.wait(HAND_OVER_S)
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self.ask(functools.partial(self._over, STOPS)), HAND_OVER_S)

    # -- the reign -----------------------------------------------------------------------------------------------------

    async def _reign(self, fence: Fence) -> None:
        """Be the controller until it is over."""
        event(log, logging.INFO, "elected controller", broker=self._broker_id, epoch=fence.epoch)
        inbox = self._inbox = Inbox(self._broker_id)
        context = self.context = ClusterContext(self._session, fence)
        self._deletions = Deletions(context, self)
        self._restoration = Restoration(context, self.channels, self._unclean, self, inbox)
        self._session.listen(self._heed)
        balance = Balance(self._config, context, self, inbox)
        loop = asyncio.get_running_loop()
        timers = [
            loop.create_task(keep_up(balance.run, "balance of leaders")),
            loop.create_task(keep_up(self._look_again, "look at what is left out")),
        ]
        why = "it was stopped"
        try:
            await self._check_node()
            await self._take_over()
            await inbox.work()
        except Deposed as problem:
            why = problem.message
            raise
        except KafkaError as problem:
            why = problem.message
            if problem.code != errors.NOT_CONTROLLER:
                raise StoreError(detail=problem.message) from problem
        except StoreError as problem:
            why = str(problem)
            raise
        finally:
            level = logging.INFO if why == STOPS else logging.WARNING
            event(log, level, "controller resigned", epoch=fence.epoch, cause=why)
            for timer in timers:
                timer.cancel()
            self._session.unlisten(self._heed)
            inbox.close()
            self.context = self._deletions = self._restoration = None
            self.channels.close(self.channels)

    def _heed(self, state: SessionState) -> None:
        """Connected again: the watches are gone. Ended: so is this."""
        if self.context is None:
            return
        if state in ENDED:
            self._inbox.put(self._over)
        elif state is SessionState.CONNECTED:
            self._inbox.once("controllership", self._check_node)
            self.context.watched.clear()
            self._inbox.once("brokers", self._brokers)
            self._inbox.once("topics", self._topics)
            self._inbox.once("deletions", self._delete)
            self._inbox.once("log dirs", self._log_dirs)

    async def _check_node(self) -> None:
        """End the term where its node is gone or another's; else watch it."""
        inbox = self._inbox
        await check_node(
            self._session, self._broker_id, lambda _: inbox.once("controllership", self._check_node)
        )

    async def _over(self, why: str = "the session of the controller is over") -> None:
        raise KafkaError(errors.NOT_CONTROLLER, why)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Execute a request in its turn. Raises NOT_CONTROLLER, and what the request raises."""
        if self.context is None:
            raise KafkaError(errors.NOT_CONTROLLER, f"broker {self._broker_id} is not the controller")
        return await self._inbox.ask(work)

    # -- taking over -------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        context = self._context
        context.brokers, context.epochs = await context.read_brokers(self._on_brokers)
        await context.read_topics(self._on_topics)
        if await add_lost_partitions(context, self._known):
            await context.read_topics(self._on_topics)
        wished = await context.wished(await self._wishes())
        context.deleting = wished if self._config["delete.topic.enable"] else set()
        self.channels.open(context, context.brokers)
        self._tell_metadata(())
        await self.restoration.hear_old()
        if self.restoration.stale:
            await self._raise_epoch()
        restored = await self.restoration.restore()
        await self._create_missing()
        gone = {broker for _, state in context.states() for broker in state.isr} - context.brokers.keys()
        changed = await self._elect(f"brokers gone: {_names(gone)}" if gone else "the controller is new")
        self._lead_and_follow([key for key, _ in context.states() if key not in changed | restored])
        self._tell_metadata([key for key, _ in context.states()], full=True)
        await self._delete()
        await self._log_dirs()
        await context.make_feature_node()

    @property
    def _context(self) -> ClusterContext:
        if self.context is None:
            raise KafkaError(errors.NOT_CONTROLLER, f"broker {self._broker_id} is the controller no more")
        return self.context

    @property
    def restoration(self) -> Restoration:
        """The restoration of this term. Raises NOT_CONTROLLER."""
        if self._restoration is None:
            raise KafkaError(errors.NOT_CONTROLLER, f"broker {self._broker_id} is the controller no more")
        return self._restoration

    async def _create_missing(self) -> set[TopicPartition]:
        """Give the partitions a first state that have none; those."""
        context, restoration = self._context, self.restoration
        live = context.brokers.keys() - context.leaving

        def first(key: TopicPartition, state: PartitionState) -> PartitionState | None:
            if state.leader_epoch >= 0 or not any(broker in live for broker in state.replicas):
                return None
            return restoration.after_lost(key) or elections.first(state.replicas, live, context.fence.epoch)

        new = context.decide(first)
        if new:
            await context.create_states(new)
            new = {key: state for key, state in new.items() if key.topic not in context.damaged}
            self._lead_and_follow(new, new)
            for name, count in Counter(key.topic for key in new).items():
                event(log, logging.INFO, "partitions created", topic=name, partitions=count)
        return set(new)

    # -- elections ---------------------------------------------------------------------------------------------------

    def _unclean(self, topic: str) -> bool:
        own = self._topic_config(topic)
        return bool(TopicConfig(self._config, own, stored=True)["unclean.leader.election.enable"])

    async def _elect(self, cause: str) -> set[TopicPartition]:
        """Elect and shrink wherever who is alive asks for it, and tell the replicas; the partitions that changed."""
        context, unclean = self._context, functools.cache(self._unclean)

        def elect(key: TopicPartition, state: PartitionState) -> PartitionState | None:
            if state.leader_epoch < 0:
                return None
            allowed, leaving = unclean(key.topic), context.leaving_of(key)
            return elections.after_change(state, context.live(key), unclean=allowed, leaving=leaving)

        return await self._change(context.decide(elect), cause)

    async def _change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]:
        """Write new states, and tell their replicas."""
        context = self._context
        before = {key: context.state(key) for key in changes}
        done = await context.write_states(changes)
        for key, state in done.items():
            with context.about(key.topic):
                self._note(key, before[key], state, cause)
        self._lead_and_follow(done)
        if any(key.topic in context.topics for key in changes.keys() - done.keys()):
            self._inbox.once("elect", self._elect_again)
        return set(done)

    def _note(self, key: TopicPartition, was: PartitionState | None, state: PartitionState, cause: str) -> None:
        """Log a change that was written, and keep it for /changes."""
        assert was is not None
        what, unclean = self._changes.written(key, was, state, cause)
        event(
            log, logging.WARNING if unclean else logging.INFO, what, partition=key, leader=state.leader,
            leader_epoch=state.leader_epoch, isr=",".join(map(str, state.isr)), leader_before=was.leader,
            unclean=unclean or None, cause=cause,
        )  # fmt: skip

    async def _elect_again(self, cause: str = "somebody else had written") -> None:
        news = await self._create_missing()
        self._tell_metadata(news | await self._elect(cause))

    def settings_changed(self) -> None:
        """Elect where unclean.leader.election.enable allows it now."""
        self._inbox.once("settings", lambda: self._elect_again("settings changed"))

    def _lead_and_follow(self, keys: Iterable[TopicPartition], new: Iterable[TopicPartition] = ()) -> None:
        self.channels.lead_and_follow(self._context, keys, new)

    def _tell_metadata(self, keys: Iterable[TopicPartition], *, full: bool = False) -> None:
        self.channels.update_metadata(self._context, keys, full=full)

    # -- what watches say --------------------------------------------------------------------------------------------

    def _on_brokers(self, _: WatchEvent) -> None:
        self._inbox.once("brokers", self._brokers)

    def _on_topics(self, seen: WatchEvent) -> None:
        if self.context is not None:
            self.context.changed(seen.path)
        self._inbox.once("topics", self._topics)

    def _on_deletions(self, _: WatchEvent) -> None:
        self._inbox.once("deletions", self._delete)

    async def _brokers(self) -> None:
        """Brokers came, went, came again under another epoch, or changed."""
        context = self._context
        brokers, epochs = await context.read_brokers(self._on_brokers)
        gone = {b for b, epoch in context.epochs.items() if epochs.get(b) != epoch}
        came = {b for b, epoch in epochs.items() if context.epochs.get(b) != epoch}
        changed = {b for b in brokers.keys() - came if brokers[b] != context.brokers[b]}
        if not (gone or came or changed):
            return
        self.channels.close(gone)
        context.leaving -= gone
        usable = {key for broker, key in context.failed | context.full if broker in gone}  # until it fails again
        context.failed = {each for each in context.failed if each[0] not in gone}
        context.full = {each for each in context.full if each[0] not in gone}
        for broker in changed:
            self.channels[broker].moved(brokers[broker])
        event(log, logging.INFO, "brokers changed", came=_names(came), gone=_names(gone), live=_names(brokers))
        # Who went and came is first gone: what it was told before, it does not know any more.
        live = {b: each for b, each in brokers.items() if b not in came}
        context.brokers, context.epochs = live, {b: epochs[b] for b in live}
        touched = await self._elect(f"brokers gone: {_names(gone)}") if gone else set[TopicPartition]()
        context.brokers, context.epochs = brokers, epochs
        self.channels.open(context, came)
        if came or changed:
            # Live brokers first, then leaders: Kafka's broker follows no leader that it does not know to be alive.
            self.channels.update_metadata(context, (), self.channels.keys() - came)
            self.channels.update_metadata(context, [key for key, _ in context.states()], came, first=True, full=True)
        touched |= await self._create_missing()
        if came:
            self.restoration.came(came)
            touched |= await self.restoration.restore()
            touched |= await self._elect(f"brokers came: {_names(came)}")
            for broker in came:
                self.channels.all_held(context, broker)
        self._tell_metadata(touched | usable)  # a leader's ISR takes in no broker whose replica is offline there
        await self._delete()

    async def _topics(self) -> None:
        """Topics came, have more partitions, or were removed by hand."""
        context = self._context
        assert self._deletions is not None
        was_damaged = set(context.damaged)
        await self._deletions.give_up(await self._wishes() if context.deleting else ())
        gone, mended = await context.read_topics(self._on_topics)
        self._deletions.tell_gone(gone)
        news = mended | await self._create_missing()
        if mended:
            news |= await self._elect("what the store has of a topic can be read")
            self._lead_and_follow(mended)
        if was_damaged and not context.damaged:  # all there is can be told again, and so what is gone
            self._tell_metadata([key for key, _ in context.states()], full=True)
        elif news:
            self._tell_metadata(news)
        if was_damaged - context.damaged:  # a request to delete one of them may wait
            self._inbox.once("deletions", self._delete)

    async def _look_again(self) -> None:
        """Judge left-out topics again, on a timer: no watch fires when the ACL of a node changes."""
        while True:
            await asyncio.sleep(AGAIN_S)
            context = self._context
            if context.damaged:
                self._inbox.once("topics", self._topics)
            if context.unread:
                self._inbox.once("deletions", self._delete)
                self._inbox.once("log dirs", self._log_dirs)

    async def _log_dirs(self) -> None:
        """Send LeaderAndIsr to brokers whose log dirs failed, became full, or have room again: their answers say which
        replicas they can use."""
        context = self._context
        for broker in await failures.failed_log_dirs(context, lambda _: self._inbox.once("log dirs", self._log_dirs)):
            event(log, logging.WARNING, "log dirs changed", broker=broker)
            self.channels.all_held(context, broker)

    async def _delete(self) -> None:
        assert self._deletions is not None
        wishes = await self._wishes()
        if await self._deletions.give_up(wishes):
            self._inbox.once("topics", self._topics)
        await self._deletions.go_on(wishes, bool(self._config["delete.topic.enable"]))

    async def _wishes(self) -> list[str]:
        return await self._context.names(nodes.DELETIONS, self._on_deletions)

    # -- what channels report ----------------------------------------------------------------------------------------

    def answered(self, broker: int, code: int) -> None:
        if (broker, code) not in self._refusals:
            name = errors.lookup(code).name
            event(log, logging.WARNING, "broker refused request", broker=broker, error=name)
        self._refusals.add((broker, code))
        if code == errors.STALE_CONTROLLER_EPOCH:
            self._inbox.once("reign", self._raise_epoch)

    async def _raise_epoch(self) -> None:
        """End the term and raise the controller epoch, because a broker knows a later one. Raises NOT_CONTROLLER."""
        step, self._step = self._step, self._step * 2
        await raise_above(self._session, self._context.fence, step)

    def knows(self, broker: int, known: Mapping[TopicPartition, Known]) -> None:
        if self._restoration is not None:
            self._restoration.knows(broker, known)

    def led(self, broker: int, partition: TopicPartition, code: int) -> None:
        if self.context is None:
            return
        if (code == elections.TAKES_NO_APPENDS) != ((broker, partition) in self.context.full):
            self.context.full ^= {(broker, partition)}
            self._inbox.once(f"full {broker}", lambda: self._room_changed(broker))
        if code in (errors.NONE, elections.TAKES_NO_APPENDS):  # the broker can use a log that may have failed before
            self._refusals = {each for each in self._refusals if each[0] != broker}
            if (broker, partition) in self.context.failed:
                self.context.failed.discard((broker, partition))
                cause = f"broker {broker} can use a log again"
                self._inbox.once(f"usable {broker}", lambda: self._logs_changed(broker, cause))
        elif code in (errors.KAFKA_STORAGE_ERROR, errors.INCONSISTENT_TOPIC_ID):  # else the epochs say so
            self.context.failed.add((broker, partition))  # before the election, which is of all that are reported
            self._inbox.once(f"failed {broker}", lambda: self._elect_again(f"broker {broker} cannot use a log"))

    async def _room_changed(self, broker: int) -> None:
        full = any(its == broker for its, _ in self._context.full)
        await self._logs_changed(broker, f"broker {broker} {'has a full log dir' if full else 'has room again'}")

    async def _logs_changed(self, broker: int, cause: str) -> None:
        """Replicas of a broker can be used less, or more, than before: elect, and announce which may be in sync."""
        touched = await self._elect(cause)
        its = {key for key, state in self._context.states() if broker in state.replicas}
        self._tell_metadata(touched | its)

    def stopped(self, broker: int, partition: TopicPartition, deleted: bool, code: int) -> None:
        async def note() -> None:
            assert self._deletions is not None
            await self._deletions.stopped(broker, partition, deleted, code)

        self._inbox.put(note)

    def refused(self, broker: int, epoch: int) -> None:
        """Nobody listens where a broker was: its process is dead, and its node need not wait for the session."""
        if not self._config["broker.death.proof.enable"]:
            return
        self._inbox.once(f"bury {broker}", lambda: failures.bury(self._context, broker, epoch))

    # -- what requests and the balance write -------------------------------------------------------------------------

    async def change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]:
        """Write states that a request asked for, tell replicas and everybody; those that were written."""
        done = await self._change(changes, cause)
        self._tell_metadata(done)
        return done


def _names(brokers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(brokers))) or "-"
