"""One partition on this broker: its log, or why it has none, its settings, and the requests that wait for it."""

import asyncio
import functools
from collections.abc import Callable, Collection, Sequence
from typing import ParamSpec, Protocol, TypeVar

from pybroker import core, errors
from pybroker.config import TopicConfig
from pybroker.decisions.image import INTERNAL_TOPICS
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol.compression import Buffer
from pybroker.replication.disks import damage
from pybroker.replication.disks.disk import DiskThreads
from pybroker.replication.disks.logdirs import LogDir
from pybroker.replication.validation import RecordRules

NEVER = (1 << 63) - 1
ACKS_UNSAID = -2
LEADER, FOLLOWER = "leader", "follower"
"""Kinds of roles. Appends go to leaders, and so do reads, except those of a consumer in a follower's rack."""

P = ParamSpec("P")
T = TypeVar("T")


class Waiter(Protocol):
    """A request that waits for news of a replica: a parked fetch."""

    def news(self, replica: "Replica") -> None:
        """Handle an append, or the removal of the replica; called on the event loop."""


class _News(asyncio.Event):
    """A waiter for the next news."""

    def news(self, replica: "Replica") -> None:
        self.set()

    async def come(self) -> None:
        """Wait for the next news."""
        self.clear()
        await self.wait()


class Replica:
    """One partition on this broker: its log, or why it has none, and the requests that wait for it."""

    __slots__ = (
        "_appending",
        "_broker_id",
        "_flush_messages",
        "_led_since",
        "_waiters",
        "config",
        "copied",
        "core_config",
        "directory",
        "disk",
        "failure",
        "gone",
        "key",
        "lacked",
        "log",
        "plane",
        "plane_key",
        "power_lost",
        "rules",
        "topic_id",
        "truncating",
    )

    def __init__(
        self,
        key: TopicPartition,
        topic_id: bytes,
        config: TopicConfig,
        core_config: dict[str, int],
        rules: RecordRules,
        disk: DiskThreads,
        broker_id: int = -1,
    ) -> None:
        self.key = key
        self._broker_id = broker_id
        self.topic_id = topic_id
        self.config = config
        self.core_config = core_config
        self.rules = rules
        self.disk = disk
        self.log: core.Partition | None = None
        self.plane: core.Plane | None = None  # the plane that serves it, under plane_key
        self.plane_key = 0
        self.directory: LogDir | None = None
        self.failure = "it is not open"
        self.lacked = False
        """True if its log could not be opened or created for lack of room."""
        self.gone = False
        self.copied = False
        """True in a cluster: records may be copied from a leader, with the gaps that compaction left there."""
        self.power_lost = False
        """True if its log may lack records that it had before a loss of power, and was not in sync since."""
        self._flush_messages: int = config["flush.messages"]
        self._led_since = -1  # the leader epoch since which we have led without a break
        self._appending: asyncio.Lock | None = None  # created at the first append by Python
        self.truncating: asyncio.Lock | None = None  # created at the first truncation
        self._waiters: dict[Waiter, bool] | None = None  # created at the first wait: most partitions never need it

    def partition(self) -> core.Partition:
        """Return its log. Raises KAFKA_STORAGE_ERROR while it is offline."""
        if self.log is None:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{self.key} is offline: {self.failure}")
        return self.log

    def pass_by(self, offset: int) -> int:
        """Return the offset after the damage that a read met at `offset`; the damage is logged and recorded. Waits for
        the disk. Raises core.LogError if no sound batch follows, OSError."""
        return damage.pass_by(self, offset)

    def readable_from(self, offset: int) -> int:
        """The offset after the known damage at `offset`; `offset` itself if none is known."""
        return damage.readable_from(self, offset)

    @property
    def offline(self) -> bool:
        """True if it has no log, or one that failed and takes no more records."""
        return self.log is None or self.log.offline

    @property
    def may_open(self) -> bool:
        """True if its log could not be opened for lack of room, and its log dir takes appends again."""
        log_dir = self.directory
        return self.lacked and log_dir is not None and not log_dir.failure and not log_dir.space.lack

    def configure(self, config: TopicConfig, core_config: dict[str, int], rules: RecordRules) -> None:
        """Apply changed settings of its topic, from the next append on."""
        self.config, self.core_config, self.rules = config, core_config, rules
        self._flush_messages = config["flush.messages"]
        if self.log is not None and not self.gone:
            self.log.configure(core_config)
            self.tell_log()
            if self.plane is not None:
                self.plane.configure(self.log, native_append=self.native_append, envelope=self.rules.envelope)

    def tell_log(self) -> None:
        """Pass the topic's replication settings to the log."""
        log, config = self.partition(), self.config
        log.min_isr = config["min.insync.replicas"]
        leader, follower = (config.throttles(role, self.key.partition, self._broker_id) for role in (LEADER, FOLLOWER))
        log.throttle(leader=leader, follower=follower)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of its role; -1 if there is none, or it is offline."""
        return -1 if self.log is None else self.log.role.leader_epoch

    @property
    def has_role(self) -> bool:
        """True if it leads or follows. Before the first role its leader epoch may come from its log; a stopped replica
        may get a role again, in the same leader epoch."""
        return self.log is not None and self.log.role.kind in (LEADER, FOLLOWER)

    def check_leads(self, known: int = -1) -> None:
        """Check that we lead, and that the client's leader epoch (-1: none) is ours. An offline replica passes. Raises
        FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER."""
        if self.log is None:
            return
        role = self.log.role
        if known not in (-1, role.leader_epoch):
            code = errors.FENCED_LEADER_EPOCH if known < role.leader_epoch else errors.UNKNOWN_LEADER_EPOCH
            raise KafkaError(code, f"{self.key} has the leader epoch {role.leader_epoch}, but the request has {known}")
        if role.kind != LEADER:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.key}, it is {role.kind}")

    @property
    def leads(self) -> bool:
        return self.log is not None and self.log.role.kind == LEADER

    def check_has_role(self, known: int = -1) -> None:
        """Check as check_leads, but accept a follower, too."""
        if self.log is None or self.log.role.kind not in (LEADER, FOLLOWER) or known not in (-1, self.leader_epoch):
            self.check_leads(known)

    async def lead(
        self, leader_epoch: int, partition_epoch: int, followers: Sequence[int] = (),
        isr: Collection[int] | None = None, adding: Collection[int] = (),
    ) -> None:  # fmt: skip
        """Lead from now on, as become_leader, and wake waiting requests. Raises core.LogError."""
        become = functools.partial(self.become_leader, leader_epoch, partition_epoch, followers, isr, adding)
        await self._become(become)

    async def follow(self, leader: int, leader_epoch: int, partition_epoch: int) -> None:
        """Follow a broker from now on, and wake waiting requests. Raises core.LogError if we know newer epochs."""
        await self._become(functools.partial(self.become_follower, leader, leader_epoch, partition_epoch))

    async def _become(self, become: Callable[..., None]) -> None:
        try:
            become(wait=False)
        except BlockingIOError:
            await self.at_disk(become, wait=True)
        self.tell()

    def become_leader(
        self, leader_epoch: int, partition_epoch: int, followers: Sequence[int] = (),
        isr: Collection[int] | None = None, adding: Collection[int] = (), *, wait: bool,
    ) -> None:  # fmt: skip
        """Lead from now on, with these brokers as followers; those in `adding` count for min.insync.replicas once they
        are in the ISR. Raises core.LogError if we know newer epochs; without `wait`, BlockingIOError if an append is at
        the disk."""
        if not self.leads:
            self._led_since = leader_epoch  # before the role changes: requests from earlier epochs must fail
        self.partition().become_leader(
            leader_epoch, partition_epoch, followers=followers, isr=isr, adding=adding, wait=wait
        )
        self.power_lost = False  # from now on the log is what its partition has

    def become_follower(self, leader: int, leader_epoch: int, partition_epoch: int, *, wait: bool) -> None:
        """Follow a broker from now on. Raises as become_leader."""
        self.partition().become_follower(leader, leader_epoch, partition_epoch, wait=wait)

    def note_fetch(self, broker: int, offset: int, leader_epoch: int, now_ms: int, broker_epoch: int = -1) -> None:
        """Note that a follower fetches from `offset`, and so has all records before; wake waiting requests. Raises
        core.LogError if the fetch does not count."""
        log = self.partition()
        log.note_fetch(broker, offset, leader_epoch=leader_epoch, broker_epoch=broker_epoch, now_ms=now_ms)
        self.tell()

    async def at_disk(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run work that may block on the disk, on a thread of the log dir. Raises KAFKA_STORAGE_ERROR without one."""
        if self.directory is None:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{self.key} is offline: {self.failure}")
        return await self.disk.run(self.directory, work, *args, **named)

    async def append(
        self, records: Buffer, now_ms: int, leader_epoch: int = -1, acks: int = ACKS_UNSAID, guard: int = 0,
        *, internal: bool = False,
    ) -> core.Appended:  # fmt: skip
        """Append one batch and notify waiting requests; only under this leader epoch, unless it is -1. A request's
        `acks` require replicas in sync (-1), or the broker's lease (0, 1). `guard`, `internal`: see Partition.append.
        Raises KafkaError, core.LogError, OSError.

        One append at a time: a partition whose write hangs blocks only one thread of its log dir."""
        if self._appending is None:
            self._appending = asyncio.Lock()
        async with self._appending:
            appended = await self.at_disk(self._write, records, now_ms, leader_epoch, acks, guard, internal)
        if self._waiters:
            self.tell()
        return appended

    async def verify(self, producer_id: int, producer_epoch: int, base_sequence: int) -> int:
        """The guard of a producer's transaction, 0 if it is open here: see Partition.verify. Raises KafkaError."""
        return await self.at_disk(lambda: self.partition().verify(producer_id, producer_epoch, base_sequence))

    async def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, now_ms: int
    ) -> core.Appended:
        """Append the marker that ends a producer's transaction, and notify waiting requests. Raises as `append`,
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED."""
        if self._appending is None:
            self._appending = asyncio.Lock()
        async with self._appending:
            appended = await self.at_disk(
                self._write_marker, producer_id, producer_epoch, coordinator_epoch, commit, now_ms
            )
        if self._waiters:
            self.tell()
        return appended

    def _write_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, now_ms: int
    ) -> core.Appended:
        log = self.partition()
        appended = log.append_marker(producer_id, producer_epoch, coordinator_epoch, commit, now_ms=now_ms)
        self._flush_if_due(log)
        return appended

    def _write(
        self, records: Buffer, now_ms: int, leader_epoch: int, acks: int, guard: int, internal: bool
    ) -> core.Appended:
        log = self.partition()
        appended = log.append(
            records, now_ms=now_ms, leader_epoch=leader_epoch, acks=acks, guard=guard, internal=internal
        )
        self._flush_if_due(log)
        return appended

    def append_copied(
        self, records: bytes, leader_epoch: int, high_watermark: int, now_ms: int, log_end: int = -1
    ) -> None:
        """Append records from our leader, if the log still ends at `log_end` (-1: not checked), and flush if
        flush.messages requires it. Waits for the disk. Raises KafkaError, core.LogError, OSError."""
        log = self.partition()
        log.append_replica(
            records, leader_epoch=leader_epoch, high_watermark=high_watermark, now_ms=now_ms, log_end=log_end
        )
        self._flush_if_due(log)

    @property
    def flush_due(self) -> bool:
        """True if flush.messages requires a flush before the log's end is reported to the leader or a client."""
        return self._is_due(self.partition())

    def flush_if_due(self) -> None:
        """Flush the log if flush.messages requires it. Waits for the disk. Raises KafkaError, core.LogError."""
        self._flush_if_due(self.partition())

    def _is_due(self, log: core.Partition) -> bool:
        return self._flush_messages != NEVER and log.log_end_offset - log.durable_offset >= self._flush_messages

    def _flush_if_due(self, log: core.Partition) -> None:
        if self._is_due(log):
            log.flush()

    async def committed(
        self, offset: int, leader_epoch: int = -1, in_vain: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until the high watermark is at `offset`, while we lead in `leader_epoch` (-1: not checked): after a
        break in leadership other records may be there. `in_vain` returns True if no follower will fetch. Raises
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR.

        A log dir that fails meanwhile does not wake this wait; the caller cancels it."""
        if self.log is not None and self.log.high_watermark >= offset:
            self._check_led_since(leader_epoch)  # after the read: if we still lead, we led during the read
            return
        news = _News()
        self.wait(news)  # before the next read, so that no change in between is missed
        try:
            while self._online().high_watermark < offset:
                self._check_led_since(leader_epoch)  # a break in leadership may be over when we wake
                if in_vain():
                    raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"another broker may lead {self.key} by now")
                await news.come()
            self._check_led_since(leader_epoch)
        finally:
            self.leave(news)

    def _check_led_since(self, leader_epoch: int) -> None:
        """Check that we lead, and have led since this epoch: a leader may go on leading in a later epoch, as when a
        follower is removed. Raises as check_leads."""
        epoch = self.leader_epoch
        self.check_leads(-1 if self._led_since <= leader_epoch <= epoch else leader_epoch)

    def _online(self) -> core.Partition:
        if self.gone:
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"this broker no longer has a replica of {self.key}")
        if self.offline:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{self.key} is offline: {self.failure}")
        self.check_leads()
        return self.partition()

    def wait(self, waiter: Waiter, *, to_log_end: bool = False) -> None:
        """Notify a waiter when the high watermark, or the log's end, moves on."""
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = to_log_end
        if self.plane is not None and self.log is not None:
            self.plane.watch(self.log, to_log_end=to_log_end)

    def grown(self) -> None:
        """Handle the plane's notice that the log grew: wake the waiters, and watch on while there are any."""
        if self._waiters and self.plane is not None and self.log is not None and not self.gone:
            for to_log_end in set(self._waiters.values()):
                self.plane.watch(self.log, to_log_end=to_log_end)
        self.tell()

    def watch_joining(self) -> None:
        """Have the plane report once when a follower outside the ISR has caught up."""
        if self.plane is not None and self.log is not None and not self.gone:
            self.plane.watch_joining(self.log)

    @property
    def native_append(self) -> bool:
        """True if core alone may append batches: the topic only requires that records can be read."""
        if self.key.topic in INTERNAL_TOPICS:
            return False
        return not self.rules.looks_inside and self.rules.codec is None

    def wake(self) -> None:
        """Wake requests that wait for followers of this replica: the followers may follow another leader now."""
        if self.log is not None and self.leads:
            self.log.tell_all()
            self.tell()

    def leave(self, waiter: Waiter) -> None:
        if self._waiters is not None:
            self._waiters.pop(waiter, None)

    @property
    def waited_for(self) -> bool:
        return bool(self._waiters)

    def tell(self) -> None:
        for waiter in list(self._waiters or ()):
            waiter.news(self)
