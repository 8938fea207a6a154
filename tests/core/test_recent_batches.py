"""A log's last batches, which are read without looking into the file, are found as in the model."""

from __future__ import annotations

import random

import pytest

from pybroker.core import Partition
from tests.core.logs import Home, batch, follow, read
from tests.core.slow_log import SlowLog, parse, stamp
from tests.core.stage import REMEMBERED

EPOCH = 3
STEPS = 40
OFFSETS = 3 * REMEMBERED
"""Offsets at the log end that are read; not all of them are among the remembered batches."""


def assert_reads_as(model: SlowLog, partition: Partition, rolls: list[int], rng: random.Random) -> None:
    """Check reads against the model, with limits at and between batches, up to the high watermark and the log end."""
    for offset in range(max(partition.log_start_offset, model.end - OFFSETS), model.end + 1):
        most, minimum_one = rng.choice((0, 1, 150, 300, 301, 700, 1 << 20)), rng.random() < 0.5
        for bound in (partition.high_watermark, model.end):
            got = read(partition, offset, most, minimum_one=minimum_one, to_log_end=bound == model.end)
            assert got == model.read(offset, most, rolls, minimum_one=minimum_one, bound=bound), (offset, most)


@pytest.mark.parametrize("seed", range(6))
def test_reads_at_the_end_of_a_followers_log(home: Home, seed: int) -> None:
    """Reads at the end of a follower's log equal the model's, with gaps, rolls and truncations."""
    rng = random.Random(seed)
    home.config["segment.bytes"] = rng.choice((1500, 6000, 1 << 20))
    partition, model = follow(home.open(compacted=True)), SlowLog()
    partition.become_follower(2, EPOCH, 1)
    for _ in range(STEPS):
        data = b""
        for _ in range(rng.choice((1, 1, 3, 20))):
            base = model.end + rng.choice((0, 0, 0, 0, 1, 5))
            model.batches.append(parse(stamp(batch(rng.randint(1, 4), size=rng.randrange(120)), base, EPOCH)))
            model.end = model.batches[-1].end
            data += model.batches[-1].data
        ends = [each.end for each in model.batches[-25:]]
        partition.append_replica(data, leader_epoch=EPOCH, high_watermark=rng.choice(ends) + rng.randrange(2))
        if rng.random() < 0.2:
            cut = rng.randint(partition.high_watermark, model.end)
            partition.truncate(cut)
            model.truncate(cut)
        assert partition.log_end_offset == model.end
        assert_reads_as(model, partition, [segment[0] for segment in partition.segments()], rng)
