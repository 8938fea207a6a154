"""A partition's transactions equal their model after any history: data, markers, high watermarks, truncations, restarts
and crashes."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from pybroker.core import Partition
from tests.core.logs import NOW, Home, batch
from tests.core.slow_transactions import DATA, PLAIN, Known, SlowTransactions, as_java_reads
from tests.core.transactional import ABORT, COMMIT, data

PRODUCERS = 5
CONFIGS = {
    "one segment": {"segment.bytes": 1 << 20, "index.interval.bytes": 0},
    "small segments": {"segment.bytes": 700, "index.interval.bytes": 200},
    "tiny segments": {"segment.bytes": 200, "index.interval.bytes": 4096},
}


class Story:
    """A led partition with one follower, and its model."""

    def __init__(self, path: Path, config: dict[str, int], seed: int) -> None:
        self.random = random.Random(seed)
        self.model = SlowTransactions()
        self.home = Home(path, {"retention.ms": -1, "retention.bytes": -1, "segment.ms": 1 << 62, **config})
        self.epoch = 0
        self.epochs = dict.fromkeys(range(PRODUCERS), 0)
        self.coordinator_epoch = 0
        self.beheaded = False
        """Segments were removed, and the log was replayed since: transactions begin in the first segment that is left,
        unless a snapshot knows better."""
        self.home.open(flush_idle_ms=1)
        self.lead()

    @property
    def partition(self) -> Partition:
        return self.home.partition

    def lead(self) -> None:
        self.epoch += 1
        self.partition.become_leader(self.epoch, 0, followers=[2])

    def write(self) -> None:
        """Data of a producer, in its transaction; or plain, if it has none."""
        pid, count = self.random.randrange(PRODUCERS), self.random.randint(1, 3)
        known = self.model.producers().get(pid)
        epoch = self.epochs[pid]
        sequence = known.last_sequence + 1 if known and known.epoch == epoch else 0
        if not (known and known.since >= 0) and self.random.random() < 0.2:
            went = self.partition.append(batch(count, producer=(pid, epoch, sequence)), now_ms=NOW)
            assert went.base_offset == self.model.write(pid, PLAIN, count, epoch=epoch)
            return
        guard = self.partition.verify(pid, epoch, sequence)
        assert (guard == 0) == bool(known and known.since >= 0)
        sent = data(pid, sequence, count, epoch=epoch)
        went = self.partition.append(sent, now_ms=NOW, guard=guard)
        assert went.base_offset == self.model.write(pid, DATA, count, epoch=epoch)

    def end(self) -> None:
        pid, kind = self.random.randrange(PRODUCERS), self.random.choice([ABORT, COMMIT])
        self.epochs[pid] += self.random.random() < 0.2
        self.coordinator_epoch += self.random.random() < 0.1
        went = self.partition.append_marker(
            pid, self.epochs[pid], self.coordinator_epoch, kind == COMMIT, now_ms=NOW
        ).base_offset
        mine = self.model.write(pid, kind, epoch=self.epochs[pid], coordinator_epoch=self.coordinator_epoch)
        assert went == mine

    def replicate(self) -> None:
        offset = self.random.randint(self.model.high_watermark, self.model.end)
        self.partition.note_fetch(2, offset, leader_epoch=self.partition.leader_epoch, now_ms=0)
        self.model.high_watermark = offset

    def roll(self) -> None:
        self.partition.roll()

    def flush(self) -> None:
        """With something to flush, so that the index files are written."""
        assert self.partition.append(batch(), now_ms=NOW).base_offset == self.model.write(-1, PLAIN)
        self.partition.flush()
        entries = []
        for path in self.home.files(".txnindex"):
            entries += [tuple(rest) for _, *rest in struct.iter_unpack(">hqqqq", path.read_bytes())]
        first = self.partition.segments()[0][0]
        if not self.beheaded:
            assert entries == [entry for entry in self.model.index() if entry[2] >= first]

    def truncate(self) -> None:
        floor = max(self.model.start, self.model.high_watermark if self.random.random() < 0.8 else 0)
        if self.partition.segments()[0][0] > 0:  # a snapshot knows what the segments had that are gone
            floor = max([floor, *(int(path.stem) for path in self.home.files(".snapshot"))])
            if floor > self.model.end or not self.home.files(".snapshot"):
                return
        offset = self.random.randint(floor, self.model.end)
        if self.model.start > max((b.base for b in self.model.history if b.base <= offset), default=0):
            return  # the batch that holds the log start would go too
        self.partition.truncate(offset)
        self.model.truncate(offset)
        self.home.recovery_point = min(self.home.recovery_point, self.partition.recovery_point)
        for pid, known in self.model.producers().items():
            self.epochs[pid] = known.epoch
        self.lead()

    def delete(self) -> None:
        offset = self.random.randint(self.model.start, self.model.high_watermark)
        self.partition.set_log_start(offset)
        self.model.start = offset
        self.partition.enforce_retention(NOW)
        self.home.checkpoint()

    def reopen(self) -> None:
        clean = self.random.random() < 0.5
        self.home.high_watermark = self.random.choice([self.model.high_watermark, self.model.start])
        self.home.checkpoint()
        self.home.follows = True
        self.beheaded |= self.partition.segments()[0][0] > 0
        self.home.reopen(clean=clean, flush_idle_ms=1)
        self.model.high_watermark = self.home.high_watermark
        self.lead()

    def check(self) -> None:
        model, p = self.model, self.partition
        assert (p.high_watermark, p.log_end_offset) == (model.high_watermark, model.end)
        assert p.last_stable_offset >= model.last_stable()
        assert self.beheaded or p.last_stable_offset == model.last_stable()
        found = {
            q.producer_id: Known(q.epoch, q.last_sequence, q.transaction_start_offset, q.coordinator_epoch)
            for q in p.producers()
        }
        known = model.producers()
        assert self.beheaded or found == known
        first = p.segments()[0][0]
        for pid in found if self.beheaded else ():
            assert found[pid].epoch == known[pid].epoch
            assert found[pid].since == known[pid].since or known[pid].since < first
        for pid, producer in known.items():
            assert producer.since < first or found[pid].since == producer.since
        offset = self.random.randint(model.start, p.last_stable_offset)
        seen = as_java_reads(p, offset, self.random.choice([1, 200, 1 << 20]))
        assert seen == model.committed(offset, p.last_stable_offset)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_any_history(tmp_path: Path, config: dict[str, int], seed: int) -> None:
    """After each step of a random history the last stable offset, the producers, the index files and what a consumer of
    committed records sees from any offset are the model's (faults 27 to 30, 34 and 38)."""
    story = Story(tmp_path, config, seed)
    often = [story.write] * 8 + [story.end] * 5 + [story.replicate] * 4
    for _ in range(120):
        step = story.random.choice(
            [*often, story.roll, story.flush, story.truncate, story.delete, story.reopen, story.lead]
        )
        step()
        story.check()
    story.home.crash()
