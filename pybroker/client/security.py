"""How a client says who it is: the settings of security, as producers, consumers and admin clients take them."""

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final

from pybroker.client import token_settings
from pybroker.client.tls import CLIENT_SSL, ClientTls, tls_of
from pybroker.client.token_settings import JAAS_OPTIONS, PROVIDER, TOKENS
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


def account_of(given: Mapping[str, Any]) -> Account | None:
    """Who the settings of SECURITY say that a client logs in as; None for nobody. ConfigError if they contradict each
    other."""
    protocol = given.get("security_protocol") or PLAINTEXT
    said = {name: given[name] for name in SASL if given.get(name) is not None}
    if protocol not in SASL_PROTOCOLS:
        for name in said:
            raise ConfigError(f"{name} is given, but security_protocol is {protocol}: with it nobody logs in")
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


def security_of(given: Mapping[str, Any]) -> tuple[Account | None, ClientTls | None]:
    """Who the settings of SECURITY say that a client logs in as, and what it speaks TLS by. ConfigError."""
    return account_of(given), tls_of(given.get("security_protocol") or PLAINTEXT, given)


def security_from(given: Mapping[str, Any]) -> tuple[Account | None, ClientTls | None]:
    """The same of settings as they are given to an admin client. ConfigError for one that is none, or its value."""
    for name, value in given.items():
        if name not in SECURITY:
            raise ConfigError(unknown("client", SECURITY, name))
        if name != PROVIDER:
            SECURITY[name].parse(as_given(value), WHERE)
    return security_of(given)


def of_jaas(text: str) -> dict[str, str]:
    """What Kafka's sasl.jaas.config says, as settings of SECURITY. ValueError, which has no value of it."""
    login = jaas.parse(text)
    if login.module == jaas.OAUTHBEARER:
        return {name: login.options[option] for option, name in JAAS_OPTIONS.items() if option in login.options}
    if login.user is None:
        raise ValueError("it has no username and password")
    more = {"sasl_tokenauth": login.options["tokenauth"]} if "tokenauth" in login.options else {}
    return dict(zip(_PASSWORD, login.user, strict=True)) | more


def as_settings(account: Account | None, tls: ClientTls | None) -> dict[str, Any]:
    """What an admin client is given to log in as somebody, and to speak TLS like that."""
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


_NOT_YET: Final = {
    ("transaction", "transactional"): "records are sent outside of transactions",
}
"""What the names of Kafka's settings begin with that are to come, and what is so until then."""


def unknown(kind: str, known: Mapping[str, Setting], name: str) -> str:
    """Why a name is no setting of this kind of client, and what may have been meant."""
    for words, instead in _NOT_YET.items():
        if re.split(r"[._]", name)[0] in words:
            return f"{shown(name)} is not supported yet: {instead}"
    near = difflib.get_close_matches(name.replace(".", "_"), known, n=1, cutoff=0.6)
    return f"{shown(name)} is no setting of a {kind}{f'; did you mean {near[0]}?' if near else ''}"
