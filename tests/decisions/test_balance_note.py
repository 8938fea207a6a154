"""The note of the balancer's moves: what is written is read again, and no text does harm."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.decisions.planning.balance_note import ROLES, BalanceNote, is_by_hand
from pybroker.model import TopicPartition

NUMBERS = st.integers(0, (1 << 31) - 1)
REPLICAS = st.lists(NUMBERS, max_size=4, unique=True).map(tuple)
TOPICS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=249).filter(
    lambda name: name not in (".", "..")
)
NOTES = st.builds(
    BalanceNote,
    st.integers(1, (1 << 63) - 1),
    st.sampled_from([(), ("leader",), ("follower",), ROLES]),
    st.dictionaries(st.builds(TopicPartition, TOPICS, NUMBERS), st.tuples(REPLICAS, REPLICAS), max_size=5),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["t", "0", *ROLES]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["rate", "roles", "moves", "t", "0", "-1"]) | st.text(max_size=3), inner, max_size=4
    ),
    max_leaves=12,
)  # fmt: skip
NOTHING = BalanceNote(0, (), {})
DIGITS = "9" * 5_000


@given(NOTES)
def test_what_is_written_is_read_again(note: BalanceNote) -> None:
    assert BalanceNote.parse(note.text()) == note


def test_the_lists_of_a_note() -> None:
    """All present replicas send, those that are added copy; a new order of replicas throttles nothing."""
    note = BalanceNote(
        1, ROLES,
        {
            TopicPartition("t", 10): ((1, 2), (3, 2)), TopicPartition("t", 9): ((1,), (4,)),
            TopicPartition("order", 0): ((1, 2), (2, 1)), TopicPartition("fewer", 0): ((1, 2), (2,)),
        },
    )  # fmt: skip
    leaders, followers = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
    assert note.lists() == {"t": {leaders: "9:1,10:1,10:2", followers: "9:4,10:3"}}
    assert is_by_hand(note.lists()["t"])
    assert not is_by_hand({}) and not is_by_hand({leaders: "*", followers: ""}) and is_by_hand({leaders: "0:1"})


@pytest.mark.parametrize("text", [None, ""])
def test_no_note(text: str | None) -> None:
    assert BalanceNote.parse(text) is None


def moving(**changed: object) -> str:
    """A note of one move, with changes that make it none."""
    return json.dumps({"rate": 1, "roles": ["leader"], "moves": {"t": {"0": [[1], [2]]}}} | changed)


@pytest.mark.parametrize(
    "text",
    [
        " ", "soon", "null", "[]", "0", "{}", '"moves"', "NaN", "{" * 100_000, "[" * 100_000, '{"moves":' * 100_000,
        DIGITS,
        '{"moves":{"t":{"0":[[1],[2]]}},"roles":[],"rate":' + DIGITS + "}",
        '{"moves":{"t":{"' + DIGITS + '":[[1],[2]]}},"roles":[],"rate":1}',
        moving(rate=float("nan")), moving(rate=float("inf")), moving(rate=None), moving(rate=[]), moving(rate="1e3"),
        moving(rate=-1), moving(rate=1.5), moving(rate=True), moving(rate=1 << 63), moving(rate=10**400),
        moving(roles=None), moving(roles="leader"), moving(roles=["leader", "chief"]), moving(roles=[[]]),
        moving(moves=None), moving(moves=[1]), moving(moves={"t": None}), moving(moves={"t": {"0": None}}),
        moving(moves={"t": {"0": [[1]]}}), moving(moves={"t": {"0": [[1], [2], [3]]}}),
        moving(moves={"t": {"x": [[1], [2]]}}),
        moving(moves={"t": {"-1": [[1], [2]]}}), moving(moves={"t": {"4294967296": [[1], [2]]}}),
        moving(moves={"t": {"0": ["1", "2"]}}), moving(moves={"t": {"0": [[1], [True]]}}),
        moving(moves={"t": {"0": [[1], [2.5]]}}), moving(moves={"t": {"0": [[1], [float("nan")]]}}),
        moving(moves={"t": {"0": [[1], [1 << 40]]}}), moving(moves={"t": {"0": [[1], [-1]]}}),
        moving(moves={"": {"0": [[1], [2]]}}), moving(moves={"..": {"0": [[1], [2]]}}),
        moving(moves={"a/b": {"0": [[1], [2]]}}), moving(moves={"t" * 250: {"0": [[1], [2]]}}),
        moving(moves={"\ud800": {"0": [[1], [2]]}}), moving(moves={"\0": {"0": [[1], [2]]}}),
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_a_text_that_is_no_note_is_one_without_moves(text: str) -> None:
    """The controller removes it: it sets no throttle, and reaches no node of another name."""
    assert BalanceNote.parse(moving()) == BalanceNote(1, ("leader",), {TopicPartition("t", 0): ((1,), (2,))})
    assert BalanceNote.parse(text) == NOTHING


def test_a_role_that_is_named_twice_counts_once() -> None:
    """The controller removes its rate once: a request that alters a config twice is refused."""
    note = BalanceNote.parse(moving(roles=["follower", "leader", "follower"]))
    assert note is not None and note.roles == ("follower", "leader")


@given(st.text(min_size=1) | VALUES.map(json.dumps) | st.dictionaries(
    st.sampled_from(["rate", "roles", "moves"]), VALUES, min_size=3).map(json.dumps))  # fmt: skip
def test_no_text_raises(text: str) -> None:
    note = BalanceNote.parse(text)
    assert note is not None
    assert BalanceNote.parse(note.text()) == note and note.lists() is not None
