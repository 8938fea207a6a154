"""What is wrong in a log dir that no broker uses, and how it is mended: for `pybroker doctor`.

Nothing that may hold a record is deleted: what is cut or replaced is kept beside, as *.damaged.
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from pybroker import core
from pybroker.cli import files, leftovers
from pybroker.cli.batches import Damage
from pybroker.cli.stored import STORE_FILE, Known, partitions_in, read
from pybroker.cli.trouble import Trouble, aside_of, hand_over, lost, put_aside
from pybroker.coordination.store import StoreDamaged, StoreFailed
from pybroker.model import TopicPartition
from pybroker.replication import checkpoints
from pybroker.replication.checkpoints import Offsets, Spot
from pybroker.replication.lock_file import LOCK
from pybroker.replication.opening import give_up

_SEGMENT: Final = re.compile(r"0[0-8][0-9]{18}\.log")


@contextlib.contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Hold a log dir as a broker does; False if one does."""
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


class Examination:
    """One log dir; `troubles()` looks at all of it."""

    def __init__(self, directory: Path, known: Known) -> None:
        """`known`: what the coordination store and the other log dirs know of it."""
        self._directory = directory
        self._known = known
        self._recorded: dict[str, Offsets] = {}
        self._damage: checkpoints.Damage = {}

    def troubles(self) -> Iterator[Trouble]:
        """Everything that is wrong; what is found of batches is judged by the checkpoints before it. Raises OSError."""
        yield from self._of_text(checkpoints.META, checkpoints.read_meta, "put it aside: it is made anew")
        for name in checkpoints.OFFSET_FILES:
            yield from self._of_text(name, checkpoints.read_offsets, "put it aside")
            self._recorded[name] = self._read(name, checkpoints.read_offsets) or {}
        yield from self._of_text(checkpoints.DAMAGE, checkpoints.read_damage, "put it aside")
        self._damage = self._read(checkpoints.DAMAGE, checkpoints.read_damage) or {}
        yield from self._of_missing_meta()
        yield from self._of_store()
        for key, path in partitions_in(self._directory):
            yield from self._of_partition(key, path)

    def _of_missing_meta(self) -> Iterator[Trouble]:
        path = self._directory / checkpoints.META
        if path.exists() or not any(partitions_in(self._directory)):
            return
        meta = self._known.meta_of(self._directory)
        if meta is None:
            cure = "look through all log dirs of the broker at once, or start it with the broker.id that it had"
            yield Trouble(path, "it is missing, and nothing here says of which broker it is", cure, None)
        else:
            cure = f"write it anew: broker {meta.broker_id} of the cluster {meta.cluster_id}"
            mend = partial(self._write, checkpoints.META, checkpoints.write_meta(meta))
            yield Trouble(path, "it is missing", cure, mend)

    def _read(self, name: str, read: Callable[[str], Any]) -> Any:
        try:
            return read((self._directory / name).read_text("utf-8"))
        except (FileNotFoundError, UnicodeDecodeError, checkpoints.Malformed):
            return None

    def _of_text(self, name: str, read: Callable[[str], object], cure: str) -> Iterator[Trouble]:
        path = self._directory / name
        try:
            read(path.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (UnicodeDecodeError, checkpoints.Malformed) as problem:
            yield Trouble(path, f"it cannot be used: {problem}", cure, lambda: put_aside(path))

    def _of_store(self) -> Iterator[Trouble]:
        path = self._directory / STORE_FILE
        try:
            read(self._directory)
        except StoreDamaged as problem:
            cure = "set it aside: the next start takes the topics over from the log dirs"
            yield Trouble(path, str(problem), cure, lambda: self._aside(path))
        except StoreFailed as problem:
            yield Trouble(path, str(problem), "see to it that it can be read: a start needs it", None)

    @staticmethod
    def _aside(path: Path) -> None:
        aside = aside_of(path)
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{suffix}", f"{aside}{suffix}")

    # -- one partition -----------------------------------------------------------------------------------------------

    def _of_partition(self, key: TopicPartition, directory: Path) -> Iterator[Trouble]:
        yield from leftovers.troubles(directory)
        names = sorted(os.listdir(directory))  # after what was mended
        for name in names:
            path = directory / name
            if path.suffix in (".index", ".timeindex"):
                kind = files.kind_of(path)
                assert kind is not None
                bad = next((item for item in kind.read(path, False) if isinstance(item, Damage)), None)
                if bad is not None:
                    what = f"the index is damaged at byte {bad.position}: {bad.reason}"
                    yield Trouble(path, what, "remove it: it is made anew", path.unlink)
        segments = [directory / name for name in names if _SEGMENT.fullmatch(name)]
        yield from self._of_head(key, directory, segments)
        end = 0
        for path, following in zip(segments, [*segments, None][1:], strict=True):
            next_base = -1 if following is None else int(following.stem)
            held = following is not None and following.stat().st_size > 0  # else a roll made it, which did not last
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

    def _of_head(self, key: TopicPartition, directory: Path, segments: list[Path]) -> Iterator[Trouble]:
        """A first segment that is missing: a start, too, knows where the log began."""
        path = directory / checkpoints.LEADER_EPOCHS
        try:
            began = checkpoints.read_first_offset(path.read_text("utf-8"))
        except FileNotFoundError:
            return
        except (UnicodeDecodeError, checkpoints.Malformed) as problem:
            cure = "put it aside: it is made anew"
            yield Trouble(path, f"it cannot be used: {problem}", cure, lambda: put_aside(path))
            return
        began = max(began, self._recorded[checkpoints.LOG_STARTS].get(key, 0))
        if segments and int(segments[0].stem) > began:
            there = int(segments[0].stem)
            what = f"the first segment is missing: the log began at {began}, its first file begins at {there}"
            yield Trouble(directory, what, f"put it back, or go on without its records: {give_up(key)}", None)

    def _of_gap(self, key: TopicPartition, path: Path, end: int, next_base: int) -> Iterator[Trouble]:
        """A segment that is missing, or its end; where a log was compacted, nobody knows."""
        if end > next_base:
            what = f"it ends at offset {end}, and the next segment begins at {next_base}: a start leaves {key} offline"
            yield Trouble(path, what, "put it back as it was, or move the one away that is wrong", None)
        elif end < next_base and next_base > self._recorded[checkpoints.LOG_STARTS].get(key, 0):
            if self._may_have_gaps(key):
                return
            what = f"it ends at offset {end}, and the next segment begins at {next_base}: what was between is missing"
            cure = f"put it back; or move what is before {next_base} away, and go on without: {give_up(key)}"
            yield Trouble(path, what, cure, None)

    def _may_have_gaps(self, key: TopicPartition) -> bool:
        """Was it compacted, here or, of a broker of a cluster, at a leader?"""
        meta = self._known.meta_of(self._directory)
        return key in self._recorded[checkpoints.CLEANED] or (meta is not None and meta.coordination_id is None)

    def _tail(self, path: Path, spot: Spot) -> Trouble:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are no sound batch, and none follows"
        cure = f"cut them off, kept in a file beside: the log ends at {spot.first}"
        return Trouble(path, what, cure, lambda: cut(path, spot))

    def _bad(self, key: TopicPartition, path: Path, spot: Spot) -> Trouble:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are no sound batch: "
        what += lost(spot)

        def note() -> None:
            self._damage = self._damage | {key: self._damage.get(key, frozenset()) | {spot}}
            self._write(checkpoints.DAMAGE, checkpoints.write_damage(self._damage))

        return Trouble(path, what, f"write it down in {checkpoints.DAMAGE}, so that reads pass it by", note)

    def _ahead(self, key: TopicPartition, end: int) -> Iterator[Trouble]:
        """Checkpoints that tell of more than there is: a start would miss segments."""
        for name in checkpoints.OFFSET_FILES:
            offset = self._recorded[name].get(key, 0)
            if offset > end:
                what = f"{key} is said to reach {offset}, and ends at {end}: the end of its log is missing"
                cure = f"go on at {end}, where its files are not to be had back"
                yield Trouble(self._directory / name, what, cure, partial(self._lower, name, key, end))

    def _lower(self, name: str, key: TopicPartition, end: int) -> None:
        self._recorded[name] = self._recorded[name] | {key: end}
        self._write(name, checkpoints.write_offsets(self._recorded[name]))

    def _write(self, name: str, text: str) -> None:
        core.write_atomic(str(self._directory / name), text.encode())
        hand_over(self._directory / name)


def _scan(path: Path, next_base: int, *, held: bool, compacted: bool) -> tuple[core.SegmentScan, list[Spot]]:
    """Scan a segment for what is bad. `held`: no batch may leap to the base of the next, which holds something.

    A batch with a wrong offset is one that those behind it do not follow, or one that does not follow those before it:
    of the two, that is believed which costs less. The last batch has the next segment behind it."""

    def look(strict: bool) -> tuple[int, core.SegmentScan, list[Spot]]:
        scan = core.SegmentScan(str(path), strict=strict, next_base=next_base if held else -1, log_end=next_base)
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
    """Copy a tail to <segment>.<position>.damaged, then cut it off; both are on disk at the end."""
    kept = aside_of(f"{path}.{spot.position}")
    with path.open("r+b") as log, kept.open("xb") as aside:
        hand_over(kept)
        log.seek(spot.position)
        shutil.copyfileobj(log, aside)
        aside.flush()
        os.fsync(aside.fileno())
        log.truncate(spot.position)
        os.fsync(log.fileno())
