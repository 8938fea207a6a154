"""The table of settings for logins and authorization, with Kafka's names, and their overrides by listener."""

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
"""The names of the hashes of PBKDF2: {Java's name: hashlib's name}."""
KEY_FACTORY: Final = "PBKDF2WithHmacSHA512"
KEY_BITS: Final = (128, 192, 256)
ITERATIONS_MIN, ITERATIONS_MAX = 1024, 1_000_000
"""The maximum takes half a second or more for each password."""
MAX_REAUTH: Final = "connections.max.reauth.ms"
AUTHORIZER: Final = "authorizer.class.name"
ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
SUPER_USERS: Final = "super.users"


def super_users(text: str) -> frozenset[str]:
    """The principals of super.users, like User:ann;User:CN=bob,OU=ops. A semicolon at the end is allowed. Raises
    ValueError."""
    given = text.rstrip(";")
    parts = [part.strip() for part in given.split(";")] if given else []
    for part in parts:
        if ":" not in part or re.search(r",\s*User:", part):  # Kafka reads a comma as part of one user's name
            raise ValueError(
                f"{SUPER_USERS}={shown(text)} is not allowed: {shown(part)} is not a principal; "
                f"write types and names separated by semicolons, like User:ann;User:bob"
            )
    return frozenset(parts)


SECURITY = table(
    Setting(
        ENABLED,
        Type.LIST,
        "",
        "The mechanisms with which clients of listeners with SASL may log in. A listener can override it: "
        "listener.name.clients.sasl.enabled.mechanisms. The users of PLAIN, and the user with which this broker logs "
        "in at others, are set in listener.name.clients.plain.sasl.jaas.config; SCRAM credentials are in the "
        "coordination store, see pybroker users. A change while the broker runs applies to new logins.",
        Choice(MECHANISMS),
        dynamic=True,
    ),
    Setting(
        INTER_BROKER_MECHANISM,
        Type.STRING,
        None,
        "The mechanism with which brokers log in at each other, if inter.broker.listener.name has SASL. A change takes "
        "effect at the next start.",
        Choice(MECHANISMS),
        dynamic=True,
    ),
    Setting(
        MAX_REAUTH,
        Type.LONG,
        "0",
        "How long a login lasts before the client has to re-authenticate on the same connection (KIP-368). 0: no "
        "limit, except that tokens expire. It can be overridden for a listener and a mechanism: "
        "listener.name.clients.plain.connections.max.reauth.ms.",
        Range(0),
    ),
    *OAUTH.values(),
    Setting(
        TOKEN_SECRET,
        Type.PASSWORD,
        None,
        "The key from which the secrets of delegation tokens are derived, the same at all brokers. Not set: delegation "
        "tokens are disabled.",
    ),
    Setting(
        "delegation.token.master.key",
        Type.PASSWORD,
        None,
        "The older name of delegation.token.secret.key, used if only this one is set.",
    ),
    Setting(
        "delegation.token.max.lifetime.ms",
        Type.LONG,
        "604800000",
        "The maximum lifetime of a delegation token, even if it is renewed.",
        Range(1),
    ),
    Setting(
        "delegation.token.expiry.time.ms",
        Type.LONG,
        "86400000",
        "The lifetime of a delegation token that is not renewed.",
        Range(1),
    ),
    Setting(
        "delegation.token.expiry.check.interval.ms",
        Type.LONG,
        "3600000",
        "How often expired delegation tokens are removed. Expired tokens are refused even before that.",
        Range(1),
    ),
    Setting(
        ENCODER_SECRET,
        Type.PASSWORD,
        None,
        "The secret that encrypts dynamic passwords in the coordination store. Not set: passwords cannot be altered "
        "while the broker runs.",
    ),
    Setting(
        ENCODER_OLD_SECRET,
        Type.PASSWORD,
        None,
        "The previous password.encoder.secret. At its start the broker re-encrypts passwords that were encrypted with "
        "it.",
    ),
    Setting(
        ENCODER_CIPHER,
        Type.STRING,
        CIPHERS[0],
        "The cipher for newly stored passwords; each stored password names its own cipher.",
        Choice(CIPHERS),
    ),
    Setting(
        ENCODER_KEY_FACTORY,
        Type.STRING,
        None,
        "The function that derives the cipher's key from the secret. Not set: PBKDF2WithHmacSHA512.",
        Choice(tuple(KEY_FACTORIES)),
    ),
    Setting(
        ENCODER_KEY_LENGTH,
        Type.INT,
        "128",
        "The length of the cipher's key in bits.",
        Choice(tuple(map(str, KEY_BITS))),
    ),
    Setting(
        ENCODER_ITERATIONS,
        Type.INT,
        "4096",
        "The iterations of the key derivation.",
        Range(ITERATIONS_MIN, ITERATIONS_MAX),
    ),
    Setting(
        AUTHORIZER,
        Type.STRING,
        "",
        "The authorizer: Kafka's AclAuthorizer, with ACLs in the coordination store, which checks every request. "
        "Empty: everything is allowed.",
        Choice(("", ACL_AUTHORIZER)),
    ),
    Setting(
        SUPER_USERS,
        Type.STRING,
        "",
        "Principals, separated by semicolons, that are allowed everything regardless of ACLs. Brokers must be super "
        "users or have an ACL for ClusterAction; the user with which this broker logs in at others is one "
        "automatically.",
        Shape("principals with semicolons between them, like User:ann;User:bob", super_users),
    ),
    Setting(
        "allow.everyone.if.no.acl.found",
        Type.BOOLEAN,
        "false",
        "Whether everything is allowed on resources without any ACL. The first ACL for one user excludes all others.",
    ),
    Setting(
        "connection.failed.authentication.delay.ms",
        Type.INT,
        "100",
        "How long the response to a failed login is delayed.",
        Range(0, 60_000),
    ),
    Setting(
        "sasl.server.max.receive.size",
        Type.INT,
        "524288",
        "The largest request, in bytes, that the broker accepts before a client has logged in.",
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
    "The users of a mechanism, and the user with which this broker logs in at others. It is set for a listener and a "
    "mechanism: listener.name.clients.plain.sasl.jaas.config.",
)
_HANDLER_CLASS: Final = Setting(HANDLER, Type.STRING, None, "The validator of OAUTHBEARER tokens of a listener.")
_ALONE: Final = {setting.name: setting for setting in (_LOGIN_MODULE, _HANDLER_CLASS)}
"""Settings that need a listener and a mechanism, and are in no table."""
_WITHOUT_MECHANISM: Final = {ENABLED}
_WITH_MECHANISM: Final = {JAAS, HANDLER}
_WITH_OR_WITHOUT: Final = {MAX_REAUTH, *OAUTH} - {ALLOWED_URLS}


def own_of_login(name: str) -> Setting | None:
    """The login setting that this name overrides for one listener, or None."""
    found = _OF_LISTENER.fullmatch(name)
    if found is None:
        return None
    with_mechanism = found[1] is not None
    known = _WITH_OR_WITHOUT | (_WITH_MECHANISM if with_mechanism else _WITHOUT_MECHANISM)
    return _ALONE.get(found["name"]) or SECURITY[found["name"]] if found["name"] in known else None


def own_without_effect(name: str) -> Setting | None:
    """The login or TLS setting without effect that this name overrides for one listener, or None."""
    found = _OF_LISTENER.fullmatch(name)
    is_of_listeners = found is not None and found["name"].startswith(("sasl.", "ssl.", "principal."))
    return NO_EFFECT.get(found["name"]) if found is not None and is_of_listeners else None


def is_exchanged(name: str) -> bool:
    """True for a login setting of one listener that can change while the listener is open: a login module, or the
    mechanisms."""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and (found["name"] == ENABLED or (found["name"] == JAAS and found[1] is not None))


class Sasl(NamedTuple):
    """The logins of one listener. Some texts are secrets."""

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str]
    """{user: password} for PLAIN."""
    accounts: Mapping[str, tuple[str, str]]
    """{mechanism: (user, password)} with which this broker logs in at this listener of other brokers."""
    max_reauth_ms: Mapping[str, int]
    """{mechanism: lifetime of a login}; 0 for no limit."""
    oauth: OAuth | None
    """None without OAUTHBEARER."""
    own_tokens: OwnTokens | None

    def __repr__(self) -> str:
        return f"Sasl({', '.join(self.mechanisms)})"


def sasl_of(
    listener: str, protocol: str, common: Callable[[str], Value], own: Mapping[str, tuple[str, str]]
) -> Sasl | None:
    """The logins of a listener; None without SASL. `common` returns the value of a setting for all listeners; `own` has
    (text, place) by name with a listener prefix. Raises ConfigError, without secrets."""
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
            f"the listener {listener} has {protocol}, but no SASL mechanism: "
            f"{prefix}{ENABLED} takes {', '.join(MECHANISMS)}"
        )
    logins = {
        mechanism: _login(mechanism, name, *own[name])
        for mechanism in MECHANISMS
        if (name := f"{prefix}{mechanism.lower()}.{JAAS}") in own
    }
    passwords = logins["PLAIN"].passwords if "PLAIN" in logins else {}
    if "PLAIN" in mechanisms and not passwords:
        raise ConfigError(f"PLAIN has no users: add them to {prefix}plain.{JAAS}, like user_alice=\"...\"")
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


def _login(mechanism: str, name: str, text: str, where: str) -> jaas.JaasLogin:
    try:
        login = jaas.parse(text)
        if mechanism not in login.mechanisms:
            raise ValueError(f"the login module is for {', '.join(login.mechanisms)}, not for {mechanism}")
    except ValueError as problem:
        raise ConfigError(f"{name} ({where}) is not allowed: {problem}") from None
    return login


class OwnAccount(NamedTuple):
    """The account with which a broker logs in at others. The password is a secret."""

    mechanism: str
    user: str
    password: str
    tokens: OwnTokens | None = None
    """The token source for OAUTHBEARER; `user` and `password` are then the client id and secret."""

    def __repr__(self) -> str:
        return f"OwnAccount({self.mechanism}, {self.user!r})"


def account_of(listener: str, protocol: str, mechanism: str | None, sasl: Sasl | None) -> OwnAccount | None:
    """The account with which a broker logs in at others; None if brokers need no login. Raises ConfigError."""
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
