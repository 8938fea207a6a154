"""Guards of what consumer groups ask, and of what is asked about them."""

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call, Caller
from pybroker.security.acls import Operation, ResourceType
from pybroker.server.dispatch import Handler
from pybroker.server.guards.auth_helper import AuthHelper, Guarded, after, refusal, run, split, with_only

GROUPS, TRANSACTIONS = 0, 1
"""What FindCoordinator looks for."""
BATCH_FETCH_VERSION = 8
"""From here on OffsetFetch names several groups."""


def of_group(auth: AuthHelper, handler: Handler, operation: Operation, then: Guarded | None = None) -> Guarded:
    """The same of the group that the request names."""
    go_on = then or handler.by

    def guarded(request: Any, call: Call) -> Any:
        if not auth.may(call.caller, operation, ResourceType.GROUP, request.group_id):
            return refusal(handler, request, errors.GROUP_AUTHORIZATION_FAILED)
        return go_on(request, call)

    return guarded


def of_groups(auth: AuthHelper, handler: Handler, operation: Operation, asked: str, told: str) -> Guarded:
    """Each group by itself; a request has their names."""

    def guarded(request: Any, call: Call) -> Any:
        def allowed(name: str) -> bool:
            return auth.may(call.caller, operation, ResourceType.GROUP, name)

        return run(handler, request, call, asked, told, allowed, errors.GROUP_AUTHORIZATION_FAILED)

    return guarded


def described_groups(auth: AuthHelper, handler: Handler) -> Guarded:
    """DescribeGroups, with what the caller may do to each."""
    plain = of_groups(auth, handler, Operation.DESCRIBE, "groups", "groups")

    def guarded(request: Any, call: Call) -> Any:
        def finish(answer: Any) -> Any:
            for group in answer.groups if request.include_authorized_operations else ():
                if not group.error_code:
                    group.authorized_operations = auth.operations(call.caller, ResourceType.GROUP, group.group_id)
            return answer

        return after(plain(request, call), finish)

    return guarded


def listed_groups(auth: AuthHelper, handler: Handler) -> Guarded:
    """ListGroups: all for who may describe the cluster, else those that the caller may describe."""

    def guarded(request: Any, call: Call) -> Any:
        def finish(answer: Any) -> Any:
            if not auth.may_to_cluster(call.caller, Operation.DESCRIBE, told=False):
                answer.groups = [
                    group
                    for group in answer.groups
                    if auth.may(call.caller, Operation.DESCRIBE, ResourceType.GROUP, group.group_id, told=False)
                ]
            return answer

        return after(handler.by(request, call), finish)

    return guarded


def found_coordinators(auth: AuthHelper, handler: Handler) -> Guarded:
    """FindCoordinator, of groups and of transactional ids."""

    def guarded(request: Any, call: Call) -> Any:
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


def fetched_offsets(auth: AuthHelper, handler: Handler) -> Guarded:
    """OffsetFetch: the group, then the topics; where all are asked for, those that are denied are left out."""

    def guarded(request: Any, call: Call) -> Any:
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

        def finish(answer: Any) -> Any:
            asked = {group.group_id: (group, denied) for group, (_, denied) in zip(kept, pairs, strict=True)}
            for group in answer.groups:
                _with_denied(auth, caller, group, *asked[group.group_id])
            answer.groups.extend(failed.groups)
            return answer

        return after(handler.by(with_only(request, "groups", [less for less, _ in pairs]), call), finish)

    return guarded


def _visible(auth: AuthHelper, caller: Caller, asked: Any) -> tuple[Any, list[Any]]:
    """The same of fewer topics, and those that are denied."""
    if asked.topics is None:
        return asked, []
    kept, denied = split(asked.topics, lambda topic: auth.may_to_topic(caller, Operation.DESCRIBE, topic.name))
    return with_only(asked, "topics", kept), denied


def _with_denied(auth: AuthHelper, caller: Caller, answer: Any, asked: Any, denied: list[Any]) -> Any:
    if asked.topics is None:
        answer.topics = [t for t in answer.topics if auth.may_to_topic(caller, Operation.DESCRIBE, t.name, told=False)]
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
