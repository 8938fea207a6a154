"""ACLs with Kafka's names and numbers: what one says, what a filter of ACLs matches, and which may be created.

    AclBinding    ResourcePattern    Topic, pay-, Prefixed        what it is about
                  Acl                User:ann, *, Read, Allow     who, from where, may do what

An enum's number is its code on the wire. Its name is Kafka's enum name, as notifications have it (TRANSACTIONAL_ID);
`text` is the name of the same thing in paths and in the ACLs of a znode (TransactionalId).

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
"""The name of the literal pattern that is about every resource of a type, and the host that is every host."""
EVERYBODY = "User:*"
"""The principal of an ACL that is about all principals, of whatever type."""
CLUSTER_NAME = "kafka-cluster"
"""The one resource of the type Cluster."""


class _Named(IntEnum):
    """An enum of Kafka's."""

    @property
    def text(self) -> str:
        """Its name in CamelCase."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @classmethod
    def of(cls, text: str) -> Self:
        """The one with this name in CamelCase, capitals or not. ValueError for one that an ACL cannot have."""
        known: dict[str, Self] = _by_text(cls)
        if text.upper() not in known:
            raise ValueError(f"{shown(text)} is none of {', '.join(each.text for each in known.values())}")
        return known[text.upper()]

    @property
    def concrete(self) -> bool:
        """May an ACL have it? The others are for filters, or for what is newer than this broker."""
        return self.name not in ("UNKNOWN", "ANY", "MATCH")


E = TypeVar("E", bound=_Named)


@functools.cache
def _by_text(kind: type[E]) -> dict[str, E]:
    """Those that an ACL can have."""
    return {each.text.upper(): each for each in kind if each.concrete}


class ResourceType(_Named):
    """What can be protected."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Named):
    """How a name is meant. ANY and MATCH are for filters: as it is in either way, and what applies to it."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(_Named):
    """What can be done to a resource. In the bits of `authorized_operations` each is 1 << its number."""

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
    """Whether an ACL gives or takes."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


class ResourcePattern(NamedTuple):
    """One resource, or with PREFIXED all whose names begin so."""

    type: ResourceType
    name: str
    pattern: PatternType

    def __str__(self) -> str:
        return f"{self.type.text}:{self.name}" + ("..." if self.pattern is PatternType.PREFIXED else "")


class Acl(NamedTuple):
    """Whether a principal, like User:ann, may do an operation from a host."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    """An ACL and what it is about."""

    resource: ResourcePattern
    acl: Acl


class AclFilter(NamedTuple):
    """Which ACLs are asked for; None and ANY are whichever."""

    type: ResourceType
    name: str | None
    pattern: PatternType
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    def matches(self, binding: AclBinding) -> bool:
        """Operations are compared as they stand: READ does not find an ACL for ALL, nor Describe one for READ."""
        return self.matches_resource(binding.resource) and self.matches_acl(binding.acl)

    def matches_acl(self, acl: Acl) -> bool:
        """True if it matches an ACL of a resource that it is about."""
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def resource(self) -> ResourcePattern | None:
        """Return the one resource that it is about; None if there may be others."""
        if self.name is None or self.type is ResourceType.ANY or not self.pattern.concrete:
            return None
        return ResourcePattern(self.type, self.name, self.pattern)

    def matches_resource(self, resource: ResourcePattern) -> bool:
        """Is it about this resource? With MATCH a name finds its literal, the literal `*` and the prefixes of it."""
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
    """The filter of a request's numbers. Raises INVALID_REQUEST for 0 and for numbers that Kafka 3.9 does not have."""
    return AclFilter(
        _known(ResourceType, resource_type, "resource type"), name, _known(PatternType, pattern, "pattern type"),
        principal, host, _known(Operation, operation, "operation"), _known(Permission, permission, "permission type"),
    )  # fmt: skip


def new_acl(
    resource_type: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> AclBinding:
    """The ACL that an entry of CreateAcls describes. Raises INVALID_REQUEST.

    Like Kafka it accepts a host that is none, a name that no topic can have, an operation that the type lacks, and a
    principal of a type that nobody has. Such an ACL matches nobody."""
    resource = ResourcePattern(
        _concrete(ResourceType, resource_type, "resource type"), name, _concrete(PatternType, pattern, "pattern type")
    )
    check_name(resource)
    check_principal(principal)
    allowed = _concrete(Permission, permission, "permission type")
    return AclBinding(resource, Acl(principal, host, _concrete(Operation, operation, "operation"), allowed))


_NO_NODE = re.compile("[/\0-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")
"""What ZooKeeper takes in no name; the last range is two characters of the one before it in Java."""


def is_node_name(name: str) -> bool:
    """Can a znode be called so?"""
    return name not in ("", ".", "..") and not _NO_NODE.search(name)


def check_name(resource: ResourcePattern) -> None:
    """Raises INVALID_REQUEST where no ACL can be about a resource of this name: it is the name of a znode too."""
    name = resource.name
    if not name:
        raise _bad("the name of a resource cannot be empty")
    if resource.type is ResourceType.CLUSTER and name != CLUSTER_NAME:
        raise _bad(f"the cluster's name is {CLUSTER_NAME}, not {shown(name)}")
    if not is_node_name(name):
        raise _bad(f"the name of a resource is that of a node in ZooKeeper, which {shown(name)} cannot be")


def check_principal(principal: str) -> None:
    """Raises INVALID_REQUEST unless it has a type and a name, whichever: User:ann."""
    if ":" not in principal:
        raise _bad(f"{shown(principal)} is no principal: write its type and its name, like User:ann")


def _known(kind: type[E], code: int, what: str) -> E:
    if code == 0 or code not in kind.__members__.values():
        raise _bad(f"there is no {what} {code}")
    return kind(code)


def _concrete(kind: type[E], code: int, what: str) -> E:
    found = _known(kind, code, what)
    if not found.concrete:
        raise _bad(f"an ACL cannot have the {what} {found.name}: that is for filters")
    return found


def _bad(why: str) -> KafkaError:
    return KafkaError(errors.INVALID_REQUEST, why)
