"""The table of settings that say who may come in: Kafka's names, and those that a listener may have of its own."""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from pybroker.model import PLAINTEXT

from . import jaas
from .settings import Choice, ConfigError, Range, Setting, Shape, Type, Value, shown, table

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
ENABLED: Final = "sasl.enabled.mechanisms"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
JAAS: Final = "sasl.jaas.config"
AUTHORIZER: Final = "authorizer.class.name"
ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
SUPER_USERS: Final = "super.users"


def super_users(text: str) -> frozenset[str]:
    """The principals of super.users, like User:ann;User:CN=bob,OU=ops. ValueError if one is none.

    An empty one is none, but at the end."""
    given = text.rstrip(";")
    parts = [part.strip() for part in given.split(";")] if given else []
    for part in parts:
        if ":" not in part:
            raise ValueError(
                f"{SUPER_USERS}={shown(text)} is not allowed: {shown(part)} is no principal; "
                f"write a type and a name each, with semicolons between them, like User:ann;User:bob"
            )
    return frozenset(parts)


SECURITY = table(
    Setting(
        ENABLED,
        Type.LIST,
        "",
        "The mechanisms by which clients of listeners with SASL may log in. A listener may have its own: "
        "listener.name.clients.sasl.enabled.mechanisms. The users of PLAIN, and whom this broker itself logs in as at "
        "others, stand in listener.name.clients.plain.sasl.jaas.config; the credentials of SCRAM are in the "
        "coordination store, see pybroker users.",
        Choice(MECHANISMS),
    ),
    Setting(
        INTER_BROKER_MECHANISM,
        Type.STRING,
        None,
        "The mechanism by which brokers log in at each other, if inter.broker.listener.name has SASL.",
        Choice(MECHANISMS),
    ),
    Setting(
        AUTHORIZER,
        Type.STRING,
        "",
        "Whether ACLs are kept: those of Kafka's AclAuthorizer in the coordination store, by which every request is "
        "judged. Empty: everybody may do everything.",
        Choice(("", ACL_AUTHORIZER)),
    ),
    Setting(
        SUPER_USERS,
        Type.STRING,
        "",
        "Principals who may do everything, whatever ACLs say, with semicolons between them. Brokers have to be among "
        "them, or have an ACL for ClusterAction; whom this broker logs in as at others, is.",
        Shape("principals like User:ann;User:bob", super_users),
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        Type.BOOLEAN,
        "false",
        "Whether everybody may do everything to what no ACL is about. One ACL for one user closes it to the others.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        Type.INT,
        "100",
        "How long the answer to a login that failed is held back.",
        Range(0, 60_000),
    ),
    Setting(
        "sasl.server.max.receive.size",
        Type.INT,
        "524288",
        "The largest request, in bytes, that is taken from somebody who is not logged in yet.",
        Range(64),
    ),
)

_OF_LISTENER: Final = re.compile(
    rf"listener\.name\.(?P<listener>[^.]+)\.(?:(?P<mechanism>{'|'.join(m.lower() for m in MECHANISMS)})\.)?"
    rf"(?P<name>{re.escape(ENABLED)}|{re.escape(JAAS)})"
)


def is_of_listener(name: str) -> bool:
    """Is it a setting of one listener, which the broker honours?"""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and (found["name"] == JAAS) == (found["mechanism"] is not None)


class Sasl(NamedTuple):
    """Who may log in at one listener, and how. The texts are secrets."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str]
    """Of the users of PLAIN."""
    accounts: Mapping[str, tuple[str, str]]
    """By mechanism, name and password that this broker has at the listeners of this name of others."""

    def __repr__(self) -> str:
        return f"Sasl({', '.join(self.mechanisms)})"


def sasl_of(listener: str, protocol: str, enabled: Value, own: Mapping[str, tuple[str, str]]) -> Sasl | None:
    """What the settings say of a listener, None without SASL. `own` are those that is_of_listener knows, and where they
    were set. Raises ConfigError, which shows no secret."""
    if protocol not in SASL_PROTOCOLS:
        return None
    mechanisms = enabled
    prefix = f"listener.name.{listener.lower()}."
    if prefix + ENABLED in own:
        mechanisms = SECURITY[ENABLED]._replace(name=prefix + ENABLED).parse(*own[prefix + ENABLED])
    assert isinstance(mechanisms, tuple)
    if not mechanisms:
        raise ConfigError(
            f"the listener {listener} has {protocol}, but no mechanism to log in by: "
            f"{prefix}{ENABLED} takes {', '.join(MECHANISMS)}"
        )
    logins = {
        mechanism: _login(mechanism, name, *own[name])
        for mechanism in MECHANISMS
        if (name := f"{prefix}{mechanism.lower()}.{JAAS}") in own
    }
    passwords = logins["PLAIN"].passwords if "PLAIN" in logins else {}
    if "PLAIN" in mechanisms and not passwords:
        raise ConfigError(f"nobody can log in by PLAIN: {prefix}plain.{JAAS} names no user (user_alice=\"...\")")
    accounts = {mechanism: login.user for mechanism, login in logins.items() if login.user is not None}
    return Sasl(mechanisms, passwords, accounts)


def _login(mechanism: str, name: str, text: str, where: str) -> jaas.Login:
    try:
        login = jaas.parse(text)
        if mechanism not in login.mechanisms:
            raise ValueError(f"the login module is one of {', '.join(login.mechanisms)}")
    except ValueError as problem:
        raise ConfigError(f"{name} ({where}) is not allowed: {problem}") from None
    return login


def account_of(listener: str, protocol: str, mechanism: str | None, sasl: Sasl | None) -> tuple[str, str, str] | None:
    """Mechanism, name and password by which a broker logs in at others; None where nobody does. Raises ConfigError."""
    if protocol == PLAINTEXT or sasl is None:
        return None
    if mechanism is None or mechanism not in sasl.mechanisms:
        words = f"one of {', '.join(sasl.mechanisms)}, which the listener {listener} has"
        raise ConfigError(f"brokers cannot log in at each other: {INTER_BROKER_MECHANISM} takes {words}")
    account = sasl.accounts.get(mechanism)
    if account is None:
        name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS}"
        raise ConfigError(f"brokers cannot log in at each other: {name} has no username and password")
    return mechanism, *account
