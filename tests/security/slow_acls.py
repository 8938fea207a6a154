"""AclAuthorizer's rules in their simplest form, without any index: the slow truth beside pybroker.security.authorizer.

Random rule sets come from here too: with few names, principals and hosts, so that ACLs overlap.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from pybroker.security.acls import Acl, AclBinding, Operation, PatternType, Permission, ResourcePattern, ResourceType

IMPLYING = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
TYPES = [kind for kind in ResourceType if kind.concrete]
OPERATIONS = [operation for operation in Operation if operation.concrete]
PERMISSIONS = [Permission.ALLOW, Permission.DENY]
NAMES = ["a", "ab", "abc", "abd", "b", "*", "*a", "ba", "kafka-cluster", "a*", "A", "ä", "a.b-c_d"]
PRINCIPALS = ["User:ann", "User:bob", "User:*", "Group:ann", "User:ANN", "User:CN=ann,OU=x:y", "User:ANONYMOUS"]
HOSTS = ["*", "127.0.0.1", "10.0.0.1", "0:0:0:0:0:0:0:1"]
CALLERS = [each for each in PRINCIPALS if each != "User:*"]
PEERS = [each for each in HOSTS if each != "*"]


class Slow(NamedTuple):
    """All ACLs, the super users, and True if everyone is allowed on a resource without ACLs."""

    bindings: frozenset[AclBinding]
    super_users: frozenset[str] = frozenset()
    allow_everyone: bool = False

    def authorize(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if principal in self.super_users:
            return True
        about = [acl for resource, acl in self.bindings if resource.type == kind and is_about(resource, name)]
        if not about:
            return self.allow_everyone
        mine = [acl for acl in about if is_of(acl, principal, host)]
        denied = {acl.operation for acl in mine if acl.permission == Permission.DENY}
        allowed = {acl.operation for acl in mine if acl.permission == Permission.ALLOW}
        if denied & {operation, Operation.ALL}:
            return False
        return bool(allowed & ({operation, Operation.ALL} | IMPLYING.get(operation, set())))

    def authorize_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        if principal in self.super_users:
            return True
        mine = [
            (resource, acl.permission)
            for resource, acl in self.bindings
            if resource.type == kind and is_of(acl, principal, host) and acl.operation in (operation, Operation.ALL)
        ]
        denied = [resource for resource, permission in mine if permission == Permission.DENY]
        allowed = [resource for resource, permission in mine if permission == Permission.ALLOW]
        if any(resource.name == "*" and resource.pattern == PatternType.LITERAL for resource in denied):
            return False
        if self.allow_everyone:
            return True
        return any(not any(takes_back(deny, allow) for deny in denied) for allow in allowed)


def is_about(resource: ResourcePattern, name: str) -> bool:
    if resource.pattern == PatternType.PREFIXED:
        return name.startswith(resource.name)
    return resource.name in (name, "*")


def is_of(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def takes_back(deny: ResourcePattern, allow: ResourcePattern) -> bool:
    if allow.pattern == PatternType.LITERAL and allow.name == "*":
        return False
    if deny.pattern == PatternType.PREFIXED:
        return allow.name.startswith(deny.name)
    return deny == allow


def a_resource(rng: random.Random, kinds: list[ResourceType] = TYPES, names: list[str] = NAMES) -> ResourcePattern:
    pattern = rng.choice([PatternType.LITERAL, PatternType.PREFIXED])
    return ResourcePattern(rng.choice(kinds), rng.choice(names), pattern)


def some_acls(rng: random.Random, most: int = 4) -> list[Acl]:
    """Random ACLs with few operations, so that an Allow and a Deny meet; sometimes with any operation."""
    operations = rng.choice([OPERATIONS, [Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE]])
    return [
        Acl(rng.choice(PRINCIPALS), rng.choice(HOSTS), rng.choice(operations), rng.choice(PERMISSIONS))
        for _ in range(rng.randint(1, most))
    ]


def a_rule_set(rng: random.Random) -> dict[ResourcePattern, list[Acl]]:
    """Random ACLs of some resources of one or two types, sometimes of none; sometimes of few names."""
    kinds, names = rng.sample(TYPES, rng.choice([1, 1, 2])), rng.choice([NAMES, ["a", "ab", "*"], ["*", "*a"]])
    return {a_resource(rng, kinds, names): some_acls(rng) for _ in range(rng.choice([0, 1, 2, 3, 5, 8]))}


def bindings(rules: dict[ResourcePattern, list[Acl]]) -> frozenset[AclBinding]:
    return frozenset(AclBinding(resource, acl) for resource, acls in rules.items() for acl in acls)
