"""Settings that change while a cluster runs: any broker writes them, with a notice that all brokers read.

    judge -> write the entity by its version, and a notice of it, in one multi -> this broker goes by it at once
      ^── another was quicker: read again, judge again

Nothing here is fenced by the controller's epoch: settings are no decision of the controller (see `config_watch.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable

from pybroker import errors
from pybroker.cluster.addresses import clash
from pybroker.cluster.config_changes import Change as ConfigChange
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import check_name
from pybroker.config import BrokerConfig
from pybroker.config.listener_settings import own_name
from pybroker.config.settings import shown
from pybroker.config.ssl_settings import is_reconfigurable
from pybroker.controller import nodes
from pybroker.controller.config_watch import ConfigWatch
from pybroker.controller.configs import (
    CHANGES_KEPT_MS,
    Sockets,
    judge_broker,
    moves_peers,
    prepared,
    purge,
    shown_of,
    tell_altered,
    topic_after,
)
from pybroker.controller.election import read_config, unwritable
from pybroker.controller.entities import Change, written
from pybroker.controller.late import in_time
from pybroker.coordination.commit import commit
from pybroker.coordination.store import (
    BadVersion,
    Create,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    StoreError,
)
from pybroker.errors import KafkaError
from pybroker.model import HostPort
from pybroker.security.quotas import Entity
from pybroker.security.tls import check_believed


class ClusterConfigs:
    """AlterConfigs of one broker of a cluster, as ConfigAdmin is of a lone one; one change at a time."""

    def __init__(
        self,
        session: Callable[[], Session],
        broker_id: int,
        config: BrokerConfig,
        topics: ConfigRepository,
        metadata: MetadataCache,
        watch: ConfigWatch,
        wall_ms: Callable[[], int],
    ) -> None:
        """`session` is the present one; `wall_ms` is the store's clock as well as may be: by it notices grow old."""
        self._session = session
        self._broker_id = broker_id
        self._config = config
        self._topics = topics
        self._metadata = metadata
        self._watch = watch
        self._wall_ms = wall_ms
        self._one = asyncio.Lock()
        self.sockets: Sockets | None = None

    @in_time
    async def alter_topic(self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool) -> None:
        """Alter a topic's own settings, or `replace` all of them. Raises KafkaError: 3, 17, 40, 41, 42, 56."""
        check_name(name)
        self._metadata.check_complete()
        entity = f"topics/{name}"
        async with self._one:
            while True:
                if self._metadata.image.topic(name) is None:
                    raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
                held, version = await self._read(nodes.topic_config(name))
                after = topic_after(self._config, held, changes, replace=replace)
                if validate_only:
                    return
                if await self._written(nodes.topic_config(name), version, after, entity):
                    break
        tell_altered(entity, after)

    @in_time
    async def alter_broker(self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool) -> None:
        """The same for this broker, or with an empty name for all brokers. Raises KafkaError: 40, 42, 56."""
        if name not in ("", str(self._broker_id)):
            raise KafkaError(errors.INVALID_REQUEST, f"this is broker {self._broker_id}, not {shown(name)}")
        path = nodes.broker_config(int(name) if name else None)
        entity = f"brokers/{name or '<default>'}"
        async with self._one:
            while True:
                held, version = await self._read(path)
                topics = dict(self._topics.all())  # as they are now
                judged = await judge_broker(self._config, name, held, changes, topics, replace=replace)
                self._check_addresses(judged.tried)
                if self._is_about_peers(judged.tried, changes):
                    await asyncio.to_thread(check_believed, judged.tried)
                async with prepared(self.sockets, judged.tried):
                    if validate_only:
                        return
                    if await self._written(path, version, judged.stored, entity):
                        break
        tell_altered(entity, judged.after)

    def _check_addresses(self, tried: BrokerConfig) -> None:
        """Raise INVALID_CONFIG if this broker would advertise an address of another one."""
        before, after = (each.listeners.advertised or () for each in (self._config, tried))
        new = {HostPort(host, port) for _, host, port in after} - {HostPort(host, port) for _, host, port in before}
        if found := clash(self._broker_id, new, self._metadata.image.brokers.values()):
            raise KafkaError(errors.INVALID_CONFIG, f"advertised.listeners: {found}")

    def _is_about_peers(self, tried: BrokerConfig, changes: list[ConfigChange]) -> bool:
        """Is a change about how other brokers connect to this one by TLS? Stores may be others under the same name."""
        name = tried.listeners.inter_broker
        named = [each.name for each in changes if each.name.startswith(own_name(name, ""))]
        return moves_peers(self._config, tried) or (name in tried.ssl and any(map(is_reconfigurable, named)))

    @in_time
    async def alter_entity(self, entity: Entity, change: Change, *, validate_only: bool = False) -> None:
        """Give a user, a client id or an address the settings that `change` makes of those there are. Raises what
        `change` does, and 56."""
        path = nodes.entity_path(entity)
        async with self._one:
            while True:
                held, version = await self._read(f"{nodes.CONFIGS}/{path}", nodes.load_entity_config)
                after = change(held)
                if validate_only:
                    return
                try:
                    changes = await written(self._session(), entity, version, after)
                except StoreError as problem:
                    raise unwritable(problem) from problem
                if await self._committed(changes, path):
                    break
        tell_altered(path, shown_of(after))

    async def _read(
        self, path: str, load: Callable[[bytes], dict[str, str]] = nodes.load_config
    ) -> tuple[dict[str, str], int | None]:
        """What an entity has, and the version of its node; None if it has none yet. Raises KafkaError."""
        try:
            return await read_config(self._session(), path, load)
        except StoreError as problem:
            raise unwritable(problem) from problem

    async def _written(self, path: str, version: int | None, after: dict[str, str], entity: str) -> bool:
        """Write an entity with its notice, and go by it; False where another was quicker. Raises KafkaError."""
        node = nodes.dump_config(after)
        return await self._committed([Create(path, node) if version is None else Set(path, node, version)], entity)

    async def _committed(self, changes: list[Op], entity: str) -> bool:
        """Write what changes an entity, the last of them its node, with a notice; as `_written`."""
        session, node = self._session(), changes[-1]
        notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(entity), sequential=True)
        try:
            await commit(session, [*changes, notice])
            await self._watch.take(session, entity)
        except (BadVersion, NodeExists):
            return False
        except NoNode as problem:
            if problem.path != node.path or isinstance(node, Create):  # a parent is gone: until it is back, no writes
                raise unwritable(problem) from problem
            return False
        except StoreError as problem:
            raise unwritable(problem) from problem
        with contextlib.suppress(StoreError):  # the change is made; what is not removed now, the next one removes
            await purge(session, self._wall_ms() - CHANGES_KEPT_MS)
        return True
