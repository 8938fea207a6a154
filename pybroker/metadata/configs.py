"""Judges settings that change while the broker runs, and applies the store's settings to this broker's configuration.

    /config/topics/T            a topic's own settings
    /config/brokers/N           settings of one broker, over
    /config/brokers/<default>   settings of all brokers, over those that a broker was started with

`config_admin.py` writes them, with a notice in /config/changes that names the entity, as Kafka's brokers do; `purge`
removes notices older than 15 minutes. `config_watch.py` reads other brokers' changes.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pybroker import errors
from pybroker.config import BROKER, TOPIC, BrokerConfig, ConfigError, Source, TopicConfig, Type, setting_of
from pybroker.config.broker import nearest
from pybroker.config.listener_changes import check_listeners
from pybroker.config.listener_settings import OF_LISTENER, changes_of_listener, own_name
from pybroker.config.listeners import ADVERTISED, LISTENERS, PROTOCOLS
from pybroker.config.settings import NotDynamic, as_text, shown
from pybroker.config.ssl_settings import OF_STORES, is_reconfigurable
from pybroker.coordination.commit import read
from pybroker.coordination.store import NoNode, Session, StoreDamaged, StoreFailed
from pybroker.decisions.config_changes import ConfigChange, altered
from pybroker.decisions.topics import Topic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.metadata import nodes
from pybroker.metadata.stored_passwords import check_can_be_kept, decoded, encode_anew, encoded, is_password
from pybroker.security.quotas import OF_CLIENTS, OF_IPS
from pybroker.security.tls import check_believed, server_context

log = logging.getLogger(__name__)

PER_BROKER = (ADVERTISED, LISTENERS, PROTOCOLS, "ssl.", "sasl.", "principal.builder.class")
"""Prefixes of settings that cannot be set for all brokers at once."""
TEXT_MAX = 200
"""Characters of a setting's value in the log."""
CHANGES_KEPT_MS = 15 * 60 * 1000
TOPIC_LISTS = {name for name, setting in TOPIC.items() if setting.type is Type.LIST}
BROKER_LISTS = {name for name, setting in BROKER.items() if setting.type is Type.LIST}


class Configured(Protocol):
    """This broker's replicas, which follow the topics' settings."""

    async def configure(self, topics: Sequence[Topic]) -> None:
        """Apply the current settings of these topics, and the broker's under them."""


CAUTION = {"log.retention.ms": "-1", "log.retention.bytes": "-1", "log.cleanup.policy": "delete"}
"""Settings with which a broker starts if its stored ones cannot be read."""


async def load(
    session: Session, config: BrokerConfig, broker_id: int, *, running: bool = False, cautious: bool = False
) -> set[str]:
    """Apply the broker's stored settings; return the paths of nodes that could not be read.

    A setting that is no longer allowed is left out, and logged.

    If a node cannot be read, a `running` broker keeps its settings. A starting broker does not start, as its defaults
    could delete records that the settings keep; with `cautious` it applies CAUTION until it can read the node. A
    starting broker also encrypts passwords again if the secret has changed. Raises StoreError."""
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
            effect = "no records are deleted or compacted" if kept else "the settings read before stay in force"
            event(log, logging.ERROR, "broker settings ignored", node=path, reason=problem, effect=effect)
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
    """{setting: why} of settings with which other brokers could no longer connect to this one."""
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
    """{PROTOCOLS: why} if a listener's stored protocol, which replaces the one it was started with, cannot be served.
    Left in, it would stop the broker from starting, and only a running broker can undo it."""
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
    """True if the change affects other brokers' TLS connections to this one."""
    name = then.listeners.inter_broker
    before, after = now.ssl.get(name), then.ssl.get(name)
    if before is None or after is None:
        return False
    return before.values != after.values or now.listeners.advertised != then.listeners.advertised


def take(config: BrokerConfig, source: Source, told: Mapping[str, str], *, running: bool = False) -> dict[str, str]:
    """Apply settings: all if they are valid together, otherwise one by one while another is valid with those before.
    Return {setting: why} of the refused ones. A `running` broker keeps its present values of these, and checks that its
    listeners may change so: settings in the store may not have been checked when they were written."""
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
        raise ConfigError(f"{problem.message}; it is stored all the same, and the next start applies it") from None


class Sockets(Protocol):
    """The listeners of this broker."""

    async def prepare(self, config: BrokerConfig) -> None:
        """Bind a configuration's new listeners, if the others can serve clients with it. Raises ConfigError."""

    def give_up(self) -> None:
        """Close prepared listeners that have not been put into service."""


@contextlib.asynccontextmanager
async def prepared(sockets: Sockets | None, tried: BrokerConfig) -> AsyncIterator[None]:
    """Bind new listeners before the change is written to the store. Raises ConfigError."""
    if sockets is None:
        yield
        return
    await sockets.prepare(tried)
    try:
        yield
    finally:
        sockets.give_up()


# -- judging changes ---------------------------------------------------------------------------------------------------


def topic_after(
    config: BrokerConfig, own: Mapping[str, str], changes: list[ConfigChange], *, replace: bool
) -> dict[str, str]:
    """A topic's own settings after these changes; with `replace` all others are removed. Raises INVALID_CONFIG,
    INVALID_REQUEST."""
    before = TopicConfig(config, own, stored=True)
    after = altered({} if replace else own, changes, TOPIC_LISTS, lambda setting: as_text(before[setting]) or "")
    TopicConfig(config, after)  # raises ConfigError if a value is wrong
    return after


class Judged(NamedTuple):
    """The settings of one broker, or of all brokers, after an alteration."""

    after: dict[str, str]
    """All, with passwords in plain."""
    used: dict[str, str]
    """Those that the broker will apply. Stored settings that it refused before, and that the request does not name,
    stay stored."""
    tried: BrokerConfig
    stored: dict[str, str]
    """All, as written to the node, with passwords encrypted."""


async def judge_broker(
    config: BrokerConfig, name: str, held: Mapping[str, str], changes: list[ConfigChange],
    topics: Mapping[str, Mapping[str, str]], *, replace: bool,
) -> Judged:  # fmt: skip
    """The settings of a broker, or of all with an empty `name`, after these changes to `held`, the settings in its
    node. With `replace` all others are removed. Raises INVALID_CONFIG, INVALID_REQUEST."""
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
    config: BrokerConfig, name: str, held: Mapping[str, str], changes: list[ConfigChange], *, replace: bool
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
    """The configuration with these settings. Raises ConfigError if it is not valid for the broker or for a topic.

    `asked`: the settings in the request. If they name a listener's certificates, these are loaded, even from the same
    file. Topics whose own settings are already invalid are not checked."""
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
            raise ConfigError(f"not valid with the settings of topic {name}: {problem.message}") from None
    return tried


async def purge(session: Session, before_ms: int) -> None:
    """Remove the notices written before `before_ms`: every broker has read them. Raises StoreError."""
    names, _ = await session.children(nodes.CONFIG_CHANGES)
    for name in names:
        path = f"{nodes.CONFIG_CHANGES}/{name}"
        stat = await session.exists(path)
        if stat is None or stat.ctime_ms >= before_ms:
            return  # sorted by age: the rest are younger
        await session.delete(path)


def _not_of_all(source: Source, names: Iterable[str]) -> str | None:
    """The reason if one of these settings cannot be set for all brokers at once, and `source` is that of all."""
    own = (name for name in names if name.startswith(PER_BROKER) or changes_of_listener(name))
    first = next(own, None) if source is Source.DYNAMIC_DEFAULT_BROKER else None
    return None if first is None else f"{first} is each broker's own: alter it by the broker's id"


def _check_names(names: Iterable[str]) -> None:
    """Raise INVALID_CONFIG for an unknown setting, INVALID_REQUEST for one that a running broker cannot change."""
    for name in names:
        if changes_of_listener(name) is not None:
            continue
        setting = setting_of(name)
        if setting is None:
            raise ConfigError(f"{shown(name)} is no setting of a broker{nearest(name)}")
        if name in OF_STORES:
            raise NotDynamic(f"a running broker changes {name} per listener only: set {OF_LISTENER}NAME.{name}")
        if not setting.dynamic:
            raise NotDynamic(f"{name} cannot change while the broker runs: set it where the broker is started")


def shown_of(config: Mapping[str, str]) -> dict[str, str]:
    """The settings of a user, a client id or an address for the log, with credentials masked."""
    return {key: text if key in OF_CLIENTS or key in OF_IPS else "..." for key, text in config.items()}


def tell_altered(entity: str, config: Mapping[str, str]) -> None:
    """Log the settings that an entity has now, with passwords masked."""
    settings = TOPIC if entity.startswith("topics/") else BROKER
    idle = ",".join(name for name in config if name in settings and settings[name].without_effect)
    own = ",".join(f"{name}={'...' if is_password(name) else text[:TEXT_MAX]}" for name, text in config.items())
    event(log, logging.INFO, "settings altered", of=entity, own=own, without_effect=idle or None)
