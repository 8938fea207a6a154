"""A log moves to another log dir while it is in use: the copy is the same to the byte, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.core import FutureLog, LogError, Partition, build_batch
from tests.core.logs import KAFKA_STORAGE_ERROR, NOW, Home, batch, code_of, read_all
from tests.core.slow_clean import one_round
from tests.core.test_transactions import end, write
from tests.core.transactional import ABORT
from tests.harness import until

SEGMENTED = {"segment.bytes": 4_000, "index.interval.bytes": 200}
STEP = 1 << 20


class Moving:
    """A partition in one log dir, and its copy in another."""

    def __init__(self, tmp_path: Path, config: dict[str, int] | None = None) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        self.left = tmp_path / "a" / f"t-0.{'0' * 32}-delete"
        self.to = tmp_path / "b" / "t-0"
        self.home = Home(tmp_path / "a", {**SEGMENTED, **(config or {})})
        self.partition = self.home.open()
        self.copy = self.begin()

    def begin(self) -> FutureLog:
        return FutureLog(self.partition, str(self.to.parent / f"t-0.{'0' * 32}-future"))

    def append(self, count: int = 1, of: int = 5) -> None:
        for _ in range(count):
            records = [(NOW, b"key %d" % i, b"v" * 50, []) for i in range(of)]
            self.partition.append(build_batch(records), now_ms=NOW)

    def catch_up(self) -> None:
        """Copy until nothing is left to do."""
        while self.copy.copy(STEP) >= 0:
            pass

    def switch(self) -> None:
        """Copy, settle and switch until it succeeds."""

        def switched() -> bool:
            self.catch_up()
            return self.copy.settle() and self.copy.switch(self.partition.log_start_offset, str(self.left))

        until("the log has moved", switched, every_s=0.001)

    def end(self) -> Partition:
        """Crash, and open the log where it is now."""
        self.home.crash()
        self.home.path = self.to.parent
        return self.home.open()


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_log_moves_with_all_that_it_is(tmp_path: Path) -> None:
    """Appends go on after the move; the old directory is gone, the files are the same, and a crash finds all."""
    moving = Moving(tmp_path)
    moving.append(40)
    moving.partition.flush()
    producer = (7, 0, 0)
    moving.partition.append(batch(3, producer=producer), now_ms=NOW)
    before = read_all(moving.partition)
    segments = {name: data for name, data in files(tmp_path / "a" / "t-0").items() if name.endswith(".log")}
    moving.switch()
    assert moving.partition.directory == str(moving.to) and moving.copy.switched
    assert not (tmp_path / "a" / "t-0").exists()
    assert {name: data for name, data in files(moving.to).items() if name.endswith(".log")} == segments
    assert not [name for name in files(moving.to) if name == "switching"]
    assert read_all(moving.partition) == before
    duplicate = moving.partition.append(batch(3, producer=producer), now_ms=NOW)
    assert duplicate.duplicate
    moving.append(40)
    moving.partition.flush()
    after = read_all(moving.partition)
    assert after.startswith(before) and len(after) > len(before)
    until("the old directory is removed", lambda: not moving.left.exists())
    assert read_all(moving.end()) == after
    moving.home.crash()


def test_the_transaction_index_moves_too(tmp_path: Path) -> None:
    """Aborted transactions of sealed segments and of the active one are indexed in the new directory as well."""
    moving = Moving(tmp_path)
    p = moving.partition
    for pid in (7, 8):
        write(p, pid, 0)
        end(p, pid, ABORT)
        if pid == 7:
            p.roll()
            p.flush()
    write(p, 9, 0)
    moving.switch()
    end(p, 9, ABORT)
    p.flush()
    entries = [(moving.to / f"{base:020}.txnindex").read_bytes() for base in (0, 2)]
    assert [len(data) // 34 for data in entries] == [1, 2]
    moving.home.crash()


@pytest.mark.parametrize("change", ["append", "roll", "retain", "truncate", "deep", "compact", "start"])
def test_what_changes_meanwhile_changes_in_the_copy(tmp_path: Path, change: str) -> None:
    """A copy follows appends, rolls, retention, truncations, compaction and DeleteRecords, in the middle of a file."""
    moving = Moving(tmp_path, {"cleanup.policy": 2} if change == "compact" else None)
    moving.append(60)
    moving.partition.flush()
    for _ in range(5):
        moving.copy.copy(1_500)
    do: dict[str, Callable[[], object]] = {
        "append": lambda: moving.append(5),
        "roll": moving.partition.roll,
        "retain": lambda: (moving.partition.set_log_start(120), moving.partition.enforce_retention(NOW)),
        "truncate": lambda: moving.partition.truncate(280),
        "deep": lambda: moving.partition.truncate(33),
        "compact": lambda: one_round(moving.partition),
        "start": lambda: moving.partition.set_log_start(7),
    }
    for _ in range(2):
        do[change]()
        moving.append(3, of=2)
        moving.catch_up()
    do[change]()
    moving.append(2, of=3)
    before, start = read_all(moving.partition), moving.partition.log_start_offset
    moving.switch()
    assert (read_all(moving.partition), moving.partition.log_start_offset) == (before, start)
    moving.partition.flush()
    moving.home.log_start = start
    assert read_all(moving.end()) == before
    moving.home.crash()


def test_a_stale_copy_is_refused(tmp_path: Path) -> None:
    """After a change the switch asks for another round: of a roll, a truncation, a raised log start."""
    moving = Moving(tmp_path)
    moving.append(30)
    changes = [moving.partition.roll, lambda: moving.partition.truncate(100), lambda: moving.partition.set_log_start(9)]
    for change in changes:
        moving.catch_up()
        until("the copy is settled", moving.copy.settle)
        start = moving.partition.log_start_offset
        moving.append()
        change()
        assert not moving.copy.switch(start, str(moving.left))
        assert moving.partition.directory == str(tmp_path / "a" / "t-0")
    moving.switch()
    moving.home.crash()


def test_a_deleted_log_is_not_switched(tmp_path: Path) -> None:
    moving = Moving(tmp_path)
    moving.append(30)
    moving.catch_up()
    assert moving.copy.settle()
    assert moving.home.broker is not None
    moving.home.broker.delete(moving.partition)
    with pytest.raises(LogError, match="was deleted"):
        while not moving.copy.switch(0, str(moving.left)):
            pass
    moving.home.crash()


@pytest.mark.parametrize(("point", "takes"), [("move.copy", 3), ("move.sync", 2), ("move.rename", 1)])
def test_a_disk_that_fails_under_the_copy(tmp_path: Path, point: str, takes: int) -> None:
    """The log goes on where it was; only the log dir of the copy is offline."""
    moving = Moving(tmp_path)
    moving.append(30)
    before = read_all(moving.partition)
    broker = moving.home.broker
    assert broker is not None
    broker.arm(point, "errno", 5)
    with pytest.raises(OSError):
        moving.switch()
    assert broker.log_dir_error(str(tmp_path / "b")) == 5
    assert broker.log_dir_error(str(tmp_path / "a")) == 0
    moving.append()
    assert len(read_all(moving.partition)) > len(before)
    with pytest.raises((LogError, OSError)):
        moving.switch()
    moving.home.crash()


def test_a_failed_farewell_takes_the_old_log_dir_offline(tmp_path: Path) -> None:
    """The log has moved, and keeps its mark, by which a start chooses it over what stayed."""
    moving = Moving(tmp_path)
    moving.append(30)
    broker = moving.home.broker
    assert broker is not None
    broker.arm("move.leave", "errno", 5)
    moving.switch()
    assert broker.log_dir_error(str(tmp_path / "a")) == 5 and broker.log_dir_error(str(tmp_path / "b")) == 0
    moving.append()
    assert (tmp_path / "a" / "t-0").exists() and (moving.to / "switching").exists()
    moving.home.crash()


def test_there_and_back_while_all_use_it(tmp_path: Path) -> None:
    """Producers, readers, syncs, retention and compaction go on while a log moves to and fro; no record is lost."""
    moving = Moving(tmp_path, {"segment.bytes": 500_000, "flush.messages": 1})
    done = threading.Event()
    problems: list[BaseException] = []
    partition = moving.partition

    def repeat(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                while not done.is_set():
                    work()
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def read() -> None:
        read_all(partition, 5_000)

    threads = [
        *(repeat(lambda: (moving.append(1), partition.flush())) for _ in range(2)),
        repeat(read),
        repeat(partition.flush),
        repeat(lambda: partition.offset_for_timestamp(NOW - 2, bound=-1)),
        repeat(lambda: moving.home.broker.close_idle_files()),  # type: ignore[union-attr]
        repeat(partition.write_checkpoints),
        repeat(lambda: moving.copy.progress),
    ]
    try:
        for turn in range(6):
            here, there = ("a", "b") if turn % 2 == 0 else ("b", "a")
            moving.to = tmp_path / there / "t-0"
            moving.left = tmp_path / here / f"t-0.{turn:032x}-delete"
            moving.copy = FutureLog(partition, str(tmp_path / there / f"t-0.{turn:032x}-future"))
            moving.switch()
            assert partition.directory == str(moving.to)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not problems, problems
    moving.partition.flush()
    whole = read_all(partition)
    moving.home.crash()
    assert read_all(moving.home.open()) == whole
    moving.home.crash()


def test_code_of_an_offline_log(tmp_path: Path) -> None:
    moving = Moving(tmp_path)
    moving.append(3)
    moving.catch_up()
    assert moving.copy.settle()
    assert moving.home.broker is not None
    moving.home.broker.fail_log_dir(str(tmp_path / "b"))
    assert code_of(lambda: moving.copy.switch(0, str(moving.left))) == KAFKA_STORAGE_ERROR
    moving.home.crash()
