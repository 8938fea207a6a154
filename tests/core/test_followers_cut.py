"""A truncation is done only by a follower in the epoch for which it was decided, however late it comes."""

from __future__ import annotations

import pytest

from pybroker import core, errors
from tests.core.logs import Home, batch

LEADER, EPOCH = 2, 5


def followed(home: Home, records: int) -> core.Partition:
    """A log of `records` records that follows a leader in EPOCH."""
    partition = home.open()
    partition.become_leader(EPOCH - 1, 1)
    partition.append(batch(records), now_ms=0)
    partition.become_follower(LEADER, EPOCH, 2)
    return partition


def test_a_follower_cuts(home: Home) -> None:
    partition = followed(home, 1)
    partition.become_leader(EPOCH + 1, 3)
    partition.append(batch(1), now_ms=0)
    partition.become_follower(LEADER, EPOCH + 2, 4)
    partition.truncate(1, leader_epoch=EPOCH + 2)
    assert partition.log_end_offset == 1


def test_one_that_became_leader_meanwhile_keeps_its_log(home: Home) -> None:
    """A partition that became leader meanwhile refuses the truncation, as it may have acknowledged its records."""
    partition = followed(home, 3)
    partition.become_leader(EPOCH + 1, 3)
    with pytest.raises(core.LogError) as told:
        partition.truncate(0, leader_epoch=EPOCH)
    assert told.value.code == errors.NOT_LEADER_OR_FOLLOWER
    assert partition.log_end_offset == 3


def test_one_that_follows_in_a_later_epoch_keeps_its_log(home: Home) -> None:
    """A follower in a later epoch refuses the truncation, as its new leader decides what is truncated."""
    partition = followed(home, 3)
    partition.become_follower(LEADER + 1, EPOCH + 1, 3)
    with pytest.raises(core.LogError) as told:
        partition.truncate(0, leader_epoch=EPOCH)
    assert told.value.code == errors.FENCED_LEADER_EPOCH
    assert partition.log_end_offset == 3
