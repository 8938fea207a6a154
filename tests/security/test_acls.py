"""ACLs and filters: the numbers, names and matching rules of Kafka 3.9."""

from __future__ import annotations

import itertools
import random

import pytest

from pybroker import errors
from pybroker.errors import KafkaError
from pybroker.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    acl_filter,
    new_acl,
)
from tests.rows import with_each
from tests.security import slow_acls

READ_T1 = (2, "t1", 3, "User:ann", "*", 3, 3)
ANY_FILTER = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


def topic(name: str, pattern: PatternType = PatternType.LITERAL) -> ResourcePattern:
    return ResourcePattern(ResourceType.TOPIC, name, pattern)


def prefix(name: str) -> ResourcePattern:
    return topic(name, PatternType.PREFIXED)


def allow_read(resource: ResourcePattern) -> AclBinding:
    return AclBinding(resource, Acl("User:ann", "*", Operation.READ, Permission.ALLOW))


def test_names_are_kafkas() -> None:
    """Names are Kafka's CamelCase, read in any case, and only those that an ACL can have."""
    assert ResourceType.TRANSACTIONAL_ID.text == "TransactionalId" and Operation.CLUSTER_ACTION.text == "ClusterAction"
    assert Operation.of("describeconfigs") is Operation.DESCRIBE_CONFIGS and Permission.of("DENY") is Permission.DENY
    for text in ("DESCRIBE_CONFIGS", "Any", "Unknown", "", "Fly"):
        with pytest.raises(ValueError, match="is not one of All, Read, Write"):
            Operation.of(text)
    with pytest.raises(ValueError, match="is not one of Literal, Prefixed"):
        PatternType.of("MATCH")


def test_an_acl_is_created_from_a_requests_numbers() -> None:
    assert new_acl(*READ_T1) == allow_read(topic("t1"))
    assert new_acl(4, "kafka-cluster", 3, "User:ann", "*", 9, 2).acl.permission is Permission.DENY


@with_each(
    ("field", "value", "why"),
    [
        (1, "", "the name of a resource cannot be empty"),
        (1, "a/b", "a resource name must be a valid ZooKeeper node name, which 'a/b' is not"),
        (1, "..", "a resource name must be a valid ZooKeeper node name, which '..' is not"),
        (1, "a\x01", "which 'a.x01' is not"),
        (1, "\U0001f600", "a resource name must be a valid ZooKeeper node name"),
        (3, "ann", "'ann' is no principal: write its type and its name, like User:ann"),
        (3, "", "'' is no principal"),
        *((field, 0, "unknown [a-z ]+ 0") for field in (0, 2, 5, 6)),
        *((field, -1, "unknown [a-z ]+ -1") for field in (0, 2, 5, 6)),
        *((field, 1, "an ACL cannot have the [a-z ]+ ANY: it is only for filters") for field in (0, 2, 5, 6)),
        (2, 2, "an ACL cannot have the pattern type MATCH: it is only for filters"),
        (0, 8, "unknown resource type 8"),
        (2, 5, "unknown pattern type 5"),
        (5, 15, "unknown operation 15"),
        (6, 4, "unknown permission type 4"),
    ],
)
def test_what_is_no_acl_is_an_invalid_request(field: int, value: object, why: str) -> None:
    entry = [*READ_T1[:field], value, *READ_T1[field + 1 :]]
    with pytest.raises(KafkaError, match=why) as refused:
        new_acl(*entry)  # type: ignore[arg-type]
    assert refused.value.code == errors.INVALID_REQUEST


def test_the_cluster_has_one_name() -> None:
    for pattern in (3, 4):
        with pytest.raises(KafkaError, match="the cluster's name is kafka-cluster, not 'other'") as refused:
            new_acl(4, "other", pattern, "User:ann", "*", 5, 3)
        assert refused.value.code == errors.INVALID_REQUEST


@with_each(
    ("field", "value"),
    [(1, "*"), (1, " no topic's name "), (1, "x" * 1000), (1, "ä"), (3, "Group:x"), (3, ":"), (3, "User:*"),
     (4, "no host"), (4, ""), (5, 9)],
)  # fmt: skip
def test_what_makes_no_sense_may_be_created(field: int, value: object) -> None:
    """A senseless ACL may be created, as in Kafka: names that no topic has, invalid hosts, operations that the type
    lacks."""
    entry = [*READ_T1[:field], value, *READ_T1[field + 1 :]]
    assert new_acl(*entry)  # type: ignore[arg-type]


def test_a_filter_has_the_numbers_that_an_acl_cannot_have() -> None:
    assert acl_filter(1, None, 1, None, None, 1, 1) == ANY_FILTER
    assert acl_filter(2, "t", 2, None, None, 3, 3).pattern is PatternType.MATCH
    for field, one_more in ((0, 8), (2, 5), (5, 15), (6, 4)):
        for number in (0, -1, one_more):
            entry = [1, None, 1, None, None, 1, 1]
            entry[field] = number
            with pytest.raises(KafkaError, match=f"unknown [a-z ]+ {number}") as refused:
                acl_filter(*entry)  # type: ignore[arg-type]
            assert refused.value.code == errors.INVALID_REQUEST


@with_each(
    ("pattern", "name", "found"),
    [
        (PatternType.ANY, None, "t1 t2 * t... t1..."),
        (PatternType.MATCH, None, "t1 t2 * t... t1..."),
        (PatternType.LITERAL, None, "t1 t2 *"),
        (PatternType.PREFIXED, None, "t... t1..."),
        (PatternType.ANY, "t1", "t1 t1..."),
        (PatternType.MATCH, "t1", "t1 * t... t1..."),
        (PatternType.MATCH, "*", "*"),
        (PatternType.LITERAL, "t1", "t1"),
        (PatternType.LITERAL, "*", "*"),
        (PatternType.PREFIXED, "t1", "t1..."),
        (PatternType.PREFIXED, "t12", ""),
    ],
)
def test_what_a_filter_finds_by_name(pattern: PatternType, name: str | None, found: str) -> None:
    """A filter finds ACLs by name: ANY those with that name of either pattern type, MATCH those that apply to it."""
    wanted = ANY_FILTER._replace(pattern=pattern, name=name)
    there = [topic("t1"), topic("t2"), topic("*"), prefix("t"), prefix("t1")]
    assert [str(each) for each in there if wanted.matches(allow_read(each))] == [
        f"Topic:{each}" for each in found.split()
    ]


def test_the_rest_of_a_filter_is_compared_as_it_stands() -> None:
    """The other fields of a filter are compared literally: Read does not find All, a host not `*`, a principal not
    `User:*`."""
    everyone = AclBinding(topic("t1"), Acl("User:*", "*", Operation.ALL, Permission.ALLOW))
    others: dict[str, object] = {
        "type": ResourceType.GROUP,
        "principal": "User:ann",
        "host": "127.0.0.1",
        "operation": Operation.READ,
        "permission": Permission.DENY,
    }
    assert ANY_FILTER.matches(everyone)
    for field, value in others.items():
        assert not ANY_FILTER._replace(**{field: value}).matches(everyone), field  # type: ignore[arg-type]
    exact = AclFilter(ResourceType.TOPIC, "t1", PatternType.LITERAL, *everyone.acl)
    assert exact.matches(everyone) and not exact.matches(allow_read(topic("t1")))


def test_a_filter_finds_what_applies() -> None:
    """A filter with MATCH finds exactly the ACLs that the authorizer would check."""
    rng = random.Random("match")
    for _ in range(300):
        there = slow_acls.bindings(slow_acls.a_rule_set(rng))
        for kind, name in itertools.product(slow_acls.TYPES, slow_acls.NAMES):
            wanted = ANY_FILTER._replace(type=kind, name=name, pattern=PatternType.MATCH)
            found = {each for each in there if wanted.matches(each)}
            about = {each for each in there if each.resource.type == kind and slow_acls.is_about(each.resource, name)}
            assert found == about
