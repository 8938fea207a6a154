"""The table of settings of TLS: Kafka's names, each of which a listener may have of its own."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from .settings import Choice, ConfigError, Setting, Shape, Type, shown, table

SSL_PROTOCOLS: Final = ("SSL", "SASL_SSL")
VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
PRINCIPAL_RULES: Final = "ssl.principal.mapping.rules"
CLIENT_AUTH: Final = "ssl.client.auth"
NONE, REQUESTED, REQUIRED = "none", "requested", "required"
STORES: Final = "PEM, PKCS12, or JKS, which has to be a PKCS#12 file in truth"

SSL = table(
    Setting(
        "ssl.keystore.type",
        Type.STRING,
        "JKS",
        f"The form of the key store: {STORES}. A listener may have its own of this and of every setting of ssl.: "
        "listener.name.clients.ssl.keystore.type.",
    ),
    Setting("ssl.keystore.location", Type.STRING, None, "The file that has this broker's key and certificates."),
    Setting("ssl.keystore.password", Type.PASSWORD, None, "The password of the key store; PEM has none."),
    Setting("ssl.key.password", Type.PASSWORD, None, "The password of the key, if it is encrypted."),
    Setting("ssl.keystore.key", Type.PASSWORD, None, "The key itself, as PEM, in place of a file."),
    Setting("ssl.keystore.certificate.chain", Type.PASSWORD, None, "With it, its certificate and those above it."),
    Setting("ssl.truststore.type", Type.STRING, "JKS", f"The form of the trust store: {STORES}."),
    Setting(
        "ssl.truststore.location",
        Type.STRING,
        None,
        "The file of the certificates of authorities whose clients, and brokers, are believed. Neither it nor "
        "certificates: those of the system.",
    ),
    Setting("ssl.truststore.password", Type.PASSWORD, None, "The password of the trust store; PEM has none."),
    Setting("ssl.truststore.certificates", Type.PASSWORD, None, "The certificates themselves, as PEM."),
    Setting(
        CLIENT_AUTH,
        Type.STRING,
        NONE,
        "Whether clients have to show a certificate, may, or are not asked. Of listeners with SASL only what is set "
        "with the listener's prefix counts. As every setting of ssl. that changes while the broker runs, it holds for "
        "connections from then on.",
        Choice((NONE, REQUESTED, REQUIRED)),
        dynamic=True,
    ),
    Setting(
        "ssl.enabled.protocols",
        Type.LIST,
        ",".join(VERSIONS),
        "The versions of TLS that are spoken.",
        Choice(VERSIONS),
        dynamic=True,
    ),
    Setting(
        "ssl.cipher.suites",
        Type.LIST,
        "",
        "The cipher suites that may be chosen, by their names of IANA, as Java has them. Empty: those of OpenSSL.",
        dynamic=True,
    ),
    Setting(
        "ssl.endpoint.identification.algorithm",
        Type.STRING,
        "https",
        "Whether a broker that connects to another looks for its host in that one's certificate. Empty: it does not.",
        Choice(("https", "HTTPS", "")),
        dynamic=True,
    ),
    Setting(
        PRINCIPAL_RULES,
        Type.STRING,
        "DEFAULT",
        "How the subject of a client's certificate becomes the name of its principal: the first rule whose pattern "
        "matches all of it. DEFAULT takes it as it is. A client that none matches is turned away. "
        "Patterns are those of Python's re, with ASCII classes.",
        Shape("rules like RULE:^CN=(.*?),.*$/$1/L,DEFAULT", lambda text: check_rules(text)),
    ),
)

OF_STORES: Final = frozenset(n for n in SSL if n.startswith(("ssl.key", "ssl.truststore")))
"""What a running broker takes of one of its listeners alone: all of key store and trust store."""
RECONFIGURABLE: Final = OF_STORES | {name for name, setting in SSL.items() if setting.dynamic}
"""What a running broker takes of one of its listeners."""

_OF_LISTENER: Final = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<name>ssl\..+)")


def check_rules(text: str) -> None:
    """ValueError if the text is no rules. Whoever knows rules says how they are read."""
    rule = r"\s*(?:DEFAULT|RULE:(?:\\.|[^\\/])*/(?:\\.|[^\\/])*/[LU]?)\s*(?:,|\Z)"
    if re.fullmatch(f"(?:{rule})*", text, re.DOTALL) is None:
        raise ValueError(text)


def own_of_tls(name: str) -> Setting | None:
    """The setting of TLS that this is for one listener; None if it is none."""
    found = _OF_LISTENER.fullmatch(name)
    return None if found is None else SSL.get(found["name"])


def is_reconfigurable(name: str) -> bool:
    """Can this setting of one listener change while the broker runs?"""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and found["name"] in RECONFIGURABLE


def is_of_stores(name: str) -> bool:
    """True if it is about a store of keys of one listener, whose file may be another one under the same name."""
    found = _OF_LISTENER.fullmatch(name)
    return found is not None and found["name"] in OF_STORES


class Ssl:
    """What the settings say of the TLS of one listener: the texts of some are secrets."""

    __slots__ = ("_own", "_prefix", "values")

    def __init__(self, values: Mapping[str, Any], prefix: str = "", own: Collection[str] = ()) -> None:
        """`own`: the settings that are set with the listener's prefix."""
        self.values = values
        self._prefix = prefix
        self._own = own

    def prefix(self, *names: str) -> str:
        """How errors begin the names of settings of one kind: with the listener's prefix if one of them has it."""
        has = any(name.startswith(names) for name in self._own)
        return (self._prefix if has else "") + "ssl."

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __repr__(self) -> str:
        return f"Ssl({self._prefix})"


def ssl_of(listener: str, protocol: str, values: Mapping[str, Any], own: Mapping[str, tuple[str, str]]) -> Ssl | None:
    """What the settings say of a listener, None without TLS. `values` are those without a prefix; `own` texts with one,
    and where they were set. Raises ConfigError, which shows no secret."""
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
        raise ConfigError(f"the listener {shown(listener)} speaks no version of TLS: ssl.enabled.protocols is empty")
    return Ssl(found, prefix, [name for name in SSL if prefix + name in own])
