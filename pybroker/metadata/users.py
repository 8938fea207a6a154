"""Lists and alters SCRAM users directly in the store, for commands: brokers that log in by SCRAM need a user to start.

The nodes are those that a broker writes for KIP-554, with the notice from which running brokers learn of the change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.coordination.commit import commit
from pybroker.coordination.store import BadVersion, Create, NodeExists, NoNode, Session
from pybroker.metadata import nodes
from pybroker.metadata.controllership import read_config
from pybroker.metadata.entities import Change, EntityConfigs, written
from pybroker.metadata.lone_broker import loading
from pybroker.security.credentials import Credentials, check_new_user, check_user
from pybroker.security.quotas import USER, ClientQuotas

ABOVE: Final = (nodes.CONFIGS, nodes.USER_CONFIGS, nodes.CONFIG_CHANGES)
"""Nodes to create if no broker has ever started."""


async def users(session: Session) -> Mapping[str, Mapping[str, int]]:
    """{user: {mechanism: iterations}} of all users with credentials. Raises StoreError."""
    found = EntityConfigs(Credentials(), ClientQuotas())
    await found.load_all(session)
    return found.credentials.users()


async def alter(session: Session, user: str, change: Change) -> None:
    """Replace a user's settings with `change` of them. Raises what `change` raises, UNACCEPTABLE_CREDENTIAL for an
    invalid name, KAFKA_STORAGE_ERROR for a damaged node, StoreError."""
    check_user(user)
    entity = ((USER, user),)
    path = nodes.entity_path(entity)
    notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(path), sequential=True)
    while True:
        await loading.prepare(session, ABOVE)
        held, version = await read_config(session, f"{nodes.CONFIGS}/{path}", nodes.load_entity_config)
        wanted = change(held)
        if wanted.keys() - held.keys():
            check_new_user(user)
        changes = await written(session, entity, version, wanted)
        try:
            await commit(session, [*changes, notice])
            return
        except (BadVersion, NodeExists, NoNode):
            continue  # another broker wrote first
