"""An immutable map, compared with a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pybroker.persistent_map import PersistentMap

KEYS = st.one_of(st.integers(0, 700), st.text(max_size=2))
STEPS = st.lists(st.tuples(st.dictionaries(KEYS, st.integers()), st.lists(KEYS)))


@given(STEPS)
def test_it_is_as_a_dict_and_each_version_stays(steps: list[tuple[dict[object, int], list[object]]]) -> None:
    """The map equals a dict after any changes, also several in one, and each earlier version stays as it was."""
    found: PersistentMap[object, int] = PersistentMap()
    known: dict[object, int] = {}
    versions = [(found, known)]
    for put, removed in steps:
        found = found.changed(put, removed)
        known = {key: value for key, value in known.items() if key not in removed} | put
        versions.append((found, known))
    for version, model in versions:
        assert {key: version[key] for key in version} == model and len(version) == len(model)
        assert sorted(version.values()) == sorted(model.values())
        assert all(key in version and version.get(key) == value for key, value in model.items())
        assert version.get("none of them") is None


def test_a_copy_shares_what_did_not_change() -> None:
    """A copy shares unchanged buckets: with many keys a change copies only the buckets of its keys."""
    many = PersistentMap[int, int]().changed({number: number for number in range(10_000)})
    one = many.changed({0: 1}, [1])
    shared = [mine is theirs for mine, theirs in zip(one._buckets, many._buckets, strict=True)]
    assert shared.count(False) == 2 and (one[0], 1 in one, many[0], many[1]) == (1, False, 0, 1)


def test_its_buckets_grow_with_it() -> None:
    """A map's buckets grow with it, for keys one by one or at once: about as many buckets as the largest has keys."""
    one_by_one: PersistentMap[int, int] = PersistentMap()
    for number in range(10_000):
        one_by_one = one_by_one.changed({number: number})
    at_once = PersistentMap[int, int]().changed({number: number for number in range(10_000)})
    for grown in (one_by_one, at_once):
        assert len(grown._buckets) == 128 and max(map(len, grown._buckets)) == 79
    assert len(PersistentMap[int, int]()._buckets) == 1
