"""Committed offsets of a group: what is kept, and what has expired. No I/O, no clock.

Offsets expire `retention_ms` after the group lost its last member; in a group with members, those of topics that no
member subscribes to any more, after their last commit (KIP-211).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.cluster.group import Group, State
from pybroker.model import TopicPartition


class Committed(NamedTuple):
    """One committed offset; `leader_epoch` -1 unknown, times in ms since the epoch."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1  # set by clients of long ago; -1: by the group's state


def expired(
    group: Group,
    offsets: Mapping[TopicPartition, Committed],
    subscribed: Collection[str] | None,
    empty_since_ms: int,
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The partitions whose offsets are to be forgotten. `subscribed` None: unknown, so a live group keeps all."""
    gone = []
    for key, committed in offsets.items():
        if committed.expire_ms >= 0:
            over = committed.expire_ms <= now_ms
        elif group.state is State.EMPTY:
            since = committed.commit_ms if group.is_simple() else max(empty_since_ms, committed.commit_ms)
            over = since + retention_ms <= now_ms
        elif group.state is State.STABLE and subscribed is not None and key.topic not in subscribed:
            over = committed.commit_ms + retention_ms <= now_ms
        else:
            over = False
        if over:
            gone.append(key)
    return gone
