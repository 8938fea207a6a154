"""Random rule sets with every question: pybroker.security.authorizer agrees with the slow truth."""

from __future__ import annotations

import itertools
import random

import pytest

from pybroker.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourcePattern, ResourceType
from pybroker.security.authorizer import AclRules
from pybroker.security.operations import OPERATIONS
from tests.marks import long
from tests.security import slow_acls
from tests.security.slow_acls import CALLERS, NAMES, PEERS, Slow

RULE_SETS = 250
"""The number in each of eight tests; each rule set gets about a thousand questions."""


@pytest.mark.parametrize("seed", [*range(3), *map(long, range(3, 8))])
def test_every_question_is_answered_as_the_slow_truth_answers_it(seed: int) -> None:
    """Every question has the slow truth's answer, with overlapping prefixes, wildcards, hosts, principals, Allow and
    Deny, as ACLs are added one by one."""
    rng = random.Random(f"rules {seed}")
    for _ in range(RULE_SETS):
        supers = frozenset(rng.sample(CALLERS, rng.choice([0, 0, 1])))
        everyone = rng.random() < 0.3
        given = AclRules(supers, everyone)
        known: dict[ResourcePattern, list[Acl]] = {}
        for _ in range(rng.choice([1, 1, 3])):
            changes = slow_acls.a_rule_set(rng) | {each: [] for each in rng.sample(list(known), min(len(known), 2))}
            given, known = given.replaced(changes), known | changes
        ask(given, Slow(slow_acls.bindings(known), supers, everyone), rng)


def ask(fast: AclRules, slow: Slow, rng: random.Random) -> None:
    about = sorted({resource.type for resource, _ in slow.bindings}) or [ResourceType.TOPIC]
    wrong: list[tuple[object, ...]] = []
    names = rng.sample(NAMES, 7)
    for kind, who, host in itertools.product(about, rng.sample(CALLERS, 3), rng.sample(PEERS, 2)):
        for operation in slow_acls.OPERATIONS:
            asked = (who, host, operation, kind)
            if fast.authorize_any(*asked) != slow.authorize_any(*asked):
                wrong.append(asked)
            wrong += [(*asked, n) for n in names if fast.authorize(*asked, n) != slow.authorize(*asked, n)]
        name = rng.choice(NAMES)
        told = fast.authorized_operations(who, host, kind, name)
        bits = sum(1 << each for each in slow_acls.OPERATIONS if slow.authorize(who, host, each, kind, name))
        hidden = kind is ResourceType.CLUSTER and not bits >> Operation.DESCRIBE & 1
        assert told == (0 if hidden else bits & OPERATIONS[kind])
    assert not wrong, (wrong[:5], sorted(slow.bindings), slow.super_users, slow.allow_everyone)


def test_filters_find_what_they_match() -> None:
    """Filters find what they match: `AclRules.acls` equals all ACLs, filtered one by one."""
    rng = random.Random("filters")
    for _ in range(1_000):
        known = slow_acls.a_rule_set(rng)
        wanted = AclFilter(
            rng.choice([ResourceType.ANY, *slow_acls.TYPES]),
            rng.choice([None, *NAMES]),
            rng.choice([PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]),
            rng.choice([None, None, *slow_acls.PRINCIPALS]),
            rng.choice([None, None, *slow_acls.HOSTS]),
            rng.choice([Operation.ANY, Operation.ANY, *slow_acls.OPERATIONS]),
            rng.choice([Permission.ANY, *slow_acls.PERMISSIONS]),
        )
        found = list(AclRules().replaced(known).acls(wanted))
        assert len(found) == len(set(found))
        assert set(found) == {each for each in slow_acls.bindings(known) if wanted.matches(each)}
