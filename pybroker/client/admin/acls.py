"""ACLs: which principal may do what (KIP-11, KIP-290). The types are those of `pybroker.security.acls`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypedDict

from pybroker.client.admin.base import AdminBase, only, raise_for
from pybroker.protocol import messages as m
from pybroker.security.acls import (
    Acl,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)

EVERY: Final = AclFilter(ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY)


class AclsAdmin(AdminBase):
    """Operations on ACLs."""

    def acls(self, wanted: AclFilter = EVERY) -> list[AclBinding]:
        """The ACLs that match, sorted. KafkaError(SECURITY_DISABLED) if the cluster has no authorizer."""
        answer = self.cluster.any().request(m.DescribeAclsRequest(**_fields(wanted)))
        raise_for(answer.error_code, "the ACLs", answer.error_message)
        found = []
        for resource in answer.resources:
            at = _pattern(resource)
            found += [AclBinding(at, _acl(each)) for each in resource.acls]
        return sorted(found)

    def create_acls(self, acls: Iterable[AclBinding]) -> None:
        """Create the ACLs that do not exist yet. KafkaError of the first that is refused; the others are created."""
        kind = m.CreateAclsRequest
        made = [
            kind.Creations(
                resource_type=at.type, resource_name=at.name, resource_pattern_type=at.pattern,
                principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
            )
            for at, acl in acls
        ]  # fmt: skip
        for asked, result in zip(made, self.cluster.controller().request(kind(creations=made)).results, strict=True):
            raise_for(result.error_code, f"the ACL for {asked.resource_name}", result.error_message)

    def delete_acls(self, wanted: AclFilter) -> list[AclBinding]:
        """Delete the ACLs that match, and return them, sorted. Raises KafkaError."""
        kind = m.DeleteAclsRequest
        answer = self.cluster.controller().request(kind(filters=[kind.Filters(**_fields(wanted))]))
        result = only(answer.filter_results, "one filter")
        raise_for(result.error_code, "the ACLs", result.error_message)
        gone = [each for each in result.matching_acls if not each.error_code]
        for each in result.matching_acls:
            done = f" ({len(gone)} others are deleted)" if gone else ""
            told = each.error_message and each.error_message + done
            raise_for(each.error_code, f"the ACL for {each.resource_name}{done}", told)
        return sorted(AclBinding(_pattern(each), _acl(each)) for each in gone)


class _Fields(TypedDict):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


if TYPE_CHECKING:
    _Matched = m.DeleteAclsResponse.FilterResults.MatchingAcls
    _Resource = m.DescribeAclsResponse.Resources | _Matched
    _Told = m.DescribeAclsResponse.Resources.Acls | _Matched


def _fields(wanted: AclFilter) -> _Fields:
    return {
        "resource_type_filter": wanted.type, "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern, "principal_filter": wanted.principal, "host_filter": wanted.host,
        "operation": wanted.operation, "permission_type": wanted.permission,
    }  # fmt: skip


def _pattern(told: _Resource) -> ResourcePattern:
    return ResourcePattern(ResourceType(told.resource_type), told.resource_name, PatternType(told.pattern_type))


def _acl(told: _Told) -> Acl:
    return Acl(told.principal, told.host, Operation(told.operation), Permission(told.permission_type))
