"""What is wrong in a log dir that no broker uses, and how it is mended: for `pybroker doctor`.

Nothing that may hold a record is deleted: what is cut or replaced is kept beside, as *.damaged.
"""

import contextlib
import fcntl
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from pybroker import core
from pybroker.cli import files, leftovers
from pybroker.cli.batches import Damage
from pybroker.cli.stored import STORE_FILE, Known, partitions_in
from pybroker.cli.trouble import ASIDE, Trouble, put_aside
from pybroker.model import TopicPartition
from pybroker.replication import checkpoints
from pybroker.replication.checkpoints import Offsets, Spot

_SEGMENT: Final = re.compile(r"[0-9]{20}\.log")


@contextlib.contextmanager
def held(directory: Path) -> Iterator[bool]:
    """Hold a log dir as a broker does; False if one does."""
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
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
        if not path.exists():
            return
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=0)) as store:
                (said,) = store.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.DatabaseError as problem:
            said = str(problem)
        if said != "ok":
            cure = "set it aside: the next start takes the topics over from the log dirs"
            what = f"the coordination store is damaged: {' '.join(said.split())}"
            yield Trouble(path, what, cure, lambda: self._aside(path))

    @staticmethod
    def _aside(path: Path) -> None:
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{path}{suffix}", f"{path}{ASIDE}{suffix}")

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
        strict = False  # the settings of the topic, which say whether it may be compacted, are not asked here
        end = 0
        for path, following in zip(segments, [*segments, None][1:], strict=True):
            next_base = -1 if following is None else int(following.stem)
            scan = core.SegmentScan(str(path), strict=strict, next_base=next_base)
            spots = [Spot(scan.base_offset, *found) for found in scan.step()]
            end = scan.end_offset
            for spot in spots:
                if following is None and spot.end == scan.size:
                    yield self._tail(path, spot)
                elif spot not in self._damage.get(key, ()):
                    yield self._bad(key, path, spot)
        yield from self._ahead(key, end)

    def _tail(self, path: Path, spot: Spot) -> Trouble:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are no sound batch, and none follows"
        cure = f"cut them off, kept in a file beside: the log ends at {spot.first}"
        return Trouble(path, what, cure, lambda: cut(path, spot))

    def _bad(self, key: TopicPartition, path: Path, spot: Spot) -> Trouble:
        what = f"{spot.end - spot.position} bytes at position {spot.position} are no sound batch: "
        what += f"the offsets {spot.first}..{spot.next - 1} are lost"

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


def cut(path: Path, spot: Spot) -> None:
    """Copy a tail to <segment>.<position>.damaged, then cut it off; both are on disk at the end."""
    with path.open("r+b") as log, open(f"{path}.{spot.position}{ASIDE}", "wb") as aside:
        log.seek(spot.position)
        shutil.copyfileobj(log, aside)
        aside.flush()
        os.fsync(aside.fileno())
        log.truncate(spot.position)
        os.fsync(log.fileno())
