"""Authorizes operations by ACLs, with the rules of Kafka's AclAuthorizer.

The ACLs that apply are those of the literal name, of the literal `*`, and of each prefix of the name:

    a super user                        allowed.
    no ACLs apply to the resource       allowed if allow.everyone.if.no.acl.found.
    an ACL denies it to the principal   denied.
    an ACL allows it to the principal   allowed.
    otherwise                           denied.

It does not matter how specific an ACL is. An Allow of Read, Write, Delete or Alter includes Describe, and an Allow of
AlterConfigs includes DescribeConfigs; a Deny includes nothing else. A resource pattern whose ACLs are unreadable is
denied to all but super users, with every resource that it matches.

Operations are bits, so that one look-up answers for all of them. Prefixes are looked up by length: many prefixes have
few distinct lengths.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pybroker.persistent_map import PersistentMap
from pybroker.security.acl_nodes import Unreadable
from pybroker.security.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from pybroker.security.operations import OPERATIONS, bits

LITERAL, PREFIXED, ALLOW, DENY = PatternType.LITERAL, PatternType.PREFIXED, Permission.ALLOW, Permission.DENY

_EVERY: Final = bits(*(each for each in Operation if each.concrete))
_DENIED: Final = {each: bits(each) for each in Operation} | {Operation.ALL: _EVERY}
"""The operations that a Deny of each operation denies."""
_ALLOWED: Final = {
    **_DENIED,
    Operation.READ: bits(Operation.READ, Operation.DESCRIBE),
    Operation.WRITE: bits(Operation.WRITE, Operation.DESCRIBE),
    Operation.DELETE: bits(Operation.DELETE, Operation.DESCRIBE),
    Operation.ALTER: bits(Operation.ALTER, Operation.DESCRIBE),
    Operation.ALTER_CONFIGS: bits(Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS),
}
"""The operations that an Allow of each operation allows."""


class _Pattern(NamedTuple):
    """The ACLs of a resource pattern, and the operations that they allow and deny, by principal and host."""

    resource: ResourcePattern
    acls: frozenset[Acl]
    bits: Mapping[tuple[str, str], tuple[int, int]]


class _Holder(NamedTuple):
    """The key by which `authorize_any` looks up names."""

    pattern: PatternType
    permission: Permission
    principal: str
    host: str
    operation: Operation


_Names = PersistentMap[str, None]


class _OfType(NamedTuple):
    """The patterns of one resource type. `lengths` is the number of prefixes of each length."""

    literal: PersistentMap[str, _Pattern] = PersistentMap()
    prefixed: PersistentMap[str, _Pattern] = PersistentMap()
    lengths: Mapping[int, int] = {}
    names: PersistentMap[_Holder, _Names] = PersistentMap()


class AclRules:
    """An immutable snapshot of all ACLs."""

    __slots__ = ("_allow_everyone", "_super_users", "_types", "unreadable")

    def __init__(self, super_users: frozenset[str] = frozenset(), allow_everyone: bool = False) -> None:
        """Make rules without ACLs. `allow_everyone` is allow.everyone.if.no.acl.found."""
        self._super_users = super_users
        self._allow_everyone = allow_everyone
        self._types: Mapping[ResourceType, _OfType] = {each: _OfType() for each in OPERATIONS}
        self.unreadable: Mapping[ResourcePattern, str] = {}
        """The resources that are denied because their ACLs are unreadable, with the reason to log."""

    def replaced(self, given: Mapping[ResourcePattern, Iterable[Acl] | Unreadable]) -> "AclRules":
        """New rules with other ACLs, or none, for these resource patterns; other patterns are shared, not copied."""
        after = AclRules(self._super_users, self._allow_everyone)
        unreadable = {resource: why for resource, why in self.unreadable.items() if resource not in given}
        by_type: dict[ResourceType, list[_Pattern]] = {}
        for resource, acls in given.items():
            if isinstance(acls, Unreadable):
                unreadable[resource] = acls.why
                acls = [_NOBODY]
            acls = frozenset(acls)
            by_type.setdefault(resource.type, []).append(_Pattern(resource, acls, _operations(acls)))
        after.unreadable = unreadable
        after._types = {**self._types, **{kind: _with(self._types[kind], new) for kind, new in by_type.items()}}
        return after

    # -- queries ------------------------------------------------------------------------------------------------------

    def authorize(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        """True if allowed. `principal` is like User:ann, `host` the text of the peer's address (`host_text`)."""
        return bool(self.allowed(principal, host, kind, name) >> operation & 1)

    def authorize_any(self, principal: str, host: str, operation: Operation, kind: ResourceType) -> bool:
        """True if the operation is allowed on any resource of the type: Kafka's authorizeByResourceType.

        A Deny of the literal `*` denies it. Otherwise allow.everyone.if.no.acl.found allows it; without that, an Allow
        does, unless there is a Deny of the same name or of a prefix of it. No operation implies another here."""
        if principal in self._super_users:
            return True
        denied = self._names(LITERAL, DENY, principal, host, operation, kind)
        if any(WILDCARD in names for names in denied):
            return False
        if self._allow_everyone:
            return True
        denied_prefixes = self._names(PREFIXED, DENY, principal, host, operation, kind)
        lengths = self._types[kind].lengths if denied_prefixes else ()

        def taken_back(name: str) -> bool:
            return any(name[:length] in names for length in lengths if length <= len(name) for names in denied_prefixes)

        prefixes = self._names(PREFIXED, ALLOW, principal, host, operation, kind)
        if any(not taken_back(name) for names in prefixes for name in names):
            return True
        literal = self._names(LITERAL, ALLOW, principal, host, operation, kind)
        if any(WILDCARD in names for names in literal):
            return True
        free = (name for names in literal for name in names if not any(name in each for each in denied))
        return any(not taken_back(name) for name in free)

    def authorized_operations(self, principal: str, host: str, kind: ResourceType, name: str) -> int:
        """The operations of the type that the principal may do, as bits.

        For a cluster that the principal may not describe the result is 0, as in Kafka: any client gets the responses
        with these bits. Topics and groups that it may not describe are left out of responses, or have an error."""
        allowed = self.allowed(principal, host, kind, name) & OPERATIONS[kind]
        return 0 if kind is ResourceType.CLUSTER and not allowed >> Operation.DESCRIBE & 1 else allowed

    def acls(self, wanted: AclFilter) -> Iterator[AclBinding]:
        """The ACLs that match, in no order; without those of unreadable resources."""
        for resource, acls in self.about(wanted):
            yield from (AclBinding(resource, acl) for acl in acls if wanted.matches_acl(acl))

    def about(self, wanted: AclFilter) -> Iterator[tuple[ResourcePattern, frozenset[Acl]]]:
        """The resources that a filter matches, with all their ACLs; unreadable ones have none.

        Other resources are yielded without ACLs, so that the caller can pause between them."""
        exact = wanted.resource()
        if exact is not None:
            found = self.of(exact)
            yield exact, found if isinstance(found, frozenset) else frozenset()
            return
        for of_type in self._types.values():
            for patterns in (of_type.literal, of_type.prefixed):
                for resource, acls, _ in patterns.values():
                    is_about = resource not in self.unreadable and wanted.matches_resource(resource)
                    yield resource, acls if is_about else frozenset()

    def of(self, resource: ResourcePattern) -> frozenset[Acl] | Unreadable:
        """The ACLs of one resource."""
        if resource in self.unreadable:
            return Unreadable(self.unreadable[resource])
        of_type = self._types[resource.type]
        found = (of_type.literal if resource.pattern is LITERAL else of_type.prefixed).get(resource.name)
        return frozenset() if found is None else found.acls

    def resources(self) -> Iterator[ResourcePattern]:
        """The resources that have ACLs, readable or not."""
        for of_type in self._types.values():
            for patterns in (of_type.literal, of_type.prefixed):
                yield from (pattern.resource for pattern in patterns.values())

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def allowed(self, principal: str, host: str, kind: ResourceType, name: str) -> int:
        """The allowed operations as bits. Bits of operations that the resource type does not have may be set, too."""
        if principal in self._super_users:
            return _EVERY
        allowed, denied, found = 0, 0, False
        callers = ((principal, host), (principal, WILDCARD), (EVERYBODY, host), (EVERYBODY, WILDCARD))
        for pattern in self._about(kind, name):
            found = True
            for caller in callers:
                if caller in pattern.bits:
                    allows, denies = pattern.bits[caller]
                    allowed |= allows
                    denied |= denies
        if not found:
            return _EVERY if self._allow_everyone else 0
        return allowed & ~denied

    def _about(self, kind: ResourceType, name: str) -> Iterator[_Pattern]:
        """The patterns that apply to this name."""
        literal, prefixed, lengths, _ = self._types[kind]
        if exact := literal.get(name):
            yield exact
        if name != WILDCARD and (every := literal.get(WILDCARD)):
            yield every
        for length in lengths:
            if length <= len(name) and (begins := prefixed.get(name[:length])):
                yield begins

    def _names(
        self, pattern: PatternType, permission: Permission, principal: str, host: str, operation: Operation,
        kind: ResourceType,
    ) -> list[_Names]:  # fmt: skip
        """The names in ACLs of this pattern type and permission that match the caller: non-empty sets of them."""
        index = self._types[kind].names
        keys = (
            _Holder(pattern, permission, who, where, what)
            for who in {principal, EVERYBODY}
            for where in {host, WILDCARD}
            for what in {operation, Operation.ALL}
        )
        return [names for key in keys if (names := index.get(key))]


_NOBODY: Final = Acl(EVERYBODY, WILDCARD, Operation.ALL, DENY)
"""The ACL used in place of unreadable ones: one of them may be a Deny."""


def _operations(acls: Iterable[Acl]) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for principal, host, operation, permission in acls:
        allowed, denied = found.get((principal, host), (0, 0))
        if permission is ALLOW:
            allowed |= _ALLOWED[operation]
        else:
            denied |= _DENIED[operation]
        found[principal, host] = allowed, denied
    return found


def _with(before: _OfType, given: Iterable[_Pattern]) -> _OfType:
    """The patterns of a type with these replaced or added; a pattern without ACLs is removed."""
    put: dict[PatternType, dict[str, _Pattern]] = {LITERAL: {}, PREFIXED: {}}
    gone: dict[PatternType, list[str]] = {LITERAL: [], PREFIXED: []}
    lengths = dict(before.lengths)
    added: dict[_Holder, dict[str, None]] = {}
    removed: dict[_Holder, list[str]] = {}
    for new in given:
        kind, name = new.resource.pattern, new.resource.name
        old = (before.literal if kind is LITERAL else before.prefixed).get(name)
        had = old.acls if old else frozenset()
        if new.acls:
            put[kind][name] = new
        else:
            gone[kind].append(name)
        if kind is PREFIXED:
            lengths[len(name)] = lengths.get(len(name), 0) + bool(new.acls) - bool(had)
        for acl in new.acls - had:
            added.setdefault(_holder(kind, acl), {})[name] = None
        for acl in had - new.acls:
            removed.setdefault(_holder(kind, acl), []).append(name)
    index = {
        key: (before.names.get(key) or _Names()).changed(added.get(key, {}), removed.get(key, ()))
        for key in added.keys() | removed.keys()
    }
    return _OfType(
        before.literal.changed(put[LITERAL], gone[LITERAL]),
        before.prefixed.changed(put[PREFIXED], gone[PREFIXED]),
        {length: times for length, times in lengths.items() if times},
        before.names.changed({k: v for k, v in index.items() if v}, [k for k, v in index.items() if not v]),
    )


def _holder(pattern: PatternType, acl: Acl) -> _Holder:
    return _Holder(pattern, acl.permission, acl.principal, acl.host, acl.operation)
