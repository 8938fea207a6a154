"""The directories of log.dirs: their owner, how the last run ended, and their checkpoints.

A directory is ours alone while its .lock is held. A torn or malformed checkpoint is ignored, with a warning: recovery
then starts from a safe default. Recovery points are recorded only after each partition's own checkpoints are durable,
so that after a crash in between the older point is found, and recovery scans a little more.
"""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypeVar

from pybroker import core
from pybroker.errors import StartError, system_words
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import Malformed, Meta, Offsets, Spot
from pybroker.replication.disks.directory_names import DELETED, KRAFT_LOG, PARTITION, SET_ASIDE
from pybroker.replication.disks.disk_space import DiskSpace
from pybroker.replication.disks.lock_file import LOCK, LockFile

log = logging.getLogger(__name__)

T = TypeVar("T")
Held = Callable[[], tuple[Sequence[core.Partition], Set[TopicPartition]]]
"""Returns a log dir's open partitions, and the keys that are offline: the recorded values of those are kept."""
DIRECTORY_MODE = 0o700
"""Only the broker's own user may read records, as they may be secret. As in core's vfs."""
OTHERS = 0o077
FULL = (errno.ENOSPC, errno.EDQUOT)


class FoundPartition(NamedTuple):
    """A partition's directory, with the recorded topic id and last leader epoch (-1: none)."""

    log_dir: "LogDir"
    topic_id: bytes | None
    leader_epoch: int


class LogDir:
    """One log dir, locked from open() to close().

    A log dir that fails stays offline until the next start, which checks all of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.core: core.LogManager | None = None  # the broker whose logs are here
        self._failure: str | None = None
        self._on_failed: Callable[[], object] = lambda: None
        self._lock = LockFile(path)
        self.space = DiskSpace(path)
        self._opened: os.stat_result | None = None  # the directory that the path named when it was opened
        self._store: tuple[str, os.stat_result] | None = None
        self.store_removed = False  # the coordination store's file was removed while in use
        self.clean = False
        self._marked = False  # .kafka_cleanshutdown exists
        self._same_boot = False
        self.meta: Meta | None = None
        self.id: str | None = None  # its directory.id, once that is on disk
        self._meta_text = ""
        self.recorded: dict[str, Offsets] = {name: {} for name in checkpoints.OFFSET_FILES}
        self.damage: checkpoints.Damage = {}  # the known bad spots of its logs
        self.placed = 0  # the number of partitions here
        self._expected: set[TopicPartition] = set()  # on their way here: what is recorded of them stays
        self._written: dict[str, str] = {}
        self._recording = {name: threading.RLock() for name in checkpoints.OFFSET_FILES}
        self._noting = threading.Lock()
        self._read_errors_told = 0

    # -- opening ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the directory if it is missing, lock it and read its meta.properties. Raises StartError, OSError."""
        absent = [path for path in (Path(self.path), *Path(self.path).parents) if not path.exists()]
        os.makedirs(self.path, DIRECTORY_MODE, exist_ok=True)
        for path in absent:
            _sync_names(path.parent)
        self._opened = os.stat(self.path)
        if not self._lock.take():
            raise StartError(
                f"another broker is using the data directory {self.path} (its {LOCK} is held): stop that broker, or "
                "give this one a directory of its own"
            )
        self._same_boot = self._lock.names_this_boot()
        self.space.open()
        try:
            self._meta_text = self._read(checkpoints.META) or ""
            self.meta = checkpoints.read_meta(self._meta_text) if self._meta_text else None
            self.id = self.meta.directory_id if self.meta is not None else None
        except (Malformed, UnicodeDecodeError) as problem:
            raise StartError(f"{self.path}/{checkpoints.META} cannot be used: {problem}") from None

    def tell_if_others_read(self) -> None:
        """Warn if other users can read the records here, as an older broker or Kafka created them. Raises OSError."""
        if os.stat(self.path).st_mode & OTHERS and any(
            os.stat(os.path.join(self.path, str(key))).st_mode & OTHERS for key in self.named()
        ):
            remedy = f"chmod -R go= {self.path}"
            event(log, logging.WARNING, "other users can read the data", directory=self.path, remedy=remedy)

    def recall(self) -> None:
        """Read the checkpoints of the last run, and whether it ended cleanly."""
        told = {name: self._told(name, checkpoints.read_offsets) for name in checkpoints.OFFSET_FILES}
        self.recorded = {name: offsets or {} for name, offsets in told.items()}
        self.damage = self._told(checkpoints.DAMAGE, checkpoints.read_damage) or {}
        points = Path(self.path, checkpoints.RECOVERY_POINTS)
        torn = points.exists() and told[checkpoints.RECOVERY_POINTS] is None
        if points.exists() and not points.stat().st_size:  # as Kafka creates it; a clean stop writes all logs
            torn = any(self.named())
        self._marked = Path(self.path, checkpoints.CLEAN_SHUTDOWN).exists()
        self.clean = self._marked and not torn  # if this checkpoint is torn, other files may be, too
        if self._marked and torn:
            self.forget_clean_stop()  # before the checkpoint is written again

    def forget_clean_stop(self) -> None:
        """Remove .kafka_cleanshutdown, before the first log is opened. Raises OSError; the log dir is offline then, as
        the next start would trust the file.

        Not earlier: a start that opens no log changes nothing."""
        with self._noting:
            if not self._marked:
                return
            with self._failing():
                Path(self.path, checkpoints.CLEAN_SHUTDOWN).unlink(missing_ok=True)
                _sync_names(self.path)
            self._marked = False

    @property
    def lost_power(self) -> bool:
        """True if the last run ended neither by a clean stop nor in this boot: what was not synced may be lost."""
        return not (self.clean or self._same_boot)

    def written(self, key: TopicPartition) -> int:
        """The offset below which a partition's records must be in its files."""
        recovery_point = self.recorded[checkpoints.RECOVERY_POINTS].get(key, 0)
        if self.lost_power:
            return recovery_point  # records that were not synced may be lost by a loss of power
        later = (self.recorded[name].get(key, 0) for name in (checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS))
        return max(recovery_point, *later)

    def _read(self, name: str) -> str | None:
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def sync(self) -> None:
        """Sync the directory, so that the names in it are durable. Raises OSError; the log dir is offline then."""
        with self._failing():
            _sync_names(self.path)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Take the log dir offline if the block raises OSError."""
        try:
            yield
        except OSError as problem:
            self.fail(_why_not(self.path, problem))
            raise

    def claim(self, meta: Meta) -> None:
        """Write meta.properties. On a full disk, a log dir that had one is used without an id. Raises OSError."""
        if self.meta == meta:
            return
        if self.meta is None and self.in_use:
            name = f"{self.path}/{checkpoints.META}"
            event(log, logging.WARNING, "missing file written again", file=name, broker=meta.broker_id)
        try:
            self._write(checkpoints.META, checkpoints.write_meta(meta, self._meta_text))
        except OSError as problem:
            if problem.errno not in FULL:
                self.fail(_why_not(self.path, problem))
            elif self.meta is None:
                raise
            event(log, logging.WARNING, "directory.id not recorded", directory=self.path, reason=problem)
        else:
            self.meta, self.id = meta, meta.directory_id

    @property
    def in_use(self) -> bool:
        """True if there are partitions in it. Raises OSError."""
        return any(self.named())

    @property
    def blank(self) -> bool:
        """True if it was never used: it has no meta.properties and no partitions. Raises OSError."""
        return self.meta is None and not self.in_use

    # -- failures ----------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """The reason why the log dir is offline; None while it is in use."""
        if self._failure is None and self.core is not None and (error := self.core.log_dir_error(self.path)):
            return os.strerror(error).lower()
        return self._failure

    @property
    def read_errors(self) -> int:
        """The number of failed reads; a failed read does not take the log dir offline."""
        return 0 if self.core is None else self.core.read_errors(self.path)

    def report_to(self, on_failed: Callable[[], object], on_space: Callable[[], object] = lambda: None) -> None:
        """Have `on_failed` called once when the log dir fails or its coordination store is removed, and `on_space` when
        the log dir becomes full or has room again; on any thread."""
        self._on_failed = on_failed
        self.space.report_to(on_space)

    def fail(self, reason: str) -> None:
        """Take the log dir offline, with all logs in it, and log the reason."""
        if self._failure is None:
            self._failure = reason
            if self.core is not None:
                self.core.fail_log_dir(self.path)
            event(log, logging.ERROR, "log dir offline", directory=self.path, reason=reason)
            self._on_failed()

    def check(self) -> None:
        """Check whether the disk failed, or the directory or a file in use was removed."""
        if self.core is None:
            return
        if (errors := self.core.read_errors(self.path)) != self._read_errors_told:
            self._read_errors_told = errors
            for partition, error in self.core.unread(self.path):
                why = os.strerror(error).lower()
                event(log, logging.ERROR, "read failed", directory=partition.directory, reason=why)
        if self._store is not None and not self.store_removed and not _names(*self._store):
            self.store_removed = True
            if self._failure is not None:
                self._on_failed()
        if self._failure is not None:
            return
        if reason := self.failure:
            self.fail(reason)
        elif not self._is_there():
            self.fail("the directory was removed, or another one is in its place")
        elif self.store_removed:
            self.fail("the coordination store was removed, or another file is in its place")
        elif lost := self.core.lost_file(self.path):
            self.fail(f"the files of {lost.topic}-{lost.partition} were removed while they were written to")

    def _is_there(self) -> bool:
        """True if the path still names the directory that was opened."""
        assert self._opened is not None
        return _names(self.path, self._opened)

    def keep_store(self, name: str) -> None:
        """Note the file of the coordination store, so that `check` finds its removal. Raises OSError."""
        path = os.path.join(self.path, name)
        self._store = path, os.stat(path)

    # -- contents --------------------------------------------------------------------------------------------------

    def named(self) -> Iterator[TopicPartition]:
        """Yield the partitions that subdirectories are named after. Raises OSError."""
        with os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for name in names:
            match = PARTITION.fullmatch(name)
            if match and match["topic"] != KRAFT_LOG:
                yield TopicPartition(match["topic"], int(match["partition"]))

    def partitions(self) -> Iterator[tuple[TopicPartition, FoundPartition]]:
        """Yield the partitions here, each with its recorded state. Raises OSError."""
        for key in self.named():
            name = str(key)
            topic_id = self._told(os.path.join(name, checkpoints.PARTITION_METADATA), checkpoints.read_topic_id)
            epoch = self._told(os.path.join(name, checkpoints.LEADER_EPOCHS), checkpoints.read_latest_epoch)
            yield key, FoundPartition(self, topic_id, -1 if epoch is None else epoch)

    def _told(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return a file's content; None if it is missing or, with a warning, if it is malformed."""
        try:
            text = self._read(name)
            return None if text is None else read(text)
        except (Malformed, UnicodeDecodeError) as problem:
            event(log, logging.WARNING, "file ignored", file=f"{self.path}/{name}", reason=problem)
            return None

    def deleted(self) -> list[str]:
        """Directories of deleted partitions that are not removed yet."""
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if DELETED.fullmatch(name)]

    def set_aside(self) -> list[str]:
        """Directories that are strays, or copies of logs: see unfinished_moves.py. Raises OSError."""
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if SET_ASIDE.fullmatch(name)]

    # -- recording -------------------------------------------------------------------------------------------------

    def record_recovery_points(self, held: Held) -> None:
        """Write each partition's own checkpoints, then the recovery points."""

        def safe(partition: core.Partition) -> int:
            partition.write_checkpoints()
            return partition.recovery_point

        self._record(checkpoints.RECOVERY_POINTS, held, safe)

    def record_log_starts(self, held: Held, raised: Mapping[core.Partition, int]) -> None:
        """Write the log starts that are above the first segment's base offset; the others follow from that segment. Log
        starts in `raised` are applied after they are written, so that no client sees a log start go back."""

        def start(partition: core.Partition) -> int | None:
            offset = max(partition.log_start_offset, raised.get(partition, 0))
            return offset if offset > partition.segments()[0][0] else None

        with self._recording[checkpoints.LOG_STARTS]:
            self._record(checkpoints.LOG_STARTS, held, start)
            for partition, offset in raised.items():
                if self.recorded[checkpoints.LOG_STARTS].get(_key(partition), -1) >= offset:
                    partition.set_log_start(offset)

    def record_high_watermarks(self, held: Held, whole: bool = True) -> None:
        """Write the high watermarks, and name the boot if the logs are `whole`: none lost its end with the power."""
        kept = self._record(checkpoints.HIGH_WATERMARKS, held, lambda partition: partition.high_watermark)
        if not kept and whole:  # a kept one may be from an earlier boot
            self._lock.name_boot()

    def _record(self, name: str, held: Held, tell: Callable[[core.Partition], int | None]) -> Offsets:
        """Replace a checkpoint. Return the kept values of offline replicas. The lock is held from the reading of the
        values on, so that no older values overwrite newer ones."""
        with self._recording[name]:
            partitions, offline = held()
            told = {_key(partition): tell(partition) for partition in partitions}
            kept = {k: offset for k, offset in self.recorded[name].items() if k in offline or k in self._expected}
            self._replace(name, kept | {key: offset for key, offset in told.items() if offset is not None})
            return kept

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Lock the checkpoints of offsets: nothing is recorded meanwhile, except by this thread."""
        with contextlib.ExitStack() as locked:
            for recording in self._recording.values():
                locked.enter_context(recording)
            yield

    @contextlib.contextmanager
    def expecting(self, key: TopicPartition) -> Iterator[None]:
        """Keep what is recorded of a replica that is about to move here."""
        self._expected.add(key)
        try:
            yield
        finally:
            self._expected.discard(key)

    def assign(self, name: str, key: TopicPartition, offset: int | None) -> None:
        """Replace what a checkpoint of offsets records of a replica; None: nothing. Raises OSError."""
        with self._recording[name]:
            others = {k: its for k, its in self.recorded[name].items() if k != key}
            self._replace(name, others if offset is None else others | {key: offset})

    @contextlib.contextmanager
    def cutting(self, key: TopicPartition, offset: int) -> Iterator[None]:
        """Lower the recorded offsets while a log is truncated to `offset`: else the next start would report the missing
        records as lost. Raises OSError."""
        self._lower(checkpoints.CLEANED, key, offset)
        points, high_watermarks = checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS
        with self._recording[points], self._recording[high_watermarks]:  # else older values may be recorded meanwhile
            self._lower(points, key, offset)
            self._lower(high_watermarks, key, offset)
            yield

    def lower(self, key: TopicPartition, offset: int) -> None:
        """Lower the recorded offsets to the log's end that this start found, so that the next start does not report the
        records as lost again. A failure is logged, and the log is used. Values from another boot are ignored anyway."""
        points = self.recorded[checkpoints.RECOVERY_POINTS]
        if self._same_boot or points.get(key, 0) > offset:
            try:
                for name in (checkpoints.CLEANED, checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS):
                    self._lower(name, key, offset)
            except OSError as problem:
                event(log, logging.ERROR, "checkpoint not written", directory=self.path, reason=problem)

    def _lower(self, name: str, key: TopicPartition, offset: int) -> None:
        with self._recording[name]:
            if self.recorded[name].get(key, offset) > offset:
                self._replace(name, self.recorded[name] | {key: offset})

    def record_cleaned(self, key: TopicPartition, first_dirty: int, is_gone: Callable[[], bool]) -> None:
        """Record the first dirty offset of a log, unless it was deleted: the entry would never be removed. Raises
        OSError."""
        with self._recording[checkpoints.CLEANED]:
            if not is_gone():
                self._replace(checkpoints.CLEANED, self.recorded[checkpoints.CLEANED] | {key: first_dirty})

    def record_damage(self, key: TopicPartition, spots: frozenset[Spot]) -> None:
        """Record the known bad spots of a log. Raises OSError."""
        with self._noting:
            if spots != self.damage.get(key, frozenset()):
                others = {other: its for other, its in self.damage.items() if other != key}
                self.damage = others | {key: spots} if spots else others
                self._write(checkpoints.DAMAGE, checkpoints.write_damage(self.damage))

    def forget(self, keys: Set[TopicPartition]) -> None:
        """Remove the records of deleted partitions, so that they do not apply to later partitions with the same names.
        Raises OSError."""
        for name, recording in self._recording.items():
            with recording:
                recorded = self.recorded[name]
                if any(key in recorded for key in keys):  # one look-up per key: this is called for each new partition
                    self._replace(name, {key: offset for key, offset in recorded.items() if key not in keys})
        for key in keys & self.damage.keys():
            self.record_damage(key, frozenset())

    def _replace(self, name: str, offsets: Offsets) -> None:
        self._write(name, checkpoints.write_offsets(offsets))
        self.recorded[name] = offsets

    def record_clean_stop(self, broker_epoch: int) -> None:
        """Write .kafka_cleanshutdown, as the last step of a stop: everything is flushed and recorded."""
        self._write(checkpoints.CLEAN_SHUTDOWN, checkpoints.write_clean_shutdown(broker_epoch))

    def _write(self, name: str, text: str) -> None:
        """Replace a file as a whole, unless it has this text; on a full disk, use the reserve. Raises OSError."""
        if self._written.get(name) == text:
            return
        write, path = core.write_atomic if self.core is None else self.core.write_atomic, os.path.join(self.path, name)
        try:
            write(path, text.encode())
        except OSError as problem:
            if not self.space.lacks(problem.errno):
                raise
            write(path, text.encode())
        self._written[name] = text

    def close(self) -> None:
        self._lock.close()


def _sync_names(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(path: str, opened: os.stat_result) -> bool:
    """True if a path still names the file that was opened by it."""
    try:
        return os.path.samestat(os.stat(path), opened)
    except OSError:
        return False


def _key(partition: core.Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _why_not(path: str, problem: OSError) -> str:
    """The reason why a directory cannot be used, from the system's error message."""
    if isinstance(problem, FileExistsError):
        return "it is not a directory"
    why = system_words(problem)
    return why if problem.filename in (None, path) else f"{problem.filename}: {why}"


def open_log_dirs(paths: Sequence[str]) -> list[LogDir]:
    """Lock and read the log dirs; one whose disk fails is offline. Raises StartError if none is left."""
    opened: list[LogDir] = []
    failures: dict[LogDir, str] = {}
    try:
        for path in dict.fromkeys(map(os.path.abspath, paths)):
            log_dir = LogDir(path)
            opened.append(log_dir)
            try:
                log_dir.open()
                log_dir.recall()
                log_dir.tell_if_others_read()
            except OSError as problem:
                failures[log_dir] = _why_not(path, problem)
        if len(failures) == len(opened):
            reasons = "; ".join(f"{log_dir.path}: {reason}" for log_dir, reason in failures.items())
            raise StartError(f"no log directory can be used ({reasons})")
        for log_dir, reason in failures.items():
            log_dir.fail(reason)
    except BaseException:
        for log_dir in opened:
            log_dir.close()
        raise
    return opened


def remove(directory: str) -> None:
    """Remove a directory that was renamed for deletion. A failure is logged; the next start tries again."""
    import shutil  # here, as it is rarely needed

    try:
        shutil.rmtree(directory)
    except OSError as problem:
        event(log, logging.ERROR, "directory not removed", directory=directory, reason=problem)
