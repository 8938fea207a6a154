"""The replicas of this broker: opens, creates and deletes them, and finds them for requests.

    known to the store ──open──> serving ──delete──> unpublished, renamed to -delete, unlinked later
            └──cannot be opened──> offline: its requests get KAFKA_STORAGE_ERROR, the others serve

Opening, deleting and flushing wait for the disk, on threads of their own; everything else is on the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pybroker import core, errors
from pybroker.config import BrokerConfig, TopicConfig
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import DEBUGGING, TopicPartition
from pybroker.replication import failpoints
from pybroker.replication.disks.damage import Scrubbed
from pybroker.replication.disks.disk import DiskThreads, DiskTimes
from pybroker.replication.disks.kraft_log import topic_settings
from pybroker.replication.disks.logdirs import FoundPartition, LogDir
from pybroker.replication.disks.moves import LogDirMove, LogDirMoves
from pybroker.replication.leaders import NO_LEADER, Leader
from pybroker.replication.opening import Opener, Opening, WantedReplica
from pybroker.replication.recording import Recorder
from pybroker.replication.replica import LEADER, Replica
from pybroker.replication.throttles import throttles_of
from pybroker.replication.validation import RecordRules
from pybroker.replication.workers import Workers

log = logging.getLogger(__name__)

Hear = Callable[[str, bytes], object]
"""Called with the kind of a fetcher's message, and the message."""


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
        on_joining: Callable[[Replica], object] = lambda replica: None,
    ) -> None:
        """`open_files_max`: the most descriptors for segments, perhaps fewer than partitions; 0: no limit. `on_joining`
        is called with a replica when a follower outside its ISR has caught up, if that is watched."""
        self._broker_id = broker_id
        self._config = config
        self._metadata = metadata
        self._dirs = log_dirs
        self._threads: int = config["num.recovery.threads.per.data.dir"]
        self._core = core.LogManager(open_files_max=open_files_max)
        failpoints.arm(self._core)
        self._opener = Opener(self._core, log_dirs, given_up)
        self._held: dict[TopicPartition, Replica] = {}
        self._disk = DiskThreads()
        self.ending = False
        self.scrubbed = Scrubbed()
        self.plane: core.Plane | None = None  # a broker with another plane has none here
        self._fetchers: dict[int, Hear] = {}
        self._published: dict[int, Replica] = {}  # by the plane's ids
        self._on_joining = on_joining
        for log_dir in log_dirs:
            log_dir.core = self._core
            if not log_dir.failure:
                log_dir.space.begin(self._core)
        self.throttles = throttles_of(config)
        self._workers = Workers(self._pool_threads(), "replicas")
        self.recorder = Recorder(self, self._opener.usable, self._disk, self.lost_power)
        self.moves = LogDirMoves(config, len(log_dirs), self._opener.moved)

    def _pool_threads(self) -> int:
        """The number of threads that open, flush and delete logs. They wait for fsyncs; file systems batch these."""
        background: int = self._config["background.threads"]
        return max(background, self._threads * len(self._dirs))

    def resize(self) -> None:
        """Apply changed numbers of threads in the settings."""
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
        """True if other brokers may lead this broker's partitions without its knowledge: see `proof.py`."""
        return self._core.lease_lapsed

    @property
    def lease_lost(self) -> bool:
        """True from the loss of the registration until the controller has sent roles to the next one."""
        return self._core.lease_lost

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._held.values()))

    @property
    def log_dirs(self) -> Sequence[LogDir]:
        """All log dirs, including those that cannot be used."""
        return self._dirs

    @property
    def lacks_log_dir(self) -> bool:
        """True if a log dir cannot be used: it may have replicas that are not known here."""
        return len(self._opener.usable()) < len(self._dirs)

    def is_closed(self, key: TopicPartition, topic_id: bytes) -> bool:
        """True if a log found at the start may be this partition's, and is not open: it has lost its topic id."""
        return key not in self._held and self._opener.found(key, topic_id)

    def get(self, topic: str, partition: int) -> Replica | None:
        return self._held.get(TopicPartition(topic, partition))

    def leader(self, topic: str, partition: int, leader_epoch: int = -1) -> Replica:
        """The replica to read from and append to, in the client's leader epoch (-1: not checked); it may be offline.

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
        """The replica here, in any role. Raises UNKNOWN_TOPIC_OR_PARTITION or NOT_LEADER_OR_FOLLOWER."""
        replica = self._held.get(TopicPartition(topic, partition))
        if replica is not None:
            return replica
        if self._metadata.image.partition(topic, partition) is None:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {topic}-{partition}")
        raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"broker {self._broker_id} does not hold {topic}-{partition}")

    def leader_of(self, topic: str, partition: int) -> Leader:
        """The leader by the role of the replica, or by the metadata if no replica is open here."""
        replica = self.get(topic, partition)
        if replica is not None and replica.log is not None:
            role = replica.log.role
            if role.kind == LEADER and self.lease_lapsed:
                return NO_LEADER
            return Leader(self._broker_id if role.kind == LEADER else role.leader, role.leader_epoch)
        state = self._metadata.image.partition(topic, partition)
        return NO_LEADER if state is None else Leader(state.leader, state.leader_epoch)

    # -- opening ---------------------------------------------------------------------------------------------------

    def survey(self, ids: Mapping[str, bytes]) -> Mapping[TopicPartition, FoundPartition]:
        """Find the partitions in the log dirs; see Opener. Raises StartError if a partition is in two of them."""
        return self._opener.survey(ids)

    def kafka_settings(self) -> Mapping[bytes, Mapping[str, str]]:
        """The topic settings, by topic id, that an earlier Kafka left in the log dirs."""
        return topic_settings((log_dir.path for log_dir in self._opener.usable()), self._broker_id)

    def directory_of(self, key: TopicPartition) -> str | None:
        """The directory of a partition, open or not; None if there is none."""
        return self._opener.directory_of(key)

    async def open(self, wanted: Iterable[WantedReplica]) -> list[Replica]:
        """Open or create these replicas, without a role; those that fail are offline."""
        opened = await self._open_all(wanted)
        for replica in opened:
            self._publish(replica)
            if (to := self._opener.moving.pop(replica.key, None)) is not None and replica.log is not None:
                self.moves.begin(replica, to)
        return opened

    def lost_power(self) -> set[LogDir | None]:
        """The log dirs with replicas that lost power and were not in sync since: the next start must see that too."""
        lost = set[LogDir | None]()
        for replica in self:
            if replica.power_lost:
                state = self._metadata.image.partition(*replica.key)
                if state is not None and state.leader >= 0 and self._broker_id in state.isr:
                    replica.power_lost = False  # it has caught up
                else:
                    lost.add(replica.directory)
        return lost

    async def name_boot(self) -> None:
        """Record the high watermarks, and with them the boot in which the logs are whole: a broker that is killed in
        this boot did not lose power."""
        await asyncio.get_running_loop().run_in_executor(self._workers, self.recorder.record_high_watermarks)

    def prefer(self, key: TopicPartition, log_dir: LogDir) -> None:
        """Create a partition's log in this log dir if it comes here later; see Opener."""
        self._opener.prefer(key, log_dir)

    def let_go(self, key: TopicPartition) -> None:
        """Drop a replica that could not be opened but may open now, so that it is opened as if for the first time."""
        replica = self._held.get(key)
        if replica is not None and replica.may_open:
            assert replica.directory is not None
            replica.directory.placed -= 1
            self._opener.begun[key] = replica.directory
            del self._held[key]

    async def _open_all(self, wanted: Iterable[WantedReplica]) -> list[Replica]:
        """Open replicas, on separate threads for each log dir."""
        shares: dict[LogDir, list[Opening]] = {}
        opened: list[Replica] = []
        settings: dict[str, tuple[TopicConfig, dict[str, int], RecordRules]] = {}
        for each in wanted:
            if each.key.topic not in settings:
                config = TopicConfig(self._config, each.config, stored=True)
                if config.problems:
                    reason = "; ".join(config.problems)
                    event(log, logging.WARNING, "settings ignored", topic=each.key.topic, reason=reason)
                settings[each.key.topic] = config, config.core(), RecordRules.of(config)
            replica = Replica(each.key, each.topic_id, *settings[each.key.topic], self._disk, self._broker_id)
            opened.append(replica)
            log_dir, made = self._opener.place(replica, each.directory, each.new)
            if log_dir is not None:
                log_dir.placed += 1
                shares.setdefault(log_dir, []).append(Opening(replica, each.sole_epoch, made))
        loop = asyncio.get_running_loop()
        work = []
        for log_dir, share in shares.items():
            new = all(opening.new for opening in share)
            threads = min(self._config["background.threads"] if new else self._threads, len(share))
            for i in range(threads):
                work.append(loop.run_in_executor(self._workers, self._opener.open_share, log_dir, share[i::threads]))
        await asyncio.gather(*work)
        self._held.update((replica.key, replica) for replica in opened)
        return opened

    async def configure(self, topics: Sequence[Topic]) -> None:
        """Apply the present settings of these topics, and the broker's defaults for them.

        On a thread, as it waits for running appends."""
        await asyncio.to_thread(self._configure, topics)

    def _configure(self, topics: Sequence[Topic]) -> None:
        held: dict[tuple[str, bytes], list[Replica]] = {}
        for replica in self:
            held.setdefault((replica.key.topic, replica.topic_id), []).append(replica)
        for topic in topics:
            if replicas := held.get((topic.name, topic.id)):
                settings = TopicConfig(self._config, topic.config, stored=True)
                rules, core_config = RecordRules.of(settings), settings.core()
                for replica in replicas:
                    replica.configure(settings, core_config, rules)

    # -- the native plane ------------------------------------------------------------------------------------------

    def native_plane(self, **limits: Any) -> core.Plane:
        """Create the plane that serves these replicas without Python. The caller must stop it before close()."""
        leader, follower = self.throttles
        self.plane = core.Plane(self._core, leader_throttle=leader, follower_throttle=follower, **limits)
        for replica in self:
            self._publish(replica)
        return self.plane

    def resize_plane(self, reactors: int, fetchers: int) -> None:
        """Change the numbers of plane threads for new client connections and for fetchers; nothing without a plane.
        Raises OSError and RuntimeError if no more threads can be started."""
        if self.plane is not None:
            self.plane.resize(reactors, fetchers)

    def plane_stats(self) -> "list[core.Reactor]":
        """The counters of each of the plane's reactors; empty without a plane."""
        return self.plane.stats() if self.plane is not None else []

    def divert(self, on: bool) -> None:
        """Have Python's handlers execute Produce and Fetch, or (False) the plane again; nothing without a plane."""
        if self.plane is not None:
            self.plane.divert(on)

    def queue_times(self) -> "list[core.Histogram]":
        """The times that requests waited in the plane for their execution in Python; empty without a plane."""
        return [self.plane.queue_times()] if self.plane is not None else []

    def disk_times(self) -> DiskTimes:
        """The durations of file calls."""
        return DiskTimes(self._core.sync_times(), self._core.append_times(), *self._core.cold_reads())

    def grown(self, key: int) -> None:
        """Handle the plane's notice that a watched partition grew."""
        replica = self._published.get(key)
        if replica is not None:
            replica.grown()

    def joining(self, key: int) -> None:
        """Handle the plane's notice that a follower outside a partition's ISR has caught up."""
        replica = self._published.get(key)
        if replica is not None:
            self._on_joining(replica)

    @property
    def is_native(self) -> bool:
        """True if there is a plane, which copies from leaders too."""
        return self.plane is not None

    def open_fetcher(self, fd: int, hear: Hear, **settings: Any) -> "core.LeaderConnection":
        """Have the plane copy from the leader at the other end of a socket, which the plane owns from now on. `hear` is
        called with the fetcher's messages."""
        assert self.plane is not None
        fetcher = core.LeaderConnection(self.plane, fd, **settings)
        self._fetchers[fetcher.key] = hear
        return fetcher

    def fetched(self, key: int, kind: str, letter: bytes | None) -> None:
        """Pass on a message of one of the plane's fetchers."""
        hear = self._fetchers.pop(key, None) if kind == "closed" else self._fetchers.get(key)
        if hear is not None:
            hear(kind, letter or b"")

    def _publish(self, replica: Replica) -> None:
        if self.plane is not None and replica.log is not None and not replica.gone:
            replica.plane = self.plane
            replica.plane_key = self.plane.publish(
                replica.log, native_append=replica.native_append, envelope=replica.rules.envelope
            )
            self._published[replica.plane_key] = replica

    async def truncate(self, replica: Replica, offset: int, leader_epoch: int) -> None:
        """Truncate a replica's log to `offset`, if it still follows in this leader epoch; the plane does not serve it
        meanwhile. One truncation at a time: a second one would publish the replica too early. Raises core.LogError,
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
                    replica.grown()  # the plane does not watch yet for requests that began to wait meanwhile
                    self._on_joining(replica)

    def _cut(self, replica: Replica, plane: "core.Plane | None", offset: int, leader_epoch: int) -> None:
        log = replica.partition()
        if plane is not None:
            plane.withdraw(log)
        while True:
            directory = replica.directory
            assert directory is not None
            with directory.cutting(replica.key, offset):
                if replica.directory is directory:  # else it has moved just now
                    log.truncate(offset, leader_epoch=leader_epoch)
                    return

    def _unpublish(self, replica: Replica) -> None:
        """Ignore the plane's notices about a replica from now on; the plane must still withdraw it."""
        if replica.plane is not None:
            replica.plane = None
            del self._published[replica.plane_key]

    # -- deleting --------------------------------------------------------------------------------------------------

    def deletable(self, key: TopicPartition) -> bool:
        """True if its files can be removed; files on a failed disk cannot, and would come back with it."""
        replica = self._held.get(key)
        if replica is not None and replica.log is not None:
            return not replica.log.offline
        return self.directory_of(key) is not None or len(self._opener.usable()) == len(self._dirs)

    async def remove(self, keys: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Unpublish replicas at once, wake waiting requests, then remove the files. Return the partitions whose files
        may come back with their disk."""
        gone = {key: self._held.pop(key, None) for key in keys}
        self._opener.forget(gone)
        moves = [move for key in gone if (move := self.moves.cancel(key)) is not None]
        for replica in gone.values():
            if replica is not None:
                replica.gone = True
                self._unpublish(replica)
                replica.tell()
                if replica.directory is not None:
                    replica.directory.placed -= 1
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._delete, gone, moves)

    def _delete(
        self, gone: Mapping[TopicPartition, Replica | None], moves: Iterable[LogDirMove]
    ) -> set[TopicPartition]:
        for move in moves:
            with move.deciding:  # from here on it does not switch, so that the directory stays the same
                pass
        return self._opener.delete(gone, self.plane)

    # -- upkeep, on the caller's thread ----------------------------------------------------------------------------

    def each(self, work: Callable[[core.Partition], object]) -> None:
        """Call `work` with every online log; an error is logged and does not stop the others."""
        self.each_replica(lambda replica: work(replica.partition()))

    def each_replica(self, work: Callable[[Replica], object], log_dir: LogDir | None = None) -> None:
        """Call `work` with every online replica of one log dir, or of all; an error is logged."""
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
        """The descriptors that segments have now, and the most that they may have; 0 for no limit."""
        return self._core.open_files, self._core.open_files_max

    def close_idle_files(self) -> None:
        """Close the files of sealed segments that were not read since the last call."""
        self._core.close_idle_files()

    def take_suspects(self) -> "list[tuple[core.Partition, int]]":
        """The segments in which reads met an invalid batch since the last call: (log, the segment's base offset)."""
        return self._core.take_suspects()

    def stop_cleaning(self) -> None:
        """Stop running compactions, as the broker is stopping."""
        self.ending = True
        self._core.stop_cleaning()

    def close(self) -> list[LogDir]:
        """Flush, record and close every log. Return the log dirs where all of that succeeded. Waits for the disk."""
        self.moves.stop()
        list(self._workers.map(_flush, self))
        self.recorder.record_log_starts({})
        self.recorder.record_recovery_points()
        self.recorder.record_high_watermarks()
        troubled = self.lost_power() | {r.directory for r in self if r.log is None or r.log.offline}
        self._workers.shutdown()
        self._disk.close()
        try:
            self._core.close()
        except (core.LogError, OSError) as problem:
            event(log, logging.ERROR, "logs not closed cleanly", reason=problem)
            return []
        finally:
            self._let_go()
        return [log_dir for log_dir in self._opener.usable() if log_dir not in troubled]

    def abandon(self) -> None:
        """Close every log as a crash would: nothing is flushed or recorded."""
        self.moves.stop()
        self._workers.shutdown()
        self._disk.close()
        self._core.close(clean=False)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the references to logs and plane, so that their files close without waiting for garbage collection."""
        self.plane = None
        self._published.clear()
        self._fetchers.clear()  # unhandled messages may refer to partitions
        for replica in self:
            replica.log, replica.plane, replica.failure = None, None, "the broker has stopped"

    # -- faults ----------------------------------------------------------------------------------------------------

    def arm(self, point: str, error: int, times: int) -> None:
        """Make a file call fail: at the failpoint `point` (core.FAILPOINTS) with this errno, this many times."""
        self._core.arm(point, "errno", error, times=times)

    def disarm(self) -> None:
        """Let all file calls succeed again."""
        self._core.disarm()


def _flush(replica: Replica) -> None:
    """Flush a log and write its checkpoints."""
    try:
        if replica.log is not None and not replica.log.offline:
            replica.log.flush()
            replica.log.write_checkpoints()
    except (core.LogError, OSError) as problem:
        event(log, logging.ERROR, "log not flushed", partition=replica.key, reason=problem)
