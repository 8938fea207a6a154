"""Settings that change while a cluster runs: any broker writes them, with a notice that all brokers read.

    judge -> write the entity by its version, and a notice of it, in one multi -> this broker goes by it at once
      ^── another was quicker: read again, judge again

Nothing here is fenced by the controller's epoch: settings are no decision of the controller (see `config_watch.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from pybroker import errors
from pybroker.cluster.config_changes import Change
from pybroker.cluster.config_repository import ConfigRepository
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.topics import check_name
from pybroker.config import BrokerConfig, Source
from pybroker.config.settings import shown
from pybroker.controller import nodes
from pybroker.controller.config_watch import ConfigWatch
from pybroker.controller.configs import CHANGES_KEPT_MS, broker_after, purge, rehearse, tell_altered, topic_after
from pybroker.coordination.commit import commit, read
from pybroker.coordination.store import BadVersion, Create, NodeExists, NoNode, Op, Session, Set, StoreError
from pybroker.errors import KafkaError


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

    async def alter_topic(self, name: str, changes: list[Change], *, replace: bool, validate_only: bool) -> None:
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

    async def alter_broker(self, name: str, changes: list[Change], *, replace: bool, validate_only: bool) -> None:
        """The same for this broker, or with an empty name for all brokers. Raises KafkaError: 40, 42, 56."""
        if name not in ("", str(self._broker_id)):
            raise KafkaError(errors.INVALID_REQUEST, f"this is broker {self._broker_id}, not {shown(name)}")
        source = Source.DYNAMIC_BROKER if name else Source.DYNAMIC_DEFAULT_BROKER
        path = nodes.broker_config(int(name) if name else None)
        entity = f"brokers/{name or '<default>'}"
        async with self._one:
            while True:
                held, version = await self._read(path)
                after = broker_after(self._config, name, held, changes, replace=replace)
                rehearse(self._config, source, after, self._topics.all())
                if validate_only:
                    return
                if await self._written(path, version, after, entity):
                    break
        tell_altered(entity, after)

    async def alter_user(self, user: str, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
        """Give a user the settings that `change` makes of those there are. Raises what `change` does, and 56."""
        entity = f"users/{nodes.user_node(user)}"
        async with self._one:
            while True:
                held, version = await self._read(nodes.user_config(user), nodes.load_user_config)
                after = change(held)
                if await self._written(nodes.user_config(user), version, after, entity):
                    break
        tell_altered(f"users/{user}", dict.fromkeys(after, "..."))

    async def _read(
        self, path: str, load: Callable[[bytes], dict[str, str]] = nodes.load_config
    ) -> tuple[dict[str, str], int | None]:
        """What an entity has, and the version of its node; None if it has none yet. Raises KafkaError."""
        try:
            data, stat = await read(self._session(), path)
            return load(data), stat.version
        except NoNode:
            return {}, None
        except StoreError as problem:
            raise _unwritable(problem) from problem

    async def _written(self, path: str, version: int | None, after: dict[str, str], entity: str) -> bool:
        """Write an entity with its notice, and go by it; False where another was quicker. Raises KafkaError."""
        session, node = self._session(), nodes.dump_config(after)
        change: Op = Create(path, node) if version is None else Set(path, node, version)
        notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(entity), sequential=True)
        try:
            await commit(session, [change, notice])
            await self._watch.take(session, entity)
        except (BadVersion, NodeExists):
            return False
        except NoNode as problem:
            if problem.path != path or version is None:  # a parent is gone: nothing can be written until it is back
                raise _unwritable(problem) from problem
            return False
        except StoreError as problem:
            raise _unwritable(problem) from problem
        with contextlib.suppress(StoreError):  # the change is made; what is not removed now, the next one removes
            await purge(session, self._wall_ms() - CHANGES_KEPT_MS)
        return True


def _unwritable(problem: StoreError) -> KafkaError:
    return KafkaError(errors.KAFKA_STORAGE_ERROR, f"the coordination store cannot be written to: {problem}")
