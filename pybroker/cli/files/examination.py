"""Find damage in a log dir that no broker uses, and how to repair it, for `pybroker doctor`.

Nothing that may hold a record is deleted: a copy of what is cut or replaced stays beside it, as *.damaged.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pybroker import core
from pybroker.cli.files import data_files, stray_files
from pybroker.cli.files.batches import Damage
from pybroker.cli.files.finding import Finding, aside_of, hand_over, lost_offsets, put_aside
from pybroker.cli.files.store_metadata import STORE_FILE, KnownLogDirs, partitions_in, read
from pybroker.coordination.store import StoreDamaged, StoreFailed
from pybroker.model import TopicPartition
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import Offsets, Spot
from pybroker.replication.disks.lock_file import LOCK
from pybroker.replication.opening import give_up

_SEGMENT: Final = re.compile(r"0[0-8][0-9]{18}\.log")


@contextlib.contextmanager
def hold_log_dir(directory: Path) -> Iterator[bool]:
    """Lock a log dir as a broker does; yield False if a broker has locked it."""
    new = not os.path.lexists(directory / LOCK)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if new:
            hand_over(directory / LOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)

T = TypeVar("T")


class Examination:
    """The examination of one log dir; `findings()` examines all of it."""

    def __init__(self, directory: Path, known: KnownLogDirs) -> None:
        """`known` is what the coordination store and the other log dirs record about this one."""
        self._directory = directory
        self._known = known
        self._recorded: dict[str, Offsets] = {}
        self._damage: checkpoints.Damage = {}

    def findings(self) -> Iterator[Finding]:
        """Yield everything that is wrong: checkpoints first, as batches are compared with them. Raises OSError."""
        yield from self._of_text(checkpoints.META, checkpoints.read_meta, "put it aside: the broker rebuilds it")
        for name in checkpoints.OFFSET_FILES:
            yield from self._of_text(name, checkpoints.read_offsets, "put it aside")
            self._recorded[name] = self._read(name, checkpoints.read_offsets) or {}
        yield from self._of_text(checkpoints.DAMAGE, checkpoints.read_damage, "put it aside")
        self._damage = self._read(checkpoints.DAMAGE, checkpoints.read_damage) or {}
        yield from self._of_missing_meta()
        yield from self._of_store()
        for key, path in partitions_in(self._directory):
            yield from self._of_partition(key, path)

    def _of_missing_meta(self) -> Iterator[Finding]:
        path = self._directory / checkpoints.META
        if path.exists() or not any(partitions_in(self._directory)):
            return
        meta = self._known.meta_of(self._directory)
        if meta is None:
            cure = "examine all log dirs of the broker together, or start the broker with its former broker.id"
            yield Finding(path, "it is missing, and no other file here names the broker", cure, None)
        else:
            cure = f"rewrite it: broker {meta.broker_id} of the cluster {meta.cluster_id}"
            mend = partial(self._write, checkpoints.META, checkpoints.write_meta(meta))
            yield Finding(path, "it is missing", cure, mend)

    def _read(self, name: str, read: Callable[[str], T]) -> T | None:
        try:
            return read((self._directory / name).read_text("utf-8"))
        except (FileNotFoundError, UnicodeDecodeError, checkpoints.Malformed):
            return None

    def _of_text(self, name: str, read: Callable[[str], object], cure: str) -> Iterator[Finding]:
        path = self._directory / name
        try:
            read(path.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (UnicodeDecodeError, checkpoints.Malformed) as problem:
            yield Finding(path, f"it cannot be used: {problem}", cure, lambda: put_aside(path))

    def _of_store(self) -> Iterator[Finding]:
        path = self._directory / STORE_FILE
        try:
            read(self._directory)
        except StoreDamaged as problem:
            cure = "put it aside: the next start takes the topics over from the log dirs"
            yield Finding(path, str(problem), cure, lambda: self._aside(path))
        except StoreFailed as problem:
            yield Finding(path, str(problem), "make it readable: a start needs it", None)

    @staticmethod
    def _aside(path: Path) -> None:
        aside = aside_of(path)
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")

    # -- one partition -----------------------------------------------------------------------------------------------

    def _of_partition(self, key: TopicPartition, directory: Path) -> Iterator[Finding]:
        yield from stray_files.findings(directory)
        names = sorted(os.listdir(directory))  # after the repairs
        for name in names:
            path = directory / name
            if path.suffix in (".index", ".timeindex"):
                kind = data_files.kind_of(path)
                assert kind is not None
                bad = next((item for item in kind.read(path, False) if isinstance(item, Damage)), None)
                if bad is not None:
                    what = f"the index is damaged at byte {bad.position}: {bad.reason}"
                    yield Finding(path, what, "remove it: the broker rebuilds it", path.unlink)
        segments = [directory / name for name in names if _SEGMENT.fullmatch(name)]
        yield from self._of_head(key, directory, segments)
        end = 0
        for path, following in zip(segments, [*segments, None][1:], strict=True):
            next_base = -1 if following is None else int(following.stem)
            held = (
                following is not None and following.stat().st_size > 0
            )  # an empty segment after it may be from a roll that did not complete
            scan, spots = _scan(path, next_base, held=held, compacted=self._may_have_gaps(key))
            end = max(end, scan.end_offset)
            for spot in spots:
                if following is None and spot.end == scan.size:
                    yield self._tail(path, spot)
                elif spot not in self._damage.get(key, ()):
                    yield self._bad(key, path, spot)
            if following is not None and (held or scan.end_offset < next_base):
                yield from self._of_gap(key, path, scan.end_offset, next_base)
        yield from self._ahead(key, end)

    def _of_head(self, key: TopicPartition, directory: Path, segments: list[Path]) -> Iterator[Finding]:
        """Find a missing first segment; a start, too, knows the log's start offset."""
        path = directory / checkpoints.LEADER_EPOCHS
        try:
            began = checkpoints.read_first_offset(path.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (UnicodeDecodeError, checkpoints.Malformed) as problem:
            cure = "put it aside: the broker rebuilds it"
            yield Finding(path, f"it cannot be used: {problem}", cure, lambda: put_aside(path))
            return
        began = max(began, self._recorded[checkpoints.LOG_STARTS].get(key, 0))
        if segments and int(segments[0].stem) > began:
            there = int(segments[0].stem)
            what = f"the first segment is missing: the log began at {began}, its first file begins at {there}"
            yield Finding(directory, what, f"restore it, or go on without its records: {give_up(key)}", None)

    def _of_gap(self, key: TopicPartition, path: Path, end: int, next_base: int) -> Iterator[Finding]:
        """Find a missing segment or segment tail between two segments; a compacted log may have gaps."""
        if end > next_base:
            what = f"it ends at offset {end}, and the next segment begins at {next_base}: a start leaves {key} offline"
            yield Finding(path, what, "restore it, or move the wrong one away", None)
        elif end < next_base and next_base > self._recorded[checkpoints.LOG_STARTS].get(key, 0):
            if self._may_have_gaps(key):
                return
            what = f"it ends at offset {end}, and the next segment begins at {next_base}: offsets between are missing"
            cure = f"restore them; or move the segments before {next_base} away, and go on: {give_up(key)}"
            yield Finding(path, what, cure, None)

    def _may_have_gaps(self, key: TopicPartition) -> bool:
        """True if the partition may be compacted, here or by its leader in a cluster."""
        meta = self._known.meta_of(self._directory)
        return key in self._recorded[checkpoints.CLEANED] or (meta is not None and meta.coordination_id is None)

    def _tail(self, path: Path, spot: Spot) -> Finding:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are not a valid batch, and none follows"
        cure = f"cut them off, keeping a copy in a file beside: the log then ends at {spot.first}"
        return Finding(path, what, cure, lambda: cut(path, spot))

    def _bad(self, key: TopicPartition, path: Path, spot: Spot) -> Finding:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are not a valid batch: "
        what += lost_offsets(spot)

        def note() -> None:
            self._damage = self._damage | {key: self._damage.get(key, frozenset()) | {spot}}
            self._write(checkpoints.DAMAGE, checkpoints.write_damage(self._damage))

        return Finding(path, what, f"record it in {checkpoints.DAMAGE}, so that reads skip it", note)

    def _ahead(self, key: TopicPartition, end: int) -> Iterator[Finding]:
        """Find checkpoints beyond the end of the log: segments are missing."""
        for name in checkpoints.OFFSET_FILES:
            offset = self._recorded[name].get(key, 0)
            if offset > end:
                what = f"the offset of {key} is {offset}, but its log ends at {end}: the last segments are missing"
                cure = f"restore its files, or go on at {end}"
                yield Finding(self._directory / name, what, cure, partial(self._lower, name, key, end))

    def _lower(self, name: str, key: TopicPartition, end: int) -> None:
        self._recorded[name] = self._recorded[name] | {key: end}
        self._write(name, checkpoints.write_offsets(self._recorded[name]))

    def _write(self, name: str, text: str) -> None:
        core.write_atomic(str(self._directory / name), text.encode())
        hand_over(self._directory / name)


def _scan(path: Path, next_base: int, *, held: bool, compacted: bool) -> tuple[core.SegmentScan, list[Spot]]:
    """Scan a segment for bad spots. `held`: the next segment is not empty, so no batch may reach its base offset.

    A batch with a wrong offset disagrees with the batches before it or after it; of the two readings, the one that
    loses fewer bytes is chosen. For the last batch, the next segment decides."""

    def look(strict: bool) -> tuple[int, core.SegmentScan, list[Spot]]:
        scan = core.SegmentScan(
            str(path), strict=strict, next_base=next_base if held else -1, log_end=next_base
        )
        spots = [Spot(scan.base_offset, *found) for found in scan.step()]
        return sum(spot.end - spot.position for spot in spots), scan, spots

    bad, scan, spots = look(False)
    elsewhere = not compacted and next_base >= 0 and scan.end_offset != next_base
    if bad or elsewhere:
        strictly_bad, strictly, its = look(True)
        if strictly_bad < bad or (its and not bad):
            return strictly, its
    return scan, spots


def cut(path: Path, spot: Spot) -> None:
    """Copy a tail to <segment>.<position>.damaged, then cut it off; both changes are synced to disk."""
    kept = aside_of(f"{path}.{spot.position}")
    with path.open("r+b") as log, kept.open("xb") as aside:
        hand_over(kept)
        log.seek(spot.position)
        shutil.copyfileobj(log, aside)
        aside.flush()
        os.fsync(aside.fileno())
        log.truncate(spot.position)
        os.fsync(log.fileno())
