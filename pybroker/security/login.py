"""The client's side of a SASL login: requests out, responses in, no I/O.

    SaslHandshake 1 ──> SaslAuthenticate, as often as the mechanism needs ──> logged in
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker import errors
from pybroker.config.oauth_settings import OAUTHBEARER
from pybroker.config.security_settings import OwnAccount
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message
from pybroker.security.mechanism import BadCredentials, ClientMechanism, PlainClient
from pybroker.security.oauth.oauthbearer_client import OAuthBearerClient
from pybroker.security.oauth.token_source import TokenSource
from pybroker.security.scram import ScramClient

HANDSHAKE_VERSION: Final = 1
AUTHENTICATE_VERSION: Final = 1
"""Every broker since Kafka 2.2 has these versions."""
RENEW_AT: Final = (0.85, 0.95)
RENEW_S_MIN: Final = 1.05


class Account(NamedTuple):
    """The account with which a client or a broker logs in."""

    mechanism: str
    user: str = ""
    password: str = ""
    tokens: TokenSource | None = None
    """For OAUTHBEARER, in place of user and password."""
    by_token: bool = False
    """True if user and password are the id of a delegation token and its secret in base64."""

    @classmethod
    def of(cls, own: OwnAccount) -> Account:
        """The account of a broker, from its settings."""
        if own.tokens is None:
            return cls(own.mechanism, own.user, own.password)
        return cls(own.mechanism, tokens=TokenSource(own.tokens.url, own.user, own.password, own.tokens.scope))

    def __repr__(self) -> str:
        return f"Account({self.mechanism}, {self.tokens or self.user!r})"

    def begin(self) -> ClientMechanism:
        """Begin an exchange. With `tokens` this blocks for a token; raises KafkaError if there is none."""
        if self.tokens is not None:
            token = self.tokens.token()
            try:
                return OAuthBearerClient(token)
            except ValueError as problem:
                raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, str(problem)) from None
        if self.mechanism == PlainClient.mechanism:
            return PlainClient(self.user, self.password)
        return ScramClient(self.mechanism, self.user, self.password, by_token=self.by_token)


if TYPE_CHECKING:
    LoginRequest = m.SaslHandshakeRequest | m.SaslAuthenticateRequest


class Login:
    """The login on one connection to the broker at `address`."""

    def __init__(self, account: Account, address: str) -> None:
        """If the account has tokens, this blocks for one; raises KafkaError if there is none."""
        self._account = account
        self._address = address
        self._exchange = account.begin()
        self.lifetime_ms = 0
        """Milliseconds for which the broker accepts this login; 0: no limit."""

    def renew_in_s(self) -> float | None:
        """Seconds until the next login; None if never. As Kafka's clients, after a random 85 to 95 % of the lifetime,
        so that clients spread; but not in the first second, in which brokers refuse another login."""
        if not self.lifetime_ms:
            return None
        return max(RENEW_S_MIN, self.lifetime_ms / 1000 * random.uniform(*RENEW_AT))

    def start(self) -> LoginRequest:
        """The first request."""
        return m.SaslHandshakeRequest(mechanism=self._account.mechanism)

    def step(self, answer: Message) -> m.SaslAuthenticateRequest | None:
        """The next request after a response; None once the client is logged in. Raises KafkaError if the login fails.
        """
        if isinstance(answer, m.SaslHandshakeResponse):
            return self._shaken(answer)
        assert isinstance(answer, m.SaslAuthenticateResponse)
        if answer.error_code:
            what = answer.error_message or errors.lookup(answer.error_code).meaning
            if self._account.mechanism == OAUTHBEARER and what.startswith("{"):  # RFC 7628: JSON with a status
                what = "it did not accept the token; the reason is in the broker's log"
            raise KafkaError(answer.error_code, f"the broker at {self._address} refused the login: {what}")
        self.lifetime_ms = answer.session_lifetime_ms
        try:
            token = self._exchange.step(bytes(answer.auth_bytes))
        except BadCredentials as problem:
            words = f"the login at {self._address} failed: {problem}"
            raise KafkaError(errors.SASL_AUTHENTICATION_FAILED, words) from problem
        return None if token is None else m.SaslAuthenticateRequest(auth_bytes=token)

    def _shaken(self, answer: m.SaslHandshakeResponse) -> m.SaslAuthenticateRequest:
        if answer.error_code == errors.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            what = f"does not offer the mechanism {self._account.mechanism}; it offers {offered}"
            raise KafkaError(answer.error_code, f"the broker at {self._address} {what}")
        if answer.error_code:
            what = "has no login: its listener has security.protocol PLAINTEXT"
            raise KafkaError(answer.error_code, f"the broker at {self._address} {what}")
        return m.SaslAuthenticateRequest(auth_bytes=self._exchange.start())
