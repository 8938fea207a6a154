"""The table of TLS settings, with Kafka's names; a listener can override each."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from .settings import Choice, ConfigError, Setting, Shape, Type, shown, table

SSL_PROTOCOLS: Final = ("SSL", "SASL_SSL")
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
PRINCIPAL_RULES: Final = "ssl.principal.mapping.rules"
CLIENT_AUTH: Final = "ssl.client.auth"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
STORES: Final = "PEM, PKCS12, or JKS if the file is in fact PKCS#12"

SSL = table(
    Setting(
        "ssl.keystore.type",
        Type.STRING,
        "JKS",
        f"The format of the key store: {STORES}. A listener can override every setting of ssl.: "
        "listener.name.clients.ssl.keystore.type.",
    ),
    Setting("ssl.keystore.location", Type.STRING, None, "The file with this broker's key and certificates."),
    Setting("ssl.keystore.password", Type.PASSWORD, None, "The password of the key store; PEM has none."),
    Setting("ssl.key.password", Type.PASSWORD, None, "The password of the key, if it is encrypted."),
    Setting("ssl.keystore.key", Type.PASSWORD, None, "The key itself, as PEM, instead of a file."),
    Setting("ssl.keystore.certificate.chain", Type.PASSWORD, None, "The certificate chain of this key, as PEM."),
    Setting("ssl.truststore.type", Type.STRING, "JKS", f"The format of the trust store: {STORES}."),
    Setting(
        "ssl.truststore.location",
        Type.STRING,
        None,
        "The file with the certificates of the authorities that the broker trusts, for clients and other brokers. If "
        "ssl.truststore.certificates is not set either: those of the system.",
    ),
    Setting("ssl.truststore.password", Type.PASSWORD, None, "The password of the trust store; PEM has none."),
    Setting("ssl.truststore.certificates", Type.PASSWORD, None, "Trusted certificates as PEM, instead of a file."),
    Setting(
        CLIENT_AUTH,
        Type.STRING,
        NONE,
        "Whether clients must send a certificate (required), may send one (requested), or are not asked. For listeners "
        "with SASL only the setting with the listener's prefix counts. Like all dynamic settings of ssl., a change "
        "applies to new connections.",
        Choice((NONE, REQUESTED, REQUIRED)),
        dynamic=True,
    ),
    Setting(
        "ssl.enabled.protocols",
        Type.LIST,
        ",".join(VERSIONS),
        "The allowed versions of TLS.",
        Choice(VERSIONS),
        dynamic=True,
    ),
    Setting(
        "ssl.cipher.suites",
        Type.LIST,
        "",
        "The allowed cipher suites, by their IANA names, as in Java. Empty: those of OpenSSL.",
        dynamic=True,
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether a broker that connects to another checks the host name in its certificate. Empty: it does not.",
        Choice(("https", "HTTPS", "")),
        dynamic=True,
    ),
    Setting(
        PRINCIPAL_RULES,
        Type.STRING,
        "DEFAULT",
        "How the subject of a client's certificate is mapped to the name of its principal: by the first rule whose "
        "pattern matches all of it. DEFAULT uses the subject unchanged. A client whose subject matches no rule is "
        "refused. Patterns are those of Python's re, with ASCII classes.",
        Shape("rules like RULE:^CN=(.*?),.*$/$1/L,DEFAULT", lambda text: check_rules(text)),
    ),
)

OF_STORES: Final = frozenset(n for n in SSL if n.startswith(("ssl.key", "ssl.truststore")))
"""Key store and trust store settings, which can change in a running broker only for one listener."""
RECONFIGURABLE: Final = OF_STORES | {name for name, setting in SSL.items() if setting.dynamic}
"""Settings of one listener that can change in a running broker."""

_OF_LISTENER: Final = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<name>ssl\..+)")


def check_rules(text: str) -> None:
    """Raise ValueError if the text does not have the syntax of rules; security/principals.py parses them."""
    rule = r"\s*(?:DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*(?:,|\Z)"
    if re.fullmatch(f"(?:{rule})*", text, re.DOTALL) is None:
        raise ValueError(text)


def own_of_tls(name: str) -> Setting | None:
    """The TLS setting that this name overrides for one listener, or None."""
    found = _OF_LISTENER.fullmatch(name)
    return None if found is None else SSL.get(found["name"])


def is_reconfigurable(name: str) -> bool:
    """True if this setting of one listener can change while the broker runs."""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and found["name"] in RECONFIGURABLE


def is_of_stores(name: str) -> bool:
    """True for key store and trust store settings of one listener, whose files may change under the same name."""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and found["name"] in OF_STORES


class Ssl:
    """The TLS settings of one listener. Some values are secrets."""

    __slots__ = ("_own", "_prefix", "values")

    def __init__(self, values: Mapping[str, object], prefix: str = "", own: Collection[str] = ()) -> None:
        """`own`: the settings that are set with the listener's prefix."""
        self.values = values
        self._prefix = prefix
        self._own = own

    def prefix(self, *names: str) -> str:
        """The prefix of setting names in errors: the listener's if one of the settings `names` is set with it."""
        has = any(name.startswith(names) for name in self._own)
        return (self._prefix if has else "") + "ssl."

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        return f"Ssl({self._prefix})"


def ssl_of(
    listener: str, protocol: str, values: Mapping[str, object], own: Mapping[str, tuple[str, str]]
) -> Ssl | None:
    """The TLS settings of a listener; None without TLS. `values` are those without a prefix; `own` are (text, place) by
    name with a prefix. Raises ConfigError, without secrets."""
    if protocol not in SSL_PROTOCOLS:
        return None
    prefix = f"listener.name.{listener.lower()}."
    found = dict(values)
    if protocol != "SSL":
        found[CLIENT_AUTH] = NONE
    for name, setting in SSL.items():
        if prefix + name in own:
            found[name] = setting._replace(name=prefix + name).parse(*own[prefix + name])
    if not found["ssl.enabled.protocols"]:
        words = f"is empty: it takes {', '.join(VERSIONS)}"
        raise ConfigError(f"ssl.enabled.protocols of the listener {shown(listener)} {words}")
    return Ssl(found, prefix, [name for name in SSL if prefix + name in own])
