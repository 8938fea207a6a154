"""A login as the client sees it: requests out, answers in, and no I/O.

    SaslHandshake 1 ──> SaslAuthenticate, as often as the mechanism asks ──> logged in
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.config.oauth_settings import OAUTHBEARER
from pybroker.config.security_settings import OwnAccount
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.mechanism import BadCredentials, ClientMechanism, PlainClient
from pybroker.security.oauthbearer_client import OAuthBearerClient
from pybroker.security.scram import ScramClient
from pybroker.security.token_source import TokenSource

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 1
"""Every broker since Kafka 2.2 has these."""
RENEW_AT: Final = (0.85, 0.95)
RENEW_S_MIN: Final = 1.05


class Account(NamedTuple):
    """Who a client or a broker logs in as."""

    mechanism: str
    user: str = ""
    password: str = ""
    tokens: TokenSource | None = None
    """For OAUTHBEARER, in place of user and password."""
    by_token: bool = False
    """User and password are the id of a delegation token, and its secret in base64."""

    @classmethod
    def of(cls, own: OwnAccount) -> Account:
        """Of a broker, as its settings say."""
        if own.tokens is None:
            return cls(own.mechanism, own.user, own.password)
        return cls(own.mechanism, tokens=TokenSource(own.tokens.url, own.user, own.password, own.tokens.scope))

    def __repr__(self) -> str:
        return f"Account({self.mechanism}, {self.tokens or self.user!r})"

    def begin(self) -> ClientMechanism:
        """An exchange. With `tokens` it blocks until there is one; KafkaError where there is none."""
        if self.tokens is not None:
            token = self.tokens.token()
            try:
                return OAuthBearerClient(token)
            except ValueError as problem:
                raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, str(problem)) from None
        if self.mechanism == PlainClient.mechanism:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, by_token=self.by_token)


class Login:
    """Of one connection to the broker at `address`."""

    def __init__(self, account: Account, address: str) -> None:
        """Blocks where the account has tokens. KafkaError where none can be had."""
        self._account = account
        self._address = address
        self._exchange = account.begin()
        self.lifetime_ms = 0
        """How long the broker takes requests by this login; 0 for no end."""

    def renew_in_s(self) -> float | None:
        """When to log in again, in seconds; None if never. As of Kafka's clients, 85 to 95 % of its time: not all
        at once. Not within the second in which no broker takes another login."""
        if not self.lifetime_ms:
            return None
        return max(RENEW_S_MIN, self.lifetime_ms / 1000 * random.uniform(*RENEW_AT))

    def start(self) -> Any:
        """The first request."""
        return m.SaslHandshakeRequest(mechanism=self._account.mechanism)

    def step(self, answer: Any) -> Any:
        """The request that follows on an answer; None once the client is logged in. KafkaError where it will not be."""
        if isinstance(answer, m.message("SaslHandshakeResponse")):
            return self._shaken(answer)
        if answer.error_code:
            what = answer.error_message or errors.lookup(answer.error_code).meaning
            if self._account.mechanism == OAUTHBEARER and what.startswith("{"):  # RFC 7628: JSON with a status
                what = "the token is not taken; the broker's log says why"
            raise KafkaError(answer.error_code, f"the broker at {self._address} refused the login: {what}")
        self.lifetime_ms = answer.session_lifetime_ms
        try:
            token = self._exchange.step(bytes(answer.auth_bytes))
        except BadCredentials as problem:
            words = f"the login at {self._address} failed: {problem}"
            raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words) from problem
        return None if token is None else m.SaslAuthenticateRequest(auth_bytes=token)

    def _shaken(self, answer: Any) -> Any:
        if answer.error_code == errors.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            what = f"does not offer the mechanism {self._account.mechanism}; it has {offered}"
            raise KafkaError(answer.error_code, f"the broker at {self._address} {what}")
        if answer.error_code:
            what = "asks nobody to log in: its listener is one of security.protocol PLAINTEXT"
            raise KafkaError(answer.error_code, f"the broker at {self._address} {what}")
        return m.SaslAuthenticateRequest(auth_bytes=self._exchange.start())
