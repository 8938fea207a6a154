"""The SCRAM credentials of a cluster's users, as this broker has read them, and a secret for users who are none."""

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pybroker.config.security_settings import Sasl
from pybroker.security.handshake import Mechanisms
from pybroker.security.mechanism import PlainServer, ServerMechanism
from pybroker.security.scram import HASHES, Credential, ScramServer

SECRET_BYTES: Final = 32


class Credentials:
    """{mechanism: {user: credential}}, kept by what is told of each user."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        """Salts of users who do not exist are made of it."""
        self._held: dict[str, dict[str, Credential]] = {mechanism: {} for mechanism in HASHES}

    def look_up(self, mechanism: str, user: str) -> Credential | None:
        """None where the user has none of that mechanism."""
        return self._held[mechanism].get(user)

    def users(self) -> dict[str, dict[str, int]]:
        """{user: {mechanism: iterations}} of everybody who has a credential."""
        found: dict[str, dict[str, int]] = {}
        for mechanism, held in self._held.items():
            for user, credential in held.items():
                found.setdefault(user, {})[mechanism] = credential.iterations
        return dict(sorted(found.items()))

    def take(self, user: str, config: Mapping[str, str]) -> list[str]:
        """These are all the settings that a user has now. Mechanisms whose credential cannot be read, and which the
        user therefore has not."""
        unreadable = []
        for mechanism, held in self._held.items():
            held.pop(user, None)
            if mechanism in config:
                try:
                    held[user] = Credential.parse(mechanism, config[mechanism])
                except ValueError:
                    unreadable.append(mechanism)
        return unreadable

    def keep(self, users: set[str]) -> None:
        """Forget everybody but these."""
        for held in self._held.values():
            for user in held.keys() - users:
                del held[user]


def offered(sasl: Sasl, credentials: Credentials) -> Mechanisms:
    """What a listener offers, by its settings."""
    made: dict[str, Callable[[], ServerMechanism]] = {}
    for name in sasl.mechanisms:
        if name == PlainServer.mechanism:
            made[name] = partial(PlainServer, sasl.passwords.get)
        else:
            made[name] = partial(ScramServer, name, partial(credentials.look_up, name), credentials.secret)
    return made
