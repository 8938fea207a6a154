"""Logs the changes of partitions that the controller has written, and keeps them for /changes."""

from __future__ import annotations

import logging

from pybroker.controller.assignments import note_move
from pybroker.decisions.changes import Changes
from pybroker.decisions.image import NO_LEADER, PartitionState
from pybroker.logs import event
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)


def note(changes: Changes, key: TopicPartition, was: PartitionState | None, state: PartitionState, cause: str) -> None:
    """Log a change that was written, and note it in `changes`."""
    assert was is not None, "a change of no state"
    what, unclean = changes.written(key, was, state, cause)
    level = logging.WARNING if unclean else logging.INFO
    if state.leader == NO_LEADER != was.leader:
        what, level = "partition without leader", logging.WARNING
    if was.assignment != state.assignment:
        note_move(key, was, state)
        if was.leader == state.leader:
            return
    event(
        log, level, what, partition=key, leader=state.leader,
        leader_epoch=state.leader_epoch, isr=",".join(map(str, state.isr)), leader_before=was.leader,
        unclean=unclean or None, cause=cause,
    )  # fmt: skip

