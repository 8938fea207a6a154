"""What the controller says of replicas here, done: who leads and follows, what stops, and what brokers know.

    LeaderAndIsr    its epochs are checked; logs are opened or made; each replica leads, or follows by a fetcher
    UpdateMetadata  the metadata cache has a new image
    StopReplica     a replica follows nobody, or is deleted with its log

Requests are done strictly in their order, and may come twice, late, or from a controller that is none any more: its
epoch, the epoch of our registration and the leader epoch of each partition say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

from pybroker import core, errors
from pybroker.client.link import Link
from pybroker.cluster.changes import Changes
from pybroker.cluster.election import TAKES_NO_APPENDS
from pybroker.cluster.image import DELETED, LiveBroker, PartitionState
from pybroker.cluster.metadata_cache import FULL, MetadataCache, TopicStates, UpdateMetadata
from pybroker.cluster.rollback import Known
from pybroker.cluster.topics import Topic, check_name
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import PORT_MAX, TEXT_BYTES_MAX, HostPort, TopicPartition
from pybroker.replication.disk_space import HOLD_S
from pybroker.replication.fetcher import Fetcher
from pybroker.replication.isr import IsrKeeper
from pybroker.replication.knowledge import known_of
from pybroker.replication.native_fetcher import Dial, NativeFetcher
from pybroker.replication.opening import Wanted
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.topic_ids import KnownIds, is_taken, shared

log = logging.getLogger(__name__)

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
Leadership = Callable[[Replica, bool, int, bool], object]
"""Called with a replica, whether it leads, its leader epoch, and whether it has led without a break until now."""
Told = Callable[[int, list[TopicPartition]], object]
"""Called with the broker epoch of a request that is done, and the partitions that it told what they are."""


class ReplicaManager:
    """Of one broker of a cluster; `epoch` is that of its present registration."""

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
    ) -> None:
        """`topic_config` gives the own settings of the topic with an id; `connect` opens a link to a broker,
        `dial` a socket. Both raise OSError."""
        self.follow_in_core = replicas.is_native
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
        self._fetchers: dict[int, Fetcher] = {}
        self._follows: dict[TopicPartition, int] = {}
        self._known_ids = KnownIds()
        self._controller_epoch = -1
        self._stopped = False
        self._in_order = asyncio.Lock()
        self.on_leadership: list[Leadership] = []
        self.on_told: list[Told] = []
        self.on_failure: list[Callable[[], object]] = []
        """Called where a log cannot be used that the controller believes is."""

    def look(self) -> None:
        """See which leaders hung up."""
        for fetcher in self._fetchers.values():
            fetcher.look()

    @property
    def epoch(self) -> int:
        """The epoch of this broker's present registration. `latest_epoch` is the highest that this process has had."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if epoch < self.latest_epoch:
            cause = f"it was registered under the later epoch {self.latest_epoch}: an older copy was restored?"
            event(log, logging.WARNING, "the store went back in time", epoch=epoch, cause=cause)
        self.latest_epoch = max(epoch, self.latest_epoch)
        self._has_epoch.set()
        for fetcher in self._fetchers.values():
            fetcher.registered()

    async def open_found(self) -> None:
        """Open every log that lies here, in no role, except those of two topics with one id: the controller says which
        topic has the id. Raises StartError."""
        survey = self._replicas.survey({}).items()
        found = [(key, each.topic_id) for key, each in survey if each.topic_id is not None]
        twice = shared((key.topic, topic_id) for key, topic_id in found)
        for key, topic_id in found:
            if topic_id in twice:
                reason = f"the id {topic_id.hex()} is that of another topic's log here, too"
                event(log, logging.ERROR, "log not opened", partition=key, reason=reason)
        await self._open_logs([(key, topic_id) for key, topic_id in found if topic_id not in twice])

    async def _open_logs(self, logs: list[tuple[TopicPartition, bytes]]) -> None:
        before = await self._settings((key.topic, topic_id) for key, topic_id in logs)
        opened = await self._replicas.open_in_no_role(
            [Wanted(key, topic_id, before[key.topic, topic_id], None, None) for key, topic_id in logs]
        )
        if any(replica.lacked for replica in opened):
            asyncio.get_running_loop().call_later(HOLD_S, self._ask_again)
        # Whoever goes by what is altered, or known at last, has not found them until now.
        now = await self._settings(before)
        altered = [Topic(*topic, (), config) for topic, config in now.items() if config != before[topic]]
        if altered:
            await self._replicas.configure(altered)

    def _ask_again(self) -> None:
        """Have the controller say again what this broker holds, if a log may open that could not for want of room. Of a
        log dir that is full, it does so once there is room."""
        if not self._stopped and any(replica.may_open for replica in self._replicas):
            for tell in self.on_failure:
                tell()

    async def _settings(self, topics: Iterable[tuple[str, bytes]]) -> dict[tuple[str, bytes], Mapping[str, str]]:
        """Of topics, by name and id: all are asked for at once."""
        named = list(dict.fromkeys(topics))
        found = await asyncio.gather(*(self._topic_config(*each) for each in named))
        return dict(zip(named, found, strict=True))

    async def stop(self) -> None:
        """Fetch no more, and do nothing more that is said."""
        self._stopped = True
        self._has_epoch.set()
        async with self._in_order:  # what is being done may begin to follow yet
            fetchers, self._fetchers = self._fetchers, {}
            await asyncio.gather(*(fetcher.close() for fetcher in fetchers.values()))

    async def _heed(self, request: Any) -> None:
        """Raises as `_check`.

        A broker takes connections before it is registered. What is said until then may be meant for its life before
        (KIP-380), which had other logs perhaps: it waits until there is an epoch to hold it against."""
        await self._has_epoch.wait()
        self._check(request)

    def _check(self, request: Any) -> None:
        """Raises BROKER_NOT_AVAILABLE, STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH. One that knows of a later
        registration of ours than we do passes (KAFKA-9839)."""
        if self._stopped:
            raise KafkaError(errors.BROKER_NOT_AVAILABLE, "this broker stops")
        if request.controller_epoch < self._controller_epoch:
            raise _fenced(
                request, errors.STALE_CONTROLLER_EPOCH,
                f"broker {request.controller_id} was the controller of epoch {request.controller_epoch}, and that of "
                f"epoch {self._controller_epoch} has spoken",
            )  # fmt: skip
        if 0 <= request.broker_epoch < self.epoch:
            problem = f"it is for epoch {request.broker_epoch} of this broker, which is {self.epoch}"
            raise _fenced(request, errors.STALE_BROKER_EPOCH, problem)
        self._controller_epoch = request.controller_epoch

    # -- UpdateMetadata ----------------------------------------------------------------------------------------------

    async def update_metadata(self, request: Any) -> None:
        """Know what the controller tells of brokers and partitions. Raises KafkaError."""
        async with self._in_order:
            await self._heed(request)
            topics, deleted = [], []
            alive = {broker.id for broker in request.live_brokers}
            for topic in request.topic_states:
                lowest = min((p.partition_index for p in topic.partition_states), default=0)
                if _misnamed(TopicPartition(topic.topic_name, lowest)):
                    continue
                if any(p.leader == DELETED for p in topic.partition_states):
                    deleted.append(topic.topic_name)
                    continue
                states = {p.partition_index: _state(p, alive) for p in topic.partition_states}
                topics.append(TopicStates(topic.topic_name, topic.topic_id, states))
            known = self._metadata.image
            live = [_broker(told, new=told.id not in known.brokers) for told in request.live_brokers]
            if request.type == FULL:
                named = {topic.topic_name for topic in request.topic_states}
                deleted += [name for name in known.by_name if name not in named]
            topics = self._known_ids.own(known, topics, deleted)
            came = [(t.name, t.id) for t in topics if (there := known.topic(t.name)) is None or there.id != t.id]
            await self._settings(came)  # whoever sees a topic sees what it goes by
            self._metadata.update(
                UpdateMetadata(request.controller_id, request.controller_epoch, live, topics, deleted)
            )

    # -- LeaderAndIsr ------------------------------------------------------------------------------------------------

    async def leader_and_isr(self, request: Any) -> dict[TopicPartition, int]:
        """Lead and follow as the controller says; the code of each partition. Raises KafkaError for the whole request.

        A replica on a full log dir takes its role like any other; its code is TAKES_NO_APPENDS."""
        async with self._in_order:
            await self._heed(request)
            codes: dict[TopicPartition, int] = {}
            accepted: list[tuple[TopicPartition, bytes, Any]] = []
            told: list[TopicPartition] = []
            owners = {replica.topic_id: replica.key.topic for replica in self._replicas}
            for topic in request.topic_states:
                for p in topic.partition_states:
                    key = TopicPartition(topic.topic_name, p.partition_index)
                    if key in codes:
                        continue  # told twice in one request: the first counts
                    self._replicas.let_go(key)
                    codes[key] = self._judge(key, topic.topic_id, p, owners)
                    if self._knows(key, p.leader_epoch):
                        told.append(key)
                    if not codes[key]:
                        accepted.append((key, topic.topic_id, p))
                        owners.setdefault(topic.topic_id, key.topic)
            self._metadata.learn({key: _state(p) for key, _, p in accepted})
            await self._open(accepted)
            who = f"the controller, broker {request.controller_id} in epoch {request.controller_epoch}, said so"
            work = [self._take_role(key, p, who) for key, _, p in accepted]
            for (key, _, _), code in zip(accepted, await asyncio.gather(*work), strict=True):
                codes[key] = code
            for key, code in codes.items():
                if code in (errors.NONE, errors.STALE_CONTROLLER_EPOCH) and self._is_full(key):
                    codes[key] = TAKES_NO_APPENDS
            for tell in self.on_told:
                tell(request.broker_epoch, told)
            return codes

    def _is_full(self, key: TopicPartition) -> bool:
        """True if a replica can be read but takes no appends."""
        replica = self._replicas.get(*key)
        if replica is None or replica.offline or replica.directory is None:
            return False
        return bool(replica.directory.space.lack)

    def is_ahead(self, key: TopicPartition, leader_epoch: int, partition_epoch: int) -> bool:
        """True if a replica here has had a role with later epochs than these."""
        replica = self._replicas.get(*key)
        role = None if replica is None or replica.log is None else replica.log.role
        return role is not None and (role.leader_epoch, role.partition_epoch) > (leader_epoch, partition_epoch)

    async def known(self, keys: Iterable[tuple[TopicPartition, bytes]]) -> dict[TopicPartition, Known]:
        """The knowledge of these partitions of topics with these ids; no entry for one without a replica here."""
        async with self._in_order:
            image, held = self._metadata.image, ((self._replicas.get(*key), topic_id) for key, topic_id in keys)
            return {r.key: known_of(r, image, self._isr) for r, topic_id in held if r and r.topic_id == topic_id}

    def _knows(self, key: TopicPartition, leader_epoch: int) -> bool:
        """Does who tells this know all that we know of a partition?"""
        replica = self._replicas.get(*key)
        return replica is None or leader_epoch >= replica.leader_epoch

    def _judge(self, key: TopicPartition, topic_id: bytes, p: Any, owners: Mapping[bytes, str]) -> int:
        """May this be done? The code of the refusal, 0 for none."""
        if self._broker_id not in p.replicas:
            return errors.UNKNOWN_TOPIC_OR_PARTITION
        replica = self._replicas.get(*key)
        if replica is None:
            taken = any(topic_id) and is_taken(key.topic, topic_id, owners)
            return errors.INCONSISTENT_TOPIC_ID if taken else _wrong(key, p)
        if any(topic_id) and replica.topic_id != topic_id:
            reason = f"its topic has the id {topic_id.hex()}, and what lies here is of {replica.topic_id.hex()}"
            event(log, logging.ERROR, "log of another topic", partition=key, reason=reason, remedy="move it away")
            return errors.INCONSISTENT_TOPIC_ID
        if replica.offline:  # whatever it was told before: that its disk failed, the controller may not know yet
            return errors.KAFKA_STORAGE_ERROR
        if p.leader_epoch < replica.leader_epoch:
            self._fence(replica, p.leader, p.leader_epoch)
        if p.leader_epoch < replica.leader_epoch or (p.leader_epoch == replica.leader_epoch and replica.has_role):
            return errors.STALE_CONTROLLER_EPOCH
        return _wrong(key, p)

    def _fence(self, replica: Replica, leader: int, leader_epoch: int) -> None:
        """Say that what the controller told of a replica is over."""
        why = f"leader epoch {replica.leader_epoch} is known here"
        event(log, logging.WARNING, "leader epoch fenced", partition=replica.key, leader_epoch=leader_epoch, cause=why)
        self._changes.note(replica.key, "leader epoch fenced", why, leader=leader, leader_epoch=leader_epoch)

    async def _open(self, accepted: list[tuple[TopicPartition, bytes, Any]]) -> None:
        """Open or make the logs that are not open."""
        missing = [(key, topic_id) for key, topic_id, _ in accepted if self._replicas.get(*key) is None]
        if missing:
            await self._open_logs(missing)

    async def _take_role(self, key: TopicPartition, p: Any, cause: str) -> int:
        """Lead or follow; the code."""
        replica = self._replicas.get(*key)
        if replica is None or replica.offline:
            return errors.KAFKA_STORAGE_ERROR
        led_on = replica.leads
        try:
            self._leave(key)
            if p.leader == self._broker_id:
                others = [broker for broker in p.replicas if broker != self._broker_id]
                await replica.lead(p.leader_epoch, p.partition_epoch, others, list(p.isr))
                self._isr.lead(replica, p.leader_epoch, p.partition_epoch, tuple(p.isr))
            else:
                self._isr.resign(key)
                await replica.follow(p.leader, p.leader_epoch, p.partition_epoch)
                if p.leader >= 0:
                    self._follow(replica, p.leader, p.leader_epoch)
        except core.LogError as problem:
            event(log, logging.WARNING, "role not taken", partition=key, reason=problem)
            return int(problem.code)
        except (KafkaError, OSError) as problem:
            event(log, logging.ERROR, "role not taken", partition=key, reason=problem)
            return errors.KAFKA_STORAGE_ERROR
        self._changes.note(
            key, "this broker leads" if p.leader == self._broker_id else "this broker follows", cause, leader=p.leader,
            leader_epoch=p.leader_epoch, partition_epoch=p.partition_epoch, isr=p.isr,
        )  # fmt: skip
        for tell in self.on_leadership:
            tell(replica, p.leader == self._broker_id, p.leader_epoch, led_on)
        return errors.NONE

    def _follow(self, replica: Replica, leader: int, leader_epoch: int) -> None:
        if leader not in self._fetchers:
            self._fetchers[leader] = self._fetcher(leader)
        self._fetchers[leader].follow(replica, leader_epoch)
        self._follows[replica.key] = leader

    def _fetcher(self, leader: int) -> Fetcher:
        """The way to a leader: in core, or in Python where there is no native plane."""
        replicas = self._replicas
        suspects = self._metadata.suspects
        given = (
            self._broker_id, leader, self._config, lambda: self._epoch, self._connect, self._cut_back, suspects,
            replicas.throttles.follower,
        )  # fmt: skip
        return NativeFetcher(*given, self._dial, replicas.open_fetcher) if self.follow_in_core else Fetcher(*given)

    async def _cut_back(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Have a log agree with its leader's up to `offset`. Raises core.LogError, KafkaError, OSError."""
        if replica.partition().log_start_offset <= offset:
            await self._replicas.truncate(replica, offset, leader_epoch)
        else:
            await self._copy_anew(replica, offset, leader_epoch)

    async def _copy_anew(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Follow with a new log: after an unclean election the leader's may end before this one begins, so that nothing
        of it is to stay."""
        key = replica.key
        async with self._in_order:
            leader = self._follows.get(key)
            if leader is None or self._replicas.get(*key) is not replica or replica.leader_epoch != leader_epoch:
                return  # it is followed otherwise by now
            role, start = replica.partition().role, replica.partition().log_start_offset
            reason = f"the leader's ends at {offset}, before this one begins at {start}"
            event(log, logging.ERROR, "log dropped, to be copied anew", partition=key, leader=leader, reason=reason)
            self._leave(key)
            try:
                await self._replicas.remove([key])
                await self._open_logs([(key, replica.topic_id)])
                fresh = self._replicas.get(*key)
                if fresh is not None and not fresh.offline:
                    await fresh.follow(leader, leader_epoch, role.partition_epoch)
                    self._follow(fresh, leader, leader_epoch)
            finally:
                if key not in self._follows:  # the controller tells again what the brokers are of this one
                    for tell in self.on_failure:
                        tell()

    def _leave(self, key: TopicPartition) -> None:
        leader = self._follows.pop(key, None)
        if leader is not None and leader in self._fetchers:
            self._fetchers[leader].leave(key)

    # -- StopReplica -------------------------------------------------------------------------------------------------

    async def stop_replica(self, request: Any) -> dict[TopicPartition, int]:
        """Stop fetching, or delete; the code of each partition. Raises KafkaError for all of it."""
        async with self._in_order:
            await self._heed(request)
            codes: dict[TopicPartition, int] = {}
            doomed = []
            for topic in request.topic_states:
                for p in topic.partition_states:
                    key = TopicPartition(topic.topic_name, p.partition_index)
                    replica = self._replicas.get(*key)
                    codes[key] = _misnamed(key)
                    if codes[key]:
                        continue
                    if replica is not None and 0 <= p.leader_epoch < replica.leader_epoch:
                        codes[key] = errors.FENCED_LEADER_EPOCH
                        self._fence(replica, -1, p.leader_epoch)
                        continue
                    await self._stop(key, replica, p.leader_epoch)
                    if p.delete_partition and not self._replicas.deletable(key):
                        codes[key] = errors.KAFKA_STORAGE_ERROR
                    elif p.delete_partition:
                        doomed.append(key)
            if doomed:
                failed = await self._replicas.remove(doomed)
                codes.update(dict.fromkeys(failed, errors.KAFKA_STORAGE_ERROR))
            for tell in self.on_told:
                tell(request.broker_epoch, [key for key, code in codes.items() if not code])
            return codes

    async def _stop(self, key: TopicPartition, replica: Replica | None, leader_epoch: int) -> None:
        self._leave(key)
        self._isr.resign(key)
        if replica is None or replica.log is None:
            return
        role = replica.log.role
        epoch = leader_epoch if leader_epoch >= 0 else role.leader_epoch
        leader = role.leader if epoch == role.leader_epoch else -1
        try:  # who asks here is still told who leads in that epoch
            stop = partial(replica.log.become_offline, leader=leader)
            await replica.at_disk(stop, epoch, max(role.partition_epoch, 0))
        except (core.LogError, KafkaError) as problem:
            event(log, logging.WARNING, "replica not stopped", partition=key, reason=problem)
        replica.tell()
        for tell in self.on_leadership:
            tell(replica, False, epoch, False)


def _fenced(request: Any, code: int, cause: str) -> KafkaError:
    """The refusal of a whole request whose sender knows less than we do, which is said."""
    name = type(request).__name__.removesuffix("Request")
    event(log, logging.WARNING, "request fenced", request=name, controller=request.controller_id, cause=cause)
    return KafkaError(code, cause)


def _misnamed(key: TopicPartition) -> int:
    """Why nothing can have this name, above all no directory: a code, 0 where nothing is wrong."""
    try:
        check_name(key.topic)
    except KafkaError as problem:
        event(log, logging.WARNING, "partition refused", partition=key, reason=problem)
        return problem.code
    return errors.INVALID_REQUEST if key.partition < 0 else errors.NONE


def _wrong(key: TopicPartition, p: Any) -> int:
    """Why no broker can do what is said of a partition: a code, 0 where nothing is wrong."""
    if code := _misnamed(key):
        return code
    if min(p.leader_epoch, p.partition_epoch, *p.replicas) < 0 or len(set(p.replicas)) < len(p.replicas):
        reason = f"leader epoch {p.leader_epoch}, partition epoch {p.partition_epoch}, replicas {p.replicas}"
        event(log, logging.WARNING, "role not taken", partition=key, reason=reason)
        return errors.INVALID_REQUEST
    return errors.NONE


def _state(p: Any, alive: Container[int] = ()) -> PartitionState:
    """What LeaderAndIsr or UpdateMetadata says of a partition; the latter, which of its replicas at brokers that are
    alive cannot be used."""
    offline: tuple[int, ...] = ()
    version = p.zk_version if hasattr(p, "zk_version") else p.partition_epoch
    if hasattr(p, "offline_replicas"):
        offline = tuple(broker for broker in p.offline_replicas if broker in alive)
    return PartitionState(
        tuple(p.replicas), p.leader, p.leader_epoch, tuple(p.isr), p.controller_epoch, version, offline
    )


def _broker(told: Any, *, new: bool) -> LiveBroker:
    """A live broker as UpdateMetadata has it. A rack that clients cannot be told of is left out, which is said of a
    `new` one: nobody else is to be unknown for it. Raises INVALID_REQUEST."""
    if told.id < 0:
        raise KafkaError(errors.INVALID_REQUEST, f"there is no broker {told.id}")
    for e in told.endpoints:
        known = 0 <= e.security_protocol < len(PROTOCOLS) and 0 <= e.port <= PORT_MAX
        if not known or len(e.host.encode()) > TEXT_BYTES_MAX:
            what = f"{e.host!r:.50} port {e.port} with the security protocol {e.security_protocol}"
            raise KafkaError(errors.INVALID_REQUEST, f"broker {told.id} cannot be reached at {what}")
    endpoints = {e.listener: HostPort(e.host, e.port) for e in told.endpoints}
    protocols = {e.listener: PROTOCOLS[e.security_protocol] for e in told.endpoints}
    rack = told.rack
    if len((rack or "").encode()) > TEXT_BYTES_MAX:
        reason = f"it is longer than {TEXT_BYTES_MAX} bytes"
        if new:
            event(log, logging.ERROR, "rack left out", broker=told.id, reason=reason)
        rack = None
    return LiveBroker(told.id, endpoints, protocols, rack)
