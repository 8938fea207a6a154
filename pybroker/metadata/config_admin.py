"""Settings that change while a cluster runs: any broker writes them, with a notice that all brokers read.

    judge -> write the entity by its version, and a notice of it, in one multi -> apply it on this broker
      ^── another broker wrote it first: read and judge again

Any broker changes settings (see `config_watch.py`), so no write for a client is fenced by the controller epoch. The
controller's own writes are: they give its `fence`.
"""

import asyncio
import contextlib
from collections.abc import Callable

from pybroker import errors
from pybroker.config import BrokerConfig
from pybroker.config.listener_settings import own_name
from pybroker.config.settings import shown
from pybroker.config.ssl_settings import is_reconfigurable
from pybroker.coordination.commit import commit
from pybroker.coordination.store import (
    BadVersion,
    Check,
    Create,
    NodeExists,
    NoNode,
    Op,
    Session,
    Set,
    Stat,
    StoreError,
)
from pybroker.decisions.addresses import clash
from pybroker.decisions.config_changes import ConfigChange as ConfigChange
from pybroker.decisions.config_repository import ConfigRepository
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.topics import check_name
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.config_watch import ConfigWatch
from pybroker.metadata.configs import (
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
from pybroker.metadata.controllership import Deposed, read_config, unwritable
from pybroker.metadata.entities import Change, written
from pybroker.metadata.slow_changes import in_time
from pybroker.model import HostPort
from pybroker.security.quotas import Entity
from pybroker.security.tls import check_believed


class ConfigAdmin:
    """AlterConfigs of one broker; one change at a time."""

    def __init__(
        self,
        session: Callable[[], Session],
        broker_id: int,
        config: BrokerConfig,
        topics: ConfigRepository,
        metadata: MetadataCache,
        watch: ConfigWatch,
        wall_ms: Callable[[], int],
        sockets: Sockets | None = None,
    ) -> None:
        """`session` returns the current session; `wall_ms`, close to the store's clock, is used to age notices."""
        self._session = session
        self._broker_id = broker_id
        self._config = config
        self._topics = topics
        self._metadata = metadata
        self._watch = watch
        self._wall_ms = wall_ms
        self._one = asyncio.Lock()
        self._sockets = sockets

    @in_time
    async def alter_topic(
        self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool, fence: Check | None = None
    ) -> None:
        """Alter a topic's own settings, or `replace` all of them. Raises UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG and
        other KafkaErrors; NOT_CONTROLLER if the `fence` of a controller is no longer valid."""
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
                if await self._written(nodes.topic_config(name), version, after, entity, fence):
                    break
        tell_altered(entity, after)

    @in_time
    async def alter_broker(
        self, name: str, changes: list[ConfigChange], *, replace: bool, validate_only: bool, fence: Check | None = None
    ) -> None:
        """Alter the settings of this broker, or with an empty name those of all brokers. Raises INVALID_CONFIG,
        INVALID_REQUEST, KAFKA_STORAGE_ERROR; NOT_CONTROLLER as `alter_topic`."""
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
                async with prepared(self._sockets, judged.tried):
                    if validate_only:
                        return
                    if await self._written(path, version, judged.stored, entity, fence):
                        break
        tell_altered(entity, judged.after)

    def _check_addresses(self, tried: BrokerConfig) -> None:
        """Raise INVALID_CONFIG if this broker would advertise another broker's address."""
        before, after = (each.listeners.advertised or () for each in (self._config, tried))
        new = {HostPort(host, port) for _, host, port in after} - {HostPort(host, port) for _, host, port in before}
        if found := clash(self._broker_id, new, self._metadata.image.brokers.values()):
            raise KafkaError(errors.INVALID_CONFIG, f"advertised.listeners: {found}")

    def _is_about_peers(self, tried: BrokerConfig, changes: list[ConfigChange]) -> bool:
        """True if a change affects other brokers' TLS connections to this one, or a store file of the same name."""
        name = tried.listeners.inter_broker
        named = [each.name for each in changes if each.name.startswith(own_name(name, ""))]
        return moves_peers(self._config, tried) or (name in tried.ssl and any(map(is_reconfigurable, named)))

    @in_time
    async def alter_entity(self, entity: Entity, change: Change, *, validate_only: bool = False) -> None:
        """Replace the settings of a user, a client id or an address with `change` of them. Raises what `change` raises,
        KAFKA_STORAGE_ERROR."""
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
        """The settings of an entity and the version of its node, None if it has no node. Raises KafkaError."""
        try:
            return await read_config(self._session(), path, load)
        except StoreError as problem:
            raise unwritable(problem) from problem

    async def _written(
        self, path: str, version: int | None, after: dict[str, str], entity: str, fence: Check | None
    ) -> bool:
        """Write an entity with its notice, and apply it. False if another broker wrote it first. Raises KafkaError."""
        node = nodes.dump_config(after)
        change = Create(path, node) if version is None else Set(path, node, version)
        return await self._committed([change], entity, fence)

    async def _committed(self, changes: list[Op], entity: str, fence: Check | None = None) -> bool:
        """Commit the writes of an entity, the last of them to its node, with a notice; otherwise as `_written`."""
        fences = [] if fence is None else [fence]
        session, node = self._session(), changes[-1]
        notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(entity), sequential=True)
        try:
            answers = await commit(session, [*fences, *changes, notice])
            made = None if answers is None else answers[-1]
            if made is not None and not isinstance(made, Stat):
                self._watch.is_known(made[0])
            await self._watch.take(session, entity)
        except (BadVersion, NodeExists) as problem:
            if fences and problem.index == 0:
                raise Deposed("another broker has become the controller") from None
            return False
        except NoNode as problem:
            if problem.path != node.path or isinstance(node, Create):  # a parent is missing: no write can succeed
                raise unwritable(problem) from problem
            return False
        except StoreError as problem:
            raise unwritable(problem) from problem
        with contextlib.suppress(StoreError):  # the change is made; the next one removes the notices left
            await purge(session, self._wall_ms() - CHANGES_KEPT_MS)
        return True
