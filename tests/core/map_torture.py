"""A broker that appends, rolls, truncates, compacts and removes without pause, until it is killed.

    python -m tests.core.map_torture DIRECTORY SEED

A record's content follows from its offset alone, so a reader can check any record that it reads.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from pathlib import Path

from pybroker.core import LogError, LogManager, Partition
from pybroker.protocol import records
from tests.core.logs import NOW, TOPIC_ID
from tests.core.slow_clean import one_round

CONFIG = {
    "cleanup.policy": 2, "segment.bytes": 200_000, "index.interval.bytes": 200, "file.delete.delay.ms": 0,
    "delete.retention.ms": 0,
}  # fmt: skip
KEYS = 3000
STEPS = {"append": 8, "roll": 2, "flush": 1, "truncate": 1, "compact": 2, "retain": 1}


def key_of(offset: int) -> bytes:
    return b"key-%d" % (offset * 7919 % KEYS)


def value_of(offset: int) -> bytes:
    return b"%012d" % offset + bytes([offset % 251]) * (offset * 37 % 300)


def batch_of(offset: int, count: int, codec: int) -> bytes:
    made = [(NOW + offset + i, key_of(offset + i), value_of(offset + i), []) for i in range(count)]
    return records.build_batch(made, attributes=codec)


class Victim:
    """One log and the operations on it."""

    def __init__(self, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.broker = LogManager(flush_idle_ms=1)
        self.log: Partition = self.broker.open(
            str(path), "t", 0, topic_id=TOPIC_ID, config=CONFIG, epoch_max=0, compacted=True
        )
        self.log.become_leader(0, 0)
        self.first_dirty = self.log.log_start_offset
        threading.Thread(target=self.look_up, daemon=True).start()

    def append(self) -> None:
        for _ in range(self.chance.randrange(1, 40)):
            end, count = self.log.log_end_offset, self.chance.randrange(1, 30)
            self.log.append(batch_of(end, count, self.chance.randrange(5)), now_ms=NOW)

    def truncate(self) -> None:
        end = self.log.log_end_offset
        low = max(self.log.log_start_offset, end - 3000)
        self.log.truncate(self.chance.randint(low, end))
        self.first_dirty = min(self.first_dirty, self.log.log_end_offset)

    def compact(self) -> None:
        self.log.flush()
        done = one_round(self.log, self.first_dirty, map_bytes=1 << 20)
        if done is not None:
            self.first_dirty = done.first_dirty

    def retain(self) -> None:
        segments = self.log.segments()
        if len(segments) > 8:
            self.log.set_log_start(segments[self.chance.randrange(len(segments) // 2)][0])
            self.log.enforce_retention(NOW)
            self.first_dirty = max(self.first_dirty, self.log.log_start_offset)

    def look_up(self) -> None:
        """Look up random places, by offset and by time."""
        chance = random.Random(self.chance.random())
        while True:
            with contextlib.suppress(LogError):
                start, end = self.log.log_start_offset, self.log.log_end_offset
                offset = chance.randint(start, max(start, end - 1))
                found = self.log.read(offset, 5000).slice
                if found is not None:
                    found.close()
                self.log.offset_for_timestamp(NOW + offset, bound=end)
            if chance.random() < 0.01:
                self.broker.close_idle_files()

    def run(self) -> None:
        print("ready", flush=True)
        while True:
            [name] = self.chance.choices(list(STEPS), list(STEPS.values()))
            step = getattr(self, name, None) or getattr(self.log, name)
            with contextlib.suppress(LogError):
                step()


if __name__ == "__main__":
    Victim(Path(sys.argv[1]), int(sys.argv[2])).run()
