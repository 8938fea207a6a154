"""The table of settings that say who may come in: Kafka's names, and those that a listener may have of its own."""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pybroker.model import PLAINTEXT

from . import jaas
from .no_effect import NO_EFFECT
from .oauth_settings import ALLOWED_URLS, HANDLER, OAUTH, OAUTHBEARER, TOKEN_URL, OAuth, OwnTokens, is_url, oauth_of
from .settings import Choice, ConfigError, Range, Setting, Shape, Type, Value, shown, table

PASSWORD_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)
SASL_PROTOCOLS: Final = ("SASL_PLAINTEXT", "SASL_SSL")
ENABLED: Final = "sasl.enabled.mechanisms"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
JAAS: Final = "sasl.jaas.config"
TOKEN_SECRET: Final = "delegation.token.secret.key"
ENCODER_SECRET: Final = "password.encoder.secret"
ENCODER_OLD_SECRET: Final = "password.encoder.old.secret"
ENCODER_CIPHER: Final = "password.encoder.cipher.algorithm"
ENCODER_KEY_FACTORY: Final = "password.encoder.keyfactory.algorithm"
ENCODER_KEY_LENGTH: Final = "password.encoder.key.length"
ENCODER_ITERATIONS: Final = "password.encoder.iterations"
CIPHERS: Final = ("AES/CBC/PKCS5Padding", "AES/GCM/NoPadding")
_HASHES: Final = ("sha1", "sha224", "sha256", "sha384", "sha512")
KEY_FACTORIES: Final = {f"PBKDF2WithHmac{name.upper()}": name for name in _HASHES}
"""Java's names of PBKDF2 by its hashes, and those of hashlib."""
KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
KEY_BITS: Final = (128, 192, 256)
ITERATIONS_MIN, ITERATIONS_MAX = 1024, 1_000_000
"""The most takes half a second or more for each password."""
MAX_REAUTH: Final = "connections.max.reauth.ms"
AUTHORIZER: Final = "authorizer.class.name"
ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
SUPER_USERS: Final = "super.users"


def super_users(text: str) -> frozenset[str]:
    """The principals of super.users, like User:ann;User:CN=bob,OU=ops. ValueError if one is none.

    An empty one is none, but at the end."""
    given = text.rstrip(";")
    parts = [part.strip() for part in given.split(";")] if given else []
    for part in parts:
        if ":" not in part or re.search(r",\s*User:", part):  # Kafka takes the latter for one user, whom nobody means
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
        "listener.name.clients.sasl.enabled.mechanisms. The users of PLAIN, and the user by which this broker logs "
        "in at others, stand in listener.name.clients.plain.sasl.jaas.config; the credentials of SCRAM are in the "
        "coordination store, see pybroker users. A mechanism that comes or goes while the broker runs does so for "
        "logins from then on.",
        Choice(MECHANISMS),
        dynamic=True,
    ),
    Setting(
        INTER_BROKER_MECHANISM,
        Type.STRING,
        None,
        "The mechanism by which brokers log in at each other, if inter.broker.listener.name has SASL. A change comes "
        "into effect at the next start.",
        Choice(MECHANISMS),
        dynamic=True,
    ),
    Setting(
        MAX_REAUTH,
        Type.LONG,
        "0",
        "How long somebody who is logged in may go on before they have to log in again on the same connection "
        "(KIP-368); 0: for good, but for a token, which ends. A listener and a mechanism of it may have their own: "
        "listener.name.clients.plain.connections.max.reauth.ms.",
        Range(0),
    ),
    *OAUTH.values(),
    Setting(
        TOKEN_SECRET,
        Type.PASSWORD,
        None,
        "The key by which the secrets of delegation tokens are made, the same at all brokers. Not set: there are none.",
    ),
    Setting(
        "delegation.token.master.key",
        Type.PASSWORD,
        None,
        "The older name of delegation.token.secret.key, which holds where only this one is set.",
    ),
    Setting(
        "delegation.token.max.lifetime.ms",
        Type.LONG,
        "604800000",
        "The longest that a delegation token lives, however often it is renewed.",
        Range(1),
    ),
    Setting(
        "delegation.token.expiry.time.ms",
        Type.LONG,
        "86400000",
        "How long a delegation token lives that is not renewed.",
        Range(1),
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms",
        Type.LONG,
        "3600000",
        "How often delegation tokens that have ended are removed. They open nothing before that.",
        Range(1),
    ),
    Setting(
        ENCODER_SECRET,
        Type.PASSWORD,
        None,
        "What encrypts the passwords that are altered while the broker runs, in the coordination store. Not set: none "
        "can be altered.",
    ),
    Setting(
        ENCODER_OLD_SECRET,
        Type.PASSWORD,
        None,
        "What password.encoder.secret was before. The broker encrypts anew, at its start, what it finds by this one.",
    ),
    Setting(
        ENCODER_CIPHER,
        Type.STRING,
        CIPHERS[0],
        "The cipher of passwords that are kept from now on; each of those that are there says its own.",
        Choice(CIPHERS),
    ),
    Setting(
        ENCODER_KEY_FACTORY,
        Type.STRING,
        None,
        "How the secret becomes the key of the cipher. Not set: PBKDF2WithHmacSHA512.",
        Choice(tuple(KEY_FACTORIES)),
    ),
    Setting(
        ENCODER_KEY_LENGTH,
        Type.INT,
        "128",
        "The bits of that key.",
        Choice(tuple(map(str, KEY_BITS))),
    ),
    Setting(
        ENCODER_ITERATIONS,
        Type.INT,
        "4096",
        "How often the secret is hashed for it.",
        Range(ITERATIONS_MIN, ITERATIONS_MAX),
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
        Shape("principals with semicolons between them, like User:ann;User:bob", super_users),
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
    rf"listener\.name\.[^.]+\.((?:{'|'.join(m.lower() for m in MECHANISMS)})\.)?(?P<name>[a-z].*)"
)
_LOGIN_MODULE: Final = Setting(
    JAAS,
    Type.PASSWORD,
    None,
    "The users of a mechanism, and whom this broker logs in as at others. It is of a listener and a mechanism: "
    "listener.name.clients.plain.sasl.jaas.config.",
)
_HANDLER_CLASS: Final = Setting(HANDLER, Type.STRING, None, "Who judges the tokens of OAUTHBEARER of a listener.")
_ALONE: Final = {setting.name: setting for setting in (_LOGIN_MODULE, _HANDLER_CLASS)}
"""What has no meaning without a listener and a mechanism, and is in no table."""
_WITHOUT_MECHANISM: Final = {ENABLED}
_WITH_MECHANISM: Final = {JAAS, HANDLER}
_WITH_OR_WITHOUT: Final = {MAX_REAUTH, *OAUTH} - {ALLOWED_URLS}


def own_of_login(name: str) -> Setting | None:
    """The setting of logins that this is for one listener, which the broker honours; None if it is none."""
    found = _OF_LISTENER.fullmatch(name)
    if found is None:
        return None
    with_mechanism = found[1] is not None
    known = _WITH_OR_WITHOUT | (_WITH_MECHANISM if with_mechanism else _WITHOUT_MECHANISM)
    return _ALONE.get(found["name"]) or SECURITY[found["name"]] if found["name"] in known else None


def own_without_effect(name: str) -> Setting | None:
    """The setting of logins or TLS that Kafka's listeners may have of their own, and that changes nothing here; None if
    it is none."""
    found = _OF_LISTENER.fullmatch(name)
    is_of_listeners = found is not None and found["name"].startswith(("sasl.", "ssl.", "principal."))
    return NO_EFFECT.get(found["name"]) if found is not None and is_of_listeners else None


def is_exchanged(name: str) -> bool:
    """True if it is a setting of one listener's logins that changes while the listener is there: a login module, or the
    mechanisms."""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and (found["name"] == ENABLED or (found["name"] == JAAS and found[1] is not None))


class Sasl(NamedTuple):
    """Who may log in at one listener, and how. The texts are secrets."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str]
    """Of the users of PLAIN."""
    accounts: Mapping[str, tuple[str, str]]
    """By mechanism, name and password that this broker has at the listeners of this name of others."""
    max_reauth_ms: Mapping[str, int]
    """By mechanism, how long a login holds; 0 for good."""
    oauth: OAuth | None
    """None without OAUTHBEARER."""
    own_tokens: OwnTokens | None

    def __repr__(self) -> str:
        return f"Sasl({', '.join(self.mechanisms)})"


def sasl_of(
    listener: str, protocol: str, common: Callable[[str], Value], own: Mapping[str, tuple[str, str]]
) -> Sasl | None:
    """What the settings say of a listener, None without SASL. `common` has what a setting of SECURITY says of all
    listeners; `own` are those that own_of_login knows, and where they were set. Raises ConfigError, which shows no
    secret."""
    if protocol not in SASL_PROTOCOLS:
        return None
    prefix = f"listener.name.{listener.lower()}."

    def value(name: str, mechanism: str = "") -> Value:
        for held in (f"{prefix}{mechanism.lower()}.{name}", prefix + name):
            if held in own:
                return SECURITY[name]._replace(name=held).parse(*own[held])
        return common(name)

    mechanisms = value(ENABLED)
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
    oauth, own_tokens = None, None
    if OAUTHBEARER in mechanisms:
        handler = own.get(f"{prefix}{OAUTHBEARER.lower()}.{HANDLER}", (None, ""))[0]
        oauth = oauth_of(listener, lambda name: value(name, OAUTHBEARER), handler)
        url = value(TOKEN_URL, OAUTHBEARER)
        scope = logins[OAUTHBEARER].options.get("scope", "") if OAUTHBEARER in logins else ""
        own_tokens = None if url is None else OwnTokens(str(url), scope)
    max_reauth_ms = {mechanism: int(str(value(MAX_REAUTH, mechanism))) for mechanism in mechanisms}
    return Sasl(mechanisms, passwords, accounts, max_reauth_ms, oauth, own_tokens)


def _login(mechanism: str, name: str, text: str, where: str) -> jaas.Login:
    try:
        login = jaas.parse(text)
        if mechanism not in login.mechanisms:
            raise ValueError(f"the login module is one of {', '.join(login.mechanisms)}")
    except ValueError as problem:
        raise ConfigError(f"{name} ({where}) is not allowed: {problem}") from None
    return login


class OwnAccount(NamedTuple):
    """By which a broker logs in at others. The password is a secret."""

    mechanism: str
    user: str
    password: str
    tokens: OwnTokens | None = None
    """For OAUTHBEARER, whose user and password are an endpoint's client and its secret."""

    def __repr__(self) -> str:
        return f"OwnAccount({self.mechanism}, {self.user!r})"


def account_of(listener: str, protocol: str, mechanism: str | None, sasl: Sasl | None) -> OwnAccount | None:
    """How a broker logs in at others; None where nobody does. Raises ConfigError."""
    if protocol == PLAINTEXT or sasl is None:
        return None
    words = "brokers cannot log in at each other"
    if mechanism is None or mechanism not in sasl.mechanisms:
        takes = f"one of {', '.join(sasl.mechanisms)}, which the listener {listener} has"
        raise ConfigError(f"{words}: {INTER_BROKER_MECHANISM} takes {takes}")
    tokens = sasl.own_tokens if mechanism == OAUTHBEARER else None
    if mechanism == OAUTHBEARER:
        if tokens is None or not is_url(tokens.url):
            raise ConfigError(f"{words}: {TOKEN_URL} takes https://host/path, http:// or file:///path")
        if tokens.url.startswith("file:"):
            return OwnAccount(mechanism, "", "", tokens)
    account = sasl.accounts.get(mechanism)
    if account is None:
        name = f"listener.name.{listener.lower()}.{mechanism.lower()}.{JAAS}"
        lacks = "clientId and clientSecret" if mechanism == OAUTHBEARER else "username and password"
        raise ConfigError(f"{words}: {name} has no {lacks}")
    return OwnAccount(mechanism, *account, tokens)
