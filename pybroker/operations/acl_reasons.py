"""The reason why a principal may do something or is refused: the ACLs that decide it, by the authorizer's own rules."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from pybroker.logs import printable
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
from pybroker.security.authorizer import AclRules

_SUPER: Final = "Users of super.users may all the same."


class WantedAccess(NamedTuple):
    """An operation on a resource that a principal wants, from an address."""

    principal: str
    host: str
    operation: Operation
    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.operation.text} {self.type.text} {self.name}"


class Reason(NamedTuple):
    """An answer: allowed or not (None if a setting decides, which brokers do not show), a sentence, and the ACLs that
    decide it or, if there are none, those that apply to the resource."""

    allowed: bool | None
    sentence: str
    acls: list[AclBinding]


def reason_of(access: WantedAccess, acls: Iterable[AclBinding]) -> Reason:
    """Return why an access is allowed or refused by these ACLs, which are all that the cluster has."""
    found = applying(access.type, access.name, acls)
    person = printable(access.principal)
    what = printable(str(access))
    if not found:
        words = f"No ACL applies to {what.partition(' ')[2]}: {person} may not, unless the brokers have"
        return Reason(None, f"{words} allow.everyone.if.no.acl.found=true. {_SUPER}", [])
    deciding = [each for each in found if each.acl.permission is Permission.DENY and _decides(each, access)]
    if deciding:
        return Reason(False, f"{person} may not {what}: {acl_text(deciding[0])}. {_SUPER}", deciding)
    deciding = [each for each in found if each.acl.permission is Permission.ALLOW and _decides(each, access)]
    if deciding:
        return Reason(True, f"{person} may {what}: {acl_text(deciding[0])}.", deciding)
    count = f"{len(found)} ACLs apply" if len(found) > 1 else "one ACL applies"
    words = f"{person} may not {what}: {count} to it, and none allows {access.operation.text} to this principal"
    return Reason(False, f"{words} from this address. {_SUPER}", found)


def applying(type: ResourceType, name: str, acls: Iterable[AclBinding]) -> list[AclBinding]:
    """Return the ACLs that apply to a resource: those of its name, of a prefix of it, and of all."""
    wanted = AclFilter(type, name, PatternType.MATCH, None, None, Operation.ANY, Permission.ANY)
    return [each for each in acls if wanted.matches_resource(each.resource)]


def _decides(binding: AclBinding, access: WantedAccess) -> bool:
    """True if an ACL alone allows or denies the access."""
    every = Acl(EVERYBODY, WILDCARD, Operation.ALL, Permission.ALLOW)
    given: dict[ResourcePattern, list[Acl]] = {binding.resource: [binding.acl]}
    if binding.acl.permission is Permission.DENY:
        given[binding.resource].append(every)
    allows = AclRules().replaced(given).authorize(*access)
    return allows is (binding.acl.permission is Permission.ALLOW)


def acl_text(binding: AclBinding) -> str:
    """Return an ACL as a sentence without its full stop."""
    at, acl = binding
    where = "" if acl.host == WILDCARD else f" from {acl.host}"
    kind = " (prefix)" if at.pattern is PatternType.PREFIXED else ""
    what = f"{acl.operation.text} {at.type.text} {at.name}{kind}"
    return printable(f"{acl.permission.text} {acl.principal}{where} to {what}")
