"""The security settings of producers, consumers and admin clients."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from pybroker.client import foreign
from pybroker.client.security import token_settings
from pybroker.client.security.tls import CLIENT_SSL, ClientTls, tls_of
from pybroker.client.security.token_settings import JAAS_OPTIONS, PROVIDER, TOKENS
from pybroker.config import jaas
from pybroker.config.listeners import SECURITY_PROTOCOLS
from pybroker.config.oauth_settings import OAUTHBEARER
from pybroker.config.security_settings import MECHANISMS, SASL_PROTOCOLS
from pybroker.config.settings import Choice, ConfigError, Setting, Type, shown, table
from pybroker.model import PLAINTEXT
from pybroker.security.login import Account
from pybroker.security.scram import HASHES

WHERE: Final = "given in Python"

SECURITY: Final = table(
    Setting(
        "security_protocol",
        Type.STRING,
        PLAINTEXT,
        "What the listener of the brokers speaks: with SASL, the client logs in; with SSL, all is encrypted.",
        Choice(SECURITY_PROTOCOLS),
    ),
    Setting("sasl_mechanism", Type.STRING, None, "The mechanism of the login.", Choice(MECHANISMS)),
    Setting("sasl_username", Type.STRING, None, "The user who logs in."),
    Setting("sasl_password", Type.PASSWORD, None, "The user's password."),
    Setting(
        "sasl_tokenauth", Type.BOOLEAN, None, "User and password of SCRAM are a delegation token's id and its secret."
    ),
    *TOKENS.values(),
    *CLIENT_SSL.values(),
)
SASL: Final = tuple(name for name in SECURITY if name.startswith("sasl_"))
_PASSWORD: Final = ("sasl_username", "sasl_password")


def account_of(given: Mapping[str, object]) -> Account | None:
    """The account of these settings, None without a login. ConfigError if they contradict each other."""
    protocol = given.get("security_protocol") or PLAINTEXT
    said = {name: given[name] for name in SASL if given.get(name) is not None}
    if protocol not in SASL_PROTOCOLS:
        for name in said:
            raise ConfigError(f"{name} is given, but security_protocol is {protocol}, which has no login")
        return None
    mechanism = said.get("sasl_mechanism")
    needed: tuple[str, ...] = ("sasl_mechanism", *_PASSWORD)
    others: tuple[str, ...] = tuple(TOKENS)
    if mechanism == OAUTHBEARER:
        needed, others = ("sasl_mechanism",), (*_PASSWORD, "sasl_tokenauth")
    elif mechanism not in HASHES:
        others = (*TOKENS, "sasl_tokenauth")
    for name in (name for name in needed if name not in said):
        raise ConfigError(f"security_protocol is {protocol}, and {name} is not given")
    for name in (name for name in others if name in said):
        raise ConfigError(f"{name} is given, but sasl_mechanism is {mechanism}: it is of no use there")
    if mechanism == OAUTHBEARER:
        return Account(OAUTHBEARER, tokens=token_settings.source_of(said))
    by_token = str(said.get("sasl_tokenauth", "false")).lower() == "true"
    return Account(str(mechanism), str(said["sasl_username"]), str(said["sasl_password"]), by_token=by_token)


def security_of(given: Mapping[str, object]) -> tuple[Account | None, ClientTls | None]:
    """The account and the TLS settings in `given`; None for what is not used. Raises ConfigError."""
    return account_of(given), tls_of(str(given.get("security_protocol") or PLAINTEXT), given)


def security_from(given: Mapping[str, object]) -> tuple[Account | None, ClientTls | None]:
    """`security_of` for an admin client's keyword arguments. ConfigError for an unknown name or a wrong value."""
    for name, value in given.items():
        if name not in SECURITY:
            raise ConfigError(unknown("client", SECURITY, name))
        if name != PROVIDER:
            SECURITY[name].parse(as_given(value), WHERE)
    return security_of(given)


def of_jaas(text: str) -> dict[str, str]:
    """The settings in a sasl.jaas.config of Kafka. ValueError, without any of its values."""
    login = jaas.parse(text)
    if login.module == jaas.OAUTHBEARER:
        return {name: login.options[option] for option, name in JAAS_OPTIONS.items() if option in login.options}
    if login.user is None:
        raise ValueError("it has no username and password")
    more = {"sasl_tokenauth": login.options["tokenauth"]} if "tokenauth" in login.options else {}
    return dict(zip(_PASSWORD, login.user, strict=True)) | more


def as_settings(account: Account | None, tls: ClientTls | None) -> dict[str, Any]:
    """The keyword arguments of an admin client for this account and TLS."""
    said = {} if tls is None else tls.as_settings()
    if account is not None:
        said["sasl_mechanism"] = account.mechanism
        if account.tokens is not None:
            said |= token_settings.as_settings(account.tokens)
        else:
            said |= {"sasl_username": account.user, "sasl_password": account.password}
        if account.by_token:
            said["sasl_tokenauth"] = True
    if said:
        said["security_protocol"] = ("" if account is None else "SASL_") + ("PLAINTEXT" if tls is None else "SSL")
    return said


def as_given(value: object) -> str:
    """A Python value as the text of a setting."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    raise ConfigError(f"a setting is text, a number, True, False or a list, not {type(value).__name__}")


def unknown(kind: str, known: Mapping[str, Setting], name: str) -> str:
    """The error sentence for an unknown setting, with the nearest known one."""
    plain = name.replace(".", "_")
    other = foreign.setting(name, known)
    near = difflib.get_close_matches(plain, known, n=1, cutoff=0.6)
    hint = f": {other}" if other else f"; did you mean {near[0]}?" if near else ""
    return f"{shown(name)} is no setting of a {kind}{hint}"
