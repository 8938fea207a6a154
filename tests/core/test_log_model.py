"""A log equals its model after any operations in any order."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.core import Partition
from tests.core.logs import (
    MESSAGE_TOO_LARGE,
    NOW,
    OFFSET_OUT_OF_RANGE,
    RECORD_LIST_TOO_LARGE,
    Home,
    assert_windows,
    batch,
    code_of,
    read,
    read_all,
)
from tests.core.slow_log import SlowLog

STEPS = 150
MESSAGE_MAX = 500
CONFIGS = {
    "one segment, every batch indexed": {"segment.bytes": 1 << 20, "index.interval.bytes": 0},
    "small segments": {"segment.bytes": 400, "index.interval.bytes": 100},
    "small indexes": {"segment.bytes": 2000, "index.interval.bytes": 300, "segment.index.bytes": 40},
    "tiny segments, no index": {"segment.bytes": 150, "index.interval.bytes": 4096},
}
COMMON = {"retention.ms": -1, "retention.bytes": -1, "max.message.bytes": MESSAGE_MAX, "segment.ms": 1 << 62}
PRODUCER = 5


class Walk:
    """One partition and its model, through all operations of a broker."""

    def __init__(self, path: Path, config: dict[str, int], seed: int) -> None:
        self.random = random.Random(seed)
        self.model = SlowLog()
        self.home = Home(path, {**COMMON, **config})
        self.home.open(flush_idle_ms=1).become_leader(0, 0)
        self.epoch = self.sequence = 0
        self.steps: list[str] = []

    @property
    def partition(self) -> Partition:
        return self.home.partition

    def offset(self) -> int:
        """A random offset within the log, usually near its start or end."""
        start, end = self.model.start, self.model.end
        return self.random.choice(
            [start, end, max(start, end - self.random.randrange(9)), self.random.randint(start, end)]
        )

    def known_sequence(self) -> int:
        """The log's last sequence of the producer, which stays known when retention removed its batches."""
        known = {p[0]: p[2] for p in self.partition.producers()}.get(PRODUCER, -1)
        window = self.model.windows().get(PRODUCER)
        assert not window or known == window[-1].header.base_sequence + window[-1].header.last_offset_delta
        return known

    # -- operations ----------------------------------------------------------------------------------------------------

    def append(self) -> None:
        count, size = self.random.randint(1, 5), self.random.randrange(60)
        at = self.random.choice([-1, *(NOW + self.random.randint(-50, 50) for _ in range(5))])
        producer = self.random.choice([None, (PRODUCER, 0, self.sequence)])
        data = batch(count, size=size, at=at, producer=producer)
        self.steps[-1] += f"({count}, {size}, {at}, {producer})"
        if len(data) > MESSAGE_MAX or len(data) > self.home.config["segment.bytes"]:
            refusal = MESSAGE_TOO_LARGE if len(data) > MESSAGE_MAX else RECORD_LIST_TOO_LARGE
            assert code_of(self.partition.append, data, now_ms=NOW) == refusal
            return
        went = self.partition.append(data, now_ms=NOW)
        base = self.model.append(data, self.epoch)
        assert (went.base_offset, went.last_offset, went.duplicate) == (base, self.model.end - 1, False)
        self.sequence += count if producer else 0

    def lead(self) -> None:
        self.epoch += 1
        self.partition.become_leader(self.epoch, 0)

    def roll(self) -> None:
        self.partition.roll()

    def truncate(self) -> None:
        offset = self.offset()
        self.steps[-1] += f"({offset})"
        self.partition.truncate(offset)
        self.model.truncate(offset)
        self.sequence = self.known_sequence() + 1
        # A broker writes a recovery point that went back before it appends where the old tail was.
        self.home.recovery_point = min(self.home.recovery_point, self.partition.recovery_point)

    def delete_records(self) -> None:
        offset = self.offset()
        self.steps[-1] += f"({offset})"
        assert self.partition.set_log_start(offset) == offset
        self.model.delete_before(offset)
        self.home.checkpoint()  # as a broker does before it answers

    def retain(self) -> None:
        first = max(s[0] for s in self.partition.segments() if s[0] <= self.model.start)
        self.partition.enforce_retention(NOW)
        assert self.partition.segments()[0][0] == first
        self.model.drop_segments_before(first)
        self.home.checkpoint()

    def flush(self) -> None:
        assert self.partition.flush() == self.model.end

    def checkpoint(self) -> None:
        self.home.checkpoint()

    def reopen(self) -> None:
        clean = self.random.choice([True, False])
        self.steps[-1] += f"(clean={clean})"
        self.home.reopen(clean=clean, epoch_max=self.epoch, flush_idle_ms=1)
        self.partition.become_leader(self.epoch, 0)
        assert self.partition.recovery == ""
        self.check_all()

    # -- queries -------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        offset, most, minimum_one = self.offset(), self.random.choice([0, 1, 100, 300, 900]), self.random.random() < 0.7
        self.steps[-1] += f"({offset}, {most}, {minimum_one})"
        rolls = [s[0] for s in self.partition.segments()]
        got = read(self.partition, offset, most, minimum_one=minimum_one)
        assert got == self.model.read(offset, most, rolls, minimum_one=minimum_one)

    def read_out_of_range(self) -> None:
        for offset in (self.model.start - 1, self.model.end + 1, -1, 2**62, -(2**62)):
            assert code_of(self.partition.read, offset, 100) == OFFSET_OUT_OF_RANGE

    def find_time(self) -> None:
        at, bound = NOW + self.random.randint(-60, 60), self.offset()
        self.steps[-1] += f"({at}, {bound})"
        found = self.partition.offset_for_timestamp(at, bound=bound)
        assert (found and found[0]) == self.model.find_time(at, bound)

    def largest(self) -> None:
        found = self.partition.max_timestamp()
        assert (found and found[:2]) == self.model.largest()

    def epoch_of(self) -> None:
        offset = self.offset()
        self.steps[-1] += f"({offset})"
        held = [b.header.partition_leader_epoch for b in self.model.batches if b.base <= offset < b.end]
        assert not held or self.partition.epoch_at(offset) == held[0]

    def check_all(self) -> None:
        self.check_watermarks()
        assert read_all(self.partition) == b"".join(b.data for b in self.model.batches if b.end > self.model.start)
        assert self.known_sequence() in (self.sequence - 1, -1)
        self.sequence = self.known_sequence() + 1
        assert_windows(self.partition, self.model)

    def check_watermarks(self) -> None:
        p, m = self.partition, self.model
        assert (p.log_start_offset, p.last_stable_offset, p.high_watermark, p.log_end_offset) == (m.start, *[m.end] * 3)
        assert p.recovery_point <= m.end
        bases = [s[0] for s in p.segments()]
        assert bases == sorted(set(bases))

    def go(self, steps: int) -> None:
        asked: list[Callable[[], None]] = [
            self.read,
            self.read_out_of_range,
            self.find_time,
            self.largest,
            self.epoch_of,
        ]
        happens = [self.lead, self.roll, self.truncate, self.delete_records, self.retain, self.flush, self.checkpoint]
        for _ in range(steps):
            step = self.random.choice(
                [self.random.choice(asked), self.random.choice([*happens, self.reopen]), self.append]
            )
            self.steps.append(step.__name__)
            step()
            self.check_watermarks()
        self.check_all()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("config", CONFIGS)
def test_whatever_happens_the_log_is_the_models(tmp_path: Path, config: str, seed: int) -> None:
    walk = Walk(tmp_path, CONFIGS[config], seed)
    try:
        walk.go(STEPS)
    except BaseException as e:
        e.add_note("\n".join(walk.steps))
        raise
    finally:
        if walk.home.broker is not None:
            walk.home.crash()
