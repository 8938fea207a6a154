"""The SCRAM credentials of a cluster's users that this broker has read, and a secret for users that do not exist."""

import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.config.security_settings import Sasl
from pybroker.errors import KafkaError
from pybroker.security import unknown_users
from pybroker.security.delegation_tokens import USER, DelegationTokens
from pybroker.security.handshake import Mechanisms, Offer
from pybroker.security.mechanism import PlainServer
from pybroker.security.principals import can_log_in
from pybroker.security.scram import HASHES, Credential, ScramServer, TokenLogin
from pybroker.security.unknown_users import USUAL, Forms

if TYPE_CHECKING:
    from pybroker.security.oauth.tokens import Validator

SECRET_BYTES: Final = 32


def check_user(name: str) -> None:
    """Raise UNACCEPTABLE_CREDENTIAL for a user name that is not a valid node name."""
    if not name:
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, "the user name is empty")
    if name in (".", ".."):
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, f"ZooKeeper does not allow {name!r} as a user name")


def check_new_user(name: str) -> None:
    """Check that a user of this name may get a password; deleting one is always allowed. Raises
    UNACCEPTABLE_CREDENTIAL."""
    if not can_log_in(name):
        raise KafkaError(errors.UNACCEPTABLE_CREDENTIAL, f"the user name {name!r} is reserved in ACLs: choose another")


class Credentials:
    """{mechanism: {user: credential}}, updated user by user."""

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(SECRET_BYTES)
        """The secret from which salts of delegation tokens and of users that do not exist are made. All brokers share
        it, unless the store cannot be read."""
        self.tokens: DelegationTokens | None = None
        """None if delegation tokens are disabled."""
        self._held: dict[str, dict[str, Credential]] = {mechanism: {} for mechanism in HASHES}
        self._forms = {mechanism: Forms() for mechanism in HASHES}

    def look_up(self, mechanism: str, user: str) -> Credential | None:
        """The credential of a user; None if it has none of that mechanism."""
        return self._held[mechanism].get(user)

    def look_up_token(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """The login of a valid delegation token; None if there is none."""
        if self.tokens is None:
            return None
        salt = self.made_up(mechanism, token_id, True).salt  # a salt that differs by broker would show a token exists
        found = self.tokens.look_up(mechanism, token_id, wall_ms(), salt)
        return None if found is None else TokenLogin(found[0], found[1].owner.removeprefix(USER), found[1].ends_ms())

    def made_up(self, mechanism: str, name: str, by_token: bool) -> Credential:
        """The credential for answers about a user, or a delegation token, that does not exist."""
        return unknown_users.made_up(self.secret, mechanism, name, USUAL if by_token else self._forms[mechanism].most())

    def users(self) -> dict[str, dict[str, int]]:
        """{user: {mechanism: iterations}} of all users with credentials."""
        found: dict[str, dict[str, int]] = {}
        for mechanism, held in self._held.items():
            for user, credential in held.items():
                found.setdefault(user, {})[mechanism] = credential.iterations
        return dict(sorted(found.items()))

    def take(self, user: str, config: Mapping[str, str]) -> list[str]:
        """Apply `config`, all the settings that a user has now. Return the mechanisms whose credential is unreadable
        and therefore not applied."""
        unreadable = []
        for mechanism, held in self._held.items():
            self._forget(mechanism, user)
            if mechanism in config:
                try:
                    held[user] = Credential.parse(mechanism, config[mechanism])
                    self._forms[mechanism].add(held[user])
                except ValueError:
                    unreadable.append(mechanism)
        return unreadable

    def keep(self, users: set[str]) -> None:
        """Forget all other users."""
        for mechanism, held in self._held.items():
            for user in held.keys() - users:
                self._forget(mechanism, user)

    def _forget(self, mechanism: str, user: str) -> None:
        before = self._held[mechanism].pop(user, None)
        if before is not None:
            self._forms[mechanism].add(before, -1)


def offered(sasl: Sasl, credentials: Credentials, validator: "Validator | None" = None) -> Mechanisms:
    """The mechanisms that a listener offers. `validator` checks the tokens of OAUTHBEARER."""
    made: dict[str, Offer] = {}
    for name in sasl.mechanisms:
        max_reauth_ms = sasl.max_reauth_ms[name]
        if name == PlainServer.mechanism:
            made[name] = Offer(partial(PlainServer, sasl.passwords.get), max_reauth_ms)
        elif name in HASHES:
            look_up = partial(credentials.look_up, name)
            tokens = partial(credentials.look_up_token, name)
            made_up = partial(credentials.made_up, name)
            begin = partial(ScramServer, name, look_up, made_up, look_up_token=tokens)
            made[name] = Offer(begin, max_reauth_ms)
        else:
            from pybroker.security.oauth.oauthbearer import OAuthBearerServer  # few brokers need its dependencies

            assert validator is not None
            made[name] = Offer(partial(OAuthBearerServer, validator), max_reauth_ms)
    return made
