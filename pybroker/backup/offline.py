"""Restores records into the log dirs of a stopped broker, at their offsets.

The topics are there, empty, as a broker created them. Each partition's log is built beside its directory, and all are
renamed into place when all are whole: a failure before leaves the log dirs as they were.

    orders-0.9c6f...-future/  built ──┐
    orders-0/                 empty ──┴─> orders-0.51d0...-delete/, which the next start removes, and orders-0/

The next start opens the logs as after a crash: it checks each batch, and writes indexes, leader epochs and snapshots.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from pybroker import errors
from pybroker.backup.batches import Advance, Fates
from pybroker.backup.manifest import PartitionBackup, TopicBackup
from pybroker.backup.rewriting import storable
from pybroker.backup.targets import Target
from pybroker.backup.verifying import file_pieces
from pybroker.core import BatchHeader, write_atomic
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.replication.disks.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    LOG_STARTS,
    META,
    OFFSET_FILES,
    PARTITION_METADATA,
    Malformed,
    read_offsets,
    write_offsets,
)
from pybroker.replication.disks.directory_names import NAME_MAX
from pybroker.replication.disks.lock_file import LockFile

_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_BUFFER_BYTES: Final = 4 << 20
_SEGMENT_BYTES: Final = 1 << 30
_SPAN_MAX: Final = (1 << 31) - 1
"""How far the last offset of a segment may be above its base, as indexes have it."""


class _Built(NamedTuple):
    """A log that is built: its first offset, None if it is empty, and if offsets are missing between its batches."""

    first: int | None
    gaps: bool


class RestoredLogs(NamedTuple):
    """The result of a restore into log dirs. `elsewhere`: partitions that are not in them."""

    partitions: Sequence[TopicPartition]
    elsewhere: Sequence[TopicPartition]
    size: int


class _Log(NamedTuple):
    """A log to build: its place, and the backup of its records."""

    tp: TopicPartition
    log_dir: Path
    source: PartitionBackup

    @property
    def directory(self) -> Path:
        return self.log_dir / str(self.tp)

    def beside(self, why: str) -> Path:
        """A new name for a directory that a broker takes for no partition."""
        mark = f"-{self.tp.partition}.{secrets.token_hex(16)}-{why}"
        return self.log_dir / (self.tp.topic[: NAME_MAX - len(mark)] + mark)


def restore_logs(
    target: Target, topics: Sequence[tuple[TopicBackup, str]], log_dirs: Sequence[Path],
    begin: Callable[[int], Advance],
) -> RestoredLogs:
    """Restore the partitions of topics, each under its new name, that lie in these log dirs.

    KafkaError if a broker uses them, a partition holds records, or none is there; OSError."""
    with contextlib.ExitStack() as locks:
        for log_dir in log_dirs:
            locks.enter_context(_locked(log_dir))
        logs, elsewhere = _found(topics, log_dirs)
        advance = begin(sum(log.source.size for log in logs))
        built: list[tuple[_Log, Path]] = []
        kinds: dict[TopicPartition, _Built] = {}
        try:
            for log in logs:
                built.append((log, log.beside("future")))
                kinds[log.tp] = _build(log, built[-1][1], target, advance)
            for log_dir in log_dirs:
                _forget(log_dir, [log for log in logs if log.log_dir == log_dir], kinds)
        except BaseException:
            for _, path in built:
                shutil.rmtree(path, ignore_errors=True)
            raise
        for log, path in built:
            os.rename(log.directory, log.beside("delete"))
            os.rename(path, log.directory)
        for log_dir in log_dirs:
            _sync(log_dir)
    return RestoredLogs([log.tp for log in logs], elsewhere, sum(log.source.size for log in logs))


@contextlib.contextmanager
def _locked(log_dir: Path) -> Iterator[None]:
    """Hold the lock of a log dir, as a broker does."""
    if not (log_dir / META).exists():
        raise KafkaError(errors.INVALID_CONFIG, f"{log_dir} is no log dir of a broker: it has no {META}")
    lock = LockFile(str(log_dir))
    if not lock.take():
        raise KafkaError(errors.INVALID_REQUEST, f"a broker is using {log_dir}: stop it first")
    try:
        yield
    finally:
        lock.close()


def _found(
    topics: Sequence[tuple[TopicBackup, str]], log_dirs: Sequence[Path]
) -> tuple[list[_Log], list[TopicPartition]]:
    """The partitions that are here, all of them empty, and those that are not."""
    logs, elsewhere = [], []
    for topic, name in topics:
        for source in topic.partitions:
            tp = TopicPartition(name, source.partition)
            log_dir = next((each for each in log_dirs if (each / str(tp)).is_dir()), None)
            if log_dir is None:
                elsewhere.append(tp)
                continue
            if any(path.stat().st_size for path in (log_dir / str(tp)).glob("*.log")):
                words = f"{log_dir / str(tp)} holds records: restore the topic under another name, by --as"
                raise KafkaError(errors.TOPIC_ALREADY_EXISTS, words)
            logs.append(_Log(tp, log_dir, source))
    if not logs:
        words = "while the broker runs, create them by `pybroker restore BACKUP --only topics`, then stop it"
        where = ", ".join(map(str, log_dirs))
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"none of the topics has a partition in {where}: {words}")
    return logs, elsewhere


# -- a log -------------------------------------------------------------------------------------------------------------


def _build(log: _Log, path: Path, target: Target, advance: Advance) -> _Built:
    """Write the segments of a log, and whose it is, into a new directory, durably."""
    path.mkdir(mode=_DIRECTORY_MODE)
    shutil.copyfile(log.directory / PARTITION_METADATA, path / PARTITION_METADATA)
    segments = _Segments(path)
    fates = Fates(log.source.aborted, log.source.open)
    try:
        for file in log.source.files:
            for piece in file_pieces(target, log.source, file):
                for batch, data in storable(piece, log.source.start_offset, fates):
                    segments.add(batch, data)
                advance(len(piece.data), len(piece.data))
    finally:
        segments.close()
    if not segments.bases:
        (path / f"{0:020}.log").touch(_FILE_MODE)
    for made in (path, *path.iterdir()):
        _give(made, log.log_dir)
        _sync(made)
    return _Built(segments.bases[0] if segments.bases else None, segments.gaps)


class _Segments:
    """The segments of a new log, as batches are added to it."""

    def __init__(self, directory: Path) -> None:
        self.bases: list[int] = []
        self.gaps = False
        self._end = -1
        self._directory = directory
        self._file: BinaryIO | None = None
        self._size = 0

    def add(self, batch: BatchHeader, data: memoryview) -> None:
        if self._file is None or self._is_full(batch, data):
            self.close()
            path = self._directory / f"{batch.base_offset:020}.log"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, _FILE_MODE), "wb", buffering=_BUFFER_BYTES)
            self.bases.append(batch.base_offset)
            self._size = 0
        self._file.write(data)
        self.gaps |= self._end not in (-1, batch.base_offset)
        self._end = batch.last_offset + 1
        self._size += len(data)

    def _is_full(self, batch: BatchHeader, data: memoryview) -> bool:
        return self._size + len(data) > _SEGMENT_BYTES or batch.last_offset - self.bases[-1] > _SPAN_MAX

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _give(path: Path, log_dir: Path) -> None:
    """Give a file to the owner of the log dir: root may run the command, but not the broker."""
    owner = log_dir.stat()
    if os.geteuid() == 0 and (owner.st_uid, owner.st_gid) != (0, 0):
        os.chown(path, owner.st_uid, owner.st_gid)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- what the log dir knows of it --------------------------------------------------------------------------------------


def _forget(log_dir: Path, logs: Sequence[_Log], built: Mapping[TopicPartition, _Built]) -> None:
    """Have the next start check the logs: without the mark of a clean stop, and without offsets of the empty ones. Note
    where they start, if that is inside their first batch, and that gaps in them are no damage, as after compaction."""
    if not logs:
        return
    (log_dir / CLEAN_SHUTDOWN).unlink(missing_ok=True)
    gone = {log.tp for log in logs}
    for name in OFFSET_FILES:
        path = log_dir / name
        try:
            known = read_offsets(path.read_text()) if path.exists() else {}
        except (Malformed, UnicodeDecodeError):  # the next start ignores it, too
            known = {}
        kept = {tp: offset for tp, offset in known.items() if tp not in gone}
        if name == LOG_STARTS:
            kept |= {log.tp: log.source.start_offset for log in logs if _starts_inside(log, built[log.tp])}
        elif name == CLEANED:
            kept |= {tp: built[tp].first or 0 for tp in gone if built[tp].gaps}
        if kept != known:
            write_atomic(str(path), write_offsets(kept).encode())
            _give(path, log_dir)
    _sync(log_dir)


def _starts_inside(log: _Log, built: _Built) -> bool:
    """True if the log starts behind the first record of its first batch."""
    return built.first is not None and built.first < log.source.start_offset
