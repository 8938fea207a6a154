"""ACLs of a broker while others change them: acknowledged changes apply, and nothing older comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from pybroker.clock import wall_ms
from pybroker.coordination.memory import MemorySession, MemoryStore
from pybroker.errors import KafkaError
from pybroker.metadata import slow_changes
from pybroker.metadata.acls import AclStore
from pybroker.metadata.lone_broker import loading
from pybroker.security import acl_nodes
from pybroker.security.access import Access
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
from tests.harness import eventually

SLOW, FAST = (ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL) for name in ("slow", "fast"))
READ = Acl("User:ann", "*", Operation.READ, Permission.ALLOW)


class Broker:
    """A broker's ACLs, on a session whose reads of one node can be held back."""

    def __init__(self, session: MemorySession, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = session
        self.go_on, self.waiting = asyncio.Semaphore(0), 0
        self.waits = False
        self.access = Access(frozenset(), False, lambda *_: None)
        self.acls = AclStore(lambda: session, self.access, wall_ms)
        get = session.get

        async def slowly(path: str, *args: Any, **how: Any) -> Any:
            answer = await get(path, *args, **how)
            if self.waits and path == acl_nodes.path(SLOW):
                self.waiting += 1
                await self.go_on.acquire()
            return answer

        monkeypatch.setattr(session, "get", slowly)

    def may_read(self, resource: ResourcePattern) -> bool:
        return self.access.may("User:ann", "127.0.0.1", Operation.READ, ResourceType.TOPIC, resource.name)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    async def make() -> tuple[Broker, Broker, asyncio.Task[None]]:
        store = MemoryStore()
        await store.open()
        made = [Broker(await store.session(60_000), monkeypatch) for _ in range(2)]
        await loading.prepare(made[0].session, acl_nodes.PERSISTENT)
        return made[0], made[1], asyncio.create_task(made[1].acls.follow(made[1].session))

    return make


def binding(resource: ResourcePattern, operation: Operation = Operation.READ) -> AclBinding:
    return AclBinding(resource, READ._replace(operation=operation))


def named(resource: ResourcePattern) -> AclFilter:
    return AclFilter(resource.type, resource.name, PatternType.LITERAL, None, None, Operation.ANY, Permission.ANY)


async def test_what_was_read_before_a_change_of_ours_does_not_undo_it(both: Any) -> None:
    """After two resources changed elsewhere, this broker changes the one it has read while it reads the other."""
    other, ours, following = await both()
    try:
        await other.acls.add([binding(FAST)])
        await eventually("it is heard of", lambda: ours.may_read(FAST))
        ours.waits = True
        await other.acls.add([binding(SLOW, Operation.WRITE)])
        await eventually("it is being read", lambda: ours.waiting == 1)
        await other.acls.add([binding(FAST, Operation.WRITE)])
        await other.acls.add([binding(SLOW)])
        ours.go_on.release()
        await eventually("one was read, the other is being read", lambda: ours.waiting == 2)
        assert [len(gone) for gone in await ours.acls.remove([named(FAST)])] == [2]
        assert not ours.may_read(FAST)
        ours.waits = False
        ours.go_on.release()
        await eventually("the other is gone by", lambda: ours.may_read(SLOW))
        assert not ours.may_read(FAST)
        await other.acls.add([binding(FAST)])
        await eventually("what comes later is heard of again", lambda: ours.may_read(FAST))
    finally:
        following.cancel()


async def test_a_change_while_the_store_is_away(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change during an outage of the store fails in time, saying that it may still come; it comes afterwards."""
    one, _, following = await both()
    await one.acls.add([binding(SLOW)])
    monkeypatch.setattr(slow_changes, "WAIT_S", 0.01)
    one.session.disconnect()
    for change in (one.acls.add([binding(FAST)]), one.acls.remove([named(SLOW)])):
        with pytest.raises(KafkaError, match=r"in time \(the cluster's store does not answer\); it may be done"):
            await change
    one.session.reconnect()
    await eventually("both are done", lambda: one.may_read(FAST) and not one.may_read(SLOW))
    following.cancel()


@pytest.mark.parametrize("name", [None, "t9"], ids=["of any name", "of one resource"])
async def test_filters_are_looked_for_in_turn_with_others(both: Any, name: str | None) -> None:
    """The event loop runs other work while filters are compared with 20,000 ACLs of which none matches."""
    one, _, following = await both()
    following.cancel()
    acls = {
        ResourcePattern(ResourceType.TOPIC, f"t{n}", PatternType.LITERAL): frozenset(
            READ._replace(principal=f"User:u{u}") for u in range(1_000)
        )
        for n in range(20)
    }
    one.access.replace(one.access.rules.replaced(acls))
    turns, asked = 0, AclFilter(
        ResourceType.TOPIC, name, PatternType.MATCH, "User:none", None, Operation.ANY, Permission.ANY
    )  # fmt: skip

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(others())
    assert await one.acls.remove([asked] * (20 if name is None else 400)) == [{}] * (20 if name is None else 400)
    watching.cancel()
    assert turns > 20


async def test_a_filter_of_one_resource_looks_at_no_other(both: Any) -> None:
    one, _, following = await both()
    following.cancel()
    await one.acls.add([binding(SLOW)])
    await one.acls.add([binding(FAST)])
    assert [resource for resource, _ in one.access.rules.about(named(FAST))] == [FAST]
    assert await one.acls.remove([named(FAST)]) == [{binding(FAST): None}]
    assert not one.may_read(FAST) and one.may_read(SLOW)
