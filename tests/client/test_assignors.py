"""Assignors: their results equal those of Java's assignors, and the sticky ones keep their promises on any group."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.client.consuming import subscriptions
from pybroker.client.consuming.assignors import (
    ASSIGNORS,
    assign_cooperative,
    assign_range,
    assign_roundrobin,
    assign_sticky,
)
from pybroker.client.consuming.subscriptions import Assignments, SubscribedMember
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition


def member(name: str, *topics: str, owned: Iterable[TopicPartition] = (), generation: int = -1) -> SubscribedMember:
    return SubscribedMember(name, None, frozenset(topics), frozenset(owned), generation)


def shown(shares: Assignments) -> dict[str, str]:
    return {name: " ".join(f"{tp.topic}{tp.partition}" for tp in share) for name, share in shares.items()}


def test_range_gives_runs() -> None:
    """Range assigns runs of partitions: RangeAssignor's documented example, with three partitions each of two topics,
    and two members."""
    shares = assign_range({"t": 3, "u": 3}, [member("C1", "t", "u"), member("C0", "t", "u")])
    assert shown(shares) == {"C0": "t0 t1 u0 u1", "C1": "t2 u2"}


def test_static_members_come_first() -> None:
    """Static members come first: instance ids order members, so that a restart with another member id gets the same
    share."""
    static = SubscribedMember("zzz", "a", frozenset({"t"}))
    assert shown(assign_range({"t": 3}, [member("C0", "t"), static])) == {"C0": "t2", "zzz": "t0 t1"}


def test_roundrobin_goes_around() -> None:
    """Round-robin alternates members: RoundRobinAssignor's documented example, with different subscriptions."""
    members = [member("C0", "t"), member("C1", "t", "u"), member("C2", "t", "u", "v")]
    shares = assign_roundrobin({"t": 1, "u": 2, "v": 3}, members)
    assert shown(shares) == {"C0": "t0", "C1": "u0", "C2": "u1 v0 v1 v2"}


def test_sticky_moves_little() -> None:
    """Sticky moves few partitions: StickyAssignor's documented example, in which C1 leaves, and the others keep
    theirs."""
    topics = {"t": 2, "u": 2, "v": 2, "w": 2}
    before = assign_sticky(topics, [member(name, *topics) for name in ("C0", "C1", "C2")])
    left = [member(name, *topics, owned=before[name], generation=1) for name in ("C0", "C2")]
    after = assign_sticky(topics, left)
    assert all(set(before[name]) <= set(after[name]) for name in ("C0", "C2"))
    assert {len(share) for share in after.values()} == {4}


def test_cooperative_gives_what_is_free() -> None:
    """Cooperative assigns only free partitions: one that another member still owns is left out until that member has
    revoked it."""
    owned = [TopicPartition("t", p) for p in range(4)]
    members = [member("old", "t", owned=owned, generation=3), member("new", "t")]
    assert shown(assign_cooperative({"t": 4}, members)) == {"old": "t0 t1", "new": ""}
    then = [member("old", "t", owned=owned[:2], generation=4), member("new", "t", generation=4)]
    assert shown(assign_cooperative({"t": 4}, then)) == {"old": "t0 t1", "new": "t2 t3"}


def test_what_two_claim_nobody_keeps() -> None:
    """A partition with two claimed owners goes to the later generation's; if both are of one generation, neither claim
    counts."""
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    late = [member("a", "t", owned=[t0], generation=1), member("b", "t", owned=[t0], generation=2)]
    assert assign_sticky({"t": 2}, late) == {"a": [t1], "b": [t0]}
    even = [member("a", "t", owned=[t0], generation=2), member("b", "t", owned=[t0], generation=2)]
    assert sorted(tp for share in assign_sticky({"t": 2}, even).values() for tp in share) == [t0, t1]


TOPICS = ("a", "b", "c")
groups = st.dictionaries(
    st.text("mnop", min_size=1, max_size=3), st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=6
)
sizes = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})


@pytest.mark.parametrize("name", ASSIGNORS)
@given(groups=groups, sizes=sizes)
def test_each_partition_has_one_reader(name: str, groups: dict[str, frozenset[str]], sizes: dict[str, int]) -> None:
    """Each partition of a subscribed topic goes to exactly one member, which subscribes to it."""
    members = [SubscribedMember(one, None, topics) for one, topics in groups.items()]
    shares = ASSIGNORS[name].assign(sizes, members)
    given_out = sorted(tp for share in shares.values() for tp in share)
    subscribed = {topic for topics in groups.values() for topic in topics}
    assert given_out == [TopicPartition(t, p) for t in sorted(subscribed) for p in range(sizes[t])]
    assert shares.keys() == groups.keys()
    assert all(tp.topic in groups[one] for one, share in shares.items() for tp in share)


@given(first=groups, second=groups, sizes=sizes)
@settings(max_examples=200)
def test_sticky_is_balanced_and_settles(
    first: dict[str, frozenset[str]], second: dict[str, frozenset[str]], sizes: dict[str, int]
) -> None:
    """Sticky is balanced and settles: after any change no member has two more than another that could take one, and an
    unchanged group moves none."""
    before = assign_sticky(sizes, [SubscribedMember(one, None, topics) for one, topics in first.items()])
    changed = [member(one, *topics, owned=before.get(one, ()), generation=1) for one, topics in second.items()]
    shares = assign_sticky(sizes, changed)
    for giver, share in shares.items():
        for tp in share:
            for taker, topics in second.items():
                assert tp.topic not in topics or len(shares[taker]) + 1 >= len(shares[giver])
    again = [member(one, *topics, owned=shares[one], generation=2) for one, topics in second.items()]
    assert assign_sticky(sizes, again) == shares
    assert assign_cooperative(sizes, again) == shares


@given(owned=st.frozensets(st.builds(TopicPartition, st.text("xyz", min_size=1), st.integers(0, 9))))
def test_user_data_of_sticky_members(owned: frozenset[TopicPartition]) -> None:
    """A sticky member's user data can be read by others. Without a generation it is version 0; truncated data owns
    nothing."""
    data = subscriptions.write_sticky(owned, 7)
    assert subscriptions.read_sticky(data) == (owned, 7)
    assert subscriptions.read_sticky(data[:-4]) == (owned, -1)
    assert subscriptions.read_sticky(data[:-5]) == (frozenset(), -1)
    assert subscriptions.read_sticky(None) == (frozenset(), -1)


def test_javas_bytes() -> None:
    """The bytes are those of the Java client: user data of its sticky assignors, and an assignment."""
    t1 = TopicPartition("t", 1)
    assert subscriptions.write_sticky([t1], 5).hex() == "00000001000174000000010000000100000005"
    assert subscriptions.write_cooperative(5).hex() == "00000005"
    assert subscriptions.write_assignment([t1]).hex() == "0000000000010001740000000100000001ffffffff"
    newer = bytes.fromhex("0003000000010001740000000100000001ffffffff")
    assert subscriptions.read_assignment(newer) == [t1] and subscriptions.read_assignment(b"") == []


@pytest.mark.parametrize("data", [b"\0", b"\0\1\xff", b"\0\3\0\0\0\5\0\1t"])
def test_members_that_write_nonsense(data: bytes) -> None:
    """A member's invalid metadata is an error of the group's protocol, with a sentence."""
    with pytest.raises(KafkaError, match="a member sent a ConsumerProtocol"):
        subscriptions.read_subscription(data)
    with pytest.raises(KafkaError, match="a member sent a ConsumerProtocol"):
        subscriptions.read_assignment(data)
