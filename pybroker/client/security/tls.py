"""TLS settings of clients: those of kafka-python (ssl_cafile) and those of Java (ssl.truststore.location)."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from pybroker.config.settings import ConfigError, Setting, Type, table
from pybroker.config.ssl_settings import CLIENT_AUTH, PRINCIPAL_RULES, SSL, SSL_PROTOCOLS, Ssl
from pybroker.errors import system_words

CAFILE, CERTFILE, KEYFILE, PASSWORD = "ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"
CHECK_HOSTNAME: Final = "ssl_check_hostname"


def _name(setting: str) -> str:
    return setting.replace(".", "_")


_OF_JAVA: Final = {_name(name): name for name in SSL if name not in (CLIENT_AUTH, PRINCIPAL_RULES)}

CLIENT_SSL: Final = table(
    Setting(CAFILE, Type.STRING, None, "The file (PEM) of the authorities that are believed; else the system's."),
    Setting(CERTFILE, Type.STRING, None, "The file (PEM) of the client's own certificate, and those above it."),
    Setting(KEYFILE, Type.STRING, None, "The file (PEM) of its key; without it, the certificate's file has it."),
    Setting(PASSWORD, Type.PASSWORD, None, "The password of the key, if it is encrypted."),
    Setting(CHECK_HOSTNAME, Type.BOOLEAN, "true", "Whether the broker's certificate has to name its host."),
    *(
        SSL[old]._replace(name=new, default=None if old.endswith("store.type") else SSL[old].default)
        for new, old in _OF_JAVA.items()
    ),
)


class ClientTls(NamedTuple):
    """The values of CLIENT_SSL, in its order; some are secrets."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return "ClientTls(...)"

    def context(self) -> ssl.SSLContext:
        """The context, one for all connections, so that sessions are resumed. Raises ConfigError."""
        return _context(self)

    def as_settings(self) -> dict[str, object]:
        """The same as keyword arguments of a client."""
        return {n: v for n, v in zip(CLIENT_SSL, self.values, strict=True) if v is not None}


def tls_of(protocol: str, given: Mapping[str, object]) -> ClientTls | None:
    """The TLS settings in `given`; None if the protocol has no TLS. ConfigError if they contradict it."""
    if protocol in SSL_PROTOCOLS:
        parsed = []
        for name, setting in CLIENT_SSL.items():
            value = given.get(name)
            text = setting.default if value is None else _as_text(value)
            parsed.append(None if text is None else setting.parse(text, "given in Python"))
        found = ClientTls(tuple(parsed))
        found.context()
        return found
    for name in (n for n, s in CLIENT_SSL.items() if given.get(n) is not None and _as_text(given[n]) != s.default):
        raise ConfigError(f"{name} is given, but security_protocol is {protocol}: with it nothing is encrypted")
    return None


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@functools.lru_cache(maxsize=64)
def _context(tls: ClientTls) -> ssl.SSLContext:
    from pybroker.security.tls import client_context  # loads core, which clients without TLS do not need

    held = dict(zip(CLIENT_SSL, tls.values, strict=True))
    context = client_context(Ssl({old: held[new] for new, old in _OF_JAVA.items()}))
    if not held[CHECK_HOSTNAME]:
        context.check_hostname = False
    if held[CAFILE] is not None:
        _load(CAFILE, held[CAFILE], lambda: context.load_verify_locations(held[CAFILE]))
    if held[CERTFILE] is not None:
        password = held[PASSWORD] or ""
        load = functools.partial(context.load_cert_chain, held[CERTFILE], held[KEYFILE], lambda: password)
        _load(CERTFILE, held[CERTFILE], load)
    return context


def _load(name: str, file: str, load: Callable[[], object]) -> None:
    try:
        load()
    except ssl.SSLError as problem:
        why = "its key has another password" if "BAD_DECRYPT" in str(problem) else "it is no PEM of what it should have"
        if "KEY_VALUES_MISMATCH" in str(problem):
            why = "its key is another certificate's"
        raise ConfigError(f"{name} = {file} cannot be used: {why}") from None
    except (OSError, ValueError) as problem:
        words = system_words(problem) if isinstance(problem, OSError) else str(problem)
        raise ConfigError(f"{name} = {file} cannot be read: {words}") from None
