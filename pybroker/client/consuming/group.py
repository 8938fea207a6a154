"""A member of a group, by the classic protocol: it joins, is assigned partitions, and stays by its heartbeats.

    idle --subscribe--> unjoined --JoinGroup--> joining --answered--> syncing --assignment--> stable
                          ^  ^                     |                     |                      |
                          |  '----- refused -------+---------------------'                      |
                          '-- a rebalance begins, topics change; heartbeats refused: as a new member

Rebalances advance inside poll(), on the consumer's thread, so listeners are called there; between two calls an answer
waits. The loop sends heartbeats, and leaves the group if poll() is not called for max_poll_interval_ms.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from enum import Enum
from functools import partial
from typing import Final, TypeVar

from pybroker import errors
from pybroker.client.consuming import subscriptions
from pybroker.client.consuming.assignors import ASSIGNORS, Assignor
from pybroker.client.consuming.committed_offsets import LOST_MEMBERSHIP
from pybroker.client.consuming.positions import Bell, Positions
from pybroker.client.consuming.subscriptions import PROTOCOL_TYPE, SubscribedMember
from pybroker.client.net.find_coordinator import JOIN_LANE, CoordinatorClient
from pybroker.client.net.group_offsets import ConsumerGroupMetadata
from pybroker.client.net.loop import Timer
from pybroker.client.net.network import ClusterView, NetworkClient
from pybroker.client.net.promise import Promise
from pybroker.client.net.requests import RequestOptions
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.message import Request

_JOIN_MARGIN_S: Final = 5.0

_log = unfailing(__name__)

Answer = TypeVar("Answer", "m.JoinGroupResponse", "m.SyncGroupResponse")


class RebalanceListener:
    """Callbacks for a consumer's partitions, called inside poll(), which raises their exceptions. Override any."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """Called with partitions that are read from now on; a seek here sets where to begin."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """Called before partitions go to another member: the last chance to commit for them."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """Called when partitions belong to other members already, as this one was silent for too long."""
        self.on_partitions_revoked(partitions)


def subscribed_topics(
    view: ClusterView, explicit: frozenset[str], pattern: re.Pattern[str] | None, *, hide_internal: bool
) -> frozenset[str]:
    """The topics of a subscription: those named, or those of the cluster that match the pattern."""
    if pattern is None:
        return explicit
    topics = (t for t in view.topics.values() if not t.error and not (hide_internal and t.internal))
    return frozenset(topic.name for topic in topics if pattern.search(topic.name))


class Stage(Enum):
    IDLE = "idle"
    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class GroupMembership:
    """The membership of one consumer. Methods are for the consumer's thread; those of heartbeats for the loop's."""

    def __init__(
        self,
        network: NetworkClient,
        coordinator: CoordinatorClient,
        settings: Settings,
        positions: Positions,
        bell: Bell,
    ) -> None:
        self.stage = Stage.IDLE
        self.member_id = ""
        self.generation = -1
        self.topics: frozenset[str] = frozenset()
        """Of this member's subscription."""
        self.before_revoked: Callable[[Collection[TopicPartition]], object] = lambda partitions: None
        """Called with partitions to be revoked, while their offsets can still be committed."""
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
        self._answer: Future[m.JoinGroupResponse] | Future[m.SyncGroupResponse] | None = None
        self._rejoin = ""
        self._lost = ""
        self._prepared = False
        self._failures = 0
        self._not_before_s = 0.0
        self._view_version = -1
        self._counts: dict[str, int] | None = None
        """Partitions of the group's topics when this member, as leader, assigned them."""
        self._owned_before: frozenset[TopicPartition] = frozenset()
        self._protocol = self._assignors[0]
        self._members: list[SubscribedMember] = []
        self._asked_version = -1
        self._heart: Timer | None = None
        self._polled_s = time.monotonic()
        self._heard_s = 0.0

    @property
    def active(self) -> bool:
        """True while topics are subscribed."""
        return self.stage is not Stage.IDLE

    @property
    def identity(self) -> ConsumerGroupMetadata:
        group_id = self._coordinator.key
        if self.generation < 0:
            return ConsumerGroupMetadata(group_id)
        return ConsumerGroupMetadata(group_id, self.generation, self.member_id, self._instance_id)

    def committing_as(self) -> ConsumerGroupMetadata:
        """The identity for commits. KafkaError(UNKNOWN_MEMBER_ID) if expelled: a commit from outside is allowed while a
        group is empty, and would set other members' offsets back."""
        if self.stage is not Stage.IDLE and self.generation < 0:
            words = f"this consumer is out of the group {self._coordinator.key!r}, and others read its partitions"
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
        """Give up all partitions and leave the group; a static member sends no LeaveGroup, as it may come back."""
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
            _log.info("the request to leave the group failed: %s", error)

    def _leave(self, reason: str, told: Promise[None], lost: str = "") -> None:
        """Send LeaveGroup, on the loop's thread. `lost` is set before member id and generation are cleared."""
        member_id, self.member_id = self.member_id, ""
        self._lost = self._lost or lost
        self.generation = -1
        self._stop_heart()
        if not member_id or self._instance_id is not None:
            told.settle(None, None)
            return
        kind = m.LeaveGroupRequest.Members
        members = [kind(member_id=member_id, group_instance_id=None, reason=reason)]
        request = m.LeaveGroupRequest(group_id=self._coordinator.key, member_id=member_id, members=members)
        self._coordinator.send(request, lambda answer, error: told.settle(None, None))

    # -- inside poll() -------------------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> None:
        """Do what can be done without waiting. KafkaError for what only the caller can fix."""
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
        """The time of the next retry of a join; `advance` is due then even if no answer comes in."""
        return self._not_before_s if self.stage is Stage.UNJOINED and self._answer is None else float("inf")

    def _see_topics(self) -> None:
        """Update the subscribed topics from metadata; join again if they or their partition counts changed."""
        view = self._network.view
        if view.version == self._view_version:
            return
        self._view_version = view.version
        hide_internal = self._settings.exclude_internal_topics
        topics = subscribed_topics(view, self._explicit, self._pattern, hide_internal=hide_internal)
        if topics != self.topics:
            self.topics = topics
            self._rejoin = self._rejoin or "the subscription changed"
        if self._counts is not None and self.stage is Stage.STABLE and self._count(self._counts) != self._counts:
            self._rejoin = self._rejoin or "the partitions of a topic changed"

    def _count(self, topics: Iterable[str]) -> dict[str, int]:
        known = self._network.view.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    def _let_go(self) -> None:
        """Drop all partitions: the group has expelled this member."""
        reason, self._lost = self._lost, ""
        _log.warning("out of group %r: %s", self._coordinator.key, reason)
        lost = sorted(self._positions.places)
        self._positions.assign([])
        self.generation = -1
        self._answer = None
        self.stage = Stage.UNJOINED
        self._rejoin = self._rejoin or reason
        if lost:
            self._listener.on_partitions_lost(lost)

    def _revoke(self, partitions: Collection[TopicPartition]) -> None:
        """Give up partitions, after a last commit, which may show that other members have them already."""
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
            group_id=self._coordinator.key,
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
        """Revoke before the first join of a rebalance: all if eager, unsubscribed topics if cooperative."""
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

    def _ask(self, request: Request[Answer], timeout_s: float) -> None:
        answer = self._coordinator.call(request, lane=JOIN_LANE, how=RequestOptions(timeout_s))
        self._answer = answer
        answer.add_done_callback(lambda _: self._bell.ring())

    def _answered(self, future: Future[m.JoinGroupResponse] | Future[m.SyncGroupResponse]) -> None:
        error, answer = future.exception(), None
        if error is None:
            answer = future.result()
            if isinstance(answer, m.JoinGroupResponse) and answer.error_code == errors.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self._rejoin = "the member was given its id"
                self.stage = Stage.UNJOINED
                return
            if answer.error_code:
                words = errors.lookup(answer.error_code).meaning
                error = KafkaError(answer.error_code, f"group {self._coordinator.key!r}: {words}")
        if error is not None:
            assert isinstance(error, KafkaError)
            self._refused(error)
        elif isinstance(answer, m.JoinGroupResponse):
            self._joined(answer)
        elif answer is not None:
            self._synced(answer)

    def _refused(self, error: KafkaError) -> None:
        """Join again, as a new member if the coordinator does not know this one; or raise."""
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

    def _joined(self, answer: m.JoinGroupResponse) -> None:
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
        words = f"the group chose assignor {name!r}, which is not in partition_assignment_strategy of this member"
        raise KafkaError(errors.INCONSISTENT_GROUP_PROTOCOL, words)

    def _share_out(self) -> None:
        """Send SyncGroup: with all assignments if this member leads and knows all topics, else empty."""
        assignments: list[m.SyncGroupRequest.Assignments] = []
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
            group_id=self._coordinator.key,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self._instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._protocol.name,
            assignments=assignments,
        )
        self._ask(request, self._settings.max_poll_interval_ms / 1000 + _JOIN_MARGIN_S)

    def _synced(self, answer: m.SyncGroupResponse) -> None:
        """Take the assignment of this member; new partitions start at the group's committed offsets."""
        assigned = set(subscriptions.read_assignment(answer.assignment))
        owned = set(self._positions.places)
        self.stage = Stage.STABLE
        self._view_version = -1  # metadata may have changed since the assignment was made
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
            group_id=self._coordinator.key,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
        )
        self._coordinator.send(request, partial(self._beaten, identity))
        self._beat_later()

    def _beaten(
        self, identity: ConsumerGroupMetadata, answer: m.HeartbeatResponse | None, error: KafkaError | None
    ) -> None:
        if identity != self.identity or self.stage is Stage.JOINING:
            return
        code = error.code if error is not None else errors.UNKNOWN_SERVER_ERROR if answer is None else answer.error_code
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

    def expelled(self, error: KafkaError, identity: ConsumerGroupMetadata) -> None:
        """Note that the coordinator refused a request sent under this identity: this member is expelled, or a rebalance
        began. Ignored if the identity has changed since. For any thread."""
        if self.stage is Stage.JOINING or identity != self.identity:  # the join under way settles it
            return
        if error.code == errors.REBALANCE_IN_PROGRESS:
            self._rejoin = self._rejoin or "the group is rebalancing"
        else:
            if error.code == errors.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._lost = f"{error.name}: {error.message}"
        self._bell.ring()
