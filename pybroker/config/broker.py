"""A broker's configuration: values from a file, --set and the starting program, over the defaults of the tables."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pybroker.model import HostPort

from .broker_settings import GENERAL, GROUPS, METRICS, NETWORK, TRACING
from .cluster_settings import CLUSTER
from .etcd_settings import ETCD
from .listener_settings import OF_LISTENER, changes_of_listener, of_broker, own_name, own_setting
from .listeners import ADVERTISED, INTER_BROKER, INTER_BROKER_PROTOCOL, LISTENERS, PROTOCOLS, Listeners, Refused, settle
from .log_settings import DURABILITY, LOG, RETENTION, SEGMENTS
from .no_effect import NO_EFFECT
from .security_settings import (
    ENCODER_OLD_SECRET,
    ENCODER_SECRET,
    INTER_BROKER_MECHANISM,
    SECURITY,
    TOKEN_SECRET,
    OwnAccount,
    Sasl,
    account_of,
    sasl_of,
)
from .settings import ConfigError, DescribedConfig, Setting, Source, Synonym, Value, as_text
from .ssl_settings import SSL, Ssl, ssl_of
from .transaction_settings import TRANSACTIONS
from .zookeeper_settings import ZOOKEEPER

CHAPTERS: dict[str, dict[str, Setting]] = {
    "General": GENERAL,
    "Network": NETWORK,
    "Security": SECURITY,
    "TLS": SSL,
    "Cluster": CLUSTER,
    "ZooKeeper": ZOOKEEPER,
    "etcd": ETCD,
    "Logs": LOG,
    "Segments": SEGMENTS,
    "Retention and compaction": RETENTION,
    "Durability": DURABILITY,
    "Consumer groups": GROUPS,
    "Transactions": TRANSACTIONS,
    "Metrics": METRICS,
    "Tracing": TRACING,
    "Kafka's settings without effect": NO_EFFECT,
}
BROKER: dict[str, Setting] = {name: setting for chapter in CHAPTERS.values() for name, setting in chapter.items()}

ALTERNATIVES: tuple[tuple[str, ...], ...] = (
    ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ("log.roll.ms", "log.roll.hours"),
    ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
)
"""Settings for one thing in several units: the first that is set applies, and the last has the default."""

OTHER_NAMES = {"node.id": "broker.id", "delegation.token.master.key": TOKEN_SECRET}
"""Settings with two names in Kafka: {alternative name: name used here}."""

MISSPELT = 0.92
"""The similarity to a setting's name, from 0 to 1, from which an unknown name is refused as misspelt."""

DYNAMIC = (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT_BROKER)
"""The sources of dynamic settings: those of one broker win over those of all brokers."""

BY_PROGRAM = "set by the program"
"""The place of a value that the program which starts the broker set instead of the default."""


WHILE_IT_RUNS = "set while the broker runs"


class _Given(NamedTuple):
    text: str
    where: str


class BrokerConfig:
    """The broker's settings, typed: `config["num.partitions"]`. `warnings` has a sentence for each unknown name;
    `without_effect` lists given settings that have no effect here, with their places."""

    def __init__(self, given: Mapping[str, tuple[str, str]], warnings: Sequence[str] = ()) -> None:
        """`given` maps names to (text, where it was set). ConfigError if a name is misspelt or a value not allowed."""
        self.warnings = list(warnings)
        self.without_effect: list[str] = []
        misspelt: list[str] = []
        others = {name: given[known] for known, name in OTHER_NAMES.items() if known in given and name not in given}
        self.not_open: frozenset[str] = frozenset()  # listeners that could not be opened in the running broker
        self._given: dict[str, _Given] = {}
        self._of_listeners: dict[str, _Given] = {}
        self._dynamic: dict[Source, Mapping[str, str]] = {source: {} for source in DYNAMIC}
        self._values: dict[str, Value] = {}
        for name, (text, where) in {**given, **others}.items():
            setting = setting_of(name) or changes_of_listener(name)
            if setting is None:
                said = misspelt if nearest(name, MISSPELT) else self.warnings
                said.append(f"{name} ({where}) is not a setting of this broker{nearest(name)}")
                continue
            held = self._given if setting_of(name) is not None else self._of_listeners
            held[name] = _Given(text, where)
            if setting.without_effect:
                self.without_effect.append(f"{name} ({where})")
        try:
            if misspelt:
                raise ConfigError("; ".join(misspelt))
            self._evaluate()
        except ConfigError as problem:
            problem.warnings = self.warnings
            raise
        for name, each in {**self._given, **self._of_listeners}.items():
            if (why := self.stray(name)) is not None:
                self.warnings.append(f"{name} ({each.where}) has no effect: {why}")

    def _evaluate(self) -> None:
        """Compute the value of every setting from its sources. Raises ConfigError if one is not allowed."""
        values: dict[str, Value] = {}
        for name, setting in BROKER.items():
            changed = next((held[name] for held in self._dynamic.values() if name in held), None)
            if changed is not None:
                values[name] = setting.parse(changed, WHILE_IT_RUNS)
            elif held := self._given.get(name):
                values[name] = setting.parse(held.text, held.where)
            else:
                values[name] = default_of(setting)
        for name in {*self._given, *(name for held in self._dynamic.values() for name in held)} - values.keys():
            changed = next((held[name] for held in self._dynamic.values() if name in held), None)
            text, where = self._given[name] if changed is None else (changed, WHILE_IT_RUNS)
            if (own := own_setting(name)) is not None:
                values[name] = own.parse(text, where)
        self._values = values
        self._check()

    @classmethod
    def load(
        cls,
        file: str | None = None,
        sets: Sequence[str] = (),
        defaults: Mapping[str, str] | None = None,
        options: Mapping[str, tuple[str, str]] | None = None,
    ) -> "BrokerConfig":
        """Read a .properties file and name=value pairs. Pairs win over the file, both over the program's `defaults`,
        and `options` over all; `options` has for each name the text and the command line option that gave it.

        Raises ConfigError with one sentence: the setting, its value, what is allowed, and where it was set."""
        given = {name: (text, BY_PROGRAM) for name, text in (defaults or {}).items()}
        warnings: list[str] = []
        if file is not None:
            for name, text, line in read_properties(file):
                if name in given and given[name][1].startswith(f"{file}:"):
                    where = f"{given[name][1]} and {file}:{line}"
                    warnings.append(f"{name} is set twice, at {where}; the later one applies")
                given[name] = (text, f"{file}:{line}")
        for pair in sets:
            name, equals, text = pair.partition("=")
            if not equals or not name.strip():
                raise ConfigError(f"--set {pair} is not name=value")
            given[name.strip()] = (text.strip(), "--set")
        return cls({**given, **(options or {})}, warnings)

    def __getitem__(self, name: str) -> Any:
        """The value: bool, int, float, str, tuple of str for lists, None if not set. Raises KeyError if unknown."""
        return self._values[name]

    def of_listener(self, listener: str, name: str) -> Any:
        """The value of a setting for one listener: its own, or the broker's."""
        return self._values.get(own_name(listener, name), self._values[name])

    def __contains__(self, name: str) -> bool:
        return name in self._values

    # -- dynamic settings --------------------------------------------------------------------------------------------

    def overlay(self, source: Source, values: Mapping[str, str]) -> None:
        """Replace all values of one source (of DYNAMIC). Raises ConfigError, and changes nothing, if one is not
        allowed."""
        before = self._dynamic, self._values
        self._dynamic = self._dynamic | {source: dict(values)}
        try:
            self._evaluate()
        except ConfigError:
            self._dynamic, self._values = before
            raise

    def dynamic(self, source: Source) -> Mapping[str, str]:
        """The values of one source of DYNAMIC."""
        return self._dynamic[source]

    def copy(self) -> "BrokerConfig":
        """Return a copy, to try changes on."""
        return copy.copy(self)

    def as_started(self) -> "BrokerConfig":
        """Return a copy without dynamic settings, as the broker was started."""
        made = self.copy()
        for source in DYNAMIC:
            made.overlay(source, {})
        return made

    def default_entries(self) -> list[DescribedConfig]:
        """The dynamic settings of all brokers, as DescribeConfigs returns them."""
        source = Source.DYNAMIC_DEFAULT_BROKER
        return [
            self._entry(setting)._replace(value=shown, source=source, synonyms=(Synonym(name, shown, source),))
            for name, text in self._dynamic[source].items()
            if (setting := setting_of(name)) is not None
            for shown in [None if setting.hidden else text]
        ]

    # -- DescribeConfigs ---------------------------------------------------------------------------------------------

    def where(self, name: str) -> str:
        """The place where the value was set: file:line, --set, or "default"."""
        held = self._given.get(name)
        return held.where if held else "default"

    def is_set(self, name: str) -> bool:
        """True if the setting was given a value, at the start or since, even if that equals the default."""
        return name in self._given or any(name in held for held in self._dynamic.values())

    @property
    def listeners(self) -> Listeners:
        """The listeners, with their advertised addresses."""
        return settle(
            self[LISTENERS], self[ADVERTISED], self[PROTOCOLS], self[INTER_BROKER], self[INTER_BROKER_PROTOCOL]
        )

    @property
    def sasl(self) -> dict[str, Sasl]:
        """The login settings by listener, for listeners with SASL. Raises ConfigError."""
        common, own = self.__getitem__, self._own_of_listeners()
        found = {n: sasl_of(n, protocol, common, own) for n, protocol in self.listeners.protocols.items()}
        return {name: sasl for name, sasl in found.items() if sasl is not None}

    @property
    def ssl(self) -> dict[str, Ssl]:
        """The TLS settings by listener, for listeners with TLS. Raises ConfigError."""
        values = {name: self[name] for name in SSL}
        own = self._own_of_listeners()
        found = {n: ssl_of(n, protocol, values, own) for n, protocol in self.listeners.protocols.items()}
        return {name: ssl for name, ssl in found.items() if ssl is not None}

    def _own_of_listeners(self) -> dict[str, tuple[str, str]]:
        """The login and TLS settings with a listener prefix, and where they were set."""
        changed = self._dynamic[Source.DYNAMIC_BROKER].items()
        return {**self._of_listeners, **{name: (text, WHILE_IT_RUNS) for name, text in changed}}

    def stray(self, name: str) -> str | None:
        """Return why a setting with a listener prefix applies to no listener; None if it does, or has no prefix."""
        if not name.startswith(OF_LISTENER):
            return None
        known = sorted({f"{OF_LISTENER}{each.listener.lower()}." for each in self.listeners.endpoints})
        if name.startswith(tuple(known)):
            return None
        return f"there is no such listener; settings of the listeners begin with {' and '.join(known)}"

    def own_of_listener(self, listener: str) -> dict[str, str]:
        """The login and TLS settings with the prefix of one listener. Some texts are secrets."""
        prefix = f"{OF_LISTENER}{listener.lower()}."
        held = self._own_of_listeners().items()
        return {name: text for name, (text, _) in held if name.startswith(prefix) and own_setting(name) is None}

    @property
    def account(self) -> OwnAccount | None:
        """The account with which this broker logs in at others; None if it need not. Raises ConfigError."""
        name = self.listeners.inter_broker
        return account_of(name, self.listeners.protocols[name], self[INTER_BROKER_MECHANISM], self.sasl.get(name))

    @property
    def metrics(self) -> HostPort | None:
        """The address of the metrics endpoint, or None."""
        text = self["metrics.listener"]
        return None if text is None else HostPort.parse(text)

    @property
    def log_dirs(self) -> list[str]:
        """The data directories, as given; at least one."""
        text = self["log.dir"] if self["log.dirs"] is None else self["log.dirs"]
        return [part.strip() for part in text.split(",")]

    def entries(self) -> list[DescribedConfig]:
        """Every setting of this broker as DescribeConfigs returns it; those with a listener prefix only if set."""
        known = [self._entry(setting) for name in self._values if (setting := setting_of(name)) is not None]
        return known + self._entries_of_listeners()

    def _entries_of_listeners(self) -> list[DescribedConfig]:
        """The dynamic login and TLS settings with a listener prefix."""
        source = Source.DYNAMIC_BROKER
        return [
            DescribedConfig(
                name, shown, source, False, setting.hidden, setting.type, setting.doc,
                (Synonym(name, shown, source),)
            )
            for name, text in self._dynamic[source].items()
            if (setting := changes_of_listener(name)) is not None
            for shown in [None if setting.hidden else text]
        ]  # fmt: skip

    def synonyms(self, name: str) -> list[Synonym]:
        """The places that have a value for a setting, or for an alternative in a coarser unit.

        Set values come before defaults, so that the first one applies."""
        base = of_broker(name)
        names: tuple[str, ...] = (name,) if base is None else (name, base)
        names = next((group[group.index(name) :] for group in ALTERNATIVES if name in group), names)
        given = []
        for n in names:
            hides = _known(n).hidden
            given += [
                Synonym(n, None if hides else held[n], source) for source, held in self._dynamic.items() if n in held
            ]
            if n in self._given:
                text = as_text(_known(n).parse(*self._given[n]))
                given.append(Synonym(n, None if hides else text, Source.STATIC_BROKER))
        defaults = [(n, None if _known(n).hidden else as_text(default_of(_known(n)))) for n in names]
        return given + [Synonym(n, text, Source.DEFAULT) for n, text in defaults if text is not None]

    def _entry(self, setting: Setting) -> DescribedConfig:
        value = self[setting.name]
        sources = [source for source, held in self._dynamic.items() if setting.name in held]
        sources.append(Source.STATIC_BROKER if setting.name in self._given else Source.DEFAULT)
        return DescribedConfig(
            setting.name,
            None if setting.hidden else as_text(value),
            sources[0],
            not setting.dynamic,
            setting.hidden,
            setting.type,
            setting.doc,
            () if value is None else tuple(self.synonyms(setting.name)),
        )

    @property
    def in_cluster(self) -> bool:
        """True for a broker of a cluster, False for a lone one."""
        return self["zookeeper.connect"] is not None or self["etcd.connect"] is not None

    def _check(self) -> None:
        """Check settings against each other."""
        low, high = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        if self[low] > self[high]:
            raise self._refuse(low, f"at most {high}, which is {self[high]} ({self.where(high)})")
        pool, request = "queued.max.request.bytes", "socket.request.max.bytes"
        if 0 < self[pool] < self[request]:
            raise self._refuse(pool, f"-1 or at least {request}, which is {self[request]} ({self.where(request)})")
        wait, lag = "replica.fetch.wait.max.ms", "replica.lag.time.max.ms"
        if self[wait] > self[lag]:  # else followers of an idle leader would drop out of the ISR
            raise self._refuse(wait, f"at most {lag}, which is {self[lag]} ({self.where(lag)})")
        node, broker = "node.id", "broker.id"
        if self.is_set(node) and self[node] != self[broker]:
            raise self._refuse(node, f"the same as {broker}, which is {self[broker]} ({self.where(broker)})")
        if self.is_set(INTER_BROKER) and self.is_set(INTER_BROKER_PROTOCOL):
            raise self._refuse_for(INTER_BROKER, f"{INTER_BROKER_PROTOCOL} is set too: set only one of them")
        try:
            _ = self.listeners
        except Refused as problem:
            raise self._refuse_for(problem.setting, problem.why) from None
        _ = self.ssl
        sasl = self.sasl
        if sasl and self.in_cluster:
            _ = self.account
        user, password = "zookeeper.sasl.client.username", "zookeeper.sasl.client.password"
        for one, other in ((user, password), ("etcd.user", "etcd.password")):
            for has, lacks in ((one, other), (other, one)):
                if self[has] is not None and self[lacks] is None:
                    raise self._refuse_for(lacks, f"{has} ({self.where(has)}) needs it")
        if self["etcd.connect"] is not None and self["zookeeper.connect"] is not None:
            raise self._refuse_for("etcd.connect", "zookeeper.connect is set too: set only one of them")
        shown = self["zookeeper.ssl.client.enable"] and self["zookeeper.ssl.keystore.location"] is not None
        if self["zookeeper.connect"] and self["zookeeper.set.acl"] and not (shown or self[user]):
            why = f"the broker needs a ZooKeeper login to own its nodes: set {user}, or zookeeper.ssl.keystore.location"
            raise self._refuse_for("zookeeper.set.acl", why)
        if self[ENCODER_OLD_SECRET] and not self[ENCODER_SECRET]:
            raise self._refuse_for(ENCODER_SECRET, f"{ENCODER_OLD_SECRET} ({self.where(ENCODER_OLD_SECRET)}) needs it")
        held = next(n for n in ("log.dirs", "log.dir") if self[n] is not None)
        if not all(self.log_dirs) or len(set(self.log_dirs)) < len(self.log_dirs):
            raise self._refuse(held, "directories separated by commas, none of them empty or named twice")

    def _refuse(self, name: str, allowed: str) -> ConfigError:
        return self._refuse_for(name, f"it takes {allowed}")

    def _refuse_for(self, name: str, why: str | None) -> ConfigError:
        """Return the error for a value; `why` None: its value is outside what the table allows."""
        why = why or f"it takes {BROKER[name].allowed}"
        if self[name] is None:
            return ConfigError(f"{name} is not set: {why}")
        return ConfigError(f"{name} = {as_text(self[name])!r} ({self.where(name)}) is not allowed: {why}")


def setting_of(name: str) -> Setting | None:
    """The setting of this name, with or without a listener prefix; None if there is none."""
    return BROKER.get(name) or own_setting(name)


def _known(name: str) -> Setting:
    """The setting of this name. Raises KeyError if there is none."""
    setting = setting_of(name)
    if setting is None:
        raise KeyError(name)
    return setting


def default_of(setting: Setting) -> Value:
    """The typed default; None for "not set"."""
    return None if setting.default is None else setting.parse(setting.default, "default")


def nearest(name: str, alike: float = 0.8) -> str:
    """The end of an error sentence that suggests the most similar setting; "" if none has a similarity of `alike`, from
    0 to 1."""
    import difflib  # only needed for unknown names

    near = difflib.get_close_matches(name, BROKER, n=1, cutoff=alike)
    return f"; did you mean {near[0]}?" if near else ""


def read_properties(file: str) -> Iterator[tuple[str, str, int]]:
    """Yield (name, text, line) from a .properties file. Raises ConfigError if it cannot be read."""
    import javaproperties  # takes as long to import as asyncio, and most brokers start without a file

    try:
        with open(file, "rb") as lines:
            content = lines.read()
        line = 1
        for element in javaproperties.parse(content.replace(b"\r\n", b"\n")):
            if isinstance(element, javaproperties.KeyValue):
                if not element.key.isprintable():
                    raise ConfigError(f"the config file {file} is not a .properties file, see line {line}: no text")
                yield element.key, element.value, line
            line += element.source.count("\n")
    except OSError as error:
        raise ConfigError(f"the config file {file} cannot be read: {error.strerror}") from None
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigError(f"the config file {file} is not a .properties file, see line {line}: {error}") from None
