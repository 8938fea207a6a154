"""Quotas: the level that applies to a client, shared buckets, and the validation of requests and values."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.security.quotas import (
    CLIENT_ID,
    CONNECTION,
    CONSUMER,
    IP,
    MUTATION,
    NAME_MAX,
    PRODUCER,
    REQUEST,
    USER,
    Bucket,
    ClientQuotaFilterComponent,
    ClientQuotas,
    Entity,
    entity_of,
    matching,
    text_of,
)
from tests.rows import with_each

U: Entity = ((USER, "u"),)
C: Entity = ((CLIENT_ID, "c"),)
LEVELS: list[tuple[Entity, tuple[str, str]]] = [
    (U + C, ("u", "c")),
    (((USER, "u"), (CLIENT_ID, None)), ("u", "c")),
    (U, ("u", "")),
    (((USER, None), (CLIENT_ID, "c")), ("u", "c")),
    (((USER, None), (CLIENT_ID, None)), ("u", "c")),
    (((USER, None),), ("u", "")),
    (C, ("", "c")),
    (((CLIENT_ID, None),), ("", "c")),
]
"""Kafka's levels, in order of precedence."""


@with_each("level", range(8))
def test_the_first_level_that_is_set_wins(level: int) -> None:
    quotas = ClientQuotas()
    for number, (entity, _) in enumerate(LEVELS[level:]):
        quotas.take(entity, {PRODUCER: str(100 + number)})
    quotas.take(LEVELS[0][0], {CONSUMER: "7", **({PRODUCER: "100"} if level == 0 else {})})
    assert quotas.bucket(PRODUCER, "u", "c") == Bucket(*LEVELS[level][1], 100.0)
    assert quotas.bucket(CONSUMER, "u", "c") == Bucket("u", "c", 7.0), "each quota has a level of its own"
    assert quotas.bucket(REQUEST, "u", "c") is None


@with_each("held", [set(chosen) for n in range(9) for chosen in itertools.combinations(range(8), n)])
def test_every_combination_of_levels(held: set[int]) -> None:
    quotas = ClientQuotas()
    for number in held:
        quotas.take(LEVELS[number][0], {PRODUCER: str(number)})
    with_client = min(held, default=None)
    expected = None if with_client is None else Bucket(*LEVELS[with_client][1], float(with_client))
    assert quotas.bucket(PRODUCER, "u", "c") == expected
    without = min(held & {2, 5}, default=None)
    expected = None if without is None else Bucket("u", "", float(without))
    assert quotas.bucket(PRODUCER, "u", "") == expected, "an empty client id matches no level of clients"


def test_names_of_others_do_not_count() -> None:
    quotas = ClientQuotas()
    quotas.take(U + C, {PRODUCER: "1"})
    quotas.take(((USER, "<default>"),), {PRODUCER: "2"})
    assert quotas.bucket(PRODUCER, "u", "other") is None
    assert quotas.bucket(PRODUCER, "other", "c") is None
    assert quotas.bucket(PRODUCER, "<default>", "c") == Bucket("<default>", "", 2.0)


def test_the_number_is_0_while_no_client_has_a_quota() -> None:
    quotas = ClientQuotas()
    told: list[int] = []
    quotas.on_changed.append(lambda: told.append(quotas.number))
    quotas.take(((IP, "10.0.0.1"),), {CONNECTION: "5"})
    quotas.take(U, {PRODUCER: "5"})
    quotas.take(U, {PRODUCER: "5", "SCRAM-SHA-256": "..."})
    quotas.take(U, {PRODUCER: "6"})
    quotas.take(U, {})
    assert told[0] == 0 and told[-1] == 0
    assert len(told) == 4 and len(set(told)) == 3, "a change without effect calls no callback"
    assert quotas.connection_rates() == {"10.0.0.1": 5}
    quotas.take(((IP, None),), {CONNECTION: "9"})
    quotas.take(((IP, "a host"),), {CONNECTION: "1"})
    assert quotas.connection_rates() == {"10.0.0.1": 5, None: 9}
    quotas.keep([((IP, None),)])
    assert quotas.connection_rates() == {None: 9}


def test_what_cannot_be_read_does_not_hold() -> None:
    quotas = ClientQuotas()
    config = {PRODUCER: "nan", CONSUMER: "-1", REQUEST: "12.5", MUTATION: "many", CONNECTION: "1"}
    assert quotas.take(U, config) == [PRODUCER, CONSUMER, MUTATION]
    assert quotas.all() == {U: {REQUEST: 12.5}}


@with_each(
    ("entity", "key", "value", "text"),
    [
        (U, PRODUCER, 1e9, "1000000000"), (U, CONSUMER, 0.0, "0"), (C, REQUEST, 12.5, "12.5"),
        (U + C, MUTATION, 3.0, "3.0"), (((IP, None),), CONNECTION, 2147483646.0, "2147483646"),
        (U, PRODUCER, 1.5, None), (U, PRODUCER, -1.0, None), (U, PRODUCER, math.nan, None),
        (U, PRODUCER, math.inf, None), (U, PRODUCER, 2.0**63, None), (U, REQUEST, -0.1, None),
        (U, REQUEST, math.inf, None), (U, CONNECTION, 1.0, None), (((IP, "::1"),), PRODUCER, 1.0, None),
        (U, "SCRAM-SHA-256", 1.0, None), (((IP, None),), CONNECTION, 2.0**31, None),
    ],
)  # fmt: skip
def test_values(entity: Entity, key: str, value: float, text: str | None) -> None:
    if text is not None:
        assert text_of(entity, key, value) == text
        return
    with pytest.raises(KafkaError) as refused:
        text_of(entity, key, value)
    assert refused.value.code == errors.INVALID_REQUEST


def test_entities() -> None:
    assert entity_of([(CLIENT_ID, None), (USER, "u")]) == ((USER, "u"), (CLIENT_ID, None))
    assert entity_of([(USER, "a" * NAME_MAX)])
    for components in ([], [(USER, "")], [("host", "h")], [(IP, "::1"), (USER, "u")], [(USER, "a"), (USER, "b")],
                       [(USER, "..")], [(CLIENT_ID, ".")], [(USER, "a" * (NAME_MAX + 1))]):  # fmt: skip
        with pytest.raises(KafkaError) as refused:
            entity_of(components)
        assert refused.value.code == errors.INVALID_REQUEST


# -- requests, against a literal reading of Kafka's rules --------------------------------------------------------------

NAMES = (None, "a", "b")
HELD: dict[Entity, dict[str, float]] = {
    **{((USER, u),): {PRODUCER: 1.0} for u in NAMES},
    **{((CLIENT_ID, c),): {PRODUCER: 1.0} for c in NAMES},
    **{((USER, u), (CLIENT_ID, c)): {PRODUCER: 1.0} for u in NAMES for c in NAMES},
    **{((IP, i),): {CONNECTION: 1.0} for i in (None, "::1")},
}
TYPES = st.sampled_from([USER, CLIENT_ID])
WANTED = st.builds(ClientQuotaFilterComponent, TYPES, st.sampled_from(NAMES), st.booleans())


@given(st.lists(WANTED, max_size=2, unique_by=lambda w: w.type), st.booleans())
@settings(max_examples=300)
def test_matching_is_kafkas(wanted: list[ClientQuotaFilterComponent], strict: bool) -> None:
    by_type = {each.type: each for each in wanted}

    def wants(entity: Entity) -> bool:
        components = dict(entity)
        if IP in components:
            return not by_type and not strict
        for type_ in (USER, CLIENT_ID):
            if type_ not in by_type:
                if strict and type_ in components:
                    return False
            elif type_ not in components or (not by_type[type_].any and components[type_] != by_type[type_].name):
                return False
        return True

    assert set(matching(HELD, wanted, strict=strict)) == {entity for entity in HELD if wants(entity)}


def test_an_empty_filter() -> None:
    assert set(matching(HELD, [], strict=False)) == set(HELD)
    assert matching(HELD, [], strict=True) == {}
    every = ClientQuotaFilterComponent(IP, None, True)
    assert set(matching(HELD, [every], strict=True)) == {((IP, None),), ((IP, "::1"),)}


@pytest.mark.parametrize(
    ("types", "code"), [(["user", "user"], 42), (["ip", "user"], 42), ([""], 42), (["host"], 35)]
)
def test_filters_that_make_no_sense(types: list[str], code: int) -> None:
    with pytest.raises(KafkaError) as refused:
        matching(HELD, [ClientQuotaFilterComponent(type_, None, True) for type_ in types], strict=False)
    assert refused.value.code == code
