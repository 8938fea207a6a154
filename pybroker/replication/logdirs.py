"""The directories of log.dirs: whose they are, how they were left, and what they record between two lives.

A directory is ours alone while its .lock is held. A checkpoint that is torn or malformed is as good as none: recovery
then starts from what is safe, with a warning. Recovery points are recorded only after each partition's own checkpoints
are durable, so that a crash in between finds the older point and scans a little more.
"""

import contextlib
import errno
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple, TypeVar

from pybroker import core, errors
from pybroker.errors import KafkaError, system_words
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication import checkpoints
from pybroker.replication.checkpoints import Malformed, Meta, Offsets, Spot
from pybroker.replication.disk_space import DiskSpace
from pybroker.replication.lock_file import LOCK, LockFile

log = logging.getLogger(__name__)

T = TypeVar("T")
Held = Callable[[], tuple[Sequence[core.Partition], Set[TopicPartition]]]
"""Tells the partitions of a log dir that are open now, and which keys are offline: what is recorded of those stays."""
DIRECTORY_MODE = 0o700
"""Records may be secrets: only the broker's own user may read them. As in core's vfs."""
OTHERS = 0o077
FULL = (errno.ENOSPC, errno.EDQUOT)
KRAFT_LOG = "__cluster_metadata"
"""Kafka's own metadata log: its directory looks like a partition and is none of ours."""
_PARTITION = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})")
_DELETED = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-delete")
_SET_ASIDE = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(future|stray)")


class StartError(KafkaError):
    """The broker cannot start here; the message is one sentence for the person who started it."""

    def __init__(self, message: str) -> None:
        super().__init__(errors.BROKER_NOT_AVAILABLE, message)


class Found(NamedTuple):
    """A partition's directory and what is on record: topic id and last leader epoch (-1: none)."""

    log_dir: "LogDir"
    topic_id: bytes | None
    leader_epoch: int


class LogDir:
    """One log dir, locked from open() to close().

    Offline is for good: what a failed disk says later is not believed before the next start looks at all of it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.core: core.Broker | None = None  # whose logs lie here
        self._failure: str | None = None
        self.on_failed: Callable[[], object] = lambda: None  # called once, on whatever thread finds it failed
        self._lock = LockFile(path)
        self.space = DiskSpace(path)
        self._opened: os.stat_result | None = None  # the directory that the path named when it was opened
        self._store: tuple[str, os.stat_result] | None = None
        self.store_removed = False  # it was removed while it was written to
        self.clean = False
        self._marked = False  # the mark of a clean stop is there
        self._same_boot = False
        self.meta: Meta | None = None
        self.id: str | None = None  # its directory.id, once that is on disk
        self._meta_text = ""
        self.recorded: dict[str, Offsets] = {name: {} for name in checkpoints.OFFSET_FILES}
        self.damage: checkpoints.Damage = {}  # the bad spots of its logs that are known
        self.placed = 0  # partitions that lie here
        self._written: dict[str, str] = {}
        self._recording = {name: threading.RLock() for name in checkpoints.OFFSET_FILES}
        self._noting = threading.Lock()
        self._read_errors_told = 0

    # -- taking it -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create it if need be, lock it and read whose it is. Raises StartError; OSError where the disk fails."""
        absent = [path for path in (Path(self.path), *Path(self.path).parents) if not path.exists()]
        os.makedirs(self.path, DIRECTORY_MODE, exist_ok=True)
        for path in absent:
            _sync_names(path.parent)
        self._opened = os.stat(self.path)
        if not self._lock.take():
            raise StartError(
                f"another broker is using the data directory {self.path} (its {LOCK} is held): stop that one, or give "
                "this one a directory of its own"
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
        """Say so if other users can read records that lie here: an older broker or Kafka made them. Raises OSError."""
        if os.stat(self.path).st_mode & OTHERS and any(
            os.stat(os.path.join(self.path, str(key))).st_mode & OTHERS for key in self._named()
        ):
            remedy = f"chmod -R go= {self.path}"
            event(log, logging.WARNING, "other users can read the data", directory=self.path, remedy=remedy)

    def recall(self) -> None:
        """Read how the last life ended."""
        told = {name: self._told(name, checkpoints.read_offsets) for name in checkpoints.OFFSET_FILES}
        self.recorded = {name: offsets or {} for name, offsets in told.items()}
        self.damage = self._told(checkpoints.DAMAGE, checkpoints.read_damage) or {}
        points = Path(self.path, checkpoints.RECOVERY_POINTS)
        torn = points.exists() and told[checkpoints.RECOVERY_POINTS] is None
        if points.exists() and not points.stat().st_size:  # as Kafka makes it; a stop writes of each log
            torn = any(self._named())
        self._marked = Path(self.path, checkpoints.CLEAN_SHUTDOWN).exists()
        self.clean = self._marked and not torn  # who tore that checkpoint may have torn more
        if self._marked and torn:
            self.forget_clean_stop()  # before that checkpoint is written anew

    def forget_clean_stop(self) -> None:
        """Before the first log is opened: a start that opened none has changed nothing. Raises OSError; the log dir is
        offline then, for the next start would believe the mark."""
        with self._noting:
            if not self._marked:
                return
            with self._failing():
                Path(self.path, checkpoints.CLEAN_SHUTDOWN).unlink(missing_ok=True)
                _sync_names(self.path)
            self._marked = False

    def written(self, key: TopicPartition) -> int:
        """The offset below which a partition's records cannot be gone, unless their files are."""
        recovery_point = self.recorded[checkpoints.RECOVERY_POINTS].get(key, 0)
        if not (self.clean or self._same_boot):
            return recovery_point  # what was not on disk went with the machine's power
        later = (self.recorded[name].get(key, 0) for name in (checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS))
        return max(recovery_point, *later)

    def _read(self, name: str) -> str | None:
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def sync(self) -> None:
        """Make the names in it durable. Raises OSError; it is offline then."""
        with self._failing():
            _sync_names(self.path)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """What fails in here takes it offline. Raises OSError."""
        try:
            yield
        except OSError as problem:
            self.fail(_why_not(self.path, problem))
            raise

    def claim(self, meta: Meta) -> None:
        """Record whose it is from now on. One that was somebody's may go without an id for lack of space. OSError."""
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
        """Partitions lie in it. Raises OSError."""
        return any(self._named())

    @property
    def blank(self) -> bool:
        """Nothing in it says that it was ever used. Raises OSError."""
        return self.meta is None and not self.in_use

    # -- when it fails -----------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        """Why it is offline; None while it is in use."""
        if self._failure is None and self.core is not None and (error := self.core.log_dir_error(self.path)):
            return os.strerror(error).lower()
        return self._failure

    @property
    def read_errors(self) -> int:
        """Reads that the disk failed; they are errors of those reads alone."""
        return 0 if self.core is None else self.core.read_errors(self.path)

    def fail(self, reason: str) -> None:
        """Take it offline, with everything that lies here, and say so."""
        if self._failure is None:
            self._failure = reason
            if self.core is not None:
                self.core.fail_log_dir(self.path)
            event(log, logging.ERROR, "log dir offline", directory=self.path, reason=reason)
            self.on_failed()

    def check(self) -> None:
        """See whether the disk failed, or the directory or what is written to was taken from beneath the broker."""
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
                self.on_failed()
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
        """Does the path still name the directory that was opened?"""
        assert self._opened is not None
        return _names(self.path, self._opened)

    def keep_store(self, name: str) -> None:
        """The coordination store is open in this file: what is written to it must stay where it is. Raises OSError."""
        path = os.path.join(self.path, name)
        self._store = path, os.stat(path)

    # -- what lies in it -------------------------------------------------------------------------------------------

    def _named(self) -> Iterator[TopicPartition]:
        """The partitions that directories are named by. Raises OSError."""
        with os.scandir(self.path) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
        for name in names:
            match = _PARTITION.fullmatch(name)
            if match and match["topic"] != KRAFT_LOG:
                yield TopicPartition(match["topic"], int(match["partition"]))

    def partitions(self) -> Iterator[tuple[TopicPartition, Found]]:
        """The directories that are partitions. Raises OSError."""
        for key in self._named():
            name = str(key)
            topic_id = self._told(os.path.join(name, checkpoints.PARTITION_METADATA), checkpoints.read_topic_id)
            epoch = self._told(os.path.join(name, checkpoints.LEADER_EPOCHS), checkpoints.read_latest_epoch)
            yield key, Found(self, topic_id, -1 if epoch is None else epoch)

    def _told(self, name: str, read: Callable[[str], T]) -> T | None:
        """What a file says; None if it is not there or, with a warning, if it is no use."""
        try:
            text = self._read(name)
            return None if text is None else read(text)
        except (Malformed, UnicodeDecodeError) as problem:
            event(log, logging.WARNING, "file ignored", file=f"{self.path}/{name}", reason=problem)
            return None

    def deleted(self) -> list[str]:
        """Directories whose deletion was decided and is not finished."""
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if _DELETED.fullmatch(name)]

    def set_aside(self) -> list[str]:
        """Directories that Kafka set aside as strays or as copies under way; they are left alone."""
        return [os.path.join(self.path, name) for name in os.listdir(self.path) if _SET_ASIDE.fullmatch(name)]

    # -- recording -------------------------------------------------------------------------------------------------

    def record_recovery_points(self, held: Held) -> None:
        """Write each partition's own checkpoints, then how far it is safely on disk."""

        def safe(partition: core.Partition) -> int:
            partition.write_checkpoints()
            return partition.recovery_point

        self._record(checkpoints.RECOVERY_POINTS, held, safe)

    def record_log_starts(self, held: Held, raised: Mapping[core.Partition, int]) -> None:
        """Write the log starts that lie in a segment; the others are told by the first segment. Those that are to be
        `raised` are so once they are written: who has seen a log start will never see a lower one."""

        def start(partition: core.Partition) -> int | None:
            offset = max(partition.log_start_offset, raised.get(partition, 0))
            return offset if offset > partition.segments()[0][0] else None

        with self._recording[checkpoints.LOG_STARTS]:
            self._record(checkpoints.LOG_STARTS, held, start)
            for partition, offset in raised.items():
                if self.recorded[checkpoints.LOG_STARTS].get(_key(partition), -1) >= offset:
                    partition.set_log_start(offset)

    def record_high_watermarks(self, held: Held) -> None:
        kept = self._record(checkpoints.HIGH_WATERMARKS, held, lambda partition: partition.high_watermark)
        if not kept:  # else one may tell of more than a loss of power left
            self._lock.name_boot()

    def _record(self, name: str, held: Held, tell: Callable[[core.Partition], int | None]) -> Offsets:
        """Replace what is recorded; one at a time from the look on, so that no older look is written after a newer.
        Returns what stays as it was: of what is offline."""
        with self._recording[name]:
            partitions, offline = held()
            told = {_key(partition): tell(partition) for partition in partitions}
            kept = {key: offset for key, offset in self.recorded[name].items() if key in offline}
            self._replace(name, kept | {key: offset for key, offset in told.items() if offset is not None})
            return kept

    @contextlib.contextmanager
    def cutting(self, key: TopicPartition, offset: int) -> Iterator[None]:
        """While a log is cut back to an offset: nothing that is recorded says that it had more, or the next start would
        miss that. Raises OSError."""
        self._lower(checkpoints.CLEANED, key, offset)
        points, high_watermarks = checkpoints.RECOVERY_POINTS, checkpoints.HIGH_WATERMARKS
        with self._recording[points], self._recording[high_watermarks]:  # else one may be recorded as it was before
            self._lower(points, key, offset)
            self._lower(high_watermarks, key, offset)
            yield

    def lower(self, key: TopicPartition, offset: int) -> None:
        """A start found that a log ends there: the next one is not to miss more. It does not go by what was recorded in
        another boot of the machine. Where this fails it is told, and the log is used."""
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
        """Write up to where a log is compacted, unless it was deleted: nobody would forget it again. Raises OSError."""
        with self._recording[checkpoints.CLEANED]:
            if not is_gone():
                self._replace(checkpoints.CLEANED, self.recorded[checkpoints.CLEANED] | {key: first_dirty})

    def record_damage(self, key: TopicPartition, spots: frozenset[Spot]) -> None:
        """Write down what is known to be bad in a log. Raises OSError."""
        with self._noting:
            if spots != self.damage.get(key, frozenset()):
                others = {other: its for other, its in self.damage.items() if other != key}
                self.damage = others | {key: spots} if spots else others
                self._write(checkpoints.DAMAGE, checkpoints.write_damage(self.damage))

    def forget(self, keys: Set[TopicPartition]) -> None:
        """These partitions are gone: what is recorded of them is not to be taken for what is of the next ones of their
        names. Raises OSError."""
        for name, recording in self._recording.items():
            with recording:
                recorded = self.recorded[name]
                if any(key in recorded for key in keys):  # as many look-ups as keys: each new partition is one
                    self._replace(name, {key: offset for key, offset in recorded.items() if key not in keys})
        for key in keys & self.damage.keys():
            self.record_damage(key, frozenset())

    def _replace(self, name: str, offsets: Offsets) -> None:
        self._write(name, checkpoints.write_offsets(offsets))
        self.recorded[name] = offsets

    def record_clean_stop(self, broker_epoch: int) -> None:
        """The last thing written in a life: everything is flushed and recorded."""
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
    """Does a path still name what was opened by it?"""
    try:
        return os.path.samestat(os.stat(path), opened)
    except OSError:
        return False


def _key(partition: core.Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)


def _why_not(path: str, problem: OSError) -> str:
    """Why a directory cannot be used, in the system's words."""
    if isinstance(problem, FileExistsError):
        return "it is not a directory"
    why = system_words(problem)
    return why if problem.filename in (None, path) else f"{problem.filename}: {why}"


def open_log_dirs(paths: Sequence[str]) -> list[LogDir]:
    """Lock and read the log dirs; one whose disk fails is left out of use. Raises StartError if none is left."""
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


def owner(log_dirs: Iterable[LogDir]) -> Meta:
    """Whose the log dirs are. Raises StartError where they disagree."""
    found = Meta(None, None)
    for log_dir in log_dirs:
        meta = log_dir.meta or Meta(None, None)
        for field, mine, other in zip(("cluster.id", "broker.id"), meta, found, strict=False):
            if mine is not None and other is not None and mine != other:
                raise StartError(
                    f"the log directories belong to different brokers: {log_dir.path} has {field} {mine}, "
                    f"another has {other}"
                )
        found = Meta(meta.cluster_id or found.cluster_id, found.broker_id if meta.broker_id is None else meta.broker_id)
    return found


def remove(directory: str) -> None:
    """Remove a partition's directory that was renamed for it. What fails is logged, and done at the next start."""
    import shutil  # on a thread, and seldom

    try:
        shutil.rmtree(directory)
    except OSError as problem:
        event(log, logging.ERROR, "directory not removed", directory=directory, reason=problem)
