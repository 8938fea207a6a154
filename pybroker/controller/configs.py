"""Settings that change while the broker runs: judged, written to the store as this controller, then put into effect.

    /config/topics/T         a topic's own settings
    /config/brokers/N        those of one broker        over
    /config/brokers/<default>   those of all brokers    over what a broker was started with

Each write leaves a node in /config/changes that names what changed, as Kafka's brokers expect it of each other; nodes
older than a quarter of an hour are removed by the next write.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pybroker import errors
from pybroker.cluster.config_changes import Change, altered
from pybroker.cluster.topics import Topic, check_name
from pybroker.config import BROKER, TOPIC, BrokerConfig, ConfigError, Source, TopicConfig, Type, setting_of
from pybroker.config.broker import nearest
from pybroker.config.listener_changes import check_listeners
from pybroker.config.listener_settings import OF_LISTENER, changes_of_listener, own_name
from pybroker.config.listeners import ADVERTISED, LISTENERS, PROTOCOLS
from pybroker.config.settings import NotDynamic, as_text, shown
from pybroker.config.ssl_settings import OF_STORES, is_reconfigurable
from pybroker.controller import nodes
from pybroker.controller.channel import Channel
from pybroker.controller.context import ControllerContext
from pybroker.controller.election import read_config, write
from pybroker.controller.entities import Change as EntityChange
from pybroker.controller.entities import EntityConfigs, written
from pybroker.controller.stored_passwords import check_can_be_kept, decoded, encode_anew, encoded, is_password
from pybroker.controller.topics import TopicAdmin
from pybroker.coordination.commit import read
from pybroker.coordination.store import Create, NoNode, Op, Session, Set, StoreDamaged, StoreError, StoreFailed
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.security.quotas import OF_CLIENTS, OF_IPS, Entity
from pybroker.security.tls import check_believed, server_context

log = logging.getLogger(__name__)

PER_BROKER = (ADVERTISED, LISTENERS, PROTOCOLS, "ssl.", "sasl.", "principal.builder.class")
"""How the names begin of what cannot be set for all brokers."""
TEXT_MAX = 200
"""Of a setting in the log."""
CHANGES_KEPT_MS = 15 * 60 * 1000
TOPIC_LISTS = {name for name, setting in TOPIC.items() if setting.type is Type.LIST}
BROKER_LISTS = {name for name, setting in BROKER.items() if setting.type is Type.LIST}


class Configured(Protocol):
    """Whoever acts by topics' settings: this broker's replicas."""

    async def configure(self, topics: Sequence[Topic]) -> None:
        """Go by the settings that these topics, and the broker under them, have now."""


CAUTION = {"log.retention.ms": "-1", "log.retention.bytes": "-1", "log.cleanup.policy": "delete"}
"""The settings with which a broker starts in place of those that cannot be read."""


async def load(
    session: Session, config: BrokerConfig, broker_id: int, *, running: bool = False, cautious: bool = False
) -> set[str]:
    """Apply the settings that were altered in earlier lives; return the paths of nodes that could not be read.

    A setting that is no longer allowed is left out, and logged.

    If a node cannot be read, a `running` broker keeps the settings it has. A broker that starts could, by its defaults,
    delete records that the settings keep: it does not start, or with `cautious` applies CAUTION until it can read the
    node. A broker that starts also encrypts passwords again if their secret has changed. Raises StoreError."""
    unread = set()
    for source, name in ((Source.DYNAMIC_DEFAULT_BROKER, None), (Source.DYNAMIC_BROKER, broker_id)):
        path = nodes.broker_config(name)
        try:
            if name is not None and not running:
                await encode_anew(session, config, name)
            held = nodes.load_config((await read(session, path))[0])
        except NoNode:
            if config.dynamic(source) == CAUTION:
                config.overlay(source, {})
            continue
        except StoreFailed as problem:  # the node is damaged, or access is denied
            if not running and not cautious:
                raise StoreDamaged(path, problem.detail) from None
            unread.add(path)
            if not running:
                config.overlay(source, CAUTION)
            kept = config.dynamic(source) == CAUTION
            effect = "no record is deleted or compacted by them" if kept else "those that were read before hold"
            event(log, logging.ERROR, "settings of a broker ignored", node=path, reason=problem, effect=effect)
            continue
        told, untold = await decoded(config, held)
        for setting, reason in untold.items():
            event(log, logging.ERROR, "setting ignored", setting=setting, reason=reason)
        unusable = await (_unbelieved if running else _unspoken)(config, source, told)
        going = config.dynamic(source)
        told = {n: text for n, text in told.items() if n not in unusable}
        told |= {n: text for n, text in going.items() if n in unusable}
        for setting, reason in {**unusable, **take(config, source, told, running=running)}.items():
            event(log, logging.WARNING, "setting ignored", setting=setting, reason=reason)
    return unread


async def _unbelieved(config: BrokerConfig, source: Source, told: Mapping[str, str]) -> dict[str, str]:
    """{setting: why} of those by which other brokers would not connect to this one any more."""
    tried, going = config.copy(), config.dynamic(source)
    take(tried, source, told, running=True)
    if not moves_peers(config, tried):
        return {}
    try:
        await asyncio.to_thread(check_believed, tried)
    except ConfigError as problem:
        of_peers = (ADVERTISED, "ssl.", own_name(tried.listeners.inter_broker, ""))
        names = {n for n in {**going, **told} if n.startswith(of_peers) and going.get(n) != told.get(n)}
        return dict.fromkeys(sorted(names), problem.message)
    return {}


async def _unspoken(config: BrokerConfig, source: Source, told: Mapping[str, str]) -> dict[str, str]:
    """The protocols of listeners, and why, if one that the broker is started with could not be spoken in their place: a
    broker that did not start for it could not be asked to take it back."""
    if PROTOCOLS not in told:
        return {}
    tried = config.copy()
    take(tried, source, told)
    started, stored = tried.as_started().listeners.protocols, tried.listeners.protocols
    for name, ssl in tried.ssl.items():
        if started.get(name, stored[name]) != stored[name]:
            try:
                await asyncio.to_thread(server_context, ssl, name)
            except ConfigError as problem:
                return {PROTOCOLS: problem.message}
    return {}


def moves_peers(now: BrokerConfig, then: BrokerConfig) -> bool:
    """Does it change how other brokers connect to this one by TLS?"""
    name = then.listeners.inter_broker
    before, after = now.ssl.get(name), then.ssl.get(name)
    if before is None or after is None:
        return False
    return before.values != after.values or now.listeners.advertised != then.listeners.advertised


def take(config: BrokerConfig, source: Source, told: Mapping[str, str], *, running: bool = False) -> dict[str, str]:
    """Go by settings, as many as go together: all, or one after the other as long as another one is allowed with those
    before it. {setting: why} of those that are not. A broker that is `running` keeps what it goes by in their place,
    and allows what an alteration might make of its listeners: whoever stored them may have asked nobody."""
    now = config.copy()

    def go_by(names: Iterable[str], values: Mapping[str, str]) -> None:
        _check_names(names)
        if (why := _not_of_all(source, names)) is not None:
            raise ConfigError(why)
        tried = now.copy()
        tried.overlay(source, values)
        if running:
            _check_listeners(now, tried)
        config.overlay(source, values)

    try:
        go_by(told, told)
        return {}
    except ConfigError:
        kept = dict(now.dynamic(source)) if running else {}
    config.overlay(source, kept)
    refused = {name: "" for name in {**kept, **told} if kept.get(name) != told.get(name)}
    while True:
        left = list(refused)
        for setting in left:
            wanted = {n: text for n, text in kept.items() if n != setting}
            if setting in told:
                wanted[setting] = told[setting]
            try:
                go_by([setting], wanted)
                kept = wanted
                del refused[setting]
            except ConfigError as problem:
                refused[setting] = problem.message
        if len(refused) in (0, len(left)):
            return refused


def _check_listeners(now: BrokerConfig, tried: BrokerConfig) -> None:
    try:
        check_listeners(now, tried)
    except ConfigError as problem:
        raise ConfigError(f"{problem.message}; it is stored all the same, and the next start goes by it") from None


class Sockets(Protocol):
    """The listeners of this broker."""

    async def prepare(self, config: BrokerConfig) -> None:
        """Bind those that come by a configuration, if those that stay can have clients by it. Raises ConfigError."""

    def give_up(self) -> None:
        """Those that are not there by now do not come."""


@contextlib.asynccontextmanager
async def prepared(sockets: Sockets | None, tried: BrokerConfig) -> AsyncIterator[None]:
    """Have listeners bound before it is written that they come. Raises ConfigError."""
    if sockets is None:
        yield
        return
    await sockets.prepare(tried)
    try:
        yield
    finally:
        sockets.give_up()


class ConfigAdmin:
    """The controller's work on settings; one change at a time."""

    def __init__(
        self, session: Session, context: ControllerContext, channel: Channel, config: BrokerConfig, admin: TopicAdmin,
        holders: Configured, wall_ms: Callable[[], int], entities: EntityConfigs,
    ) -> None:  # fmt: skip
        """`wall_ms` is the store's clock as well as may be: by it notices grow old."""
        self._session = session
        self._context = context
        self._channel = channel
        self._config = config
        self._admin = admin
        self._holders = holders
        self._wall_ms = wall_ms
        self._entities = entities
        self._one = asyncio.Lock()
        self.on_broker_altered: list[Callable[[], Awaitable[object]]] = []  # who goes by the broker's settings
        self.sockets: Sockets | None = None

    # -- topics ------------------------------------------------------------------------------------------------------

    async def alter_topic(self, name: str, changes: list[Change], *, replace: bool, validate_only: bool) -> None:
        """Alter a topic's own settings, or `replace` all of them. Raises KafkaError: 3, 17, 40, 41, 42, 56, 60."""
        check_name(name)
        async with self._one:
            topic = self._context.topics.get(name)
            if topic is None:
                raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name} does not exist")
            after = topic_after(self._config, topic.config, changes, replace=replace)
            if validate_only:
                return
            with self._admin.claim(name):
                change = Set(nodes.topic_config(name), nodes.dump_config(after))
                await self._write([change], f"topics/{name}")
                topic = self._context.topics[name] = dataclasses.replace(topic, config=after)
                self._channel.update_configs([topic])
            await self._holders.configure([topic])
        tell_altered(f"topics/{name}", after)

    # -- brokers -----------------------------------------------------------------------------------------------------

    async def alter_broker(self, name: str, changes: list[Change], *, replace: bool, validate_only: bool) -> None:
        """The same for this broker, or with an empty name for all brokers. Raises KafkaError: 40, 41, 42, 56."""
        if name not in ("", str(self._context.broker_id)):
            raise KafkaError(errors.INVALID_REQUEST, f"this is broker {self._context.broker_id}, not {shown(name)}")
        async with self._one:
            path = nodes.broker_config(int(name) if name else None)
            held, version = await read_config(self._session, path)
            topics = {topic.name: topic.config for topic in self._context.topics.values()}
            judged = await judge_broker(self._config, name, held, changes, topics, replace=replace)
            async with prepared(self.sockets, judged.tried):
                if validate_only:
                    return
                node = nodes.dump_config(judged.stored)
                change: Op = Create(path, node) if version is None else Set(path, node, version)
                await self._write([change], f"brokers/{name or '<default>'}")
                self._config.overlay(_source(name), judged.used)
                await self._holders.configure(list(self._context.topics.values()))
                for tell in self.on_broker_altered:
                    await tell()
        tell_altered(f"brokers/{name or '<default>'}", judged.after)

    # -- users, client ids, addresses --------------------------------------------------------------------------------

    async def alter_entity(self, entity: Entity, change: EntityChange, *, validate_only: bool = False) -> None:
        """Give a user, a client id or an address the settings that `change` makes of those there are. Raises what
        `change` does, and 56."""
        path = nodes.entity_path(entity)
        async with self._one:
            held, version = await read_config(self._session, f"{nodes.CONFIGS}/{path}", nodes.load_entity_config)
            after = change(held)
            if validate_only:
                return
            await self._write(await written(self._session, entity, version, after), path)
            self._entities.take(entity, after)
        tell_altered(path, shown_of(after))

    # -- the store ---------------------------------------------------------------------------------------------------

    async def _write(self, changes: list[Op], entity: str) -> None:
        notice = Create(nodes.CONFIG_CHANGE, nodes.dump_config_change(entity), sequential=True)
        try:
            await write(self._session, self._context.fence, [*changes, notice])
        except NoNode as problem:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, str(problem)) from None
        with contextlib.suppress(StoreError):  # the change is made; what is not removed now, the next one removes
            await purge(self._session, self._wall_ms() - CHANGES_KEPT_MS)


# -- what is judged, whoever writes it ---------------------------------------------------------------------------------


def topic_after(
    config: BrokerConfig, own: Mapping[str, str], changes: list[Change], *, replace: bool
) -> dict[str, str]:
    """A topic's own settings with these changes, or with `replace` no others. Raises KafkaError: 40, 42."""
    before = TopicConfig(config, own, stored=True)
    after = altered({} if replace else own, changes, TOPIC_LISTS, lambda setting: as_text(before[setting]) or "")
    TopicConfig(config, after)  # raises what is wrong with it
    return after


class Judged(NamedTuple):
    """A broker's settings, or those of all brokers, as an alteration leaves them."""

    after: dict[str, str]
    """All, passwords in plain."""
    used: dict[str, str]
    """What the broker will go by: not what it cannot go by as it is, and what nobody asked for. That stays stored."""
    tried: BrokerConfig
    stored: dict[str, str]
    """All, as the node has them."""


async def judge_broker(
    config: BrokerConfig, name: str, held: Mapping[str, str], changes: list[Change],
    topics: Mapping[str, Mapping[str, str]], *, replace: bool,
) -> Judged:  # fmt: skip
    """The settings of the broker of that name, or with an empty one of all, whose node holds `held`, with these
    changes, or with `replace` no others. Raises KafkaError: 40, 42."""
    before, _ = await decoded(config, held)
    after = _broker_after(config, name, before, changes, replace=replace)
    names, source = {change.name for change in changes}, _source(name)
    going = {} if replace else config.dynamic(source)
    used = {n: text for n, text in going.items() if n not in names} | {n: after[n] for n in names & after.keys()}
    tried = await asyncio.to_thread(rehearse, config, source, used, topics, names)
    stored = await encoded(config, after, held, before, None if replace else names)
    return Judged(after, used, tried, stored)


def _source(name: str) -> Source:
    return Source.DYNAMIC_BROKER if name else Source.DYNAMIC_DEFAULT_BROKER


def _broker_after(
    config: BrokerConfig, name: str, held: Mapping[str, str], changes: list[Change], *, replace: bool
) -> dict[str, str]:
    own = {} if replace else held
    after = altered(own, changes, BROKER_LISTS, lambda setting: as_text(config[setting]) or "")
    given = [change.name for change in changes if change.name in after]
    _check_names(given)
    if (why := _not_of_all(_source(name), given)) is not None:
        raise KafkaError(errors.INVALID_REQUEST, why)
    check_can_be_kept(config, after, held)
    return after


def rehearse(
    config: BrokerConfig, source: Source, after: Mapping[str, str], topics: Mapping[str, Mapping[str, str]],
    asked: Collection[str],
) -> BrokerConfig:  # fmt: skip
    """What the broker would go by. Raises ConfigError where it, or a topic with its own settings over these, cannot.

    `asked`: what was to be altered. The certificates of a listener are looked at where that is about them, be it that
    they have the name of before. A topic whose settings the broker does not take as it is has no say."""
    tried = config.copy()
    tried.overlay(source, after)
    check_listeners(config, tried)
    for name in after.keys() & set(asked):
        if (why := tried.stray(name)) is not None:
            raise ConfigError(f"{name} cannot be set: {why}")
    now = config.ssl
    for listener, ssl in tried.ssl.items():
        of_it = [name for name in asked if name.startswith(own_name(listener, ""))]
        if any(map(is_reconfigurable, of_it)) or listener not in now or ssl.values != now[listener].values:
            server_context(ssl, listener)
    for name, own in topics.items():
        try:
            TopicConfig(tried, own)
        except ConfigError as problem:
            if TopicConfig(config, own, stored=True).problems:
                continue
            raise ConfigError(f"the topic {name} cannot go with it: {problem.message}") from None
    return tried


async def purge(session: Session, before_ms: int) -> None:
    """Remove the notices that everybody has read long ago. Raises StoreError."""
    names, _ = await session.children(nodes.CONFIG_CHANGES)
    for name in names:
        path = f"{nodes.CONFIG_CHANGES}/{name}"
        stat = await session.exists(path)
        if stat is None or stat.ctime_ms >= before_ms:
            return  # they are in order: the others are younger
        await session.delete(path)


def _not_of_all(source: Source, names: Iterable[str]) -> str | None:
    """Why one of these cannot be set for all brokers, if it is to be."""
    own = (name for name in names if name.startswith(PER_BROKER) or changes_of_listener(name))
    first = next(own, None) if source is Source.DYNAMIC_DEFAULT_BROKER else None
    return None if first is None else f"{first} is each broker's own: alter it by the broker's id"


def _check_names(names: Iterable[str]) -> None:
    """Raises INVALID_CONFIG for a name that is no setting's, INVALID_REQUEST for a setting that a running broker does
    not take."""
    for name in names:
        if changes_of_listener(name) is not None:
            continue
        setting = setting_of(name)
        if setting is None:
            raise ConfigError(f"{shown(name)} is no setting of a broker{nearest(name)}")
        if name in OF_STORES:
            raise NotDynamic(f"{name} changes for one listener alone while the broker runs: {OF_LISTENER}NAME.{name}")
        if not setting.dynamic:
            raise NotDynamic(f"{name} cannot change while the broker runs: set it where the broker is started")


def shown_of(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a user, a client id or an address for the log: credentials without what is in them."""
    return {key: text if key in OF_CLIENTS or key in OF_IPS else "..." for key, text in config.items()}


def tell_altered(entity: str, config: Mapping[str, str]) -> None:
    settings = TOPIC if entity.startswith("topics/") else BROKER
    idle = ",".join(name for name in config if name in settings and settings[name].without_effect)
    own = ",".join(f"{name}={'...' if is_password(name) else text[:TEXT_MAX]}" for name, text in config.items())
    event(log, logging.INFO, "settings altered", of=entity, own=own, without_effect=idle or None)
