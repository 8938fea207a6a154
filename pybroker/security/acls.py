"""ACLs with Kafka's names and numbers: their parts, filters of ACLs, and the rules for new ones.

    AclBinding    ResourcePattern    Topic, pay-, Prefixed        the resources
                  Acl                User:ann, *, Read, Allow     principal, host, operation, permission

An enum's number is its code on the wire. Its name is Kafka's enum name, as in notifications (TRANSACTIONAL_ID); `text`
is its name in paths and in the ACLs of a znode (TransactionalId).

Source: org.apache.kafka.common.acl, .resource and .utils.SecurityUtils of Kafka 3.9.
"""

import functools
import re
from enum import IntEnum
from typing import NamedTuple, Self, TypeVar

from pybroker import errors
from pybroker.config.settings import shown
from pybroker.errors import KafkaError

WILDCARD = "*"
"""The name of the literal pattern for every resource of a type, and the host that stands for every host."""
EVERYBODY = "User:*"
"""The principal of an ACL for all principals, of any type."""
CLUSTER_NAME = "kafka-cluster"
"""The only resource of the type Cluster."""


class _Named(IntEnum):
    """An enum of Kafka's."""

    @property
    def text(self) -> str:
        """The name in CamelCase."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def of(cls, text: str) -> Self:
        """The member with this CamelCase name, in any case. ValueError for one that an ACL cannot have."""
        known: dict[str, Self] = _by_text(cls)
        if text.upper() not in known:
            raise ValueError(f"{shown(text)} is not one of {', '.join(each.text for each in known.values())}")
        return known[text.upper()]

    @property
    def concrete(self) -> bool:
        """True if an ACL can have this value; others are for filters, or for values of a newer Kafka."""
        return self.name not in ("UNKNOWN", "ANY", "MATCH")


E = TypeVar("E", bound=_Named)


@functools.cache
def _by_text(kind: type[E]) -> dict[str, E]:
    """The members that an ACL can have, by upper-case name."""
    return {each.text.upper(): each for each in kind if each.concrete}


class ResourceType(_Named):
    """The types of resources that ACLs protect."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """The meaning of a resource name. ANY and MATCH are for filters: ANY matches the same name in both pattern types,
    MATCH all patterns that apply to the name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Named):
    """The operations on a resource. In the bits of `authorized_operations` each is 1 << its number."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(_Named):
    """The effect of an ACL."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """One resource, or with PREFIXED all whose names have this prefix."""

    type: ResourceType
    name: str
    pattern: PatternType

    def __str__(self) -> str:
        return f"{self.type.text}:{self.name}" + ("..." if self.pattern is PatternType.PREFIXED else "")


class Acl(NamedTuple):
    """An operation that a principal, like User:ann, is allowed or denied from a host."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    """An ACL and its resource pattern."""

    resource: ResourcePattern
    acl: Acl


class AclFilter(NamedTuple):
    """A filter of ACLs; None and ANY match every value."""

    type: ResourceType
    name: str | None
    pattern: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, binding: AclBinding) -> bool:
        """True if an ACL matches. Operations must be equal: READ does not match an ACL for ALL, nor DESCRIBE one for
        READ."""
        return self.matches_resource(binding.resource) and self.matches_acl(binding.acl)

    def matches_acl(self, acl: Acl) -> bool:
        """True if the filter matches an ACL of a resource that it matches."""
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def resource(self) -> ResourcePattern | None:
        """The only resource that the filter can match; None if there may be others."""
        if self.name is None or self.type is ResourceType.ANY or not self.pattern.concrete:
            return None
        return ResourcePattern(self.type, self.name, self.pattern)

    def matches_resource(self, resource: ResourcePattern) -> bool:
        """True if the filter matches this resource. With MATCH: the literal name, the literal `*` and its prefixes."""
        if self.type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern not in (PatternType.ANY, PatternType.MATCH, resource.pattern):
            return False
        if self.name is None or self.name == resource.name:
            return True
        if self.pattern is not PatternType.MATCH:
            return False
        if resource.pattern is PatternType.LITERAL:
            return resource.name == WILDCARD
        return self.name.startswith(resource.name)


def acl_filter(
    resource_type: int, name: str | None, pattern: int, principal: str | None, host: str | None,
    operation: int, permission: int,
) -> AclFilter:  # fmt: skip
    """The filter from a request's codes. Raises INVALID_REQUEST for 0 and for codes that Kafka 3.9 does not have."""
    return AclFilter(
        _known(ResourceType, resource_type, "resource type"), name, _known(PatternType, pattern, "pattern type"),
        principal, host, _known(Operation, operation, "operation"), _known(Permission, permission, "permission type"),
    )  # fmt: skip


def new_acl(
    resource_type: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> AclBinding:
    """The ACL in an entry of CreateAcls. Raises INVALID_REQUEST.

    Like Kafka this accepts an invalid host, an invalid topic name, an operation that the resource type does not have,
    and a principal of an unknown type. Such an ACL never matches."""
    resource = ResourcePattern(
        _concrete(ResourceType, resource_type, "resource type"), name, _concrete(PatternType, pattern, "pattern type")
    )
    check_name(resource)
    check_principal(principal)
    allowed = _concrete(Permission, permission, "permission type")
    return AclBinding(resource, Acl(principal, host, _concrete(Operation, operation, "operation"), allowed))


_NO_NODE = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
"""Characters that ZooKeeper does not allow in names; in Java the last range is surrogate pairs of the range before."""


def is_node_name(name: str) -> bool:
    """True if this is a valid znode name."""
    return name not in ("", ".", "..") and not _NO_NODE.search(name)


def check_name(resource: ResourcePattern) -> None:
    """Raise INVALID_REQUEST for a resource name that ACLs cannot have: it must also be a valid znode name."""
    name = resource.name
    if not name:
        raise _bad("the name of a resource cannot be empty")
    if resource.type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _bad(f"the cluster's name is {CLUSTER_NAME}, not {shown(name)}")
    if not is_node_name(name):
        raise _bad(f"a resource name must be a valid ZooKeeper node name, which {shown(name)} is not")


def check_principal(principal: str) -> None:
    """Raise INVALID_REQUEST unless a principal has a type and a name, like User:ann."""
    if ":" not in principal:
        raise _bad(f"{shown(principal)} is no principal: write its type and its name, like User:ann")


def _known(kind: type[E], code: int, what: str) -> E:
    if code == 0 or code not in kind.__members__.values():
        raise _bad(f"unknown {what} {code}")
    return kind(code)


def _concrete(kind: type[E], code: int, what: str) -> E:
    found = _known(kind, code, what)
    if not found.concrete:
        raise _bad(f"an ACL cannot have the {what} {found.name}: it is only for filters")
    return found


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, why)
