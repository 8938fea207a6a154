"""What the store knows of users, in `/config/users`: the credentials that a broker goes by.

A node has quotas too, which are kept as they are. One that cannot be read costs its own user the login, and no start.
"""

import asyncio
import logging

from pybroker.controller import nodes
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import NoNode, Session, StoreDamaged
from pybroker.logs import event
from pybroker.security.credentials import Credentials

log = logging.getLogger(__name__)

READ_AT_ONCE = 1000


async def load_users(session: Session, credentials: Credentials) -> None:
    """Take the credentials of everybody. Raises StoreError."""
    names, _ = await until_answered(lambda: session.children(nodes.USER_CONFIGS))
    credentials.keep({nodes.user_of(name) for name in names})
    for first in range(0, len(names), READ_AT_ONCE):
        share = names[first : first + READ_AT_ONCE]
        await asyncio.gather(*(load_user(session, credentials, name) for name in share))


async def load_user(session: Session, credentials: Credentials, name: str) -> None:
    """The same of the user whose node has this name. Raises StoreError."""
    if name == nodes.DEFAULT_ENTITY:
        return
    user, config = nodes.user_of(name), dict[str, str]()
    try:
        config = nodes.load_user_config((await read(session, f"{nodes.USER_CONFIGS}/{name}"))[0])
    except NoNode:
        pass
    except StoreDamaged as problem:
        event(log, logging.ERROR, "credentials of a user ignored", user=user, reason=problem)
    for mechanism in credentials.take(user, config):
        event(log, logging.ERROR, "credential ignored", user=user, mechanism=mechanism, reason="it cannot be read")
