"""Each rule of Kafka's AclAuthorizer, by an example."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pytest

from pybroker.security.acl_nodes import Unreadable
from pybroker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from pybroker.security.authorizer import AclRules
from pybroker.security.operations import OPERATIONS
from tests.rows import with_each

ANN, BOB, HOST = "User:ann", "User:bob", "127.0.0.1"
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
EVERY_ACL = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def resource(name: str, kind: ResourceType = TOPIC) -> ResourcePattern:
    """A prefixed pattern if the name ends in `...`, else a literal one."""
    if name.endswith("..."):
        return ResourcePattern(kind, name[:-3], PatternType.PREFIXED)
    return ResourcePattern(kind, name, PatternType.LITERAL)


def allow(operation: Operation, who: str = ANN, host: str = "*") -> Acl:
    return Acl(who, host, operation, Permission.ALLOW)


def deny(operation: Operation, who: str = ANN, host: str = "*") -> Acl:
    return Acl(who, host, operation, Permission.DENY)


def rules(
    acls: Mapping[str, list[Acl] | Unreadable], kind: ResourceType = TOPIC, supers: str = "", everyone: bool = False
) -> AclRules:
    empty = AclRules(frozenset(supers.split()), everyone)
    return empty.replaced({resource(name, kind): each for name, each in acls.items()})


def may(given: AclRules, operation: Operation, name: str, who: str = ANN, host: str = HOST) -> bool:
    return given.authorize(who, host, operation, TOPIC, name)


# -- the decision ------------------------------------------------------------------------------------------------------


def test_without_acls_nobody_may() -> None:
    """Without ACLs no principal is allowed, unless allow.everyone.if.no.acl.found is set, and then only until the
    resource has an ACL."""
    assert not may(AclRules(), READ, "t") and may(AclRules(allow_everyone=True), READ, "t")
    one = rules({"t": [allow(READ, BOB)], "pay-...": [deny(WRITE, BOB)]}, everyone=True)
    assert not may(one, READ, "t") and may(one, READ, "t2")
    assert not may(one, READ, "pay-1") and may(one, READ, "pay")
    assert not may(rules({"*": [allow(READ, BOB)]}, everyone=True), READ, "t")


def test_acls_of_another_type_do_not_count() -> None:
    groups = rules({"t": [allow(ALL)]}, ResourceType.GROUP, everyone=True)
    assert may(groups, READ, "t") and not rules({"t": [allow(ALL)]}, ResourceType.GROUP).authorize(
        ANN, HOST, READ, TOPIC, "t"
    )


def test_a_super_user_may_whatever_denies_it() -> None:
    """A super user is allowed even if an ACL denies it; type and name are compared exactly."""
    given = rules({"*": [deny(ALL, "User:*")]}, supers=ANN)
    assert may(given, READ, "t") and not may(given, READ, "t", BOB) and not may(given, READ, "t", "User:Ann")
    assert given.authorize_any(ANN, HOST, WRITE, TOPIC)
    assert given.authorized_operations(ANN, HOST, TOPIC, "t") == OPERATIONS[TOPIC]


def test_a_deny_wins_however_general() -> None:
    """A Deny wins however general it is: the specificity of an ACL has no effect."""
    for denied in ("t1", "t...", "*"):
        for allowed in ("t1", "t1...", "*"):
            acls = {denied: [deny(READ)], allowed: [allow(READ), *([deny(READ)] if allowed == denied else [])]}
            assert not may(rules(acls), READ, "t1"), (denied, allowed)


def test_a_name_has_the_acls_of_its_prefixes() -> None:
    given = rules({"team...": [allow(READ)], "a": [allow(READ)]})
    assert may(given, READ, "team") and may(given, READ, "team2") and not may(given, READ, "tea")
    assert not may(given, READ, "ab") and not may(given, READ, "A")


def test_a_literal_star_is_any_name_and_a_prefixed_one_a_star() -> None:
    assert may(rules({"*": [allow(READ)]}), READ, "t") and may(rules({"*": [allow(READ)]}), READ, "*")
    stars = rules({"*...": [allow(READ)]})
    assert may(stars, READ, "*t") and not may(stars, READ, "t")


def test_who_an_acl_is_for() -> None:
    """An ACL's principal is compared with type, name and case; `User:*` matches every principal, and there is no other
    wildcard."""
    given = rules({"t": [allow(READ)]})
    assert [may(given, READ, "t", who) for who in (ANN, "User:Ann", "Group:ann", "User:ann2")] == [True] + 3 * [False]
    everybody = rules({"t": [allow(READ, "User:*")]})
    assert may(everybody, READ, "t", "Group:x") and may(everybody, READ, "t", "User:ANONYMOUS")
    assert not may(rules({"t": [allow(READ, "Group:*")]}), READ, "t", "Group:x")


def test_where_an_acl_is_for() -> None:
    given = rules({"t": [allow(READ, host=HOST), deny(WRITE, "User:*", "10.0.0.1"), allow(WRITE)]})
    assert may(given, READ, "t") and not may(given, READ, "t", host="10.0.0.1")
    assert may(given, WRITE, "t") and not may(given, WRITE, "t", host="10.0.0.1")


@with_each("operation", [each for each in Operation if each.concrete])
def test_what_an_allow_implies(operation: Operation) -> None:
    """An Allow implies Describe or DescribeConfigs for some operations; All implies all. A request for All needs an
    Allow All."""
    implied = {
        READ: {DESCRIBE}, WRITE: {DESCRIBE}, Operation.DELETE: {DESCRIBE}, Operation.ALTER: {DESCRIBE},
        Operation.ALTER_CONFIGS: {Operation.DESCRIBE_CONFIGS}, ALL: {each for each in Operation if each.concrete},
    }  # fmt: skip
    given = rules({"t": [allow(operation)]})
    allowed = {each for each in Operation if each.concrete and may(given, each, "t")}
    assert allowed == {operation} | implied.get(operation, set())


def test_a_deny_implies_nothing() -> None:
    """A Deny implies nothing: Deny Read leaves an Allow Read's Describe, and Deny Describe leaves Read. Deny All denies
    all."""
    given = rules({"t": [allow(READ), deny(READ)], "u": [allow(READ), deny(DESCRIBE)], "v": [allow(READ), deny(ALL)]})
    assert [may(given, each, "t") for each in (READ, DESCRIBE)] == [False, True]
    assert [may(given, each, "u") for each in (READ, DESCRIBE)] == [True, False]
    assert [may(given, each, "v") for each in (READ, DESCRIBE)] == [False, False]
    described = rules({"t": [allow(ALL), deny(DESCRIBE)]})
    assert may(described, ALL, "t") and may(described, READ, "t") and not may(described, DESCRIBE, "t")


# -- any resource of a type --------------------------------------------------------------------------------------------


@with_each(
    ("allowed", "denied", "yes"),
    [
        ("t", "", True),
        ("t...", "", True),
        ("*", "", True),
        ("", "", False),
        ("t", "t", False),
        ("t", "t...", False),
        ("t", "tt...", True),
        ("tt", "t...", False),
        ("t", "u", True),
        ("t...", "t", True),
        ("t...", "t...", False),
        ("tt...", "t...", False),
        ("t...", "tt...", True),
        ("*", "t...", True),
        ("*", "*...", True),
        ("*...", "*...", False),
        ("*", "*", False),
        ("t", "*", False),
        ("t...", "*", False),
    ],
)
def test_may_write_to_any_topic(allowed: str, denied: str, yes: bool) -> None:
    """A principal may write to any topic if an Allow is not denied by the same name, a prefix of it, or the literal
    star."""
    acls = {each: [make(WRITE)] for each, make in ((allowed, allow), (denied, deny)) if each}
    if allowed == denied and allowed:
        acls = {allowed: [allow(WRITE), deny(WRITE)]}
    assert rules(acls).authorize_any(ANN, HOST, WRITE, TOPIC) is yes
    everyone = denied != "*"
    assert rules(acls, everyone=True).authorize_any(ANN, HOST, WRITE, TOPIC) is everyone


def test_any_resource_is_asked_of_this_caller_and_operation() -> None:
    """A check of any resource uses this caller and operation: an Allow Read is no Describe, as in Kafka's
    authorizeByResourceType; All is every operation."""
    given = rules({"t": [allow(READ)], "u": [allow(WRITE, BOB), allow(WRITE, host="10.0.0.1")]})
    asked = [given.authorize_any(ANN, HOST, each, TOPIC) for each in (READ, DESCRIBE, WRITE)]
    assert asked == [True, False, False]
    assert given.authorize_any(ANN, "10.0.0.1", WRITE, TOPIC) and given.authorize_any(BOB, HOST, WRITE, TOPIC)
    assert not given.authorize_any(ANN, HOST, READ, ResourceType.GROUP)
    assert rules({"t": [allow(ALL, "User:*")]}).authorize_any(ANN, HOST, WRITE, TOPIC)


# -- what clients get -------------------------------------------------------------------------------------------------


def test_full_operations_of_each_type() -> None:
    """The authorized operations of each resource type are those that Kafka returns."""
    given = {
        "TOPIC": 3576,
        "GROUP": 328,
        "CLUSTER": 8096,
        "TRANSACTIONAL_ID": 272,
        "DELEGATION_TOKEN": 256,
        "USER": 24576,
    }
    assert {kind.name: bits for kind, bits in OPERATIONS.items()} == given
    for kind, bits in OPERATIONS.items():
        assert AclRules(allow_everyone=True).authorized_operations(ANN, HOST, kind, "x") == bits
        assert AclRules().authorized_operations(ANN, HOST, kind, "x") == 0


def test_operations_with_what_they_imply() -> None:
    given = rules({"t": [allow(READ), allow(Operation.CLUSTER_ACTION)], "u...": [allow(ALL), deny(DESCRIBE)]})
    assert given.authorized_operations(ANN, HOST, TOPIC, "t") == 1 << READ | 1 << DESCRIBE
    assert given.authorized_operations(ANN, HOST, TOPIC, "u1") == OPERATIONS[TOPIC] & ~(1 << DESCRIBE)


def test_who_may_not_describe_the_cluster_is_told_nothing_of_it() -> None:
    given = rules({"kafka-cluster": [allow(Operation.CREATE), allow(Operation.ALTER, BOB)]}, CLUSTER)
    assert given.authorized_operations(ANN, HOST, CLUSTER, "kafka-cluster") == 0
    assert given.authorized_operations(BOB, HOST, CLUSTER, "kafka-cluster") == 1 << Operation.ALTER | 1 << DESCRIBE
    assert given.authorize(ANN, HOST, Operation.CREATE, CLUSTER, "kafka-cluster")


# -- what cannot be read, and what changes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "closed", "open_"), [("t", "t", "t2"), ("t...", "t t2", "s"), ("*", "t s *", "")]
)  # fmt: skip
def test_what_cannot_be_read_is_denied(name: str, closed: str, open_: str) -> None:
    """Unreadable ACLs deny their resources to all but super users, even if another ACL allows, and the reason is
    logged."""
    given = rules({"*": [allow(ALL)]}, supers="User:root", everyone=True)
    after = given.replaced({resource(name): Unreadable("it has no 'host'")})
    assert after.unreadable == {resource(name): "it has no 'host'"} and not given.unreadable
    assert not any(may(after, READ, each) for each in closed.split())
    assert all(may(after, READ, each) for each in open_.split())
    assert all(may(after, READ, each, "User:root") for each in closed.split())
    assert not any(binding.resource == resource(name) for binding in after.acls(EVERY_ACL))
    assert after.authorize_any(ANN, HOST, WRITE, TOPIC) is (name != "*")
    again = after.replaced({resource(name): [allow(READ)]})
    assert not again.unreadable and may(again, READ, "t")


def test_rules_never_change() -> None:
    """Rules never change: a change makes new rules, and the old ones answer as before."""
    first = rules({"t": [allow(READ)], "p...": [allow(READ)]})
    second = first.replaced({resource("t"): [], resource("p..."): [allow(WRITE)], resource("q..."): []})
    third = second.replaced({resource("p..."): []})
    asked = [
        (
            may(each, READ, "t"),
            may(each, READ, "p1"),
            may(each, WRITE, "p1"),
            each.authorize_any(ANN, HOST, READ, TOPIC),
        )
        for each in (first, second, third)
    ]
    assert asked == [(True, True, False, True), (False, False, True, False), (False, False, False, False)]
    assert [len(list(each.acls(EVERY_ACL))) for each in (first, second, third)] == [2, 1, 0]
    assert not any(map(len, third._types[TOPIC])), "it keeps something of ACLs that are gone"


def steps(work: Callable[[], object]) -> int:
    """The number of opcodes that `work` executes: a measure that other processes do not affect."""
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += what == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_many_acls_cost_an_answer_nothing() -> None:
    """Many ACLs do not slow an answer: with 20,000 patterns of 50 prefix lengths, answers and changes take as many
    steps as with 400."""

    def cost(patterns: int) -> tuple[int, int]:
        names = [f"{'p' * (number % 50)}{number}" for number in range(patterns)]
        many = {name: [allow(READ, f"User:{number}"), allow(WRITE)] for number, name in enumerate(names)}
        given = rules({**many, **{f"{name}...": acls for name, acls in many.items()}})

        def ask() -> None:
            for number, name in enumerate(names[:100]):
                assert given.authorize(f"User:{number}", HOST, READ, TOPIC, name)
                assert given.authorize_any(f"User:{number}", HOST, READ, TOPIC)

        def change() -> None:
            nonlocal given
            for number in range(20):
                new = {resource(f"{number}..."): [deny(READ)], resource(f"new{number}"): [allow(READ)]}
                given = given.replaced(new)

        return steps(ask), steps(change)

    few, many = cost(200), cost(10_000)
    assert all(more < 2 * less for more, less in zip(many, few, strict=True)), (few, many)
