"""A member of a group, by the classic protocol: it joins, is assigned partitions, and stays by its heartbeats.

    idle --subscribe--> unjoined --JoinGroup--> joining --answered--> syncing --assignment--> stable
                          ^  ^                     |                     |                      |
                          |  '----- refused -------+---------------------'                      |
                          '-- a rebalance begins, topics change; heartbeats refused: as a new member

Rebalances go on inside poll(), on the consumer's thread, so that listeners are called there; between two calls an
answer waits. Heartbeats are the loop's, which also leaves the group when poll() stays away for max_poll_interval_ms.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Any, Final

from pybroker import errors
from pybroker.client import subscriptions
from pybroker.client.assignors import ASSIGNORS, Assignor
from pybroker.client.committed import LOST_MEMBERSHIP, Identity
from pybroker.client.find_coordinator import JOIN_LANE, Coordinator
from pybroker.client.loop import Timer
from pybroker.client.network import Network
from pybroker.client.positions import Bell, Positions
from pybroker.client.promise import Promise
from pybroker.client.requests import How
from pybroker.client.settings import Settings
from pybroker.client.subscriptions import PROTOCOL_TYPE, Member
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

_JOIN_MARGIN_S: Final = 5.0

_log = unfailing(__name__)


class RebalanceListener:
    """What a consumer is told of its partitions, inside poll(), which raises what this does. Override what matters."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These are read from now on; a seek here decides from where."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These go to another member: the last chance to commit for them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """These belong to others already, as this member was not heard of for too long."""
        self.on_partitions_revoked(partitions)


class Stage(Enum):
    IDLE = "idle"
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Group:
    """The membership of one consumer. Methods are for the consumer's thread; those of heartbeats for the loop's."""

    def __init__(
        self, network: Network, coordinator: Coordinator, settings: Settings, positions: Positions, bell: Bell
    ) -> None:
        self.stage = Stage.IDLE
        self.member_id = ""
        self.generation = -1
        self.topics: frozenset[str] = frozenset()
        """Of this member's subscription."""
        self.before_revoked: Callable[[Collection[TopicPartition]], object] = lambda partitions: None
        """Called with partitions that will go, while they can still be committed for."""
        self._network = network
        self._coordinator = coordinator
        self._settings = settings
        self._positions = positions
        self._bell = bell
        self._instance_id: str | None = settings.group_instance_id
        self._assignors = [ASSIGNORS[name] for name in settings.partition_assignment_strategy]
        self._cooperative = all(assignor.cooperative for assignor in self._assignors)
        self._listener = RebalanceListener()
        self._explicit: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._answer: Future[Any] | None = None
        self._rejoin = ""
        self._lost = ""
        self._prepared = False
        self._failures = 0
        self._not_before_s = 0.0
        self._view_version = -1
        self._counts: dict[str, int] | None = None
        """Partitions of the group's topics when this member, as leader, shared them out."""
        self._owned_before: frozenset[TopicPartition] = frozenset()
        self._protocol = self._assignors[0]
        self._members: list[Member] = []
        self._asked_version = -1
        self._heart: Timer | None = None
        self._polled_s = time.monotonic()
        self._heard_s = 0.0

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.generation, self._instance_id) if self.generation >= 0 else Identity()

    def committing_as(self) -> Identity:
        """Raises UNKNOWN_MEMBER_ID for who is out of the group: one that is no member may commit while a group has
        none, and would put it back to where the others have read on from."""
        if self.stage is not Stage.IDLE and self.generation < 0:
            words = f"this consumer is out of the group {self._coordinator.group_id!r}, and others read its partitions"
            raise KafkaError(errors.UNKNOWN_MEMBER_ID, words)
        return self.identity

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Collection[str], pattern: re.Pattern[str] | None, listener: RebalanceListener | None
    ) -> None:
        self._network.want(topics)
        self._explicit, self._pattern = frozenset(topics), pattern
        self._listener = listener or RebalanceListener()
        self._network.want_pattern(pattern)
        self._view_version = -1
        self._polled_s = time.monotonic()
        if self.stage is Stage.IDLE:
            self.stage = Stage.UNJOINED
            self._rejoin = "the consumer subscribed"

    def leave(self, reason: str, deadline_s: float) -> None:
        """Give everything up and say so, unless this member is static: it may come back."""
        if self.stage is Stage.IDLE:
            return
        try:
            self._revoke(set(self._positions.places))
        finally:
            self.stage, self._lost = Stage.IDLE, ""
            self._positions.assign([])
            promise: Promise[None] = Promise()
            self._network.loop.call_surely(self._leave, reason, promise)
            self._wait(promise, deadline_s)

    def _wait(self, future: Future[None], deadline_s: float) -> None:
        try:
            self._network.outcome(future, deadline_s)
        except (KafkaError, TimeoutError) as error:
            _log.info("the group was not told that this member leaves: %s", error)

    def _leave(self, reason: str, told: Promise[None], lost: str = "") -> None:
        """On the loop's thread. The consumer's sees that its partitions are `lost` before it is no member any more."""
        member_id, self.member_id = self.member_id, ""
        self._lost = self._lost or lost
        self.generation = -1
        self._stop_heart()
        if not member_id or self._instance_id is not None:
            told.settle(None, None)
            return
        kind = m.LeaveGroupRequest.Members
        members = [kind(member_id=member_id, group_instance_id=None, reason=reason)]
        request = m.LeaveGroupRequest(group_id=self._coordinator.group_id, member_id=member_id, members=members)
        self._coordinator.send(request, lambda answer, error: told.settle(None, None))

    # -- inside poll() -------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Do what can be done now, without waiting. Raises KafkaError for what only the caller can mend."""
        self._polled_s = now_s
        if self.stage is Stage.IDLE:
            return
        if self._lost:
            self._let_go()
        self._see_topics()
        answer = self._answer
        if answer is not None:
            if answer.done():
                self._answer = None
                self._answered(answer)
        elif self.stage is Stage.SYNCING:
            self._share_out()
        if self.stage is Stage.STABLE and self._rejoin:
            self.stage = Stage.UNJOINED
        if self.stage is Stage.UNJOINED and self._answer is None and now_s >= self._not_before_s:
            self._join()

    @property
    def due_s(self) -> float:
        """When `advance` has something to do though nothing comes in."""
        return self._not_before_s if self.stage is Stage.UNJOINED and self._answer is None else float("inf")

    def _see_topics(self) -> None:
        """The topics of the subscription now; where they, or what was shared out, changed: join again."""
        view = self._network.view
        if view.version == self._view_version:
            return
        self._view_version = view.version
        topics = self._explicit
        if self._pattern is not None:
            hidden = self._settings.exclude_internal_topics
            topics = frozenset(
                t.name
                for t in view.topics.values()
                if not t.error and not (hidden and t.internal) and self._pattern.search(t.name)
            )
        if topics != self.topics:
            self.topics = topics
            self._rejoin = self._rejoin or "the subscription changed"
        if self._counts is not None and self.stage is Stage.STABLE and self._count(self._counts) != self._counts:
            self._rejoin = self._rejoin or "the partitions of a topic changed"

    def _count(self, topics: Iterable[str]) -> dict[str, int]:
        known = self._network.view.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    def _let_go(self) -> None:
        """The group took this member out: what it had belongs to others."""
        reason, self._lost = self._lost, ""
        _log.warning("out of group %r: %s", self._coordinator.group_id, reason)
        lost = sorted(self._positions.places)
        self._positions.assign([])
        self.generation = -1
        self._answer = None
        self.stage = Stage.UNJOINED
        self._rejoin = self._rejoin or reason
        if lost:
            self._listener.on_partitions_lost(lost)

    def _revoke(self, partitions: Collection[TopicPartition]) -> None:
        """They go, with a last commit for them, which may show that they have gone to others already."""
        if not partitions:
            return
        if not self._lost:
            self.before_revoked(partitions)
        told = self._listener.on_partitions_lost if self._lost else self._listener.on_partitions_revoked
        told(sorted(partitions))

    # -- joining -------------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if self._pattern is not None and not self._network.view.version:
            return
        if not self._prepared:
            self._prepared = True
            self._prepare()
        owned = self._positions.places if self._cooperative else ()
        protocols = [
            m.JoinGroupRequest.Protocols(
                name=assignor.name,
                metadata=subscriptions.write_subscription(
                    self.topics,
                    owned,
                    self.generation,
                    assignor.user_data(self._owned_before, self.generation),
                    self._settings.client_rack,
                ),
            )
            for assignor in self._assignors
        ]
        request = m.JoinGroupRequest(
            group_id=self._coordinator.group_id,
            session_timeout_ms=self._settings.session_timeout_ms,
            rebalance_timeout_ms=self._settings.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=self._rejoin[:255],
        )
        self.stage = Stage.JOINING
        self._rejoin = ""
        self._network.loop.call_soon(self._stop_heart)
        timeout_s = self._settings.max_poll_interval_ms / 1000 + _JOIN_MARGIN_S
        self._ask(request, timeout_s)

    def _prepare(self) -> None:
        """Before the first join of a rebalance eager members give up all, cooperative ones what they dropped."""
        owned = set(self._positions.places)
        if owned and self._cooperative:
            self.before_revoked(owned)
        if not self._lost:
            self._owned_before = frozenset(owned)
            gone = {tp for tp in owned if tp.topic not in self.topics} if self._cooperative else owned
            try:
                self._revoke(gone)
            finally:
                self._positions.assign(owned - gone)
        if self._lost:
            self._let_go()

    def _ask(self, request: Any, timeout_s: float) -> None:
        self._answer = self._coordinator.call(request, lane=JOIN_LANE, how=How(timeout_s))
        self._answer.add_done_callback(lambda _: self._bell.ring())

    def _answered(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is None:
            answer = future.result()
            if answer.error_code == errors.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self._rejoin = "the member was given its id"
                self.stage = Stage.UNJOINED
                return
            if answer.error_code:
                words = errors.lookup(answer.error_code).meaning
                error = KafkaError(answer.error_code, f"group {self._coordinator.group_id!r}: {words}")
        if error is not None:
            assert isinstance(error, KafkaError)
            self._refused(error)
        elif self.stage is Stage.JOINING:
            self._joined(future.result())
        else:
            self._synced(future.result())

    def _refused(self, error: KafkaError) -> None:
        """Join again, as a new member if this one is not known; or raise."""
        self.stage = Stage.UNJOINED
        self._rejoin = self._rejoin or f"the last join failed: {error.name}"
        self._failures += 1
        pause_s = self._network.pauses.after(self._failures)
        self._not_before_s = time.monotonic() + (0.0 if error.code == errors.REBALANCE_IN_PROGRESS else pause_s)
        if error.code in LOST_MEMBERSHIP and error.code != errors.FENCED_INSTANCE_ID:
            self.member_id = ""
            self._lost = f"{error.name} when it joined"
        elif not (error.retriable or error.code in (errors.REBALANCE_IN_PROGRESS, errors.BROKER_NOT_AVAILABLE)):
            raise error

    def _joined(self, answer: Any) -> None:
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.stage = Stage.SYNCING
        self._heard_s = time.monotonic()
        self._network.loop.call_soon(self._beat_later)
        self._protocol = self._assignor(answer.protocol_name)
        self._counts = None
        leads = answer.leader == self.member_id and not answer.skip_assignment
        self._members = [
            self._protocol.member(one.member_id, one.group_instance_id, bytes(one.metadata))
            for one in (answer.members if leads else ())
        ]
        self._asked_version = self._network.view.version
        self._network.want({topic for member in self._members for topic in member.topics})
        self._share_out()

    def _assignor(self, name: str | None) -> Assignor:
        for assignor in self._assignors:
            if assignor.name == name:
                return assignor
        raise KafkaError(errors.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {name!r}, which this member has not")

    def _share_out(self) -> None:
        """The leader decides, once it knows the topics of all; everybody else asks for its share."""
        assignments: list[Any] = []
        if self._members:
            topics = {topic for member in self._members for topic in member.topics}
            view = self._network.view
            if not topics <= view.topics.keys() and view.version == self._asked_version:
                return  # the bell rings with the next metadata
            self._counts = self._count(topics)
            shares = self._protocol.assign(self._counts, self._members)
            kind = m.SyncGroupRequest.Assignments
            assignments = [
                kind(member_id=member, assignment=subscriptions.write_assignment(share))
                for member, share in shares.items()
            ]
        request = m.SyncGroupRequest(
            group_id=self._coordinator.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol.name,
            assignments=assignments,
        )
        self._ask(request, self._settings.max_poll_interval_ms / 1000 + _JOIN_MARGIN_S)

    def _synced(self, answer: Any) -> None:
        """The share of this member: what is new begins where the group stood."""
        assigned = set(subscriptions.read_assignment(answer.assignment))
        owned = set(self._positions.places)
        self.stage = Stage.STABLE
        self._view_version = -1  # a topic may have come since it was shared out, while nothing could be done about it
        self._failures, self._prepared = 0, False
        revoked = owned - assigned
        try:
            self._revoke(revoked)
        finally:
            self._positions.assign(sorted(assigned))
            self._network.want({tp.topic for tp in assigned})
        if revoked:
            self._rejoin = "partitions were given up"
        self._listener.on_partitions_assigned(sorted(assigned - owned))

    # -- heartbeats, on the loop's thread ------------------------------------------------------------------------------

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    def _beat_later(self) -> None:
        self._stop_heart()
        self._heart = self._network.loop.call_later(self._settings.heartbeat_interval_ms / 1000, self._beat)

    def _beat(self) -> None:
        self._heart = None
        if self.generation < 0 or self.stage in (Stage.IDLE, Stage.JOINING):
            return
        now_s = time.monotonic()
        if now_s - self._polled_s > self._settings.max_poll_interval_ms / 1000:
            late = f"poll() was not called for max_poll_interval_ms of {self._settings.max_poll_interval_ms}"
            self._leave(late, Promise(), lost=late)
            return
        if now_s - self._heard_s > self._settings.session_timeout_ms / 1000:
            self._coordinator.node = -1
        identity = self.identity
        request = m.HeartbeatRequest(
            group_id=self._coordinator.group_id,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
        )
        self._coordinator.send(request, partial(self._beaten, identity))
        self._beat_later()

    def _beaten(self, identity: Identity, answer: Any, error: KafkaError | None) -> None:
        if identity != self.identity or self.stage is Stage.JOINING:
            return
        code = error.code if error is not None else answer.error_code
        if code == errors.NONE:
            self._heard_s = time.monotonic()
        elif code == errors.REBALANCE_IN_PROGRESS:
            self._heard_s = time.monotonic()
            self._rejoin = self._rejoin or "the group is rebalancing"
        elif code in LOST_MEMBERSHIP:
            self.expelled(KafkaError(code), identity)
            return
        else:
            return
        if self._rejoin:
            self._bell.ring()

    def expelled(self, error: KafkaError, identity: Identity) -> None:
        """From any thread: an answer to what was sent under this identity shows that this member is none any more, or
        that a rebalance began. What is sent in the next generation is another matter."""
        if self.stage is Stage.JOINING or identity != self.identity:  # that is mended by what is under way
            return
        if error.code == errors.REBALANCE_IN_PROGRESS:
            self._rejoin = self._rejoin or "the group is rebalancing"
        else:
            if error.code == errors.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._lost = f"{error.name}: {error.message}"
        self._bell.ring()
