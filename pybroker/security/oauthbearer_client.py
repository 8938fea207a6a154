"""OAUTHBEARER (RFC 7628), as a client speaks it: the exchange is drawn in oauthbearer.py."""

import re
from typing import Final

from pybroker.security.mechanism import BadCredentials

NAME: Final = "OAUTHBEARER"
KVSEP: Final = b"\x01"
BEARER: Final = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.ASCII | re.IGNORECASE)


class OAuthBearerClient:
    """A client's side."""

    mechanism = NAME

    def __init__(self, token: str) -> None:
        """ValueError, whose words have nothing of it, for what can be no token."""
        if BEARER.fullmatch(f"Bearer {token}") is None:
            raise ValueError("what was given as a token is none")
        self.done = False
        self._token = token
        self._refused = False

    def start(self) -> bytes:
        """The token."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def step(self, token: bytes) -> bytes | None:
        """The broker has nothing to say but yes; or why not, which is acknowledged, and comes again as its refusal."""
        if not token:
            self.done = True
            return None
        if self._refused:
            raise BadCredentials("the broker refuses the token, and goes on")
        self._refused = True
        return KVSEP
