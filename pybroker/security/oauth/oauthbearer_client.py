"""A client's side of OAUTHBEARER (RFC 7628); the exchange is drawn in oauthbearer.py."""

import re
from typing import Final

from pybroker.security.mechanism import BadCredentials

NAME: Final = "OAUTHBEARER"
KVSEP: Final = b"\x01"
BEARER: Final = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.ASCII | re.IGNORECASE)


class OAuthBearerClient:
    """A client's side of one exchange."""

    mechanism = NAME

    def __init__(self, token: str) -> None:
        """Raises ValueError for a malformed token; the message has nothing of the token."""
        if BEARER.fullmatch(f"Bearer {token}") is None:
            raise ValueError("the given token is malformed")
        self.done = False
        self._token = token
        self._refused = False

    def start(self) -> bytes:
        """The first message, with the token."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def step(self, token: bytes) -> bytes | None:
        """Return None for success, an empty answer; acknowledge an error, after which the broker ends the login."""
        if not token:
            self.done = True
            return None
        if self._refused:
            raise BadCredentials("the broker refused the token, but did not end the login")
        self._refused = True
        return KVSEP
