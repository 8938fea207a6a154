"""The replicas that this broker holds: opened, created, deleted, and found by who wants to read or append.

    known to the store ──open──> serving ──delete──> unpublished, renamed to -delete, unlinked later
            └──cannot be opened──> offline: its requests get KAFKA_STORAGE_ERROR, the others serve

Opening, deleting and flushing wait for the disk, on threads of their own; everything else is on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pybroker import core, errors
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import Topic
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import DEBUGGING, TopicPartition
from pybroker.replication import failpoints
from pybroker.replication.damage import Scrubbed
from pybroker.replication.disk import DiskThreads
from pybroker.replication.kraft_log import topic_settings
from pybroker.replication.leaders import NO_LEADER, Leader
from pybroker.replication.logdirs import Found, LogDir
from pybroker.replication.opening import Opener, Opening, Wanted
from pybroker.replication.recording import Recorder
from pybroker.replication.replica import LEADER, Replica
from pybroker.replication.throttles import throttles_of
from pybroker.replication.validation import Rules
from pybroker.replication.workers import Workers

log = logging.getLogger(__name__)

Hear = Callable[[str, bytes], object]
"""Called with the kind of a fetcher's letter, and the letter."""


class Replicas:
    """The replicas of one broker, over all of its log dirs."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        metadata: MetadataCache,
        log_dirs: Sequence[LogDir],
        given_up: Container[str] = (),
        open_files_max: int = 0,
    ) -> None:
        """`open_files_max`: descriptors that segments have at most, fewer than partitions perhaps; 0: no limit."""
        self._broker_id = broker_id
        self._config = config
        self._metadata = metadata
        self._dirs = log_dirs
        self._threads: int = config["num.recovery.threads.per.data.dir"]
        self._core = core.Broker(open_files_max=open_files_max)
        failpoints.arm(self._core)
        self._opener = Opener(self._core, log_dirs, given_up)
        self._held: dict[TopicPartition, Replica] = {}
        self._disk = DiskThreads()
        self.ending = False
        self.scrubbed = Scrubbed()
        self._plane: core.Plane | None = None
        self._fetchers: dict[int, Hear] = {}
        self._published: dict[int, Replica] = {}  # by the plane's ids
        self.on_joining: Callable[[Replica], object] | None = None
        """Called with a replica one of whose followers outside the ISR has caught up, if that is watched."""
        for log_dir in log_dirs:
            log_dir.core = self._core
            if not log_dir.failure:
                log_dir.space.begin(self._core)
        self.throttles = throttles_of(config)
        self._workers = Workers(self._pool_threads(), "replicas")
        self.recorder = Recorder(self, self._opener.usable, self._disk)

    def _pool_threads(self) -> int:
        """They make, flush and delete logs: they wait for fsyncs, which the file system does together."""
        background: int = self._config["background.threads"]
        return max(background, self._threads * len(self._dirs))

    def resize(self) -> None:
        """Work with as many threads as the settings say now."""
        self._threads = self._config["num.recovery.threads.per.data.dir"]
        self._workers.resize(self._pool_threads())

    def set_lease(self, until_ms: int) -> None:
        """Set until when, by the clock since boot, this broker is certainly a member of its cluster; see Lease."""
        was_lost = self.lease_lost
        self._core.set_lease(until_ms)
        for replica in self if self.lease_lost and not was_lost else ():
            replica.wake()

    @property
    def lease_lapsed(self) -> bool:
        """True if others may lead this broker's partitions without its knowledge: see `proof.py`."""
        return self._core.lease_lapsed

    @property
    def lease_lost(self) -> bool:
        """True from the loss of the registration until the controller has spoken to the next one."""
        return self._core.lease_lost

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

    def leader(self, topic: str, partition: int, leader_epoch: int = -1) -> Replica:
        """The replica to read from and append to, in the leader epoch that the client knows (-1: none), or offline.

        Raises as `held` and Replica.check_leads do."""
        replica = self.held(topic, partition)
        replica.check_leads(leader_epoch)
        return replica

    def readable(self, topic: str, partition: int, by: int, leader_epoch: int = -1) -> Replica:
        """The replica that requests of the replica id `by` read: the leader; DEBUGGING any. Raises as `leader`."""
        if by != DEBUGGING:
            return self.leader(topic, partition, leader_epoch)
        replica = self.held(topic, partition)
        replica.check_has_role(leader_epoch)
        return replica

    def held(self, topic: str, partition: int) -> Replica:
        """The replica here, whatever its role. Raises UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER."""
        replica = self._held.get(TopicPartition(topic, partition))
        if replica is not None:
            return replica
        if self._metadata.image.partition(topic, partition) is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}")
        raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"broker {self._broker_id} does not hold {topic}-{partition}")

    def leader_of(self, topic: str, partition: int) -> Leader:
        """Who leads: as the role of the replica says, or where none is open here, as the metadata."""
        replica = self.get(topic, partition)
        if replica is not None and replica.log is not None:
            role = replica.log.role
            if role.kind == LEADER and self.lease_lapsed:
                return NO_LEADER
            return Leader(self._broker_id if role.kind == LEADER else role.leader, role.leader_epoch)
        state = self._metadata.image.partition(topic, partition)
        return NO_LEADER if state is None else Leader(state.leader, state.leader_epoch)

    # -- opening ---------------------------------------------------------------------------------------------------

    def survey(self, ids: Mapping[str, bytes]) -> Mapping[TopicPartition, Found]:
        """Look what lies in the log dirs; see Opener. Raises StartError if a partition lies in two of them."""
        return self._opener.survey(ids)

    def kafka_settings(self) -> Mapping[bytes, Mapping[str, str]]:
        """The settings of topics, by topic id, as an earlier Kafka has left them in the log dirs."""
        return topic_settings((log_dir.path for log_dir in self._opener.usable()), self._broker_id)

    def directories(self, topic: Topic) -> Mapping[int, str]:
        """The directory.id of the log dir of each partition: of those that were opened, else what is on record."""
        known = dict(topic.directories)
        for index in range(len(topic.partitions)):
            replica = self.get(topic.name, index)
            log_dir = replica.directory if replica is not None and replica.log is not None else None
            if log_dir is not None and log_dir.id is not None:
                known[index] = log_dir.id
        return known

    def directory_of(self, key: TopicPartition) -> str | None:
        """Where a partition lies, open or not; None if nowhere."""
        return self._opener.directory_of(key)

    async def open(self, topics: Iterable[Topic], *, first: int = 0, new: bool) -> None:
        """Open or create this broker's replicas of these topics from partition `first` on, and lead them alone; what
        fails is offline.

        `new`: nothing of these partitions can be on disk, none is made where one cannot be (KAFKA_STORAGE_ERROR), and
        clients are served them once they are shown."""
        opened = await self._open_all(
            [
                Wanted(TopicPartition(topic.name, index), topic.id, topic.config, topic.directories.get(index), state)
                for topic in topics
                for index, state in enumerate(topic.partitions)
                if index >= first and self._broker_id in state.replicas
            ],
            new,
        )
        if new and (failed := next((replica for replica in opened if replica.log is None), None)):
            await self.remove([replica.key for replica in opened])
            raise KafkaError(errors.KAFKA_STORAGE_ERROR, f"{failed.key} cannot be made: {failed.failure}")
        if not new:
            for replica in opened:
                self._publish(replica)

    async def open_in_no_role(self, wanted: Iterable[Wanted]) -> list[Replica]:
        """Open or create these, neither led nor followed until it is said; what fails is offline."""
        opened = await self._open_all(wanted, False)
        for replica in opened:
            self._publish(replica)
        return opened

    def let_go(self, key: TopicPartition) -> None:
        """Hold a replica that may open no longer: it is opened as if it had never been tried."""
        replica = self._held.get(key)
        if replica is not None and replica.may_open:
            assert replica.directory is not None
            replica.directory.placed -= 1
            self._opener.begun[key] = replica.directory
            del self._held[key]

    async def _open_all(self, wanted: Iterable[Wanted], new: bool) -> list[Replica]:
        """Each log dir has threads of its own."""
        shares: dict[LogDir, list[Opening]] = {}
        opened: list[Replica] = []
        settings: dict[str, tuple[TopicConfig, dict[str, int], Rules]] = {}
        for each in wanted:
            if each.key.topic not in settings:
                config = TopicConfig(self._config, each.config, stored=True)
                if config.problems:
                    reason = "; ".join(config.problems)
                    event(log, logging.WARNING, "settings ignored", topic=each.key.topic, reason=reason)
                settings[each.key.topic] = config, config.core(), Rules.of(config)
            replica = Replica(each.key, each.topic_id, *settings[each.key.topic], self._disk, self._broker_id)
            opened.append(replica)
            log_dir, made = self._opener.place(replica, each.directory, new)
            if log_dir is not None:
                log_dir.placed += 1
                shares.setdefault(log_dir, []).append(Opening(replica, each.state, made))
        loop = asyncio.get_running_loop()
        work = []
        for log_dir, share in shares.items():
            threads = min(self._config["background.threads"] if new else self._threads, len(share))
            for i in range(threads):
                work.append(loop.run_in_executor(self._workers, self._opener.open_share, log_dir, share[i::threads]))
        await asyncio.gather(*work)
        self._held.update((replica.key, replica) for replica in opened)
        return opened

    def show(self, topic: Topic, first: int) -> None:
        """Serve clients the partitions from `first` on, that were opened as new."""
        for index in range(first, len(topic.partitions)):
            replica = self.get(topic.name, index)
            if replica is not None:
                self._publish(replica)

    async def configure(self, topics: Sequence[Topic]) -> None:
        """Go by the settings that these topics, and the broker under them, have now.

        On a thread: logs that are being appended to are waited for."""
        await asyncio.to_thread(self._configure, topics)

    def _configure(self, topics: Sequence[Topic]) -> None:
        held: dict[tuple[str, bytes], list[Replica]] = {}
        for replica in self:
            held.setdefault((replica.key.topic, replica.topic_id), []).append(replica)
        for topic in topics:
            if replicas := held.get((topic.name, topic.id)):
                settings = TopicConfig(self._config, topic.config, stored=True)
                rules, core_config = Rules.of(settings), settings.core()
                for replica in replicas:
                    replica.configure(settings, core_config, rules)

    # -- the native plane ------------------------------------------------------------------------------------------

    def native_plane(self, **limits: Any) -> core.Plane:
        """Make the plane that serves these replicas without Python; it is to be stopped before close()."""
        leader, follower = self.throttles
        self._plane = core.Plane(self._core, leader_throttle=leader, follower_throttle=follower, **limits)
        for replica in self:
            self._publish(replica)
        return self._plane

    def resize_plane(self, reactors: int, fetchers: int) -> None:
        """Have as many threads of the plane take new connections of clients, and to leaders; nothing without a plane.
        Raises OSError and RuntimeError where there are no more."""
        if self._plane is not None:
            self._plane.resize(reactors, fetchers)

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

    def joining(self, key: int) -> None:
        """The plane says that a follower outside the ISR of a partition has caught up."""
        replica = self._published.get(key)
        if replica is not None and self.on_joining is not None:
            self.on_joining(replica)

    @property
    def is_native(self) -> bool:
        """Is there a plane, which copies from leaders too?"""
        return self._plane is not None

    def open_fetcher(self, fd: int, hear: Hear, **settings: Any) -> "core.Fetcher":
        """Have the plane copy from the leader at the other end of a socket, which is the plane's from now on; `hear` is
        handed the letters of the fetcher."""
        assert self._plane is not None
        fetcher = core.Fetcher(self._plane, fd, **settings)
        self._fetchers[fetcher.key] = hear
        return fetcher

    def fetched(self, key: int, kind: str, letter: bytes | None) -> None:
        """The plane tells of a fetcher."""
        hear = self._fetchers.pop(key, None) if kind == "closed" else self._fetchers.get(key)
        if hear is not None:
            hear(kind, letter or b"")

    def _publish(self, replica: Replica) -> None:
        if self._plane is not None and replica.log is not None and not replica.gone:
            replica.plane = self._plane
            replica.plane_key = self._plane.publish(
                replica.log, native_append=replica.native_append, envelope=replica.rules.envelope
            )
            self._published[replica.plane_key] = replica

    async def truncate(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Cut the log of a replica back to `offset`, if it still follows in this leader epoch: nobody is served of it
        meanwhile. One at a time, or the second would find it withdrawn and publish it once more. Raises core.LogError,
        KafkaError."""
        if replica.truncating is None:
            replica.truncating = asyncio.Lock()
        async with replica.truncating:
            plane = replica.plane
            self._unpublish(replica)
            try:
                await replica.at_disk(self._cut, replica, plane, offset, leader_epoch)
            finally:
                if not replica.gone:
                    self._publish(replica)
                    replica.grown()  # who began to wait meanwhile is not watched for yet
                    if self.on_joining is not None:
                        self.on_joining(replica)

    def _cut(self, replica: Replica, plane: "core.Plane | None", offset: int, leader_epoch: int) -> None:
        log = replica.partition()
        if plane is not None:
            plane.withdraw(log)
        assert replica.directory is not None
        with replica.directory.cutting(replica.key, offset):
            log.truncate(offset, leader_epoch=leader_epoch)

    def _unpublish(self, replica: Replica) -> None:
        """Python hears no more of it from the plane, which has still to withdraw it."""
        if replica.plane is not None:
            replica.plane = None
            del self._published[replica.plane_key]

    # -- deleting --------------------------------------------------------------------------------------------------

    async def delete(self, topic: Topic, first: int = 0) -> None:
        """Take a topic's replicas from view at once, tell those who wait, then have their files removed."""
        await self.remove([TopicPartition(topic.name, index) for index in range(first, len(topic.partitions))])

    def deletable(self, key: TopicPartition) -> bool:
        """Can its files be removed? Not those on a disk that failed, which would come back with the disk."""
        replica = self._held.get(key)
        if replica is not None and replica.log is not None:
            return not replica.log.offline
        return self.directory_of(key) is not None or len(self._opener.usable()) == len(self._dirs)

    async def remove(self, keys: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Take replicas from view at once, tell those who wait, then have their files removed. Those whose files may
        come back with their disk."""
        gone = {key: self._held.pop(key, None) for key in keys}
        self._opener.forget(gone)
        for replica in gone.values():
            if replica is not None:
                replica.gone = True
                self._unpublish(replica)
                replica.tell()
                if replica.directory is not None:
                    replica.directory.placed -= 1
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._opener.delete, gone, self._plane)

    # -- upkeep, on the caller's thread ----------------------------------------------------------------------------

    def each(self, work: Callable[[core.Partition], object]) -> None:
        """Do something to every open partition; what fails is logged and does not stop the rest."""
        self.each_replica(lambda replica: work(replica.partition()))

    def each_replica(self, work: Callable[[Replica], object], log_dir: LogDir | None = None) -> None:
        """Of one log dir, or of all."""
        for replica in self:
            if replica.log is None or replica.log.offline or replica.gone:
                continue
            if log_dir is not None and replica.directory is not log_dir:
                continue
            try:
                work(replica)
            except (core.LogError, OSError) as problem:
                event(log, logging.ERROR, "partition task failed", partition=replica.key, reason=problem)

    def highest_producer_id(self) -> int:
        """The highest producer id that any log has seen; -1 if none has."""
        return max((r.log.highest_producer_id for r in self if r.log is not None), default=-1)

    def open_files(self) -> tuple[int, int]:
        """Descriptors that segments have now, and may have at most; 0 for no limit."""
        return self._core.open_files, self._core.open_files_max

    def close_idle_files(self) -> None:
        """Close what nobody read from since the last call."""
        self._core.close_idle_files()

    def take_suspects(self) -> "list[tuple[core.Partition, int]]":
        """Where reads met what is no batch since the last call: a log, and the base offset of the segment."""
        return self._core.take_suspects()

    def stop_cleaning(self) -> None:
        """The broker is about to end: a round of compaction ends where it is."""
        self.ending = True
        self._core.stop_cleaning()

    def close(self) -> list[LogDir]:
        """Flush and close every log, and record it; the log dirs where all of that went well. Waits for the disk."""
        list(self._workers.map(_flush, self))
        self.recorder.record_log_starts({})
        self.recorder.record_recovery_points()
        self.recorder.record_high_watermarks()
        troubled = {r.directory for r in self if r.log is None or r.log.offline}
        self._workers.shutdown()
        self._disk.close()
        try:
            self._core.close()
        except (core.LogError, OSError) as problem:
            event(log, logging.ERROR, "not closed cleanly", reason=problem)
            return []
        finally:
            self._let_go()
        return [log_dir for log_dir in self._opener.usable() if log_dir not in troubled]

    def abandon(self) -> None:
        """Close every log as a crash would: nothing is flushed or recorded."""
        self._workers.shutdown()
        self._disk.close()
        self._core.close(clean=False)
        self._let_go()

    def _let_go(self) -> None:
        """Drop logs and plane, and with the last references their files, without waiting for the garbage collector."""
        self._plane = None
        self._published.clear()
        self._fetchers.clear()  # they may have been told of partitions, and not have looked yet
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
        if replica.log is not None and not replica.log.offline:
            replica.log.flush()
            replica.log.write_checkpoints()
    except (core.LogError, OSError) as problem:
        event(log, logging.ERROR, "not flushed", partition=replica.key, reason=problem)
