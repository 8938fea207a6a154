"""The text of `sasl.jaas.config`: one login module of Kafka's and its options.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="pw" user_alice="pw2";

A name of a module is compared with those that are known, and nothing is ever loaded by it.
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


class Login(NamedTuple):
    """What a broker or a client logs in by, and the users whose passwords a broker knows by PLAIN."""

    module: str
    options: Mapping[str, str]

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Those that the module is for."""
        return _MODULES[self.module]

    @property
    def user(self) -> tuple[str, str] | None:
        """Name and password, or a token endpoint's client and its secret, where both are there."""
        names = ("clientId", "clientSecret") if self.module == OAUTHBEARER else ("username", "password")
        name, password = map(self.options.get, names)
        return None if name is None or password is None else (name, password)

    @property
    def passwords(self) -> dict[str, str]:
        """{user: password} of those who may log in by PLAIN."""
        return {name.removeprefix(USER): text for name, text in self.options.items() if name.startswith(USER)}


def parse(text: str) -> Login:
    """Read a text. ValueError, whose message has no value of an option, if it is not allowed."""
    words = list(_tokens(text))
    if len(words) < 3 or words[-1] != (";", True):
        raise ValueError("it is a login module, a flag, options and a semicolon")
    (module, _), (flag, _) = words[0], words[1]
    if module not in _MODULES:
        raise ValueError(f"of login modules there are {', '.join(_MODULES)}")
    if flag.lower() not in _FLAGS:
        raise ValueError(f"behind the login module comes one of {', '.join(_FLAGS)}")
    options: dict[str, str] = {}
    rest = words[2:-1]
    for first in range(0, len(rest), 3):
        option = rest[first : first + 3]
        if len(option) < 3 or option[1] != ("=", True) or option[0][1] or option[2][1]:
            raise ValueError("options have the form name=value, and one semicolon ends them all")
        options[option[0][0]] = option[2][0]
    return Login(module, options)


def _tokens(text: str) -> list[tuple[str, bool]]:
    """Words, and marks (True)."""
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
