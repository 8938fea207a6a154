"""Everything at once: readers see only whole batches at the right offsets, or an error if the log has changed."""

import contextlib
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.core import LogError, LogManager, Partition, Slice, iter_batches
from tests.core.logs import (
    KAFKA_STORAGE_ERROR,
    NOW,
    OFFSET_OUT_OF_RANGE,
    TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    batch,
)

SECONDS = float(os.environ.get("PYBROKER_STRESS_SECONDS", "3"))
CONFIG = {
    "segment.bytes": 2000,
    "index.interval.bytes": 100,
    "file.delete.delay.ms": 0,
    "retention.bytes": 20000,
    "retention.ms": -1,
}
TOLD = (OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR, UNKNOWN_TOPIC_OR_PARTITION)


class Stress:
    """Run workers until time is up or one of them fails; each runs at least once."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.until = 0.0
        self.failures: list[BaseException] = []
        self.threads: list[threading.Thread] = []
        self.rounds: dict[str, int] = {}

    def go(self, work: Callable[[random.Random], None], pause: float = 0) -> None:
        """Call `work` repeatedly in its own thread."""
        name = f"{work.__name__}-{len(self.threads)}"
        chance = random.Random(len(self.threads))

        def run() -> None:
            try:
                while not self.failures:
                    work(chance)
                    self.rounds[name] = self.rounds.get(name, 0) + 1
                    if time.monotonic() >= self.until:
                        return
                    time.sleep(pause * chance.random())
            except BaseException as e:
                self.failures.append(e)

        self.threads.append(threading.Thread(target=run, name=name))

    def run(self) -> None:
        self.until = time.monotonic() + self.seconds
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        idle = [t.name for t in self.threads if not self.rounds.get(t.name)]
        assert not idle


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Suppress errors that a reader or writer may get when the log changes under it."""
    try:
        yield
    except LogError as e:
        if e.code not in TOLD:
            raise


def check(data: bytes, offset: int) -> int:
    """Check that data is whole batches with good CRCs, the first holding offset and no gaps; return their end."""
    at, expected = 0, None
    for position, header in iter_batches(data):
        assert position == at
        assert expected is None or header.base_offset == expected
        assert expected is not None or header.base_offset <= offset <= header.last_offset
        expected, at = header.last_offset + 1, position + header.size
    assert at == len(data)
    assert expected is not None
    return expected


def through_a_socket(piece: Slice) -> bytes:
    """Send a slice through a socket as a broker does; return what the reader receives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        out = b""
        sent = 0
        while len(out) < len(piece):
            if sent < len(piece):
                sent += piece.send(ours.fileno(), sent)
            out += theirs.recv(1 << 16)
        return out


class Readers:
    """Ways to read a partition whose handle may be replaced."""

    def __init__(self, partition: Callable[[], Partition | None]) -> None:
        self.partition = partition

    def offset(self, chance: random.Random, p: Partition) -> int:
        start, end = p.log_start_offset, p.log_end_offset
        return chance.choice([start, max(start, end - chance.randrange(30)), chance.randint(start, max(start, end))])

    def read(self, chance: random.Random) -> None:
        """Read several answers from one offset on."""
        p = self.partition()
        if p is None:
            return
        offset = self.offset(chance, p)
        for _ in range(10):
            with told():
                found = p.read(offset, chance.choice([1, 500, 5000]))
                if found.slice is None:
                    return
                assert found.log_start_offset <= found.last_stable_offset <= found.high_watermark
                assert found.high_watermark <= found.log_end_offset
                try:
                    offset = check(found.slice.tobytes(), offset)
                finally:
                    found.slice.close()

    def send(self, chance: random.Random) -> None:
        """Hold slices for a while and then send them; a slice that was truncated meanwhile is refused."""
        p = self.partition()
        if p is None:
            return
        with told():
            offset = self.offset(chance, p)
            found = p.read(offset, 5000)
            if found.slice is None:
                return
            try:
                time.sleep(0.003 * chance.random())
                data = through_a_socket(found.slice)
                assert len(found.slice.tobytes()) == len(data)
                check(data, offset)
            finally:
                found.slice.close()

    def ask(self, chance: random.Random) -> None:
        """Look up by time and by epoch, and read everything that an operator may inspect."""
        p = self.partition()
        if p is None:
            return
        with told():
            at = NOW + chance.randrange(100)
            found = p.offset_for_timestamp(at, bound=1 << 62)
            assert found is None or found[1] >= at
            largest = p.max_timestamp()
            assert largest is None or largest[1] >= NOW
            bases = [s[0] for s in p.segments()]
            assert bases == sorted(set(bases))
            assert p.segment_count > 0
            assert p.size >= 0
            assert p.epoch_at(p.log_start_offset) in (-1, 0, 1, 2)
            p.producers()
            p.epochs()


class Writer:
    """An idempotent producer that continues at the end of the log."""

    def __init__(self, partition: Callable[[], Partition | None], pid: int) -> None:
        self.partition, self.pid = partition, pid

    def append(self, chance: random.Random) -> None:
        p = self.partition()
        if p is None:
            return
        sequence = {q[0]: q[2] for q in p.producers()}.get(self.pid, -1) + 1
        for _ in range(20):
            count = chance.randint(1, 4)
            data = batch(
                count, size=chance.randrange(200), at=NOW + chance.randrange(100), producer=(self.pid, 0, sequence)
            )
            try:
                went = p.append(data, now_ms=NOW)
            except LogError as e:
                assert e.code in (*TOLD, 45)  # a truncation removed the preceding batch
                return
            assert went.last_offset - went.base_offset + 1 == count
            sequence += count


def test_a_partition_under_everything(tmp_path: Path) -> None:
    """A partition stays sound under appends, reads, rolls, DeleteRecords, retention, truncation and flushes at once."""
    broker = LogManager(flush_idle_ms=1)
    p = broker.open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config=CONFIG)
    p.become_leader(0, 0)
    stress, readers = Stress(), Readers(lambda: p)
    for pid in range(3):
        stress.go(Writer(lambda: p, pid).append)
    for work in (readers.read, readers.read, readers.send, readers.send, readers.ask):
        stress.go(work)

    def roll(chance: random.Random) -> None:
        p.roll()
        p.become_leader(min(2, p.leader_epoch + 1), 0)

    def retain(chance: random.Random) -> None:
        before = p.log_start_offset
        p.enforce_retention(NOW)
        with told():
            p.set_log_start(min(p.high_watermark, p.log_start_offset + chance.randrange(20)))
        assert p.log_start_offset >= before

    def truncate(chance: random.Random) -> None:
        with told():
            p.truncate(max(p.log_start_offset, p.log_end_offset - chance.randrange(40)))

    def flush(chance: random.Random) -> None:
        p.flush()
        p.write_checkpoints()
        p.expire_producers(NOW)
        p.configure(CONFIG)

    stress.go(roll, 0.01)
    stress.go(retain, 0.01)
    stress.go(truncate, 0.05)
    stress.go(flush, 0.02)
    stress.run()
    assert not p.offline
    end, start = p.log_end_offset, p.log_start_offset
    broker.close(clean=False)
    p = (broker := LogManager()).open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config=CONFIG, log_start_offset=start)
    assert (p.log_start_offset, p.log_end_offset, p.recovery) == (start, end, "")
    broker.close()


def test_partitions_that_come_and_go(tmp_path: Path) -> None:
    """Partitions are deleted and recreated under the same name while readers hold the old handle and its slices."""
    broker = LogManager(flush_idle_ms=1)
    now: list[Partition | None] = [None]
    stress, readers = Stress(), Readers(lambda: now[0])
    generation = [0]

    def come_and_go(chance: random.Random) -> None:
        generation[0] += 1
        topic_id = generation[0].to_bytes(16, "big")
        p = broker.open(str(tmp_path), "t", 0, topic_id=topic_id, config=CONFIG)
        p.become_leader(0, 0)
        assert p.log_end_offset == 0
        now[0] = p
        time.sleep(0.02 * chance.random())
        now[0] = None
        broker.delete(p)

    def retain(chance: random.Random) -> None:
        p = now[0]
        if p is not None:
            with told():
                p.enforce_retention(NOW)
                p.roll()
                p.flush()

    stress.go(come_and_go)
    for pid in range(2):
        stress.go(Writer(lambda: now[0], pid).append)
    for work in (readers.read, readers.send, readers.ask, retain):
        stress.go(work)
    stress.run()
    until = time.monotonic() + 10
    while os.listdir(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert os.listdir(tmp_path) == []
    broker.close()


def test_ten_brokers_in_one_process(tmp_path: Path) -> None:
    """Ten brokers in one process share nothing: neither the content of a same-named topic nor failpoints."""
    brokers = [LogManager(flush_idle_ms=1) for _ in range(10)]
    partitions = []
    for i, broker in enumerate(brokers):
        (tmp_path / str(i)).mkdir()
        partitions.append(broker.open(str(tmp_path / str(i)), "t", 0, topic_id=TOPIC_ID, config=CONFIG))
        partitions[-1].become_leader(0, 0)
    stress = Stress(SECONDS / 3)
    for i, p in enumerate(partitions):
        stress.go(Writer(lambda p=p: p, i).append)  # type: ignore[misc]
        stress.go(Readers(lambda p=p: p).read)  # type: ignore[misc]
    brokers[0].arm("segment.sync", "sleep", 100, times=1000)
    stress.run()
    for i, p in enumerate(partitions):
        assert [q[0] for q in p.producers()] == [i]
    for broker in brokers:
        broker.disarm()
        broker.close()


def test_a_slice_outlives_everything(tmp_path: Path) -> None:
    """A slice stays readable until it is closed, though its segment, partition and broker are gone."""
    broker = LogManager(flush_idle_ms=1)
    p = broker.open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config={**CONFIG, "retention.bytes": 0})
    p.become_leader(0, 0)
    for _ in range(10):
        p.append(batch(2), now_ms=NOW)
    piece = p.read(4, 300).slice
    assert piece is not None
    before = piece.tobytes()
    p.enforce_retention(NOW)
    assert p.log_start_offset == 20
    broker.delete(p)
    broker.close()
    del p, broker
    assert piece.tobytes() == before
    assert through_a_socket(piece) == before
    piece.close()
    with pytest.raises(ValueError, match="closed"):
        piece.tobytes()
