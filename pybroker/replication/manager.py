"""Executes the controller's requests about the replicas on this broker.

    LeaderAndIsr    check epochs; open or create logs; each replica leads, or follows by a fetcher
    UpdateMetadata  update the metadata cache
    StopReplica     stop fetching, or delete the replica with its log

Requests are executed strictly in order. They may come twice, late, or from a former controller: the controller epoch,
our broker epoch and the leader epoch of each partition show that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pybroker import core, errors
from pybroker.config import BrokerConfig
from pybroker.decisions.changes import Changes
from pybroker.decisions.election import TAKES_NO_APPENDS
from pybroker.decisions.image import DELETED, PartitionState
from pybroker.decisions.metadata_cache import MetadataCache, UpdateMetadata
from pybroker.decisions.orders import LeaderAndIsr, MetadataOrder, Order, Role, StopReplica
from pybroker.decisions.rollback import Known, is_ahead
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks.disk_space import HOLD_S
from pybroker.replication.fetchers import Fetchers
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.knowledge import known_here, role_of
from pybroker.replication.opening import Assignments, WantedReplica
from pybroker.replication.order_checks import checked_broker, misnamed, wrong
from pybroker.replication.placements import Placements
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.topic_ids import KnownIds, is_taken, shared

if TYPE_CHECKING:
    from pybroker.interbroker.link import Link
    from pybroker.replication.fetcher import Fetcher
    from pybroker.replication.native_fetcher import Dial

log = logging.getLogger(__name__)

Leadership = Callable[[Replica, bool, int, bool], object]
"""Called with a replica, whether it leads, its leader epoch, and whether it has led without a break until now."""
Told = Callable[[int, list[TopicPartition]], object]
"""Called with the broker epoch of an executed request, and the partitions whose roles it set or confirmed."""


class ReplicaManager:
    """Executes the controller's requests on one broker; `epoch` is that of its present registration."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        replicas: Replicas,
        metadata: MetadataCache,
        isr: IsrKeeper,
        topic_config: Callable[[str, bytes], Awaitable[Mapping[str, str]]],
        connect: Callable[[int], Awaitable[Link]],
        dial: Dial,
        changes: Changes,
        *,
        follow_in_core: bool = False,
        on_leadership: Leadership = lambda replica, leads, leader_epoch, led_on: None,
        on_told: Told = lambda broker_epoch, partitions: None,
        on_failure: Callable[[], object] = lambda: None,
        assignments: Assignments | None = None,
    ) -> None:
        """`topic_config` returns the own settings of the topic with an id; `connect` opens a link to a broker,
        `dial` a socket. Both raise OSError. `follow_in_core`: the data plane copies from leaders. `on_failure` is
        called when a log fails that the controller believes to be online. `assignments`: only for a lone broker."""
        self._follow_in_core = follow_in_core
        self._on_leadership, self._on_told, self._on_failure = on_leadership, on_told, on_failure
        self._assignments = assignments
        self.placements = Placements(assignments)
        self._changes = changes
        self._epoch = self.latest_epoch = -1
        self._has_epoch = asyncio.Event()
        self._broker_id = broker_id
        self._config = config
        self._replicas = replicas
        self._metadata = metadata
        self._isr = isr
        self._topic_config = topic_config
        self._connect = connect
        self._dial = dial
        self.fetchers = Fetchers(self._fetcher)
        self._known_ids = KnownIds()
        self._controller_epoch = -1
        self._stopped = False
        self._in_order = asyncio.Lock()

    def look(self) -> None:
        """Suspect the leaders that closed their connections."""
        self.fetchers.look()

    @property
    def epoch(self) -> int:
        """The broker epoch of the present registration. `latest_epoch` is the highest that this process has had."""
        return self._epoch

    def registered(self, epoch: int) -> None:
        """Note a new registration of this broker, with this broker epoch."""
        self._epoch = epoch
        if epoch < self.latest_epoch:
            cause = f"this broker had the later epoch {self.latest_epoch}: perhaps an older copy was restored"
            event(log, logging.WARNING, "the store went back in time", epoch=epoch, cause=cause)
        self.latest_epoch = max(epoch, self.latest_epoch)
        self._has_epoch.set()
        self.fetchers.registered()

    async def open_found(self, found: Mapping[TopicPartition, bytes]) -> None:
        """Open the logs found here, each with its topic id, without a role. Logs of two topics with the same id are not
        opened: the controller decides which topic has the id."""
        twice = shared((key.topic, topic_id) for key, topic_id in found.items())
        for key, topic_id in found.items():
            if topic_id in twice:
                reason = f"another topic's log here has the same topic id {topic_id.hex()}"
                event(log, logging.ERROR, "log not opened", partition=key, reason=reason)
        await self._open_logs([(key, topic_id, False) for key, topic_id in found.items() if topic_id not in twice])

    async def _open_logs(self, logs: list[tuple[TopicPartition, bytes, bool]]) -> None:
        """Open or create logs, each given as (partition, topic id, True if it was just created)."""
        before = await self._settings((key.topic, topic_id) for key, topic_id, _ in logs)
        opened = await self._replicas.open(
            [self._wanted(key, topic_id, new, before[key.topic, topic_id]) for key, topic_id, new in logs]
        )
        if any(replica.lacked for replica in opened):
            asyncio.get_running_loop().call_later(HOLD_S, self._ask_again)
        # Settings altered meanwhile were not applied to these replicas, as they were not registered yet.
        now = await self._settings(before)
        altered = [Topic(*topic, (), config) for topic, config in now.items() if config != before[topic]]
        if altered:
            await self._replicas.configure(altered)

    def _wanted(self, key: TopicPartition, topic_id: bytes, new: bool, config: Mapping[str, str]) -> WantedReplica:
        if self._assignments is None:
            return WantedReplica(key, topic_id, config, new)
        directory = self._assignments.directory(topic_id, key.partition)
        sole_epoch = self._assignments.sole_epoch(topic_id, key.partition)
        return WantedReplica(key, topic_id, config, new and directory is None, directory, sole_epoch)

    def _ask_again(self) -> None:
        """Have the controller send the roles again, if a log that could not be opened for lack of room may open now.
        For a log dir that is still full, this is done once there is room."""
        if not self._stopped and any(replica.may_open for replica in self._replicas):
            self._on_failure()

    async def _settings(self, topics: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], Mapping[str, str]]:
        """The settings of topics, by name and id; all are read concurrently."""
        named = list(dict.fromkeys(topics))
        found = await asyncio.gather(*(self._topic_config(*each) for each in named))
        return dict(zip(named, found, strict=True))

    async def stop(self) -> None:
        """Stop fetching, and refuse further requests."""
        self._stopped = True
        self._has_epoch.set()
        async with self._in_order:  # a running request may still start fetchers
            await self.fetchers.close()

    async def _heed(self, order: Order) -> None:
        """Wait until this broker is registered, then check the request. Raises as `_check`.

        A broker accepts connections before it is registered. A request from that time may be meant for its previous run
        (KIP-380), perhaps with other logs: it must wait until its broker epoch can be checked."""
        await self._has_epoch.wait()
        self._check(order)

    def _check(self, order: Order) -> None:
        """Check a request's epochs. Raises BROKER_NOT_AVAILABLE, STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH. A broker
        epoch later than ours passes: the controller may learn of our registration before we do (KAFKA-9839)."""
        if self._stopped:
            raise KafkaError(errors.BROKER_NOT_AVAILABLE, "this broker is stopping")
        if order.controller_epoch < self._controller_epoch:
            raise _fenced(
                order, errors.STALE_CONTROLLER_EPOCH,
                f"broker {order.controller_id} was the controller of epoch {order.controller_epoch}, but the "
                f"controller epoch is {self._controller_epoch} now",
            )  # fmt: skip
        if 0 <= order.broker_epoch < self.epoch:
            problem = f"the request is for broker epoch {order.broker_epoch}, but this broker's epoch is {self.epoch}"
            raise _fenced(order, errors.STALE_BROKER_EPOCH, problem)
        self._controller_epoch = order.controller_epoch

    # -- UpdateMetadata ----------------------------------------------------------------------------------------------

    async def update_metadata(self, told: MetadataOrder) -> None:
        """Apply an UpdateMetadata request to the metadata cache. Raises KafkaError."""
        async with self._in_order:
            await self._heed(told)
            topics, deleted = [], []
            for topic in told.topics:
                if misnamed(TopicPartition(topic.name, min(topic.partitions, default=0))):
                    continue
                if any(state.leader == DELETED for state in topic.partitions.values()):
                    deleted.append(topic.name)
                    continue
                topics.append(topic)
            known = self._metadata.image
            live = [checked_broker(broker, new=broker.id not in known.brokers) for broker in told.brokers]
            if told.full:
                named = {topic.name for topic in told.topics}
                deleted += [name for name in known.by_name if name not in named]
            topics = self._known_ids.own(known, topics, deleted)
            came = [(t.name, t.id) for t in topics if (there := known.topic(t.name)) is None or there.id != t.id]
            await self._settings(came)  # before the topics become visible, so that their settings are known then
            self._metadata.update(
                UpdateMetadata(told.controller_id, told.controller_epoch, live, topics, deleted)
            )

    # -- LeaderAndIsr ------------------------------------------------------------------------------------------------

    async def leader_and_isr(self, order: LeaderAndIsr) -> dict[TopicPartition, int]:
        """Make replicas lead or follow. Return the error code of each partition. Raises KafkaError for all of them.

        A replica on a full log dir takes its role like any other; its code is TAKES_NO_APPENDS."""
        async with self._in_order:
            await self._heed(order)
            codes: dict[TopicPartition, int] = {}
            accepted: list[Role] = []
            told: list[TopicPartition] = []
            owners = {replica.topic_id: replica.key.topic for replica in self._replicas}
            for role in order.roles:
                key = role.key
                if key in codes:
                    continue  # twice in one request: the first counts
                self._replicas.let_go(key)
                codes[key] = self._judge(role, owners)
                if self._knows(key, role.state.leader_epoch):
                    told.append(key)
                if not codes[key]:
                    accepted.append(role)
                    owners.setdefault(role.topic_id, key.topic)
            self._metadata.learn({role.key: role.state for role in accepted})
            await self._open(accepted)
            who = f"request of the controller, broker {order.controller_id} in epoch {order.controller_epoch}"
            codes |= await self._take_roles(accepted, who)
            for key, code in codes.items():
                if code in (errors.NONE, errors.STALE_CONTROLLER_EPOCH) and self._is_full(key):
                    codes[key] = TAKES_NO_APPENDS
            self._on_told(order.broker_epoch, told)
            return codes

    def _is_full(self, key: TopicPartition) -> bool:
        """True if a replica can be read but takes no appends."""
        replica = self._replicas.get(*key)
        if replica is None or replica.offline or replica.directory is None:
            return False
        return bool(replica.directory.space.lack)

    def is_ahead(self, key: TopicPartition, state: PartitionState) -> bool:
        """True if a replica here has had a later role than the controller's state gives it."""
        replica = self._replicas.get(*key)
        return replica is not None and replica.log is not None and is_ahead(role_of(replica, self._isr), state)

    async def known(self, keys: Collection[tuple[TopicPartition, bytes]]) -> dict[TopicPartition, Known]:
        """The facts about these partitions of topics with these ids; UNUSABLE for one that may be in a lost log dir."""
        async with self._in_order:
            closed = [(*each, False) for each in keys if self._replicas.is_closed(*each)]
            if closed:
                await self._open_logs(closed)
            return known_here(keys, self._replicas, self._metadata.image, self._isr)

    def _knows(self, key: TopicPartition, leader_epoch: int) -> bool:
        """True unless the sender's leader epoch is older than ours."""
        replica = self._replicas.get(*key)
        return replica is None or leader_epoch >= replica.leader_epoch

    def _judge(self, role: Role, owners: Mapping[bytes, str]) -> int:
        """The error code that refuses a role, 0 if the role is accepted."""
        key, topic_id, p, _ = role
        if self._broker_id not in p.replicas:
            return errors.UNKNOWN_TOPIC_OR_PARTITION
        replica = self._replicas.get(*key)
        if replica is None:
            taken = any(topic_id) and is_taken(key.topic, topic_id, owners)
            return errors.INCONSISTENT_TOPIC_ID if taken else wrong(key, p)
        if any(topic_id) and replica.topic_id != topic_id:
            reason = f"the topic has the id {topic_id.hex()}, but the log here has {replica.topic_id.hex()}"
            event(log, logging.ERROR, "log of another topic", partition=key, reason=reason, remedy="move it away")
            return errors.INCONSISTENT_TOPIC_ID
        if replica.offline:  # before the epochs are checked: the controller may not know yet that the disk failed
            return errors.KAFKA_STORAGE_ERROR
        if p.leader_epoch < replica.leader_epoch:
            self._fence(replica, p.leader, p.leader_epoch)
        if p.leader_epoch < replica.leader_epoch or (p.leader_epoch == replica.leader_epoch and replica.has_role):
            return errors.STALE_CONTROLLER_EPOCH
        return wrong(key, p)

    def _fence(self, replica: Replica, leader: int, leader_epoch: int) -> None:
        """Log that the controller's request has an old leader epoch for a replica."""
        why = f"leader epoch {replica.leader_epoch} is known here"
        event(log, logging.WARNING, "leader epoch fenced", partition=replica.key, leader_epoch=leader_epoch, cause=why)
        self._changes.note(replica.key, "leader epoch fenced", why, leader=leader, leader_epoch=leader_epoch)

    async def _open(self, accepted: Sequence[Role]) -> None:
        """Open or create the logs that are not open, and record their log dirs. Raises KafkaError."""
        missing = [(role.key, role.topic_id, role.is_new) for role in accepted if self._replicas.get(*role.key) is None]
        if missing:
            await self._open_logs(missing)
        await self.placements.record(self._replicas.get(*role.key) for role in accepted)

    async def _take_roles(self, roles: Iterable[Role], cause: str) -> dict[TopicPartition, int]:
        """Make replicas lead or follow, leaders first, as clients wait for them. Return the error codes.

        A request may change thousands, so this is done at once. Where an append is at the disk it is done on a thread.
        """
        codes: dict[TopicPartition, int] = {}
        late: dict[TopicPartition, Callable[[], Awaitable[int]]] = {}
        for key, _, state, _ in sorted(roles, key=lambda role: role.state.leader != self._broker_id):
            replica = self._replicas.get(*key)
            if replica is None or replica.offline:
                codes[key] = errors.KAFKA_STORAGE_ERROR
                continue
            self.fetchers.leave(key)
            led_on, become = replica.leads, self._role(replica, state)
            try:
                become(wait=False)
                codes[key] = self._role_taken(replica, state, cause, led_on=led_on)
            except BlockingIOError:
                late[key] = partial(self._take_role_late, replica, state, cause, become, led_on=led_on)
            except (core.LogError, KafkaError, OSError) as problem:
                codes[key] = _not_taken(key, problem)
        return codes | dict(zip(late, await asyncio.gather(*(take() for take in late.values())), strict=True))

    async def _take_role_late(
        self, replica: Replica, p: PartitionState, cause: str, become: Callable[..., None], *, led_on: bool
    ) -> int:
        try:
            await replica.at_disk(become, wait=True)
            return self._role_taken(replica, p, cause, led_on=led_on)
        except (core.LogError, KafkaError, OSError) as problem:
            return _not_taken(replica.key, problem)

    def _role(self, replica: Replica, p: PartitionState) -> Callable[..., None]:
        """The function by which the replica's log takes its role; called with `wait`."""
        if p.leader != self._broker_id:
            self._isr.resign(replica.key)
            return partial(replica.become_follower, p.leader, p.leader_epoch, p.partition_epoch)
        others = [broker for broker in p.replicas if broker != self._broker_id]
        return partial(replica.become_leader, p.leader_epoch, p.partition_epoch, others, list(p.isr), p.adding)

    def _role_taken(self, replica: Replica, p: PartitionState, cause: str, *, led_on: bool) -> int:
        """Follow the leader or the followers of a replica whose log has taken its role, and wake waiting requests."""
        replica.tell()
        leads = p.leader == self._broker_id
        if leads:
            self._isr.lead(replica, p.leader_epoch, p.partition_epoch, p.isr, adding=p.adding, removing=p.removing)
        elif p.leader >= 0:
            added = self._broker_id in p.adding and self._broker_id not in p.isr
            self.fetchers.follow(replica, p.leader, p.leader_epoch, added=added)
        self._changes.note(
            replica.key, "this broker leads" if leads else "this broker follows", cause, leader=p.leader,
            leader_epoch=p.leader_epoch, partition_epoch=p.partition_epoch, isr=p.isr,
        )  # fmt: skip
        self._on_leadership(replica, leads, p.leader_epoch, led_on)
        return errors.NONE

    def _fetcher(self, leader: int) -> Fetcher:
        """Start a fetcher for a leader: in core, or in Python if there is no native plane."""
        from pybroker.replication.fetcher import Fetcher, FetcherContext  # a lone broker follows no leader
        from pybroker.replication.native_fetcher import NativeFetcher

        replicas = self._replicas
        context = FetcherContext(
            self._broker_id, leader, self._config, lambda: self._epoch, self._connect, self._cut_back,
            self._metadata.suspects, replicas.throttles.follower,
        )  # fmt: skip
        fetcher = Fetcher(context)
        if self._follow_in_core:
            fetcher = NativeFetcher(context, self._dial, replicas.open_fetcher)
        fetcher.start()
        return fetcher

    async def _cut_back(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Truncate a log to `offset`, or replace it if it begins later. Raises core.LogError, KafkaError, OSError."""
        if replica.partition().log_start_offset <= offset:
            await self._replicas.truncate(replica, offset, leader_epoch)
        else:
            await self._copy_anew(replica, offset, leader_epoch)

    async def _copy_anew(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Follow with a new, empty log: after an unclean election the leader's log may end before this one begins, so
        that no record of it may stay."""
        key = replica.key
        async with self._in_order:
            leader = self.fetchers.leader(key)
            if leader is None or self._replicas.get(*key) is not replica or replica.leader_epoch != leader_epoch:
                return  # the replica has another role by now
            role, start = replica.partition().role, replica.partition().log_start_offset
            reason = f"the leader's log ends at {offset}, before this one begins at {start}; it will be copied again"
            event(log, logging.ERROR, "log dropped", partition=key, leader=leader, reason=reason)
            self.fetchers.leave(key)
            try:
                await self._replicas.remove([key])
                await self._open_logs([(key, replica.topic_id, False)])
                fresh = self._replicas.get(*key)
                if fresh is not None and not fresh.offline:
                    await fresh.follow(leader, leader_epoch, role.partition_epoch)
                    self.fetchers.follow(fresh, leader, leader_epoch)
            finally:
                if self.fetchers.leader(key) is None:  # the controller then sends the partition's roles again
                    self._on_failure()

    # -- StopReplica -------------------------------------------------------------------------------------------------

    async def stop_replica(self, order: StopReplica) -> dict[TopicPartition, int]:
        """Stop or delete replicas. Return the error code of each partition. Raises KafkaError for all of them."""
        async with self._in_order:
            await self._heed(order)
            codes: dict[TopicPartition, int] = {}
            doomed = []
            for key, leader_epoch, delete in order.replicas:
                replica = self._replicas.get(*key)
                codes[key] = misnamed(key)
                if codes[key]:
                    continue
                if replica is not None and 0 <= leader_epoch < replica.leader_epoch:
                    codes[key] = errors.FENCED_LEADER_EPOCH
                    self._fence(replica, -1, leader_epoch)
                    continue
                await self._stop(key, replica, leader_epoch, deleted=delete)
                if delete and self._assignments is None and not self._replicas.deletable(key):
                    codes[key] = errors.KAFKA_STORAGE_ERROR
                elif delete:
                    doomed.append(key)
            if doomed:
                failed = await self._replicas.remove(doomed)
                codes.update(dict.fromkeys(failed, errors.KAFKA_STORAGE_ERROR))
            self._on_told(order.broker_epoch, [key for key, code in codes.items() if not code])
            return codes

    async def _stop(
        self, key: TopicPartition, replica: Replica | None, leader_epoch: int, *, deleted: bool = False
    ) -> None:
        self.fetchers.leave(key)
        self._isr.resign(key)
        if replica is None or replica.log is None:
            return
        if deleted and replica.leads:  # keep the role: clients learn that the partition is gone, and seek no leader
            self._on_leadership(replica, False, leader_epoch, False)
            return
        role = replica.log.role
        epoch = leader_epoch if leader_epoch >= 0 else role.leader_epoch
        leader = role.leader if epoch == role.leader_epoch else -1
        try:  # the role keeps the leader of that epoch, for answers to clients
            stop = partial(replica.log.become_offline, leader=leader)
            await replica.at_disk(stop, epoch, max(role.partition_epoch, 0))
        except (core.LogError, KafkaError) as problem:
            event(log, logging.WARNING, "replica not stopped", partition=key, reason=problem)
        replica.tell()
        self._on_leadership(replica, False, epoch, False)


def _not_taken(key: TopicPartition, problem: Exception) -> int:
    """Log that a replica has not taken its role, and return the error code."""
    if isinstance(problem, core.LogError):
        event(log, logging.WARNING, "role not taken", partition=key, reason=problem)
        return int(problem.code)
    event(log, logging.ERROR, "role not taken", partition=key, reason=problem)
    return errors.KAFKA_STORAGE_ERROR


def _fenced(order: Order, code: int, cause: str) -> KafkaError:
    """Log a request with an outdated epoch, and return the error for all of it."""
    event(log, logging.WARNING, "request fenced", request=order.api, controller=order.controller_id, cause=cause)
    return KafkaError(code, cause)
