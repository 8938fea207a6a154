"""Decides which committed offsets of a group have expired. No I/O, no clock.

Offsets expire `retention_ms` after the group lost its last member. In a group with members, offsets of topics without a
subscriber expire `retention_ms` after their last commit (KIP-211).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pybroker.decisions.group import Group, State
from pybroker.model import TopicPartition


class Committed(NamedTuple):
    """One committed offset; `leader_epoch` -1: unknown; times in ms since 1970."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1  # set by old clients; -1: the group's state decides


def expired(
    group: Group,
    offsets: Mapping[TopicPartition, Committed],
    subscribed: Collection[str] | None,
    empty_since_ms: int,
    now_ms: int,
    retention_ms: int,
) -> list[TopicPartition]:
    """The partitions whose offsets have expired. `subscribed` None: unknown, so a group with members keeps all.

    The group's state decides first, as in Kafka's GroupMetadata: in a rebalance no offset expires, in a stable group
    only those of topics without a subscriber. Then the expiry time counts that an old client set (OffsetCommit before
    version 5), or otherwise the retention."""
    if group.state is not State.EMPTY and (group.state is not State.STABLE or subscribed is None):
        return []
    kept = frozenset(subscribed or ()) if group.state is State.STABLE else frozenset[str]()
    from_commit = group.state is State.STABLE or group.is_simple()
    gone = []
    for key, committed in offsets.items():
        since_ms = committed.commit_ms if from_commit else max(empty_since_ms, committed.commit_ms)
        end_ms = committed.expire_ms if committed.expire_ms >= 0 else since_ms + retention_ms
        if key.topic not in kept and end_ms <= now_ms:
            gone.append(key)
    return gone
