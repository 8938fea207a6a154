"""A truncation that was decided is done by a follower in that epoch alone, however late it comes."""

from __future__ import annotations

import pytest

from pybroker import core, errors
from tests.core.logs import Home, batch

LEADER, EPOCH = 2, 5


def followed(home: Home, records: int) -> core.Partition:
    """A log that follows in this epoch, with so many records."""
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
    """What it has it may have acknowledged by now."""
    partition = followed(home, 3)
    partition.become_leader(EPOCH + 1, 3)
    with pytest.raises(core.LogError) as told:
        partition.truncate(0, leader_epoch=EPOCH)
    assert told.value.code == errors.NOT_LEADER_OR_FOLLOWER
    assert partition.log_end_offset == 3


def test_one_that_follows_in_a_later_epoch_keeps_its_log(home: Home) -> None:
    """Its next leader says itself what is to be cut."""
    partition = followed(home, 3)
    partition.become_follower(LEADER + 1, EPOCH + 1, 3)
    with pytest.raises(core.LogError) as told:
        partition.truncate(0, leader_epoch=EPOCH)
    assert told.value.code == errors.FENCED_LEADER_EPOCH
    assert partition.log_end_offset == 3
