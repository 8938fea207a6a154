"""DescribeAcls, CreateAcls, DeleteAcls; of a broker without an authorizer, SECURITY_DISABLED for each thing asked.

An empty list would be no answer: librdkafka counts on a result for each ACL that it sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.acls import AclBinding, AclFilter, ResourcePattern, acl_filter, new_acl
from pybroker.tasks import by_time

WHY = "there is no authorizer on this broker: everybody may do everything"


if TYPE_CHECKING:
    from pybroker.controller.acls import AclStore
    from pybroker.security.access import Access


class Acls:
    """`store` and `access` None: there is no authorizer."""

    def __init__(self, store: AclStore | None, access: Access | None) -> None:
        self._store = store
        self._access = access

    def describe(self, request: Any, call: Call) -> Any:
        if self._access is None:
            return describe_failed(request, errors.SECURITY_DISABLED, WHY)
        by_resource: dict[ResourcePattern, list[Any]] = {}
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

    async def create(self, request: Any, call: Call) -> Any:
        """Each by itself; those of one resource are written at once."""
        if self._store is None:
            return create_failed(request, errors.SECURITY_DISABLED, WHY)
        kind = m.CreateAclsResponse.Results
        results = [kind(error_message=None) for _ in request.creations]
        by_resource: dict[ResourcePattern, list[tuple[AclBinding, Any]]] = {}
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

    async def delete(self, request: Any, call: Call) -> Any:
        """Each filter by itself; an ACL is told of where the first filter is that matches it."""
        if self._store is None:
            return delete_failed(request, errors.SECURITY_DISABLED, WHY)
        kind = m.DeleteAclsResponse.FilterResults
        results, wanted = [], list[tuple[AclFilter, Any]]()
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
            result.matching_acls = await _told(kind, matched)
        return m.DeleteAclsResponse(filter_results=results)


async def _add(store: AclStore, pairs: Sequence[tuple[AclBinding, Any]]) -> None:
    """Create the ACLs of one resource, each with its result. A store that is silent holds up all resources once."""
    try:
        await store.add([binding for binding, _ in pairs])
    except KafkaError as problem:
        for _, result in pairs:
            result.error_code, result.error_message = problem.code, problem.message


async def _told(kind: Any, matched: Mapping[AclBinding, KafkaError | None]) -> list[Any]:
    """Each ACL by itself: one that could not be deleted says so, and hides none of those that were."""
    return [
        kind.MatchingAcls(
            error_code=errors.NONE if problem is None else problem.code,
            error_message=None if problem is None else problem.message,
            resource_type=at.type, resource_name=at.name, pattern_type=at.pattern,
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
        )
        async for (at, acl), problem in by_time(matched.items())
    ]  # fmt: skip


def _filter(asked: Any) -> AclFilter:
    """Raises INVALID_REQUEST."""
    return acl_filter(
        asked.resource_type_filter, asked.resource_name_filter, asked.pattern_type_filter, asked.principal_filter,
        asked.host_filter, asked.operation, asked.permission_type,
    )  # fmt: skip


def describe_failed(request: Any, code: int, message: str) -> Any:
    return m.DescribeAclsResponse(error_code=code, error_message=message)


def create_failed(request: Any, code: int, message: str) -> Any:
    kind = m.CreateAclsResponse.Results
    return m.CreateAclsResponse(results=[kind(error_code=code, error_message=message) for _ in request.creations])


def delete_failed(request: Any, code: int, message: str) -> Any:
    kind = m.DeleteAclsResponse.FilterResults
    return m.DeleteAclsResponse(filter_results=[kind(error_code=code, error_message=message) for _ in request.filters])
