"""The controller of a cluster: one task with one inbox, on the elected broker.

    candidate ──/controller is free: elected──> controller ──later epoch, session over, /controller lost──> candidate.
                                                  │
        watches, responses, timers, requests ──> inbox ──one at a time──> decisions/election.py decides
                                                  ──> states are written, with checks of version and epoch
                                                  ──> brokers get requests, each from its own queue.

It may die between any two steps: the next controller finds all that it needs in the store. An elected controller:
1. sets watches, and reads live brokers and topics;
2. sends the live brokers to all brokers;
3. elects leaders of partitions without a live one;
4. sends each broker LeaderAndIsr of all its replicas, and UpdateMetadata of all partitions;
5. continues deletions and reassignments.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from pybroker import errors
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.controller import broker_failures
from pybroker.controller.balance import Balance
from pybroker.controller.balancer import NO_PROGRESS, Balancer, SettingsWriter
from pybroker.controller.broker_channel import OpenLink
from pybroker.controller.candidacy import Candidacy
from pybroker.controller.channels import Channels
from pybroker.controller.context import ControllerContext
from pybroker.controller.damage import AGAIN_S
from pybroker.controller.inbox import Inbox
from pybroker.controller.reassignments import Reassignments
from pybroker.controller.responses import Responses, TermParts
from pybroker.controller.restoration import Restoration, add_lost_partitions, raise_above
from pybroker.controller.state_log import note
from pybroker.controller.topic_deletion import Deletions
from pybroker.coordination.store import ENDED, Session, SessionState, StoreError, WatchEvent
from pybroker.decisions import election as elections
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import PartitionState, TopicImage
from pybroker.decisions.reassignment import original
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.controllership import Deposed, Fence, check_node
from pybroker.model import TopicPartition
from pybroker.retries import keep_up
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

T = TypeVar("T")
HAND_OVER_S = 1.0
"""Seconds that a stopping controller leaves elections to other brokers, which need only milliseconds."""
STOPS = "this broker stops"


class Controller:
    """Stands for election and acts as controller, for broker `broker_id` in one session."""

    def __init__(
        self, session: Session, broker_id: int, config: BrokerConfig,
        topic_config: Callable[[str], Mapping[str, str]], known: Callable[[str], TopicImage | None],
        open_link: OpenLink, wall_ms: Callable[[], int], changes: Changes, remember_deleted: bool = False,
        settings: SettingsWriter | None = None,
    ) -> None:  # fmt: skip
        """`topic_config` returns a topic's own settings, `known` its partitions in this broker's metadata.
        `remember_deleted`: keep the ids of deleted topics in the store. `settings` alters settings; without it the
        cluster is not balanced."""
        self._settings = settings
        self._open_link = open_link
        self._remember_deleted = remember_deleted
        self._taking_over: asyncio.Future[None] | None = None
        self._why = STOPS
        self._known = known
        self._changes = changes
        self._session = session
        self._broker_id = broker_id
        self._config = config
        self._topic_config = topic_config
        self._candidacy = Candidacy(session, broker_id, wall_ms, self._reign)
        self._inbox = Inbox(broker_id)  # a new one for each term
        self.channels = Channels(broker_id, open_link, Responses(config, self, lambda: self._parts))
        self._task: asyncio.Task[None] | None = None
        self._parts: TermParts | None = None  # None while this broker is not the controller
        self.balancing = NO_PROGRESS
        self._step = 1
        """The step by which the controller epoch is raised when a broker knows a later one. It doubles each time, as
        the broker does not report its epoch."""

    @property
    def context(self) -> ControllerContext | None:
        """The state of this term; None while this broker is not the controller."""
        return None if self._parts is None else self._parts.context

    @property
    def term(self) -> ControllerContext | None:
        """The session and fence to write with; None while this broker is not the controller."""
        return self.context

    @property
    def active(self) -> bool:
        """True if this broker is the controller."""
        return self.context is not None

    def start(self, fence: Fence | None = None) -> None:
        """Stand for election until the session ends; with a `fence` this broker is already elected."""
        self._task = asyncio.get_running_loop().create_task(self._candidacy.stand(fence))

    async def taken_over(self) -> None:
        """Wait until the next term has taken over. Raises StoreError if the controller resigns before."""
        self._taking_over = asyncio.get_running_loop().create_future()
        await self._taking_over

    async def stop(self, why: str = "it was stopped") -> None:
        """Resign; /controller is deleted when the session ends."""
        self._why = why
        if self._task is not None:
            await cancel_and_wait(self._task)

    async def hand_over(self) -> None:
        """Resign if this broker is the controller, and let other brokers stand for election first."""
        if self.context is not None:
            self._candidacy.wait(HAND_OVER_S)
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self.ask(functools.partial(self._over, STOPS)), HAND_OVER_S)

    # -- one term ------------------------------------------------------------------------------------------------------

    async def _reign(self, fence: Fence) -> None:
        """Run one term as controller: take over, then process the inbox until the epoch or session ends."""
        event(log, logging.INFO, "controller elected", broker=self._broker_id, epoch=fence.epoch)
        inbox = self._inbox = Inbox(self._broker_id)
        context = ControllerContext(self._session, fence)
        timeout = functools.partial(self._config.__getitem__, "unclean.recovery.timeout.ms")
        restoration = Restoration(context, self.channels, self._unclean, self, inbox, timeout)
        last = functools.partial(restoration.last.ask_again, lambda: inbox.once("last", self.elect_again))
        self._parts = TermParts(
            context, inbox, Deletions(context, self, remember=self._remember_deleted), restoration,
            Reassignments(context=context, controller=self, inbox=inbox, setting=self._setting),
        )  # fmt: skip
        self._session.listen(self._heed)
        balance = Balance(self._config, context, self, inbox)
        balancer = self._balancer(context)
        loop = asyncio.get_running_loop()
        timers = [
            loop.create_task(keep_up(balance.run, "balance of leaders")),
            loop.create_task(keep_up(self._look_again, "check of unreadable nodes")),
            loop.create_task(keep_up(last, "wait for replicas")),
        ]
        if balancer is not None:
            self.balancing = balancer.progress
            timers.append(loop.create_task(keep_up(balancer.run, "balance of replicas")))
        why = ""  # empty if `stop` ends the term
        try:
            await self._check_node()
            await self._take_over()
            self._tell_taken_over(None)
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
            why = why or self._why
            self._tell_taken_over(StoreError(detail=f"the controller resigned: {why}"))
            level = logging.INFO if why == STOPS else logging.WARNING
            event(log, level, "controller resigned", epoch=fence.epoch, cause=why)
            for timer in timers:
                timer.cancel()
            self._session.unlisten(self._heed)
            inbox.close()
            self._parts, self.balancing = None, NO_PROGRESS
            self.channels.close(self.channels)

    def _balancer(self, context: ControllerContext) -> Balancer | None:
        if self._settings is None:
            return None
        return Balancer(
            config=self._config, context=context, controller=self, settings=self._settings,
            topic_config=self._topic_config, open_link=self._open_link,
        )  # fmt: skip

    def _tell_taken_over(self, problem: StoreError | None) -> None:
        waiting, self._taking_over = self._taking_over, None
        if waiting is None or waiting.done():
            return
        if problem is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(problem)

    def _heed(self, state: SessionState) -> None:
        """Read everything again after a reconnect, which loses the watches; end the term with the session."""
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
            self._inbox.once("requested reassignments", self.reassignments.read_node)

    async def _check_node(self) -> None:
        """End the term if /controller is gone or another broker's; otherwise watch it."""
        inbox = self._inbox
        await check_node(self._session, self._broker_id, lambda _: inbox.once("controllership", self._check_node))

    async def _over(self, why: str = "the session of the controller has ended") -> None:
        raise KafkaError(errors.NOT_CONTROLLER, why)

    async def ask(self, work: Callable[[], Awaitable[T]]) -> T:
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
            await self.raise_epoch()
        restored = await self.restoration.restore()
        created = await self._create_missing()
        gone = {broker for _, state in context.states() for broker in state.isr} - context.brokers.keys()
        changed = await self._elect(f"brokers gone: {_names(gone)}" if gone else "new controller")
        sent = changed | restored | created
        self.channels.lead_and_follow(context, [key for key, _ in context.states() if key not in sent])
        self._tell_metadata([key for key, _ in context.states()], full=True)
        await self._delete()
        await self._log_dirs()
        await self.reassignments.resume()
        await context.make_feature_node()

    def _in_term(self) -> TermParts:
        if self._parts is None:
            raise KafkaError(errors.NOT_CONTROLLER, f"broker {self._broker_id} is no longer the controller")
        return self._parts

    @property
    def _context(self) -> ControllerContext:
        return self._in_term().context

    @property
    def restoration(self) -> Restoration:
        """The restoration of this term. Raises NOT_CONTROLLER."""
        return self._in_term().restoration

    @property
    def reassignments(self) -> Reassignments:
        """The reassignments of this term. Raises NOT_CONTROLLER."""
        return self._in_term().reassignments

    async def _create_missing(self) -> set[TopicPartition]:
        """Write a first state of each partition without one, and return these partitions."""
        context, restoration = self._context, self.restoration
        live = context.brokers.keys() - context.leaving

        def first(key: TopicPartition, state: PartitionState) -> PartitionState | None:
            if state.leader_epoch >= 0 or live.isdisjoint(original(state)):
                return None
            made = restoration.after_lost(key) or elections.first(original(state), live, context.fence.epoch)
            return made.with_replicas_of(state)

        new = context.decide(first)
        if new:
            await context.create_states(new)
            new = {key: state for key, state in new.items() if key.topic not in context.damaged}
            self.channels.lead_and_follow(context, new, new)
            for name, count in Counter(key.topic for key in new).items():
                event(log, logging.INFO, "partitions created", topic=name, partitions=count)
        return set(new)

    # -- elections ---------------------------------------------------------------------------------------------------

    def _unclean(self, topic: str) -> bool:
        return bool(self._setting(topic, "unclean.leader.election.enable"))

    def _setting(self, topic: str, name: str) -> int:
        return int(TopicConfig(self._config, self._topic_config(topic), stored=True)[name])

    async def _elect(self, cause: str) -> set[TopicPartition]:
        """Elect leaders and shrink ISRs where the live brokers require it, and send the changes to the replicas. Return
        the partitions that changed."""
        context, unclean = self._context, functools.cache(self._unclean)

        def elect(key: TopicPartition, state: PartitionState) -> PartitionState | None:
            if state.leader_epoch < 0:
                return None
            allowed, leaving = key not in context.power_lost and unclean(key.topic), context.leaving_of(key)
            return elections.after_change(state, context.live(key), unclean=allowed, leaving=leaving)

        changed = await self._change(context.decide(elect), cause)
        longest = await self.restoration.last.decide() if context.power_lost else {}
        return changed | await self._change(longest, f"{cause}; power was lost: the longest log leads")

    async def _change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]:
        """Write new states, and send them to their replicas. Return the partitions that were written."""
        context = self._context
        before = {key: context.state(key) for key in changes}

        def written(states: Mapping[TopicPartition, PartitionState]) -> None:
            for key, state in states.items():
                with context.about(key.topic):
                    note(self._changes, key, before[key], state, cause)

        done = await context.write_states(changes, written)
        self.channels.lead_and_follow(context, done)
        self.reassignments.changed(done)
        if any(key.topic in context.topics for key in changes.keys() - done.keys()):
            self._inbox.once("elect", self.elect_again)
        return set(done)

    async def elect_again(self, cause: str = "a state was modified by another writer") -> None:
        """Create missing states and elect leaders, and announce what has changed. Raises NOT_CONTROLLER."""
        news = await self._create_missing()
        self._tell_metadata(news | await self._elect(cause))

    async def logs_changed(self, broker: int, cause: str) -> None:
        """Elect leaders after some replicas of a broker became usable or unusable, and announce their state. Raises
        NOT_CONTROLLER."""
        touched = await self._elect(cause)
        its = {key for key, state in self._context.states() if broker in state.replicas}
        self._tell_metadata(touched | its)

    async def raise_epoch(self) -> None:
        """End the term and raise the controller epoch, because a broker knows a later one. Raises NOT_CONTROLLER."""
        step, self._step = self._step, self._step * 2
        await raise_above(self._session, self._context.fence, step)

    def settings_changed(self) -> None:
        """Elect leaders that unclean.leader.election.enable now allows."""
        self._inbox.once("settings", lambda: self.elect_again("settings changed"))

    def _tell_metadata(self, keys: Iterable[TopicPartition], *, full: bool = False) -> None:
        self.channels.update_metadata(self._context, keys, full=full)

    # -- watches -----------------------------------------------------------------------------------------------------

    def _on_brokers(self, _: WatchEvent) -> None:
        self._inbox.once("brokers", self._brokers)

    def _on_topics(self, seen: WatchEvent) -> None:
        if self.context is not None:
            self.context.changed(seen.path)
        self._inbox.once("topics", self._topics)

    def _on_deletions(self, _: WatchEvent) -> None:
        self._inbox.once("deletions", self._delete)

    async def _brokers(self) -> None:
        """Handle brokers that came, went, registered again with a new epoch, or changed."""
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
        context.forget_brokers(gone)
        for broker in changed:
            self.channels[broker].moved(brokers[broker])
        event(log, logging.INFO, "brokers changed", came=_names(came), gone=_names(gone), live=_names(brokers))
        # A broker that registered again is first treated as gone: it has lost what it was sent before.
        live = {b: each for b, each in brokers.items() if b not in came}
        context.brokers, context.epochs = live, {b: epochs[b] for b in live}
        touched = await self._elect(f"brokers gone: {_names(gone)}") if gone else set[TopicPartition]()
        context.brokers, context.epochs = brokers, epochs
        self.channels.open(context, came)
        if came or changed:
            # Live brokers first, then leaders: Kafka's broker does not follow a leader that is not in its metadata.
            self.channels.update_metadata(context, (), self.channels.keys() - came)
            self.channels.update_metadata(context, [key for key, _ in context.states()], came, first=True, full=True)
        touched |= await self._create_missing()
        if came:
            self.restoration.came(came)
            touched |= await self.restoration.restore()
            await self.restoration.last.came(came)
            touched |= await self._elect(f"brokers came: {_names(came)}")
            for broker in came:
                self.channels.all_held(context, broker)
            await self.reassignments.resume()
        if touched or usable or not (came or changed):  # else all brokers were sent the live brokers above
            self._tell_metadata(touched | usable)  # a leader does not add an offline replica to the ISR
        await self._delete()

    async def _topics(self) -> None:
        """Handle topics that came, grew, or were removed by hand."""
        context, deletions = self._context, self._in_term().deletions
        was_damaged = set(context.damaged)
        await deletions.give_up(await self._wishes() if context.deleting else ())
        gone, mended = await context.read_topics(self._on_topics)
        deletions.tell_gone(gone)
        news = mended | await self._create_missing()
        if mended:
            news |= await self._elect("a topic is readable again")
            self.channels.lead_and_follow(context, mended)
        if was_damaged and not context.damaged:  # a full update, from which brokers see what is gone, is possible again
            self._tell_metadata([key for key, _ in context.states()], full=True)
        elif news:
            self._tell_metadata(news)
        if was_damaged - context.damaged:  # a request to delete one of them may wait
            self._inbox.once("deletions", self._delete)

    async def _look_again(self) -> None:
        """Read topics that are left out again, on a timer: no watch fires when the ACL of a node changes."""
        while True:
            await asyncio.sleep(AGAIN_S)
            context = self._context
            if context.damaged:
                self._inbox.once("topics", self._topics)
            if context.unread:
                self._inbox.once("deletions", self._delete)
                self._inbox.once("log dirs", self._log_dirs)
                self._inbox.once("requested reassignments", self.reassignments.read_node)

    async def _log_dirs(self) -> None:
        """Send LeaderAndIsr to brokers whose log dirs failed, became full, or have room again: their responses show
        which replicas they can use."""
        context = self._context
        again = functools.partial(self._inbox.once, "log dirs", self._log_dirs)
        for broker in await broker_failures.failed_log_dirs(context, lambda _: again()):
            event(log, logging.WARNING, "log dirs changed", broker=broker)
            self.channels.all_held(context, broker)
            self._in_term().deletions.ask_again(broker)
            self.reassignments.ask_again(broker)

    async def _delete(self) -> None:
        wishes, deletions = await self._wishes(), self._in_term().deletions
        if await deletions.give_up(wishes):
            self._inbox.once("topics", self._topics)
        await deletions.go_on(wishes, bool(self._config["delete.topic.enable"]))

    async def _wishes(self) -> list[str]:
        return await self._context.names(nodes.DELETIONS, self._on_deletions)

    async def change(self, changes: Mapping[TopicPartition, PartitionState], cause: str) -> set[TopicPartition]:
        """Write new states, send them to their replicas, then to all brokers; return the partitions written."""
        done = await self._change(changes, cause) if changes else set[TopicPartition]()
        if done:
            self._context.untold |= done
            self._inbox.once("metadata", self._tell_untold)
        return done

    async def _tell_untold(self) -> None:
        untold, self._context.untold = self._context.untold, set()
        self._tell_metadata(untold)


def _names(brokers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(brokers))) or "-"
