"""ACL migration of existing nodes, for a cluster that turns zookeeper.set.acl on or off.

    brokers have a login --> brokers have zookeeper.set.acl --> existing nodes are secured     and the other way round
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from .commit import until_answered
from .store import NoNode
from .zookeeper_access import SECURED
from .zookeeper_session import ZooKeeperSession

AT_ONCE: Final = 500


async def set_all(session: ZooKeeperSession, *, secure: bool) -> int:
    """Give the root and all of Kafka's nodes the ACLs that they would be created with. Return how many were changed, 0
    if there are none of Kafka's nodes. Raises StoreError.

    The ACL of a node is set before its children are listed: later children are created by brokers, which have
    zookeeper.set.acl by then."""
    found = [path for path in SECURED if await until_answered(lambda path=path: session.exists(path))]  # type: ignore[misc]
    if not found:
        return 0
    changed = len(await _set(session, ["/"], secure))
    while found:
        level: list[str] = []
        for first in range(0, len(found), AT_ONCE):
            there = await _set(session, found[first : first + AT_ONCE], secure)
            changed += len(there)
            for children in await asyncio.gather(*(_children(session, path) for path in there)):
                level += children
        found = level
    return changed


async def _set(session: ZooKeeperSession, paths: Sequence[str], secure: bool) -> list[str]:
    """Set the ACLs of these nodes, and return the paths of those that still exist."""

    async def one(path: str) -> bool:
        try:
            await until_answered(lambda: session.set_acls(path, secure=secure))
        except NoNode:
            return False
        return True

    return [path for path, there in zip(paths, await asyncio.gather(*map(one, paths)), strict=True) if there]


async def _children(session: ZooKeeperSession, path: str) -> list[str]:
    try:
        names, _ = await until_answered(lambda: session.children(path))
    except NoNode:
        return []
    return [f"{path}/{name}" for name in names]
