"""Membership of consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; and admin requests about groups."""

from __future__ import annotations

from pybroker import errors
from pybroker.decisions.caller import Call
from pybroker.decisions.group import Group, State
from pybroker.decisions.rebalance import Join
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.protocol import messages as m
from pybroker.security import operations
from pybroker.security.acls import ResourceType

MEMBER_ID_REQUIRED_VERSION = 4
SKIP_ASSIGNMENT_VERSION = 9
SINGLE_LEAVE_VERSION_MAX = 2
DEAD_IS_AN_ERROR_VERSION = 6


class JoinGroup:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    async def __call__(self, request: m.JoinGroupRequest, call: Call) -> m.JoinGroupResponse:
        rebalance_ms = request.rebalance_timeout_ms
        asked = Join(
            token=None,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=call.client_id or "",
            client_host=f"/{call.caller.host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple((p.name, bytes(p.metadata)) for p in request.protocols),
            fresh_id="",
            must_know_id=call.version >= MEMBER_ID_REQUIRED_VERSION,
            can_skip=call.version >= SKIP_ASSIGNMENT_VERSION,
            reason=request.reason or "",
        )
        joined = await self._groups.members.join(request.group_id, asked)
        kind = m.JoinGroupResponse.Members
        return m.JoinGroupResponse(
            error_code=joined.error,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol if joined.protocol is not None or call.version >= 7 else "",
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[kind(member_id=i, group_instance_id=s, metadata=d) for i, s, d in joined.members],
        )


class SyncGroup:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    async def __call__(self, request: m.SyncGroupRequest, call: Call) -> m.SyncGroupResponse:
        assignments = {a.member_id: bytes(a.assignment) for a in request.assignments}
        synced = await self._groups.members.sync(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            assignments,
            request.protocol_type,
            request.protocol_name,
        )
        return m.SyncGroupResponse(
            error_code=synced.error,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol,
            assignment=synced.assignment,
        )


class Heartbeat:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: m.HeartbeatRequest, call: Call) -> m.HeartbeatResponse:
        error = self._groups.members.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return m.HeartbeatResponse(error_code=error)


class LeaveGroup:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: m.LeaveGroupRequest, call: Call) -> m.LeaveGroupResponse:
        if call.version <= SINGLE_LEAVE_VERSION_MAX:
            error = self._groups.members.leave(request.group_id, request.member_id, None, "")
            return m.LeaveGroupResponse(error_code=error)
        kind = m.LeaveGroupResponse.Members
        answers = []
        for member in request.members:
            error = self._groups.members.leave(
                request.group_id, member.member_id, member.group_instance_id, member.reason or ""
            )
            answers.append(
                kind(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
            )
        return m.LeaveGroupResponse(members=answers)


class DescribeGroups:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: m.DescribeGroupsRequest, call: Call) -> m.DescribeGroupsResponse:
        rights = operations.of(ResourceType.GROUP, request.include_authorized_operations)
        return m.DescribeGroupsResponse(
            groups=[self._describe(name, call.version, rights) for name in dict.fromkeys(request.groups)]
        )

    def _describe(self, name: str, version: int, rights: int) -> m.DescribeGroupsResponse.Groups:
        kind = m.DescribeGroupsResponse.Groups
        try:
            entry = self._groups.find(name)
        except KafkaError as problem:
            return kind(
                group_id=name, error_code=problem.code, error_message=problem.message, group_state="",
                protocol_type="", protocol_data="",
            )  # fmt: skip
        if entry is None:
            code = errors.GROUP_ID_NOT_FOUND if version >= DEAD_IS_AN_ERROR_VERSION else errors.NONE
            return kind(
                group_id=name, error_code=code, error_message=f"group {name!r:.100} does not exist" if code else None,
                group_state=State.DEAD.value, protocol_type="", protocol_data="", authorized_operations=rights,
            )  # fmt: skip
        group = entry.group
        return kind(
            group_id=name,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=(group.protocol or "") if group.state is State.STABLE else "",
            members=self._members(group),
            authorized_operations=rights,
            last_rebalance_cause=group.cause,
            last_rebalance_ms=entry.rebalanced_ms,
        )

    def _members(self, group: Group) -> list[m.DescribeGroupsResponse.Groups.Members]:
        kind = m.DescribeGroupsResponse.Groups.Members
        stable = group.state is State.STABLE
        return [
            kind(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ]


class ListGroups:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: m.ListGroupsRequest, call: Call) -> m.ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        kind = m.ListGroupsResponse.Groups
        code = errors.COORDINATOR_LOAD_IN_PROGRESS if self._groups.loading() else errors.NONE
        return m.ListGroupsResponse(
            error_code=code,
            groups=[
                kind(
                    group_id=entry.group.id,
                    protocol_type=entry.group.protocol_type or "",
                    group_state=entry.group.state.value,
                    group_type="classic",
                )
                for entry in self._groups.entries()
                if (not states or entry.group.state.lower() in states) and (not types or "classic" in types)
            ],
        )


class DeleteGroups:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    async def __call__(self, request: m.DeleteGroupsRequest, call: Call) -> m.DeleteGroupsResponse:
        kind = m.DeleteGroupsResponse.Results
        results = []
        for name in dict.fromkeys(request.groups_names):
            try:
                error = await self._groups.offsets.delete(name)
            except KafkaError as problem:
                error = problem.code
            results.append(kind(group_id=name, error_code=error))
        return m.DeleteGroupsResponse(results=results)


def failed_join(request: m.JoinGroupRequest, code: int, message: str) -> m.JoinGroupResponse:
    return m.JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name="", leader="")


def failed_leave(request: m.LeaveGroupRequest, code: int, message: str) -> m.LeaveGroupResponse:
    """Return the error at the top level only; Kafka has codes for members only if the group itself has no error."""
    return m.LeaveGroupResponse(error_code=code)


def failed_sync(request: m.SyncGroupRequest, code: int, message: str) -> m.SyncGroupResponse:
    return m.SyncGroupResponse(error_code=code, assignment=b"")


def failed_heartbeat(request: m.HeartbeatRequest, code: int, message: str) -> m.HeartbeatResponse:
    return m.HeartbeatResponse(error_code=code)


def failed_describe(request: m.DescribeGroupsRequest, code: int, message: str) -> m.DescribeGroupsResponse:
    kind = m.DescribeGroupsResponse.Groups
    return m.DescribeGroupsResponse(groups=[kind(group_id=name, error_code=code) for name in request.groups])


def failed_list(request: m.ListGroupsRequest, code: int, message: str) -> m.ListGroupsResponse:
    return m.ListGroupsResponse(error_code=code)


def failed_delete(request: m.DeleteGroupsRequest, code: int, message: str) -> m.DeleteGroupsResponse:
    kind = m.DeleteGroupsResponse.Results
    return m.DeleteGroupsResponse(results=[kind(group_id=name, error_code=code) for name in request.groups_names])
