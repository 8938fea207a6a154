"""The secret from which a cluster derives salts for users that do not exist: created once, by its first broker.

    /config/users    {"version":1,"unknown_users_secret":"base64"}    empty until then

Kafka keeps nothing in this node and never reads it: its users are the nodes below. With zookeeper.set.acl only brokers
can read it, as with the credentials.
"""

import base64
import json
import logging
from typing import Final

from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, NoNode, Session, Set, StoreFailed
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.security.credentials import SECRET_BYTES, Credentials

log = logging.getLogger(__name__)

KEY: Final = "unknown_users_secret"
EMPTY: Final = (b"", b"null")


async def share(session: Session, credentials: Credentials) -> None:
    """Make all brokers use one secret: take the one in the store, or write this broker's own into an empty node. If
    neither works, log the reason and keep the broker's own. Raises StoreError if the session ends."""
    path = nodes.USER_CONFIGS
    try:
        while True:
            data, stat = await read(session, path)
            if data not in EMPTY:
                credentials.secret = _load(data)
                return
            try:
                await commit(session, [Set(path, _dump(credentials.secret), stat.version)])
                return
            except BadVersion:
                continue  # another broker wrote first: read its secret
    except (NoNode, StoreFailed, ValueError) as problem:
        effect = "this broker's salts for unknown users differ from other brokers', and change at a restart"
        event(log, logging.WARNING, "secret of unknown users not shared", node=path, reason=problem, effect=effect)


def _dump(secret: bytes) -> bytes:
    return json.dumps({"version": 1, KEY: base64.b64encode(secret).decode()}, separators=(",", ":")).encode()


def _load(data: bytes) -> bytes:
    """The secret in the node. Raises ValueError, whose text holds nothing of the node's data."""
    try:
        found = json.loads(data)
        secret = base64.b64decode(found[KEY], validate=True)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("it holds other data") from None
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"it holds a secret of {len(secret)} bytes: {SECRET_BYTES} are needed")
    return secret
