"""The znodes of Kafka's AclAuthorizer: paths, bytes in, bytes out.

    /kafka-acl/<Type>/<name>                      the ACLs of a literal pattern
    /kafka-acl-extended/prefixed/<Type>/<name>    those of a prefixed one
        {"version":1,"acls":[{"principal":"User:ann","permissionType":"Allow","operation":"Read","host":"*"}]}

    /kafka-acl-changes/acl_changes_N              the literal pattern whose ACLs changed
        TOPIC:name
    /kafka-acl-extended-changes/acl_changes_N     the prefixed one
        {"version":1,"resourceType":"TOPIC","name":"pay-","patternType":"PREFIXED"}

Types and operations are in CamelCase in the first two. Notifications have Kafka's enum names: Kafka silently ignores
other names. Malformed data never raises here. Kafka fails to start with it, or takes broken JSON as no ACLs, which
lifts a Deny. Here such a node is unreadable, and `AclRules` denies its resource.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from pybroker.config.settings import shown
from pybroker.security.acls import Acl, Operation, PatternType, Permission, ResourcePattern, ResourceType, is_node_name

VERSION = 1
ACLS = "/kafka-acl"
EXTENDED_ACLS = "/kafka-acl-extended"
PREFIXED_ACLS = f"{EXTENDED_ACLS}/prefixed"
CHANGES = "/kafka-acl-changes"
EXTENDED_CHANGES = "/kafka-acl-extended-changes"
CHANGE = "acl_changes_"
"""The prefix of the sequential nodes below both."""
ROOTS = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: PREFIXED_ACLS}
TYPES = tuple(each for each in ResourceType if each.concrete)
PERSISTENT = (
    ACLS, *(f"{ACLS}/{each.text}" for each in TYPES), CHANGES, EXTENDED_ACLS, PREFIXED_ACLS,
    *(f"{PREFIXED_ACLS}/{each.text}" for each in TYPES), EXTENDED_CHANGES,
)  # fmt: skip
"""Nodes that must exist before any other is written, parents first."""


class Unreadable(NamedTuple):
    """The result for a node whose data is malformed; `why` completes "its ACLs are unreadable: "."""

    why: str


class Notification(NamedTuple):
    """A change notification to write: a sequential node with this path prefix."""

    path: str
    data: bytes


# -- the ACLs of a resource -------------------------------------------------------------------------------------------


def path(resource: ResourcePattern) -> str:
    """The path of a resource's ACLs. The name is not escaped: `check_name` has checked it."""
    return f"{ROOTS[resource.pattern]}/{resource.type.text}/{resource.name}"


def resource_type(name: str) -> ResourceType | None:
    """The type whose node has this name; None for a type of a newer Kafka, to skip with a warning."""
    return next((each for each in TYPES if each.text == name), None)


def dump_acls(acls: Iterable[Acl]) -> bytes:
    """The data of a node with these ACLs; sorted, so that equal ACLs give equal bytes."""
    entries = [
        {
            "principal": acl.principal,
            "permissionType": acl.permission.text,
            "operation": acl.operation.text,
            "host": acl.host,
        }
        for acl in sorted(set(acls))
    ]
    return _dump({"version": VERSION, "acls": entries})


def load_acls(data: bytes) -> frozenset[Acl] | Unreadable:
    """The ACLs in a node; an empty node has none, as in Kafka."""
    if not data:
        return frozenset()
    try:
        held = _load(data)
        if not isinstance(held["acls"], list):
            return Unreadable("it has no list of ACLs")
        return frozenset(map(_acl, held["acls"]))
    except KeyError as missing:
        return Unreadable(f"it has no {missing}")
    except (ValueError, TypeError, RecursionError) as problem:
        return Unreadable(str(problem))


def _acl(held: Any) -> Acl:
    """The ACL in an entry. Raises ValueError, TypeError or KeyError."""
    principal = _text(held["principal"])
    if ":" not in principal:
        raise ValueError(f"{shown(principal)} is no principal")
    operation, permission = Operation.of(_text(held["operation"])), Permission.of(_text(held["permissionType"]))
    return Acl(principal, _text(held["host"]), operation, permission)


# -- notifications ----------------------------------------------------------------------------------------------------


def dump_change(resource: ResourcePattern) -> Notification:
    """The notification to other brokers that the ACLs of this resource changed."""
    if resource.pattern is PatternType.LITERAL:
        return Notification(f"{CHANGES}/{CHANGE}", f"{resource.type.name}:{resource.name}".encode())
    held = {
        "version": VERSION,
        "resourceType": resource.type.name,
        "name": resource.name,
        "patternType": resource.pattern.name,
    }
    return Notification(f"{EXTENDED_CHANGES}/{CHANGE}", _dump(held))


def load_change(data: bytes) -> ResourcePattern | None:
    """The literal pattern in a node of CHANGES; None if it is unreadable: any ACL may have changed."""
    try:
        kind, _, name = data.decode().partition(":")
        return _resource(kind, name, PatternType.LITERAL)
    except ValueError:
        return None


def load_extended_change(data: bytes) -> ResourcePattern | None:
    """The pattern in a node of EXTENDED_CHANGES, prefixed or literal; None if it is unreadable."""
    try:
        held = _load(data)
        return _resource(_text(held["resourceType"]), _text(held["name"]), PatternType.of(_text(held["patternType"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _resource(kind: str, name: str, pattern: PatternType) -> ResourcePattern | None:
    """The resource; None if this is not a valid node name. Accepts both names of a type, also the one that Kafka
    ignores. Raises ValueError."""
    return ResourcePattern(ResourceType.of(kind.replace("_", "")), name, pattern) if is_node_name(name) else None


# -- JSON -------------------------------------------------------------------------------------------------------------


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _load(data: bytes) -> dict[str, object]:
    """The JSON object in a node. Raises ValueError, KeyError or RecursionError."""
    held = json.loads(data)
    if not isinstance(held, dict):
        raise ValueError("it is not a JSON object")
    version = held["version"]
    if type(version) is not int or version != VERSION:
        raise ValueError(f"its version is {repr(version)[:20]}, but this broker reads only {VERSION}")
    return held


def _text(held: object) -> str:
    if not isinstance(held, str):
        raise ValueError(f"{repr(held)[:100]} is not a string")
    held.encode()  # ValueError for an unpaired surrogate, which cannot be sent
    return held
