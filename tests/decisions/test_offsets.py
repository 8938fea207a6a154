"""The expiry of committed offsets: by the group's state first, then by the client's time or the retention."""

from __future__ import annotations

import pytest

from pybroker.decisions.group import Group, State
from pybroker.decisions.offsets import Committed, expired
from pybroker.model import TopicPartition
from tests.rows import with_each

NOW_MS, RETENTION_MS = 1_000_000, 1000
READ, LEFT = TopicPartition("read", 0), TopicPartition("left", 0)


def committed(ago_ms: int, lasts_ms: int | None) -> Committed:
    """An offset, committed that long ago; `lasts_ms` is the retention that a client before OffsetCommit version 5
    sets."""
    at_ms = NOW_MS - ago_ms
    return Committed(1, -1, "", at_ms, -1 if lasts_ms is None else at_ms + lasts_ms)


@with_each("lasts_ms", [None, 10])
@with_each(
    ("state", "protocol_type", "gone"),
    [
        (State.STABLE, "consumer", {LEFT}),
        (State.PREPARING, "consumer", set()),
        (State.COMPLETING, "consumer", set()),
        (State.DEAD, "consumer", set()),
        (State.EMPTY, "consumer", {READ, LEFT}),
        (State.EMPTY, None, {READ, LEFT}),
    ],
)
def test_the_state_of_the_group_is_asked_first(
    state: State, protocol_type: str | None, gone: set[TopicPartition], lasts_ms: int | None
) -> None:
    """The group's state is checked first: a live group keeps the offsets of its subscribed topics, even if a client set
    an expiry time (KIP-211)."""
    group = Group("g", protocol_type=protocol_type)
    group.state = state
    offsets = {READ: committed(5000, lasts_ms), LEFT: committed(5000, lasts_ms)}
    found = expired(group, offsets, {"read"}, NOW_MS - 5000, NOW_MS, RETENTION_MS)
    assert set(found) == gone


def test_a_group_whose_subscription_is_unknown_keeps_all() -> None:
    """A group with an unknown subscription keeps all offsets: the broker can read only the consumer protocol."""
    group = Group("g", protocol_type="connect")
    group.state = State.STABLE
    assert not expired(group, {READ: committed(5000, 10)}, None, 0, NOW_MS, RETENTION_MS)


@pytest.mark.parametrize(("empty_ago_ms", "gone"), [(999, False), (1000, True)])
def test_the_retention_begins_when_the_last_member_left(empty_ago_ms: int, gone: bool) -> None:
    """The retention begins when the last member left, or with a later commit; a client's own time begins with its
    commit."""
    group = Group("g", protocol_type="consumer")
    old, own = committed(5000, None), committed(5000, 4999)
    since_ms = NOW_MS - empty_ago_ms
    assert (READ in expired(group, {READ: old}, None, since_ms, NOW_MS, RETENTION_MS)) is gone
    assert READ in expired(group, {READ: own}, None, since_ms, NOW_MS, RETENTION_MS)
