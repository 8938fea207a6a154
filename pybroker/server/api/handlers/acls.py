"""DescribeAcls, CreateAcls, DeleteAcls. Without an authorizer each element of a request gets SECURITY_DISABLED.

The response must not be empty: librdkafka expects a result for each ACL that it sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.acls import AclBinding, AclFilter, ResourcePattern, acl_filter, new_acl
from pybroker.tasks import by_time

WHY = "this broker has no authorizer, so everything is allowed: set authorizer.class.name to use ACLs"


if TYPE_CHECKING:
    from pybroker.metadata.acls import AclStore
    from pybroker.security.access import Access


class Acls:
    """The handlers of ACL requests. `store` and `access` are None without an authorizer."""

    def __init__(self, store: AclStore | None, access: Access | None) -> None:
        self._store = store
        self._access = access

    def describe(self, request: m.DescribeAclsRequest, call: Call) -> m.DescribeAclsResponse:
        if self._access is None:
            return describe_failed(request, errors.SECURITY_DISABLED, WHY)
        by_resource: dict[ResourcePattern, list[m.DescribeAclsResponse.Resources.Acls]] = {}
        kind = m.DescribeAclsResponse.Resources
        for resource, acl in sorted(self._access.rules.acls(_filter(request))):
            by_resource.setdefault(resource, []).append(
                kind.Acls(
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission
                )
            )
        return m.DescribeAclsResponse(
            error_message=None,
            resources=[
                kind(resource_type=at.type, resource_name=at.name, pattern_type=at.pattern, acls=acls)
                for at, acls in by_resource.items()
            ],
        )

    async def create(self, request: m.CreateAclsRequest, call: Call) -> m.CreateAclsResponse:
        """Create each ACL on its own; ACLs of one resource are written together."""
        if self._store is None:
            return create_failed(request, errors.SECURITY_DISABLED, WHY)
        kind = m.CreateAclsResponse.Results
        results = [kind(error_message=None) for _ in request.creations]
        by_resource: dict[ResourcePattern, list[tuple[AclBinding, m.CreateAclsResponse.Results]]] = {}
        for asked, result in zip(request.creations, results, strict=True):
            try:
                binding = new_acl(
                    asked.resource_type, asked.resource_name, asked.resource_pattern_type, asked.principal, asked.host,
                    asked.operation, asked.permission_type,
                )  # fmt: skip
            except KafkaError as problem:
                result.error_code, result.error_message = problem.code, problem.message
            else:
                by_resource.setdefault(binding.resource, []).append((binding, result))
        await asyncio.gather(*(_add(self._store, pairs) for pairs in by_resource.values()))
        return m.CreateAclsResponse(results=results)

    async def delete(self, request: m.DeleteAclsRequest, call: Call) -> m.DeleteAclsResponse:
        """Delete the ACLs that match; each is reported for the first filter that matches it."""
        if self._store is None:
            return delete_failed(request, errors.SECURITY_DISABLED, WHY)
        kind = m.DeleteAclsResponse.FilterResults
        results: list[m.DeleteAclsResponse.FilterResults] = []
        wanted: list[tuple[AclFilter, m.DeleteAclsResponse.FilterResults]] = []
        for asked in request.filters:
            result = kind(error_message=None)
            results.append(result)
            try:
                wanted.append((_filter(asked), result))
            except KafkaError as problem:
                result.error_code, result.error_message = problem.code, problem.message
        try:
            told = await self._store.remove([each for each, _ in wanted])
        except KafkaError as problem:
            return delete_failed(request, problem.code, problem.message)
        for (_, result), matched in zip(wanted, told, strict=True):
            result.matching_acls = await _told(matched)
        return m.DeleteAclsResponse(filter_results=results)


async def _add(store: AclStore, pairs: Sequence[tuple[AclBinding, m.CreateAclsResponse.Results]]) -> None:
    """Create the ACLs of one resource and fill in their results. Resources are written concurrently, so that a store
    that does not respond delays the request by one timeout."""
    try:
        await store.add([binding for binding, _ in pairs])
    except KafkaError as problem:
        for _, result in pairs:
            result.error_code, result.error_message = problem.code, problem.message


async def _told(
    matched: Mapping[AclBinding, KafkaError | None]
) -> list[m.DeleteAclsResponse.FilterResults.MatchingAcls]:
    """Return the result of each matching ACL, with an error for one that could not be deleted."""
    kind = m.DeleteAclsResponse.FilterResults.MatchingAcls
    return [
        kind(
            error_code=errors.NONE if problem is None else problem.code,
            error_message=None if problem is None else problem.message,
            resource_type=at.type, resource_name=at.name, pattern_type=at.pattern,
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
        )
        async for (at, acl), problem in by_time(matched.items())
    ]  # fmt: skip


def _filter(asked: m.DescribeAclsRequest | m.DeleteAclsRequest.Filters) -> AclFilter:
    """Return the filter of a request. Raises INVALID_REQUEST."""
    return acl_filter(
        asked.resource_type_filter, asked.resource_name_filter, asked.pattern_type_filter, asked.principal_filter,
        asked.host_filter, asked.operation, asked.permission_type,
    )  # fmt: skip


def describe_failed(request: m.DescribeAclsRequest, code: int, message: str) -> m.DescribeAclsResponse:
    return m.DescribeAclsResponse(error_code=code, error_message=message)


def create_failed(request: m.CreateAclsRequest, code: int, message: str) -> m.CreateAclsResponse:
    kind = m.CreateAclsResponse.Results
    return m.CreateAclsResponse(results=[kind(error_code=code, error_message=message) for _ in request.creations])


def delete_failed(request: m.DeleteAclsRequest, code: int, message: str) -> m.DeleteAclsResponse:
    kind = m.DeleteAclsResponse.FilterResults
    return m.DeleteAclsResponse(filter_results=[kind(error_code=code, error_message=message) for _ in request.filters])
