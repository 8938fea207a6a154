"""A slow disk delays only calls that need it: an append waits for its own write alone, a query in memory for none.

Each test makes one kind of file call sleep until it disarms the failpoint, starts a thread that makes such a call, and
continues once the thread sleeps there. Calls that must not wait have to end before the disk does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core
from pybroker.protocol.compression import compress, decompress
from tests.core.stage import REMEMBERED, STUCK_MS, Client, Stage, batch
from tests.harness import until

PATIENCE_S = 20
HOUR_MS = 3_600_000
SMALL = {"segment.bytes": 1000, "file.delete.delay.ms": 0}


class Disk:
    """A log whose disk can be made to hang."""

    def __init__(self, home: Path) -> None:
        self.home = str(home)
        self.broker = core.LogManager()
        self.log = self.open()
        self._threads: list[threading.Thread] = []

    def open(self, **how: Any) -> core.Partition:
        log = self.broker.open(self.home, "t", 0, topic_id=bytes(15) + b"\1", config=SMALL, **how)
        log.become_leader(0, 0)
        return log

    def fill(self) -> None:
        """Write three segments with a producer's batches and flush them."""
        for number in range(3):
            records = batch(bytes(600), producer_id=7, producer_epoch=0, base_sequence=number)
            self.log.append(records, now_ms=1)
        self.log.flush()

    def restart(self) -> None:
        self.broker.close()
        self.broker = core.LogManager()
        self.log = self.open(clean=True)

    def stick(self, point: str, work: Callable[[], object], under: str = "") -> threading.Thread:
        """Start `work` in a thread, and return when it sleeps at the failpoint."""
        self.broker.arm(point, "sleep", STUCK_MS, times=1000, under=under)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)
        until(f"something sleeps at {point}", lambda: self.broker.sleeping > 0, PATIENCE_S)
        return thread

    def at_once(self, what: str, work: Callable[[], object]) -> None:
        """Call `work`; fail if it does not end while the disk hangs."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        waits, asleep = thread.is_alive(), self.broker.sleeping
        if waits:
            self.broker.disarm()
            thread.join()
        assert not waits, f"{what} waits for the disk"
        assert asleep, "the disk went on before the call ended"

    def close(self) -> None:
        self.broker.disarm()
        for thread in self._threads:
            thread.join()
        self.broker.close(clean=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    made.fill()
    yield made
    made.close()


def asks(disk: Disk) -> None:
    """Call each query of a log that is answered from memory."""
    log = disk.log
    disk.at_once("a leader epoch", lambda: log.end_offset_for_epoch(0))
    disk.at_once("the epoch of an offset", lambda: log.epoch_at(0))
    disk.at_once("the list of epochs", log.epochs)
    disk.at_once("a change of settings", lambda: log.configure(SMALL))
    disk.at_once("a read", lambda: log.read(log.log_end_offset, 1000))


def retain(disk: Disk) -> Callable[[], object]:
    """Make all records older than retention.ms."""
    disk.log.configure({**SMALL, "retention.ms": 1})
    return lambda: disk.log.enforce_retention(HOUR_MS)


def retain_cold(disk: Disk) -> Callable[[], object]:
    """Retention after a start, when no segment was read yet."""
    disk.restart()
    return retain(disk)


def flush(disk: Disk) -> Callable[[], object]:
    disk.log.append(batch(b"x"), now_ms=1)
    disk.log.become_leader(1, 1)
    return disk.log.flush


def roll(disk: Disk) -> Callable[[], object]:
    """An append that rolls, which leaves a segment to the flusher."""
    return lambda: disk.log.append(batch(bytes(600), producer_id=7, producer_epoch=0, base_sequence=3), now_ms=1)


def look(disk: Disk) -> Callable[[], object]:
    disk.restart()
    return lambda: disk.log.offset_for_timestamp(1, bound=3)


def compact(disk: Disk) -> Callable[[], object]:
    for number in range(3, 6):
        disk.log.append(core.build_batch([(1, b"k", bytes(600), ())]), now_ms=number)
    disk.log.flush()
    return lambda: core.clean(
        disk.log, first_dirty=0, end=5, now_ms=1, delete_retention_ms=0, map_bytes=1 << 20,
        decompress=lambda codec, data: decompress(codec, data, 1 << 20), compress=compress,
    )  # fmt: skip


WORK: list[tuple[str, Callable[[Disk], Callable[[], object]]]] = [
    ("segment.read", retain_cold), ("segment.create", retain), ("roll.before", retain), ("roll.after", retain),
    ("snapshot.write", retain), ("snapshot.sync", retain), ("snapshot.rename", retain), ("segment.unlink", retain),
    ("directory.sync", retain), ("segment.sync", flush), ("index.write", flush), ("index.sync", flush),
    ("epoch.write", flush), ("epoch.sync", flush), ("epoch.rename", flush), ("directory.sync", flush),
    ("index.write", roll), ("snapshot.sync", roll), ("segment.read", look),
    ("clean.write", compact), ("clean.sync", compact), ("segment.rename", compact), ("segment.unlink", compact),
]  # fmt: skip


@pytest.mark.parametrize(("point", "work"), WORK, ids=[f"{work.__name__}-{point}" for point, work in WORK])
def test_an_append_waits_for_its_own_write_alone(
    disk: Disk, point: str, work: Callable[[Disk], Callable[[], object]]
) -> None:
    """Appends and queries go on while background work on the same partition hangs in a file call."""
    disk.stick(point, work(disk))
    end = disk.log.log_end_offset
    disk.at_once("an append", lambda: disk.log.append(batch(b"x"), now_ms=HOUR_MS))
    assert disk.log.log_end_offset == end + 1
    asks(disk)
    disk.at_once("the list of producers", disk.log.producers)


def test_what_is_in_memory_does_not_wait_for_an_append(disk: Disk) -> None:
    """Queries in memory are answered while an append hangs in its write."""
    disk.stick("segment.write", lambda: disk.log.append(batch(b"x"), now_ms=1))
    asks(disk)


def test_an_append_to_a_topic_that_is_deleted_is_refused_at_once(disk: Disk) -> None:
    """An append to a topic whose deletion hangs in the directory's rename is refused at once."""
    disk.stick("partition.rename", lambda: disk.broker.delete(disk.log))

    def refused() -> None:
        with pytest.raises(core.LogError, match="deleted"):
            disk.log.append(batch(b"x"), now_ms=1)

    disk.at_once("an append", refused)


def test_a_segment_that_retention_made_in_vain_is_removed(disk: Disk) -> None:
    """An empty segment file that retention left inside the active segment is removed at the next start."""
    disk.log.configure({**SMALL, "segment.bytes": 1 << 20})
    for _ in range(3):
        disk.log.append(batch(b"x"), now_ms=1)
    disk.log.roll()
    disk.log.append(batch(b"x"), now_ms=1)
    end = disk.log.log_end_offset
    disk.broker.close(clean=False)
    left = Path(disk.home, "t-0", f"{end - 2:020}.log")
    left.touch()
    disk.broker = core.LogManager()
    disk.log = disk.open()
    assert disk.log.log_end_offset == end and not left.exists()


def test_who_watches_is_told_of_a_batch_that_came_with_a_piece_of_the_next(tmp_path: Path) -> None:
    """A watcher is notified of a whole batch even if an incomplete one followed in the same answer."""
    stage = Stage(tmp_path)
    whole = batch(b"x")
    stage.log.become_follower(2, 0, 0)
    stage.plane.watch(stage.log)
    assert stage.log.append_replica(whole + batch(b"y", base_offset=1)[:20]) == 1
    assert [kind for kind, *_ in stage.plane.take()] == ["grown"]
    stage.close()


def test_python_does_not_stand_still_while_a_session_reads(tmp_path: Path) -> None:
    """Withdrawing a partition does not block Python while a session's Fetch of it waits for the disk."""
    stage = Stage(tmp_path)
    for _ in range(REMEMBERED + 1):
        stage.log.append(batch(b"x"), now_ms=1)
    client = Client(stage)
    client.fetch_in((0, 0), {0: 0, 1: 0})
    stage.step()
    session = client.receive(1, 12)[1].session_id
    stage.broker.arm("segment.read", "sleep", STUCK_MS)
    client.fetch_in((session, 1), {0: 0})
    reactor = threading.Thread(target=stage.step)
    reactor.start()
    until("the fetch waits for the disk", lambda: stage.broker.sleeping > 0, PATIENCE_S)
    withdrawing = threading.Thread(target=stage.plane.withdraw, args=(stage.partitions[1],))
    withdrawing.start()
    withdrawing.join(0.05)
    assert stage.broker.sleeping, "Python waited until the disk was done"
    stage.broker.disarm()
    withdrawing.join()
    reactor.join()
    stage.close()
