"""Parses `sasl.jaas.config`: one of Kafka's login modules and its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="pw" user_alice="pw2";

The module name is only compared with the known ones; no code is loaded by it.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_MODULES: Final = {PLAIN: ("PLAIN",), SCRAM: ("SCRAM-SHA-256", "SCRAM-SHA-512"), OAUTHBEARER: ("OAUTHBEARER",)}
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"=;]+)|([=;]))', re.DOTALL)
USER: Final = "user_"


class JaasLogin(NamedTuple):
    """The login of a broker or a client, and the users of PLAIN with their passwords."""

    module: str
    options: Mapping[str, str]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms of the module."""
        return _MODULES[self.module]

    @property
    def user(self) -> tuple[str, str] | None:
        """User name and password, or client id and secret of a token endpoint; None unless both are given."""
        names = ("clientId", "clientSecret") if self.module == OAUTHBEARER else ("username", "password")
        name, password = map(self.options.get, names)
        return None if name is None or password is None else (name, password)

    @property
    def passwords(self) -> dict[str, str]:
        """{user: password} for PLAIN."""
        return {name.removeprefix(USER): text for name, text in self.options.items() if name.startswith(USER)}


def parse(text: str) -> JaasLogin:
    """Parse a text. Raises ValueError, whose message has no option value, as that may be a secret."""
    words = list(_tokens(text))
    if len(words) < 3 or words[-1] != (";", True):
        raise ValueError("write a login module, a flag, options and a semicolon")
    (module, _), (flag, _) = words[0], words[1]
    if module not in _MODULES:
        raise ValueError(f"the login module must be one of {', '.join(_MODULES)}")
    if flag.lower() not in _FLAGS:
        raise ValueError(f"the word after the login module must be one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    rest = words[2:-1]
    for first in range(0, len(rest), 3):
        option = rest[first : first + 3]
        if len(option) < 3 or option[1] != ("=", True) or option[0][1] or option[2][1]:
            raise ValueError("options have the form name=value, and one semicolon ends them all")
        options[option[0][0]] = option[2][0]
    return JaasLogin(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Split into (word, False) and (punctuation mark, True)."""
    found, position = [], 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError("a quotation mark is missing")
        quoted, bare, mark = match.groups()
        found.append((mark, True) if mark else (re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else bare, False))
        position = match.end()
    return found
