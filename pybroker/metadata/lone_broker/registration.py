"""A lone broker's registration: its ephemeral node under /brokers/ids. The node's czxid is the broker epoch.

A broker of a cluster registers again in each session (server/cluster/membership.py).
"""

from __future__ import annotations

from collections.abc import Callable

from pybroker.coordination.commit import commit, until_answered
from pybroker.coordination.store import Create, Session, Set
from pybroker.decisions.image import LiveBroker
from pybroker.metadata import nodes


async def register(session: Session, broker: LiveBroker, wall_ms: Callable[[], int]) -> int:
    """Create the broker's node, and return its epoch. Raises NodeExists if another broker has its id, StoreError."""
    path, data = nodes.broker(broker.id), nodes.dump_broker(broker, wall_ms())
    await commit(session, [Create(path, data, ephemeral=True)])
    _, stat = await until_answered(lambda: session.get(path))
    return stat.czxid


async def renew(session: Session, broker: LiveBroker, wall_ms: Callable[[], int]) -> None:
    """Overwrite the broker's node with its present data. Raises StoreError."""
    await commit(session, [Set(nodes.broker(broker.id), nodes.dump_broker(broker, wall_ms()))])
