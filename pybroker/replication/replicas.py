"""The replicas that this broker holds: opened, created, deleted, and found by who wants to read or append.

    known to the store ──open──> serving ──delete──> unpublished, renamed to -delete, unlinked later
            └──cannot be opened──> offline: its requests get KAFKA_STORAGE_ERROR, the others serve

Opening, deleting and flushing wait for the disk, on threads of their own; everything else is on the event loop.
"""

import asyncio
import functools
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from pybroker import core, errors
from pybroker.cluster.image import INTERNAL_TOPICS, Image, PartitionState, Topic
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol.compression import Buffer
from pybroker.replication import failpoints
from pybroker.replication.checkpoints import CLEANED, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from pybroker.replication.logdirs import Found, Held, LogDir, StartError
from pybroker.replication.validation import Rules

DISK_THREADS = 16
"""Threads that make, flush and delete logs: they wait for fsyncs, which the file system does together."""
NEVER = (1 << 63) - 1

log = logging.getLogger(__name__)


class Waiter(Protocol):
    """Who waits for news of a replica: a parked fetch."""

    def news(self, replica: "Replica") -> None:
        """Something was appended, or the replica went away; called on the event loop."""


class Replica:
    """One partition here: its log, or why it has none, and who waits for it to grow."""

    __slots__ = (
        "_flush_messages",
        "_waiters",
        "config",
        "core_config",
        "directory",
        "failure",
        "gone",
        "key",
        "leader_epoch",
        "log",
        "plane",
        "plane_key",
        "rules",
        "topic_id",
    )

    def __init__(
        self, key: TopicPartition, topic_id: bytes, config: TopicConfig, core_config: dict[str, int], rules: Rules
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.config = config
        self.core_config = core_config
        self.rules = rules
        self.leader_epoch = -1
        self.log: core.Partition | None = None
        self.plane: core.Plane | None = None  # that it is published to, under plane_key
        self.plane_key = 0
        self.directory: LogDir | None = None
        self.failure = "it is not open"
        self.gone = False
        self._flush_messages: int = config["flush.messages"]
        self._waiters: dict[Waiter, None] | None = None  # made at the first wait: most partitions never need it

    def partition(self) -> core.Partition:
        """Its log. Raises KAFKA_STORAGE_ERROR while it is offline."""
        if self.log is None:
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{self.key} is offline: {self.failure}")
        return self.log

    def configure(self, config: TopicConfig, core_config: dict[str, int], rules: Rules) -> None:
        """Go by other settings of its topic from the next append on."""
        self.config, self.core_config, self.rules = config, core_config, rules
        self._flush_messages = config["flush.messages"]
        if self.log is not None and not self.gone:
            self.log.configure(core_config)
            if self.plane is not None:
                self.plane.configure(self.log, opaque=self.opaque)

    def check_epoch(self, known: int) -> None:
        """Hold the leader epoch that a client knows (-1: none) to ours. Raises FENCED_ or UNKNOWN_LEADER_EPOCH."""
        if known in (-1, self.leader_epoch):
            return
        code = errors.FENCED_LEADER_EPOCH if known < self.leader_epoch else errors.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"{self.key} has the leader epoch {self.leader_epoch}, the client knows {known}")

    def append(self, records: Buffer, now_ms: int) -> core.Appended:
        """Append one batch and tell those who wait. Raises KafkaError, core.LogError, OSError."""
        log = self.partition()
        appended = log.append(records, now_ms=now_ms)
        if self._flush_messages != NEVER and log.log_end_offset - log.durable_offset >= self._flush_messages:
            log.flush()
        if self._waiters:
            self.tell()
        return appended

    def wait(self, waiter: Waiter) -> None:
        if self._waiters is None:
            self._waiters = {}
        self._waiters[waiter] = None
        if self.plane is not None and self.log is not None:
            self.plane.watch(self.log)

    def grown(self) -> None:
        """The plane saw an append, or the end: tell those who wait, and go on watching while somebody does."""
        if self._waiters and self.plane is not None and self.log is not None and not self.gone:
            self.plane.watch(self.log)
        self.tell()

    @property
    def opaque(self) -> bool:
        """Batches may be appended unseen, whatever they hold."""
        if self.key.topic in INTERNAL_TOPICS:
            return False
        return not self.rules.looks_inside and self.rules.codec is None

    def leave(self, waiter: Waiter) -> None:
        if self._waiters is not None:
            self._waiters.pop(waiter, None)

    @property
    def waited_for(self) -> bool:
        return bool(self._waiters)

    def tell(self) -> None:
        for waiter in list(self._waiters or ()):
            waiter.news(self)


class Opening(NamedTuple):
    """A replica to open, and whether nothing of it can be on disk."""

    replica: Replica
    state: PartitionState
    new: bool


class Replicas:
    """The replicas of one broker, over all of its log dirs."""

    def __init__(self, broker_id: int, config: BrokerConfig, image: Image, log_dirs: Sequence[LogDir]) -> None:
        self._broker_id = broker_id
        self._config = config
        self._image = image
        self._dirs = log_dirs
        self._threads: int = config["num.recovery.threads.per.data.dir"]
        self._core = core.Broker()
        failpoints.arm(self._core)
        self._held: dict[TopicPartition, Replica] = {}
        self._found: dict[TopicPartition, Found] = {}  # directories, at start
        self.ending = False
        self._plane: core.Plane | None = None
        self._published: dict[int, Replica] = {}  # by the plane's ids
        for log_dir in log_dirs:
            log_dir.write = self._core.write_atomic
        self._workers = ThreadPoolExecutor(max(DISK_THREADS, self._threads * len(log_dirs)), "replicas")

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._held.values()))

    @property
    def log_dirs(self) -> Sequence[LogDir]:
        """Where they lie: those that cannot be used too."""
        return self._dirs

    def get(self, topic: str, partition: int) -> Replica | None:
        return self._held.get(TopicPartition(topic, partition))

    def leader(self, topic: str, partition: int) -> Replica:
        """The replica to read from and append to. Raises UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER."""
        replica = self._held.get(TopicPartition(topic, partition))
        if replica is not None:
            return replica
        if self._image.partition(topic, partition) is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}")
        raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"broker {self._broker_id} does not lead {topic}-{partition}")

    # -- opening ---------------------------------------------------------------------------------------------------

    def survey(self) -> Mapping[TopicPartition, Found]:
        """Look what lies in the log dirs. Raises StartError if a partition lies in two of them."""
        for log_dir in self._usable():
            for key, found in log_dir.partitions():
                if key in self._found:
                    raise StartError(
                        f"{key} lies in two log directories, {self._found[key].log_dir.path} and {log_dir.path}: "
                        "move the one that is not wanted away"
                    )
                self._found[key] = found
        return self._found

    async def open(self, topics: Iterable[Topic], *, first: int = 0, new: bool) -> None:
        """Open or create this broker's replicas of these topics from partition `first` on; what fails is offline.

        Each log dir has threads of its own. `new`: nothing of these partitions can be on disk, and none is made where
        one cannot be: KAFKA_STORAGE_ERROR."""
        shares: dict[LogDir, list[Opening]] = {}
        opened: list[Replica] = []
        for topic in topics:
            settings = TopicConfig(self._config, topic.config, stored=True)
            if settings.problems:
                reason = "; ".join(settings.problems)
                event(log, logging.WARNING, "settings ignored", topic=topic.name, reason=reason)
            rules, core_config = Rules.of(settings), settings.core()
            for index in range(first, len(topic.partitions)):
                state = topic.partitions[index]
                if self._broker_id not in state.replicas:
                    continue
                replica = Replica(TopicPartition(topic.name, index), topic.id, settings, core_config, rules)
                opened.append(replica)
                log_dir = self._place(replica, new)
                if log_dir is not None:
                    log_dir.placed += 1
                    shares.setdefault(log_dir, []).append(Opening(replica, state, new))
        loop = asyncio.get_running_loop()
        work = []
        for log_dir, share in shares.items():
            threads = min(DISK_THREADS if new else self._threads, len(share))
            for turn in range(threads):
                work.append(loop.run_in_executor(self._workers, self._open_share, log_dir, share[turn::threads]))
        await asyncio.gather(*work)
        self._held.update((replica.key, replica) for replica in opened)
        if new and (failed := next((replica for replica in opened if replica.log is None), None)):
            await self._remove([replica.key for replica in opened])
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{failed.key} cannot be made: {failed.failure}")
        for replica in opened:
            self._publish(replica)

    def configure(self, topics: Iterable[Topic]) -> None:
        """Go by the settings that these topics, and the broker under them, have now."""
        for topic in topics:
            settings = TopicConfig(self._config, topic.config, stored=True)
            rules, core_config = Rules.of(settings), settings.core()
            for index in range(len(topic.partitions)):
                replica = self.get(topic.name, index)
                if replica is not None:
                    replica.configure(settings, core_config, rules)

    # -- the native plane ------------------------------------------------------------------------------------------

    def native_plane(self, **limits: int) -> core.Plane:
        """Make the plane that serves these replicas without Python; it is to be stopped before close()."""
        self._plane = core.Plane(self._core, **limits)
        for replica in self:
            self._publish(replica)
        return self._plane

    def plane_stats(self) -> "list[core.Reactor]":
        """What each of the plane's reactors counts; nothing without a plane."""
        return self._plane.stats() if self._plane is not None else []

    def divert(self, on: bool) -> None:
        """Let the handlers in Python execute Produce and Fetch as well, or the plane again; nothing without a plane."""
        if self._plane is not None:
            self._plane.divert(on)

    def flush_times(self) -> "core.Histogram":
        """How long each flush of a file took."""
        return self._core.sync_times()

    def grown(self, key: int) -> None:
        """The plane says that a partition grew that somebody in Python watches."""
        replica = self._published.get(key)
        if replica is not None:
            replica.grown()

    def _publish(self, replica: Replica) -> None:
        if self._plane is not None and replica.log is not None and not replica.gone:
            replica.plane = self._plane
            replica.plane_key = self._plane.publish(replica.log, opaque=replica.opaque)
            self._published[replica.plane_key] = replica

    def _withdraw(self, replica: Replica) -> None:
        if replica.plane is not None and replica.log is not None:
            replica.plane.withdraw(replica.log)
            replica.plane = None
            del self._published[replica.plane_key]

    # -- where things lie ------------------------------------------------------------------------------------------

    def _usable(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.failure]

    def _place(self, replica: Replica, new: bool) -> LogDir | None:
        """Where it lies or will: the dir with the fewest. None, and offline, if a dir that may have it failed."""
        found = self._found.get(replica.key)
        if found is not None and not new:
            return found.log_dir
        usable = self._usable()
        if not new and len(usable) < len(self._dirs):
            replica.failure = "it may lie in a log directory that cannot be used"
            return None
        return min(usable, key=lambda log_dir: log_dir.placed)

    def _open_share(self, log_dir: LogDir, share: Sequence[Opening]) -> None:
        for opening in share:
            replica = opening.replica
            replica.directory, replica.leader_epoch = log_dir, opening.state.leader_epoch
            try:
                replica.log = self._open_one(log_dir, opening)
            except (core.LogError, OSError) as problem:
                replica.failure = str(problem)
                event(log, logging.ERROR, "partition offline", partition=replica.key, reason=problem)

    def _open_one(self, log_dir: LogDir, opening: Opening) -> core.Partition:
        key, new = opening.replica.key, opening.new
        if new:
            self._set_aside(key, "stray")  # nobody knows it, and it has the new partition's name
            log_dir.forget({key})
        recorded = log_dir.recorded
        partition = self._core.open(
            log_dir.path,
            key.topic,
            key.partition,
            topic_id=opening.replica.topic_id,
            config=opening.replica.core_config,
            recovery_point=recorded[RECOVERY_POINTS].get(key, 0),
            log_start_offset=recorded[LOG_STARTS].get(key, 0),
            high_watermark=recorded[HIGH_WATERMARKS].get(key, -1),
            clean=log_dir.clean and not new,
            epoch_max=opening.state.leader_epoch,
            compacted=key in recorded[CLEANED],
        )
        if partition.recovery:
            event(log, logging.WARNING, "partition recovered", partition=key, repaired=partition.recovery)
        partition.become_leader(opening.state.leader_epoch, opening.state.partition_epoch)
        return partition

    # -- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, topic: Topic) -> None:
        """Take a topic's replicas from view at once, tell those who wait, then have their files removed."""
        await self._remove([TopicPartition(topic.name, index) for index in range(len(topic.partitions))])

    async def _remove(self, keys: Iterable[TopicPartition]) -> None:
        gone = {key: self._held.pop(key, None) for key in keys}
        for replica in gone.values():
            if replica is not None:
                replica.gone = True
                self._withdraw(replica)
                replica.tell()
                if replica.directory is not None:
                    replica.directory.placed -= 1
        await asyncio.get_running_loop().run_in_executor(self._workers, self._delete_share, gone)

    def _delete_share(self, gone: Mapping[TopicPartition, Replica | None]) -> None:
        for key, replica in gone.items():
            try:
                if replica is not None and replica.log is not None:
                    self._core.delete(replica.log)
                else:
                    self._set_aside(key, "delete")
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "partition not deleted", partition=key, reason=problem)
        for log_dir in self._usable():
            try:
                log_dir.sync()  # or a loss of power brings directories back that nobody knows any more
                log_dir.forget(gone.keys())
            except OSError as problem:
                event(log, logging.ERROR, "deletion not recorded", directory=log_dir.path, reason=problem)

    def _set_aside(self, key: TopicPartition, why: str) -> None:
        """Rename the directory of a partition that is not open; the next start removes those set aside to `delete`."""
        path = self.directory_of(key)
        if path is not None:
            aside = f"{path}.{uuid.uuid4().hex}-{why}"
            os.rename(path, aside)
            event(log, logging.WARNING, "directory set aside", directory=aside)

    def directory_of(self, key: TopicPartition) -> str | None:
        """Where a partition lies, open or not; None if nowhere."""
        paths = [os.path.join(log_dir.path, str(key)) for log_dir in self._usable()]
        return next((path for path in paths if os.path.isdir(path)), None)

    # -- upkeep, on the caller's thread ----------------------------------------------------------------------------

    def each(self, work: Callable[[core.Partition], object]) -> None:
        """Do something to every open partition; what fails is logged and does not stop the rest."""
        self.each_replica(lambda replica: work(replica.partition()))

    def each_replica(self, work: Callable[[Replica], object]) -> None:
        for replica in self:
            if replica.log is None or replica.gone:
                continue
            try:
                work(replica)
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "upkeep failed", partition=replica.key, reason=problem)

    def record_recovery_points(self) -> None:
        self._record(LogDir.record_recovery_points)

    def record_log_starts(self, raised: Mapping[core.Partition, int]) -> list[LogDir]:
        """Write them down, and raise those that are to be `raised`; the log dirs where that failed."""
        return self._record(functools.partial(LogDir.record_log_starts, raised=raised))

    def record_high_watermarks(self) -> None:
        self._record(LogDir.record_high_watermarks)

    def _record(self, write: Callable[[LogDir, Held], None]) -> list[LogDir]:
        """Write a checkpoint of each log dir; offline replicas keep what was recorded of them. Where it failed."""
        failed = []
        for log_dir in self._usable():
            try:
                write(log_dir, functools.partial(self._in, log_dir))
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "checkpoint not written", directory=log_dir.path, reason=problem)
                failed.append(log_dir)
        return failed

    def _in(self, log_dir: LogDir) -> tuple[list[core.Partition], Set[TopicPartition]]:
        """The logs of a log dir that are in use, and which replicas are offline."""
        replicas = list(self)
        offline = {r.key for r in replicas if r.log is None or r.log.offline}
        here = [r.log for r in replicas if r.log is not None and r.directory is log_dir and r.key not in offline]
        return here, offline

    def highest_producer_id(self) -> int:
        """The highest producer id that any log has seen; -1 if none has."""
        return max((r.log.highest_producer_id for r in self if r.log is not None), default=-1)

    def close_idle_files(self) -> None:
        """Close what nobody read from since the last call."""
        self._core.close_idle_files()

    def stop_cleaning(self) -> None:
        """The broker is about to end: a round of compaction ends where it is."""
        self.ending = True
        self._core.stop_cleaning()

    def close(self) -> list[LogDir]:
        """Flush and close every log, and record it; the log dirs where all of that went well. Waits for the disk."""
        list(self._workers.map(_flush, self))
        self.record_log_starts({})
        self.record_recovery_points()
        self.record_high_watermarks()
        troubled = {r.directory for r in self if r.log is None or r.log.offline}
        self._workers.shutdown()
        try:
            self._core.close()
        except (core.LogError, OSError) as problem:
            event(log, logging.ERROR, "not closed cleanly", reason=problem)
            return []
        finally:
            self._let_go()
        return [log_dir for log_dir in self._usable() if log_dir not in troubled]

    def abandon(self) -> None:
        """Close every log as a crash would: nothing is flushed or recorded."""
        self._workers.shutdown()
        self._core.close(clean=False)
        self._let_go()

    def _let_go(self) -> None:
        """Drop logs and plane, and with the last references their files, without waiting for the garbage collector."""
        self._plane = None
        self._published.clear()
        for replica in self:
            replica.log, replica.plane, replica.failure = None, None, "the broker ended"

    # -- faults ----------------------------------------------------------------------------------------------------

    def arm(self, point: str, error: int, times: int) -> None:
        """Make a file call fail: at the failpoint `point` (core.FAILPOINTS) with this errno, this many times."""
        self._core.arm(point, "errno", error, times=times)

    def disarm(self) -> None:
        """Let every file call do its work again."""
        self._core.disarm()


def _flush(replica: Replica) -> None:
    """Put all of a log on disk, and what goes with it."""
    try:
        if replica.log is not None:
            replica.log.flush()
            replica.log.write_checkpoints()
    except (core.LogError, OSError) as problem:
        event(log, logging.ERROR, "not flushed", partition=replica.key, reason=problem)
