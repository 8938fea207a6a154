"""Users who log in by SCRAM, given from outside of any broker: no broker is asked where brokers log in so themselves.

What is written is what a broker writes who is asked (KIP-554), with the notice by which brokers that run learn of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pybroker.controller import loading, nodes
from pybroker.controller.election import read_config
from pybroker.controller.entities import Change, EntityConfigs, written
from pybroker.coordination.commit import commit
from pybroker.coordination.store import BadVersion, Create, NodeExists, NoNode, Session
from pybroker.security.credentials import Credentials, check_new_user, check_user
from pybroker.security.quotas import USER, ClientQuotas

ABOVE: Final = (nodes.CONFIGS, nodes.USER_CONFIGS, nodes.CONFIG_CHANGES)
"""What is missing where no broker has been yet."""


async def users(session: Session) -> Mapping[str, Mapping[str, int]]:
    """{user: {mechanism: iterations}} of everybody who can log in. Raises StoreError."""
    found = EntityConfigs(Credentials(), ClientQuotas())
    await found.load_all(session)
    return found.credentials.users()


async def alter(session: Session, user: str, change: Change) -> None:
    """Give a user what `change` makes of what there is. Raises what `change` does, UNACCEPTABLE_CREDENTIAL for a name
    that nobody can have, KAFKA_STORAGE_ERROR where that is damaged, StoreError."""
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
            return await commit(session, [*changes, notice])
        except (BadVersion, NodeExists, NoNode):
            continue  # another was quicker
