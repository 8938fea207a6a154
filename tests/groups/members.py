"""A member of a consumer group, one request at a time, and other requests of tests to a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from tests.server.live import Wire

SESSION_MS = 10_000


def subscription(*topics: str) -> bytes:
    """The subscription that a consumer sends in its JoinGroup."""
    return b"\0\0" + codec.encode(m.ConsumerProtocolSubscription(topics=list(topics), user_data=None), 0)


class Member:
    """One member; `id` and `generation` are from the coordinator's last answer."""

    def __init__(
        self, wire: Wire, group: str, *, instance: str | None = None, session_ms: int = SESSION_MS, topics: str = "t"
    ) -> None:
        self.wire, self.group, self.instance, self.session_ms = wire, group, instance, session_ms
        self.metadata = subscription(*topics.split())
        self.id, self.generation, self.leads = "", -1, False
        self.members: list[str] = []

    def send_join(self, version: int = 9, **over: Any) -> None:
        fields: dict[str, Any] = {
            "group_id": self.group,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.session_ms,
            "member_id": self.id,
            "group_instance_id": self.instance if version >= 5 else None,
            "protocol_type": "consumer",
            "protocols": [m.JoinGroupRequest.Protocols(name="range", metadata=self.metadata)],
        }
        self.wire.send("JoinGroup", version, **(fields | over))

    async def receive_join(self, version: int = 9) -> int:
        """Receive the JoinGroup answer, and keep its fields; return its error code."""
        _, answer = await self.wire.receive("JoinGroup", version)
        self.id = answer.member_id or self.id
        if not answer.error_code:
            self.generation, self.leads = answer.generation_id, answer.leader == answer.member_id
            self.members = [member.member_id for member in answer.members]
        return int(answer.error_code)

    async def join(self, version: int = 9, **over: Any) -> int:
        """Join, with the second request under the id that the first one returned."""
        self.send_join(version, **over)
        error = await self.receive_join(version)
        if error == errors.MEMBER_ID_REQUIRED:
            self.send_join(version, **over)
            error = await self.receive_join(version)
        return error

    def send_sync(self, shares: Mapping[str, bytes] | None = None) -> None:
        kind = m.SyncGroupRequest.Assignments
        self.wire.send(
            "SyncGroup", 5, group_id=self.group, generation_id=self.generation, member_id=self.id,
            group_instance_id=self.instance, protocol_type="consumer", protocol_name="range",
            assignments=[kind(member_id=k, assignment=v) for k, v in (shares or {}).items()],
        )  # fmt: skip

    async def sync(self, shares: Mapping[str, bytes] | None = None) -> tuple[int, bytes]:
        self.send_sync(shares)
        _, answer = await self.wire.receive("SyncGroup", 5)
        return answer.error_code, bytes(answer.assignment)

    async def heartbeat(self) -> int:
        answer = await self.wire.call(
            "Heartbeat", 4, group_id=self.group, generation_id=self.generation, member_id=self.id,
            group_instance_id=self.instance,
        )  # fmt: skip
        return int(answer.error_code)

    async def leave(self) -> int:
        kind = m.LeaveGroupRequest.Members
        members = [kind(member_id=self.id, group_instance_id=self.instance, reason="done")]
        answer = await self.wire.call("LeaveGroup", 5, group_id=self.group, members=members)
        return int(answer.error_code or answer.members[0].error_code)

    async def commit(self, **partitions: int) -> list[int]:
        """Commit as this member: `commit(t0=5)` is offset 5 in t-0."""
        return await commit(self.wire, self.group, partitions, self.id, self.generation, self.instance)


async def commit(
    wire: Wire,
    group: str,
    offsets: Mapping[str, int],
    member_id: str = "",
    generation: int = -1,
    instance: str | None = None,
    version: int = 8,
    **more: Any,
) -> list[int]:
    """Commit offsets, where {"t0": 5} is offset 5 in t-0; return the error codes."""
    kind = m.OffsetCommitRequest.Topics
    topics = [
        kind(
            name=name[:-1],
            partitions=[kind.Partitions(partition_index=int(name[-1]), committed_offset=offset, **more)],
        )
        for name, offset in offsets.items()
    ]
    answer = await wire.call(
        "OffsetCommit", version, group_id=group, generation_id_or_member_epoch=generation, member_id=member_id,
        group_instance_id=instance, topics=topics,
    )  # fmt: skip
    return [p.error_code for topic in answer.topics for p in topic.partitions]


async def committed(wire: Wire, group: str) -> dict[str, int]:
    """The committed offsets of a group, in the same form."""
    asked = [m.OffsetFetchRequest.Groups(group_id=group, topics=None)]
    [found] = (await wire.call("OffsetFetch", 8, groups=asked)).groups
    assert found.error_code == 0, errors.lookup(found.error_code).name
    return {f"{t.name}{p.partition_index}": p.committed_offset for t in found.topics for p in t.partitions}


async def describe(wire: Wire, group: str) -> Any:
    return (await wire.call("DescribeGroups", 5, groups=[group])).groups[0]


async def stable(*members: Member) -> None:
    """Join all members to one group, the first as leader; each is assigned its number."""
    first = members[0]
    assert await first.join() == 0
    if len(members) == 1:
        assert await first.sync({first.id: b"0"}) == (0, b"0")
        return
    assert (await first.sync())[0] == 0
    for later in members[1:]:
        later.send_join()
        assert await later.receive_join() == errors.MEMBER_ID_REQUIRED
    for one in members:
        one.send_join()
    assert {await one.receive_join() for one in members} == {0}
    shares = {one.id: str(n).encode() for n, one in enumerate(members)}
    for one in members:
        one.send_sync(shares if one.leads else None)
    answers = [(await one.wire.receive("SyncGroup", 5))[1] for one in members]
    assert [(a.error_code, bytes(a.assignment)) for a in answers] == [(0, s) for s in shares.values()]
