"""The note of a throttle that `pybroker reassign` has set: what is written is read again, and no text does harm."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pybroker.decisions.planning.throttle_note import ThrottleNote
from tests.decisions.test_balance_note import NUMBERS, ROLES, TOPICS, VALUES
from tests.rows import with_each

RATES = st.integers(1, (1 << 63) - 1)
NOTES = st.builds(
    ThrottleNote,
    RATES,
    st.fixed_dictionaries({role: st.lists(NUMBERS, max_size=3).map(tuple) for role in ROLES}),
    st.fixed_dictionaries({role: st.lists(TOPICS, max_size=3).map(tuple) for role in ROLES}),
    st.lists(RATES, max_size=3).map(tuple),
)
SOUND = {"rate": 1, "brokers": {"leader": [1]}, "topics": {"follower": ["t"]}, "earlier": [2]}


@given(NOTES)
def test_what_is_written_is_read_again(note: ThrottleNote) -> None:
    assert ThrottleNote.parse(note.text()) == note


def test_a_sound_note() -> None:
    """A role without brokers or topics may be left out, and so may earlier rates."""
    brokers, topics = {"leader": (1,), "follower": ()}, {"leader": (), "follower": ("t",)}
    assert ThrottleNote.parse(json.dumps(SOUND)) == ThrottleNote(1, brokers, topics, (2,))
    assert ThrottleNote.parse(json.dumps(SOUND | {"earlier": []})) == ThrottleNote(1, brokers, topics)


@with_each(
    "text",
    [
        "", "[]", "{", "[" * 100_000, '{"rate": Infinity, "brokers": {}, "topics": {}}', '{"brokers": 1}', "9" * 5_000,
        *(
            json.dumps(SOUND | changed)
            for changed in [
                {"rate": 0}, {"rate": -1}, {"rate": 1 << 63}, {"rate": 10**400}, {"rate": True}, {"rate": "1"},
                {"rate": 1.5}, {"brokers": {"leader": [-1]}}, {"brokers": {"leader": [1 << 31]}},
                {"brokers": {"leader": [True]}}, {"brokers": {"leader": ["1"]}}, {"brokers": {"leader": 1}},
                {"brokers": []}, {"topics": {"leader": ["\ud800"]}}, {"topics": {"leader": [".."]}},
                {"topics": {"leader": [7]}}, {"topics": {"leader": [[]]}}, {"earlier": [10**400]}, {"earlier": 5},
            ]
        ),
    ],
)  # fmt: skip
def test_a_note_that_is_none(text: str) -> None:
    """Nothing is known of a throttle from a note that this command did not write."""
    assert ThrottleNote.parse(text) is None


@given(st.text() | VALUES.map(json.dumps) | st.dictionaries(st.sampled_from(sorted(SOUND)), VALUES).map(json.dumps))
def test_no_text_raises(text: str) -> None:
    note = ThrottleNote.parse(text)
    assert note is None or ThrottleNote.parse(note.text()) == note
