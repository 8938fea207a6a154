"""Reads the credentials and quotas of users, client ids and addresses from the store, and applies them.

    /config/users/U             SCRAM credentials and quotas of a user
    /config/users/U/clients/C   quotas of a user with a client id
    /config/clients/C           quotas of a client id
    /config/ips/A               quotas of an address

The name `<default>` applies to all without a node of their own. If a node cannot be read, its user cannot log in, and
the quotas that were read before stay; the broker starts all the same.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TypeVar

from pybroker.config.settings import shown
from pybroker.coordination.commit import read, until_answered
from pybroker.coordination.store import Create, NoNode, Op, Session, Set, StoreFailed
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.security.credentials import Credentials
from pybroker.security.quotas import USER, ClientQuotas, Entity

log = logging.getLogger(__name__)

T = TypeVar("T")
READ_AT_ONCE = 1000
ROOTS = ("users", "clients", "ips")

Change = Callable[[Mapping[str, str]], dict[str, str]]
"""The settings of an entity before a change -> those after."""


class EntityConfigs:
    """Applies the settings of entities to the credentials and quotas."""

    def __init__(self, credentials: Credentials, quotas: ClientQuotas) -> None:
        self.credentials = credentials
        self.quotas = quotas

    def take(self, entity: Entity, config: Mapping[str, str]) -> None:
        """Apply `config`, all the settings that an entity has now."""
        ((kind, name), *clients) = entity
        if kind == USER and name is not None and not clients:
            for mechanism in self.credentials.take(name, config):
                why = "it cannot be read"
                event(log, logging.ERROR, "credential ignored", user=name, mechanism=mechanism, reason=why)
        for key in self.quotas.take(entity, config):
            why = f"{shown(config[key])} is no value of it"
            event(log, logging.ERROR, "quota ignored", of=nodes.entity_path(entity), quota=key, reason=why)

    async def load_all(self, session: Session) -> None:
        """Read and apply the settings of all entities. Raises StoreError."""
        listed = [await _children(session, f"{nodes.CONFIGS}/{root}") for root in ROOTS]
        paths = [f"{root}/{name}" for root, names in zip(ROOTS, listed, strict=True) for name in names or ()]
        of_users = [path for path in paths if path.startswith("users/")]
        below = await _in_shares(_clients_of(session, path) for path in of_users)
        paths += [path for found in below for path in found or ()]
        entities = [entity for path in paths if (entity := nodes.entity_of_path(path)) is not None]
        if None not in [*listed, *below]:  # else some entities may exist that could not be listed
            self.credentials.keep({name for (kind, name), *more in entities if kind == USER and name and not more})
            self.quotas.keep(entities)
        await _in_shares(self.load(session, entity) for entity in entities)

    async def load(self, session: Session, entity: Entity) -> None:
        """Read and apply the settings of an entity. Raises StoreError."""
        config = dict[str, str]()
        try:
            config = nodes.load_entity_config((await read(session, f"{nodes.CONFIGS}/{nodes.entity_path(entity)}"))[0])
        except NoNode:
            pass
        except StoreFailed as problem:  # the node is damaged, or access is denied
            event(log, logging.ERROR, "entity settings ignored", of=nodes.entity_path(entity), reason=problem)
            config = {key: str(value) for key, value in self.quotas.all().get(entity, {}).items()}
        self.take(entity, config)


async def _children(session: Session, path: str) -> list[str] | None:
    """The names below a node; None, after logging it, if ZooKeeper denies reading them."""
    try:
        names, _ = await until_answered(lambda: session.children(path))
    except NoNode:
        return []
    except StoreFailed as problem:
        event(log, logging.ERROR, "list of entities unreadable", node=path, reason=problem)
        return None
    return list(names)


async def _clients_of(session: Session, user: str) -> list[str] | None:
    names = await _children(session, f"{nodes.CONFIGS}/{user}/clients")
    return None if names is None else [f"{user}/clients/{name}" for name in names]


async def _in_shares(works: Iterable[Coroutine[object, None, T]]) -> list[T]:
    """The results of all, run READ_AT_ONCE at a time."""
    left, done = list(works), list[T]()
    for first in range(0, len(left), READ_AT_ONCE):
        done += await asyncio.gather(*left[first : first + READ_AT_ONCE])
    return done


async def written(session: Session, entity: Entity, version: int | None, config: Mapping[str, str]) -> list[Op]:
    """The writes that set an entity's settings; `version` is that of its node, None if missing. Raises StoreError."""
    path, node = f"{nodes.CONFIGS}/{nodes.entity_path(entity)}", nodes.dump_config(config)
    if version is not None:
        return [Set(path, node, version)]
    above = [f"{nodes.CONFIGS}/{nodes.entity_path(entity[:1])}"]
    above.append(f"{above[0]}/clients")
    made: list[Op] = []
    for parent in above if len(entity) > 1 else ():
        if await _is_missing(session, parent):
            made.append(Create(parent, b""))
    return [*made, Create(path, node)]


async def _is_missing(session: Session, path: str) -> bool:
    return await until_answered(lambda: session.exists(path)) is None
