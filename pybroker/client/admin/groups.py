"""Groups: listed, described with their members and assignments, and deleted."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pybroker import errors
from pybroker.client import arguments, html_tables
from pybroker.client.admin.base import only, raise_for
from pybroker.client.admin.coordinators import MOVED, CoordinatorOutcome, CoordinatorsAdmin
from pybroker.client.consuming.subscriptions import PROTOCOL_TYPE, read_assignment
from pybroker.client.net.connection import BrokerConnection
from pybroker.client.net.metadata import RETRY_BACKOFF_S, Node
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.message import Bytes


class GroupListing(NamedTuple):
    """A group in a list; `type` is "classic" or "consumer". Older brokers leave fields empty: the state before 2.6, the
    type before 3.8."""

    id: str
    protocol_type: str
    state: str
    type: str


class Member(NamedTuple):
    """A member of a group, and the partitions that it was given; `instance_id` is None unless it is static."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """A group: `type` as in GroupListing, `protocol` the assignor in use. Cause and time (ms since the epoch) of the
    last rebalance are None before the first one, and if the broker is not pybroker."""

    id: str
    state: str
    type: str
    protocol_type: str
    protocol: str
    coordinator: Node
    members: tuple[Member, ...]
    rebalance_cause: str | None = None
    rebalance_ms: int | None = None

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [(m.client_id, m.instance_id or m.id, m.client_host, m.assignment) for m in self.members]
        shown = [(*row[:3], [str(tp) for tp in row[3]]) for row in rows]
        title = f"group {self.id}: {self.state}, {self.protocol or 'no assignor'}, by broker {self.coordinator.id}"
        return html_tables.table(title, ("client", "member", "host", "partitions"), shown, len(rows))


class GroupsAdmin(CoordinatorsAdmin):
    """Operations on groups and their members."""

    def groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """The groups in any of these states and of any of these types (none given: all), by id."""
        states, types = arguments.names(states, "states"), arguments.names(types, "types")
        self.cluster.metadata([])
        request = m.ListGroupsRequest(states_filter=states, types_filter=types)
        found: set[GroupListing] = set()
        for node in self.cluster.nodes:
            answer = self._ask_until_loaded(node, request)
            raise_for(answer.error_code, f"groups of broker {node}")
            found.update(GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type) for g in answer.groups)
        return sorted(g for g in found if _among(g.state, states) and _among(g.type, types))

    def _ask_until_loaded(self, node: int, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
        """The answer of a broker after it has loaded its groups, or its last one when the time is over."""
        deadline = time.monotonic() + self.timeout_s
        while True:
            answer = self.cluster.node(node).request(request)
            if answer.error_code not in MOVED or time.monotonic() > deadline:
                return answer
            time.sleep(RETRY_BACKOFF_S)

    def describe_groups(self, ids: Iterable[str]) -> list[GroupDescription]:
        """These groups. KafkaError(GROUP_ID_NOT_FOUND) if one of them is not there."""
        outcomes = self._ask_coordinators(arguments.names(ids, "ids"), _describe)
        strangers = [group for group, outcome in outcomes.items() if _is_unknown(outcome)]
        found = {g: _classic(g, outcome) for g, outcome in outcomes.items() if g not in strangers}
        for group, outcome in self._ask_coordinators(strangers, _describe_consumer).items():
            if outcome.code in (errors.GROUP_ID_NOT_FOUND, errors.UNSUPPORTED_VERSION):
                raise KafkaError(errors.GROUP_ID_NOT_FOUND, f"group {group} does not exist")
            found[group] = _consumer(group, outcome)
        return [found[group] for group in outcomes]

    def delete_group(self, group: str) -> None:
        """Delete a group without members, and its offsets. KafkaError(NON_EMPTY_GROUP) if it has members."""

        arguments.name(group, "a group's id")

        def ask(coordinator: BrokerConnection) -> tuple[int, str | None]:
            result = only(coordinator.request(m.DeleteGroupsRequest(groups_names=[group])).results, f"group {group}")
            return result.error_code, None

        self._ask_coordinator(group, ask)


def _among(value: str, wanted: Sequence[str]) -> bool:
    """True if a value is one of those wanted, or all are. Older brokers know no filter and answer all groups."""
    return not wanted or value.lower() in {word.lower() for word in wanted}


def _describe(
    coordinator: BrokerConnection, groups: Sequence[str]
) -> Iterable[tuple[str, int, str | None, m.DescribeGroupsResponse.Groups | None]]:
    for group in coordinator.request(m.DescribeGroupsRequest(groups=list(groups))).groups:
        yield group.group_id, group.error_code, group.error_message, group


def _describe_consumer(
    coordinator: BrokerConnection, groups: Sequence[str]
) -> Iterable[tuple[str, int, str | None, m.ConsumerGroupDescribeResponse.Groups | None]]:
    if m.ConsumerGroupDescribeRequest.SCHEMA.key not in coordinator.versions:
        for group in groups:
            yield group, errors.UNSUPPORTED_VERSION, None, None
        return
    for found in coordinator.request(m.ConsumerGroupDescribeRequest(group_ids=list(groups))).groups:
        yield found.group_id, found.error_code, found.error_message, found


def _is_unknown(outcome: CoordinatorOutcome[m.DescribeGroupsResponse.Groups]) -> bool:
    """True if the group does not exist: an error from version 6 on, before that the state Dead."""
    return outcome.code == errors.GROUP_ID_NOT_FOUND or (
        not outcome.code and outcome.answer is not None and outcome.answer.group_state == "Dead"
    )


def _classic(group: str, outcome: CoordinatorOutcome[m.DescribeGroupsResponse.Groups]) -> GroupDescription:
    raise_for(outcome.code, f"group {group}", outcome.message)
    told = outcome.answer
    assert told is not None
    return GroupDescription(
        group,
        told.group_state,
        "classic",
        told.protocol_type,
        told.protocol_data,
        outcome.coordinator,
        tuple(_member(member, told.protocol_type) for member in sorted(told.members, key=lambda m: m.member_id)),
        told.last_rebalance_cause or None,
        told.last_rebalance_ms if told.last_rebalance_ms >= 0 else None,
    )


def _consumer(group: str, outcome: CoordinatorOutcome[m.ConsumerGroupDescribeResponse.Groups]) -> GroupDescription:
    """A group of the newer protocol, whose assignments the broker makes (KIP-848)."""
    raise_for(outcome.code, f"group {group}", outcome.message)
    told = outcome.answer
    assert told is not None
    members = []
    for member in sorted(told.members, key=lambda m: m.member_id):
        assigned = member.assignment.topic_partitions
        partitions = tuple(sorted(TopicPartition(t.topic_name, p) for t in assigned for p in t.partitions))
        members.append(Member(member.member_id, member.instance_id, member.client_id, member.client_host, partitions))
    return GroupDescription(
        group, told.group_state, "consumer", PROTOCOL_TYPE, told.assignor_name, outcome.coordinator, tuple(members)
    )


def _member(told: m.DescribeGroupsResponse.Groups.Members, protocol_type: str) -> Member:
    assignment = _assignment(told.member_assignment) if protocol_type == PROTOCOL_TYPE else ()
    return Member(told.member_id, told.group_instance_id, told.client_id, told.client_host, assignment)


def _assignment(data: Bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a member's assignment; none if another protocol's bytes do not parse."""
    try:
        return tuple(sorted(read_assignment(data)))
    except KafkaError:
        return ()
