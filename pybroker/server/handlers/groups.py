"""Membership of consumer groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; and what operators see of groups."""

from __future__ import annotations

from typing import Any

from pybroker import errors
from pybroker.cluster.caller import Call
from pybroker.cluster.group import Group, State
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

    async def __call__(self, request: Any, call: Call) -> Any:
        rebalance_ms = request.rebalance_timeout_ms
        fields = {
            "member_id": request.member_id,
            "instance_id": request.group_instance_id,
            "client_id": call.client_id or "",
            "client_host": f"/{call.caller.host}",
            "session_timeout_ms": request.session_timeout_ms,
            "rebalance_timeout_ms": rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
            "protocol_type": request.protocol_type,
            "protocols": tuple((p.name, bytes(p.metadata)) for p in request.protocols),
            "must_know_id": call.version >= MEMBER_ID_REQUIRED_VERSION,
            "can_skip": call.version >= SKIP_ASSIGNMENT_VERSION,
            "reason": request.reason or "",
        }
        joined = await self._groups.members.join(request.group_id, fields)
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

    async def __call__(self, request: Any, call: Call) -> Any:
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

    def __call__(self, request: Any, call: Call) -> Any:
        error = self._groups.members.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return m.HeartbeatResponse(error_code=error)


class LeaveGroup:
    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def __call__(self, request: Any, call: Call) -> Any:
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

    def __call__(self, request: Any, call: Call) -> Any:
        rights = operations.of(ResourceType.GROUP, request.include_authorized_operations)
        return m.DescribeGroupsResponse(
            groups=[self._describe(name, call.version, rights) for name in dict.fromkeys(request.groups)]
        )

    def _describe(self, name: str, version: int, rights: int) -> Any:
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
                group_id=name, error_code=code, error_message="there is no such group" if code else None,
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

    def _members(self, group: Group) -> list[Any]:
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

    def __call__(self, request: Any, call: Call) -> Any:
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

    async def __call__(self, request: Any, call: Call) -> Any:
        kind = m.DeleteGroupsResponse.Results
        results = []
        for name in dict.fromkeys(request.groups_names):
            try:
                error = await self._groups.offsets.delete(name)
            except KafkaError as problem:
                error = problem.code
            results.append(kind(group_id=name, error_code=error))
        return m.DeleteGroupsResponse(results=results)


def failed_join(request: Any, code: int, message: str) -> Any:
    return m.JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name="", leader="")


def failed_leave(request: Any, code: int, message: str) -> Any:
    """As a whole; Kafka answers the members' codes only where the group itself is in order."""
    return m.LeaveGroupResponse(error_code=code)


def failed_sync(request: Any, code: int, message: str) -> Any:
    return m.SyncGroupResponse(error_code=code, assignment=b"")


def failed_heartbeat(request: Any, code: int, message: str) -> Any:
    return m.HeartbeatResponse(error_code=code)


def failed_describe(request: Any, code: int, message: str) -> Any:
    kind = m.DescribeGroupsResponse.Groups
    blank = {"group_state": "", "protocol_type": "", "protocol_data": ""}
    return m.DescribeGroupsResponse(groups=[kind(group_id=name, error_code=code, **blank) for name in request.groups])


def failed_list(request: Any, code: int, message: str) -> Any:
    return m.ListGroupsResponse(error_code=code)


def failed_delete(request: Any, code: int, message: str) -> Any:
    kind = m.DeleteGroupsResponse.Results
    return m.DeleteGroupsResponse(results=[kind(group_id=name, error_code=code) for name in request.groups_names])
