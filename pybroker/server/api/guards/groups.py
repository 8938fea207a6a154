"""Guards of requests of and about consumer groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from pybroker import errors
from pybroker.decisions.caller import Call, Caller
from pybroker.protocol import messages as m
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.api.dispatch import A, Answered, Handler, Q
from pybroker.server.api.guards.auth_helper import AuthHelper, Guarded, after, refusal, run, split, with_only

if TYPE_CHECKING:
    Topic = m.OffsetFetchRequest.Topics | m.OffsetFetchRequest.Groups.Topics

OfGroup = TypeVar(
    "OfGroup",
    bound="m.JoinGroupRequest | m.SyncGroupRequest | m.HeartbeatRequest | m.LeaveGroupRequest | m.OffsetCommitRequest"
    " | m.OffsetDeleteRequest | m.TxnOffsetCommitRequest",
)
Asked = TypeVar("Asked", "m.OffsetFetchRequest", "m.OffsetFetchRequest.Groups")
Told = TypeVar("Told", "m.OffsetFetchResponse", "m.OffsetFetchResponse.Groups")
GROUPS, TRANSACTIONS = 0, 1
"""Key types of FindCoordinator."""
BATCH_FETCH_VERSION = 8
"""The first version in which OffsetFetch names several groups."""


def of_group(
    auth: AuthHelper, handler: Handler[OfGroup, A], operation: Operation, then: Guarded[OfGroup, A] | None = None
) -> Guarded[OfGroup, A]:
    """Requests about one group: need the operation on that group."""
    go_on = then or handler.by

    def guarded(request: OfGroup, call: Call) -> Answered[A]:
        if not auth.may(call.caller, operation, ResourceType.GROUP, request.group_id):
            return refusal(handler, request, errors.GROUP_AUTHORIZATION_FAILED)
        return go_on(request, call)

    return guarded


def of_groups(auth: AuthHelper, handler: Handler[Q, A], operation: Operation, asked: str, told: str) -> Guarded[Q, A]:
    """Requests with a list of group names in the field `asked`; each group is checked on its own."""

    def guarded(request: Q, call: Call) -> Answered[A]:
        def allowed(name: str) -> bool:
            return auth.may(call.caller, operation, ResourceType.GROUP, name)

        return run(handler, request, call, asked, told, allowed, errors.GROUP_AUTHORIZATION_FAILED)

    return guarded


def described_groups(
    auth: AuthHelper, handler: Handler[m.DescribeGroupsRequest, m.DescribeGroupsResponse]
) -> Guarded[m.DescribeGroupsRequest, m.DescribeGroupsResponse]:
    """DescribeGroups: needs Describe on each group; the response has the caller's authorized operations."""
    plain = of_groups(auth, handler, Operation.DESCRIBE, "groups", "groups")

    def guarded(request: m.DescribeGroupsRequest, call: Call) -> Answered[m.DescribeGroupsResponse]:
        def finish(answer: m.DescribeGroupsResponse) -> m.DescribeGroupsResponse:
            for group in answer.groups if request.include_authorized_operations else ():
                if not group.error_code:
                    group.authorized_operations = auth.operations(call.caller, ResourceType.GROUP, group.group_id)
            return answer

        return after(plain(request, call), finish)

    return guarded


def listed_groups(
    auth: AuthHelper, handler: Handler[m.ListGroupsRequest, m.ListGroupsResponse]
) -> Guarded[m.ListGroupsRequest, m.ListGroupsResponse]:
    """ListGroups: returns all groups with Describe on the cluster, else those that the caller may describe."""

    def guarded(request: m.ListGroupsRequest, call: Call) -> Answered[m.ListGroupsResponse]:
        def finish(answer: m.ListGroupsResponse) -> m.ListGroupsResponse:
            if not auth.may_to_cluster(call.caller, Operation.DESCRIBE, told=False):
                answer.groups = [
                    group
                    for group in answer.groups
                    if auth.may(call.caller, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, told=False)
                ]
            return answer

        return after(handler.by(request, call), finish)

    return guarded


def found_coordinators(
    auth: AuthHelper, handler: Handler[m.FindCoordinatorRequest, m.FindCoordinatorResponse]
) -> Guarded[m.FindCoordinatorRequest, m.FindCoordinatorResponse]:
    """FindCoordinator: needs Describe on the group or the transactional id."""

    def guarded(request: m.FindCoordinatorRequest, call: Call) -> Answered[m.FindCoordinatorResponse]:
        kind, code = ResourceType.GROUP, errors.GROUP_AUTHORIZATION_FAILED
        if request.key_type == TRANSACTIONS:
            kind, code = ResourceType.TRANSACTIONAL_ID, errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

        def allowed(key: str) -> bool:
            asked = request.key_type in (GROUPS, TRANSACTIONS)
            return not asked or auth.may(call.caller, Operation.DESCRIBE, kind, key)

        if request.coordinator_keys:
            return run(handler, request, call, "coordinator_keys", "coordinators", allowed, code)
        return handler.by(request, call) if allowed(request.key) else refusal(handler, request, code)

    return guarded


def fetched_offsets(
    auth: AuthHelper, handler: Handler[m.OffsetFetchRequest, m.OffsetFetchResponse]
) -> Guarded[m.OffsetFetchRequest, m.OffsetFetchResponse]:
    """OffsetFetch: needs Describe on the group and on each topic; if all topics are asked for, denied ones are left
    out."""

    def guarded(request: m.OffsetFetchRequest, call: Call) -> Answered[m.OffsetFetchResponse]:
        caller = call.caller

        def group_allowed(name: str) -> bool:
            return auth.may(caller, Operation.DESCRIBE, ResourceType.GROUP, name)

        if call.version < BATCH_FETCH_VERSION:
            if not group_allowed(request.group_id):
                return refusal(handler, request, errors.GROUP_AUTHORIZATION_FAILED)
            less, denied = _visible(auth, caller, request)
            return after(handler.by(less, call), lambda answer: _with_denied(auth, caller, answer, request, denied))
        kept, refused = split(request.groups, lambda group: group_allowed(group.group_id))
        pairs = [_visible(auth, caller, group) for group in kept]
        failed = refusal(handler, with_only(request, "groups", refused), errors.GROUP_AUTHORIZATION_FAILED)
        if not kept and refused:
            return failed

        def finish(answer: m.OffsetFetchResponse) -> m.OffsetFetchResponse:
            asked = {group.group_id: (group, denied) for group, (_, denied) in zip(kept, pairs, strict=True)}
            for group in answer.groups:
                _with_denied(auth, caller, group, *asked[group.group_id])
            answer.groups.extend(failed.groups)
            return answer

        return after(handler.by(with_only(request, "groups", [less for less, _ in pairs]), call), finish)

    return guarded


def _visible(auth: AuthHelper, caller: Caller, asked: Asked) -> tuple[Asked, list[Topic]]:
    """Return the request with only the allowed topics, and the denied topics."""
    topics: Sequence[Topic] | None = asked.topics
    if topics is None:
        return asked, []
    kept, denied = split(topics, lambda topic: auth.may_to_topic(caller, Operation.DESCRIBE, topic.name))
    return with_only(asked, "topics", kept), denied


def _with_denied(auth: AuthHelper, caller: Caller, answer: Told, asked: Asked, denied: Sequence[Topic]) -> Told:
    if asked.topics is None:
        seen = [t for t in answer.topics if auth.may_to_topic(caller, Operation.DESCRIBE, t.name, told=False)]
        answer.topics = seen
        return answer
    if answer.error_code:
        return answer
    kind, code = type(answer).Topics, errors.TOPIC_AUTHORIZATION_FAILED
    for topic in denied:
        partitions = [
            kind.Partitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in topic.partition_indexes
        ]
        answer.topics.append(kind(name=topic.name, partitions=partitions))
    return answer
