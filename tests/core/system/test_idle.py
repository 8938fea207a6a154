"""More partitions than descriptors: idle segments are closed, and reopened when they are needed."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import core
from tests.core.logs import NOW, batch
from tests.harness import until

MOST = 24
MANY = 5 * MOST


class Logs:
    """Partitions 0, 1, ... of one topic, in a broker that may keep `most` segment files open."""

    def __init__(self, home: Path, most: int = MOST) -> None:
        self.home, self.most = home, most
        self.start()

    def start(self) -> None:
        self.broker = core.LogManager(open_files_max=self.most, flush_idle_ms=1)
        self.logs: list[core.Partition] = []

    def open(self, count: int = MANY, **how: Any) -> None:
        for number in range(len(self.logs), count):
            log = self.broker.open(str(self.home), "t", number, topic_id=bytes(15) + b"\1", config={}, **how)
            log.become_leader(0, 0)
            self.logs.append(log)

    def settle(self) -> None:
        """Wait until no more descriptors are open below the directory; the flusher opens one itself at times."""
        until("few are counted", lambda: self.broker.open_files <= self.most)
        until("few are open", lambda: self._descriptors() <= self.most)

    def _descriptors(self) -> int:
        return sum(str(self.home) in name for name in map(target, os.listdir("/proc/self/fd")))

    def close(self) -> None:
        self.broker.disarm()
        self.logs.clear()
        self.broker.close(clean=False)


def target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    made = Logs(tmp_path)
    yield made
    made.close()


def ends(logs: Logs) -> list[int]:
    return [log.log_end_offset for log in logs.logs]


def read(log: core.Partition, offset: int) -> bytes:
    found = log.read(offset, 1 << 20).slice
    assert found is not None
    with_bytes = found.tobytes()
    found.close()
    return with_bytes


def test_more_partitions_than_descriptors(logs: Logs) -> None:
    """Five times as many partitions as descriptors are created, written, read, flushed and reopened."""
    logs.open()
    logs.settle()
    for value in range(3):
        for number, log in enumerate(logs.logs):
            assert log.append(batch(1, size=10 + number), now_ms=NOW).base_offset == value
        logs.settle()
    before = [read(log, 0) for log in logs.logs]
    logs.settle()
    assert [log.offset_for_timestamp(NOW, bound=3) is not None for log in logs.logs] == [True] * MANY
    assert [log.flush() for log in logs.logs] == [3] * MANY
    logs.logs.clear()
    logs.broker.close()
    logs.start()
    logs.open(clean=True)
    assert ends(logs) == [3] * MANY
    assert [read(log, 0) for log in logs.logs] == before
    logs.settle()


def test_a_log_whose_file_is_closed_does_all_that_a_log_does(logs: Logs) -> None:
    """A log whose file is closed can still append, roll, flush, truncate, apply retention and look up."""
    logs.open()
    log = logs.logs[0]
    data = batch(4, size=100)
    for _ in range(4):
        log.append(data, now_ms=NOW)
    steps: list[Callable[[], object]] = [
        lambda: log.append(data, now_ms=NOW),
        log.roll,
        log.flush,
        lambda: log.truncate(12),
        lambda: log.append(data, now_ms=NOW),
        lambda: log.set_log_start(8),
        lambda: log.enforce_retention(NOW),
        log.max_timestamp,
    ]
    for step in steps:
        make_room_for(logs, log)
        step()
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (8, 16, 1)
    assert read(log, 12) == read(log, 8)[-len(data) :]


def make_room_for(logs: Logs, log: core.Partition) -> None:
    """Use the other logs until this log's files are closed."""
    data = batch(1)

    def is_closed() -> bool:
        for other in logs.broker.partitions():
            if other is not log:
                other.append(data, now_ms=NOW)
        return not any(target(fd).startswith(f"{log.directory}/") for fd in os.listdir("/proc/self/fd"))

    until("the log's files are closed", is_closed)


def test_a_slice_keeps_its_file(logs: Logs) -> None:
    """A segment file is not closed while a slice of it is held for a socket."""
    logs.open()
    logs.logs[0].append(batch(1, size=1000), now_ms=NOW)
    held = logs.logs[0].read(0, 1 << 20).slice
    assert held is not None
    whole = held.tobytes()
    for log in logs.logs[1:]:
        for _ in range(3):
            log.append(batch(1), now_ms=NOW)
    assert held.tobytes() == whole
    held.close()


def test_what_was_not_written_is_written_before_its_file_is_closed(logs: Logs) -> None:
    """A segment is flushed before its file is closed; if the flush fails, the log dir goes offline."""
    logs.open(MOST // 2)
    for log in logs.logs:
        log.append(batch(1), now_ms=NOW)
    logs.broker.arm("segment.sync", "errno", errno.EIO, times=1000)
    logs.open(MANY)
    for log in logs.logs[MOST // 2 :]:
        try:
            log.append(batch(1), now_ms=NOW)
        except core.LogError:
            break
    until("the log dir is offline", lambda: logs.broker.log_dir_error(str(logs.home)) == errno.EIO)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda directory: shutil.rmtree(directory), errno.ENOENT),
        (lambda directory: os.truncate(f"{directory}/{0:020}.log", 5), errno.EIO),
    ],
)
def test_a_file_that_is_lost_while_it_is_closed(logs: Logs, spoil: Callable[[str], None], error: int) -> None:
    """The log dir goes offline if a closed file was deleted or cut, and nothing is acknowledged into that file."""
    logs.open()
    log = logs.logs[0]
    log.append(batch(1), now_ms=NOW)
    make_room_for(logs, log)
    spoil(log.directory)
    with pytest.raises(OSError) as refused:
        log.append(batch(1), now_ms=NOW)
    assert refused.value.errno == error
    assert logs.broker.log_dir_error(str(logs.home)) == error and log.log_end_offset == 1


def test_without_a_descriptor_nothing_is_written_and_nothing_fails_for_good(logs: Logs) -> None:
    """An append or a read that gets no descriptor in time raises EMFILE; the log dir stays online."""
    logs.open()
    for log in logs.logs:
        log.append(batch(1), now_ms=NOW)
    held = []
    for log in logs.logs[: MOST + 1]:
        try:
            held.append(log.read(0, 1 << 20).slice)
        except OSError as problem:
            assert problem.errno == errno.EMFILE
    assert len(held) == MOST
    spare = logs.logs[-1]
    with pytest.raises(OSError) as refused:
        spare.append(batch(1), now_ms=NOW)
    assert refused.value.errno == errno.EMFILE
    waits = threading.Thread(target=lambda: spare.append(batch(1), now_ms=NOW))
    waits.start()
    for piece in held:
        assert piece is not None
        piece.close()
    waits.join(10)
    assert not waits.is_alive() and spare.log_end_offset == 2
    assert logs.broker.log_dir_error(str(logs.home)) == 0
