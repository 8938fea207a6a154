"""A member of a group as its coordinator sees it, without a connection in between."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from pybroker import errors
from pybroker.decisions.group import Joined, Synced
from pybroker.decisions.offsets import Committed
from pybroker.decisions.rebalance import Join
from pybroker.groups.coordinator import Coordinator
from pybroker.model import TopicPartition
from tests import virtual
from tests.groups.logs import Replicated
from tests.groups.members import subscription

SESSION_MS = 6_000


class Consumer:
    """One member; `id` and `generation` are from its last answer."""

    def __init__(self, groups: Coordinator, group: str, *, instance: str | None = None, name: str = "c") -> None:
        self.groups, self.group, self.instance, self.name = groups, group, instance, name
        self.topic = "t"
        self.id, self.generation = "", -1
        self.others: list[str] = []  # the members that it assigns partitions to, as leader

    async def join(self) -> Joined:
        """Join, with the second request under the id that the first one returned."""
        joined = await self._join()
        return await self._join() if joined.error == errors.MEMBER_ID_REQUIRED else joined

    async def _join(self) -> Joined:
        asked = Join(
            token=None, member_id=self.id, instance_id=self.instance, client_id=self.name, client_host="/h",
            session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS, protocol_type="consumer",
            protocols=(("range", subscription(self.topic)),), fresh_id="",
        )  # fmt: skip
        joined = await self.groups.members.join(self.group, asked)
        if joined.error in (errors.NONE, errors.MEMBER_ID_REQUIRED):
            self.id = joined.member_id
        if not joined.error:
            self.generation = joined.generation
            self.others = [member for member, _, _ in joined.members]
        return joined

    async def sync(self) -> Synced:
        shares = {member: member.encode() for member in self.others}
        return await self.groups.members.sync(
            self.group, self.id, self.instance, self.generation, shares, "consumer", "range"
        )

    async def stable(self, log: Replicated) -> None:
        """Become the only member of a group that is stored."""
        assert (await self.join()).error == errors.NONE
        assert (await after(log, self.sync())).error == errors.NONE

    def heartbeat(self) -> int:
        return self.groups.members.heartbeat(self.group, self.id, self.instance, self.generation)

    def leave(self) -> int:
        return self.groups.members.leave(self.group, self.id, self.instance, "enough")

    async def commit(self, offsets: dict[TopicPartition, Committed]) -> dict[TopicPartition, int]:
        return await self.groups.offsets.commit(self.group, self.id, self.instance, self.generation, offsets)


async def after(log: Replicated, work: Coroutine[Any, Any, Any]) -> Any:
    """Start a request, let the followers fetch its records, and return its answer."""
    task = asyncio.create_task(work)
    await virtual.settle()
    await log.move()
    return await task
