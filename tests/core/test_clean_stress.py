"""While a log is compacted, readers see whole batches in order, and no key loses its last value."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

from pybroker.core import LogError, LogManager, Partition, iter_batches
from tests.core.logs import NOW, TOPIC_ID, read_all
from tests.core.slow_clean import latest, one_round, stored
from tests.core.system.test_stress import Stress, through_a_socket
from tests.core.test_clean import put

CONFIG = {
    "cleanup.policy": 2,
    "segment.bytes": 3000,
    "index.interval.bytes": 200,
    "file.delete.delay.ms": 0,
}
KEYS = 50


class Rounds:
    """Compacts repeatedly and remembers how far it came."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.first_dirty = self.finished = 0

    def clean(self, chance: random.Random) -> None:
        done = one_round(self.partition, self.first_dirty, map_bytes=chance.choice([1000, 1 << 20]))
        if done is not None:
            self.first_dirty = done.first_dirty
            self.finished += 1


def check_answer(data: bytes, offset: int) -> None:
    expected = offset
    for at, header in iter_batches(data):
        assert header.last_offset >= expected if at == 0 else header.base_offset >= expected
        expected = header.last_offset + 1


def test_reads_and_appends_go_on_while_a_log_is_compacted(tmp_path: Path) -> None:
    """Reads, appends and old slices work during compaction, and a restart after a crash has the same records."""
    broker = LogManager(flush_idle_ms=1)
    p = broker.open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config=CONFIG)
    p.become_leader(0, 0)
    rounds, written = Rounds(p), dict[bytes, bytes]()

    def write(chance: random.Random) -> None:
        key = b"key-%d" % chance.randrange(KEYS)
        value = b"%d" % p.log_end_offset
        put(p, (key, value))
        written[key] = value

    def read(chance: random.Random) -> None:
        offset = chance.randint(0, p.log_end_offset)
        piece = p.read(offset, chance.choice([1, 500, 5000])).slice
        if piece is not None:
            data = through_a_socket(piece) if chance.random() < 0.5 else piece.tobytes()
            piece.close()
            check_answer(data, offset)

    def ask(chance: random.Random) -> None:
        assert p.segments()
        p.offset_for_timestamp(NOW - chance.randrange(2), bound=1 << 60)
        assert p.log_end_offset == 0 or p.max_timestamp() is not None

    def flush(chance: random.Random) -> None:
        p.flush()

    stress = Stress()
    stress.go(write)
    stress.go(rounds.clean)
    stress.go(flush, 0.01)
    for work in (read, read, ask):
        stress.go(work)
    stress.run()
    assert rounds.finished > 3
    assert latest(stored(read_all(p))) == written
    before, point = read_all(p), p.recovery_point
    broker.close(clean=False)
    p = (broker := LogManager()).open(str(tmp_path), "t", 0, topic_id=TOPIC_ID, config=CONFIG, recovery_point=point)
    assert (read_all(p), p.recovery) == (before, "")
    broker.close()


def test_a_log_that_goes_offline_is_not_compacted(tmp_path: Path) -> None:
    """A failed rename in the middle of a swap takes the log offline; the next start finishes the swap without loss."""
    for after in range(12):
        directory = tmp_path / str(after)
        directory.mkdir()
        broker = LogManager(flush_idle_ms=1)
        p = broker.open(str(directory), "t", 0, topic_id=TOPIC_ID, config={**CONFIG, "file.delete.delay.ms": 60000})
        p.become_leader(0, 0)
        for i in range(60):
            put(p, (b"key-%d" % (i % 5), b"%d" % i))
        p.roll()
        p.flush()
        broker.arm("segment.rename", "errno", 5, after=after)
        with contextlib.suppress(LogError, OSError):
            one_round(p)
        expected = {b"key-%d" % k: b"%d" % (55 + k) for k in range(5)}
        assert latest(stored(read_all(p))) == expected
        point = p.recovery_point
        broker.close(clean=False)
        broker = LogManager()
        p = broker.open(str(directory), "t", 0, topic_id=TOPIC_ID, config=CONFIG, recovery_point=point)
        assert latest(stored(read_all(p))) == expected
        broker.close()
