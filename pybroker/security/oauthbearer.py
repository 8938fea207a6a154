"""OAUTHBEARER (RFC 7628), both sides of the exchange.

    client  n,,^Aauth=Bearer TOKEN^A^A         >
            < nothing                              server: a good token
            < {"status":"invalid_token"}           server: a bad one
    client  ^A                                 >
            < the end                              server

A broker gives no meaning to what else a client sends: the extensions between the marks are looked at for their form.
"""

import re
from typing import Final

from pybroker.security.mechanism import BadCredentials, NotYet
from pybroker.security.tokens import BadToken, Validator

NAME: Final = "OAUTHBEARER"
MESSAGE_BYTES_MAX: Final = (1 << 16) + 4096
"""A token, and what is around it."""
KVSEP: Final = b"\x01"
INVALID: Final = '{"status":"invalid_token"}'
REFUSAL: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
)
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01",
    re.ASCII,
)
_BEARER: Final = re.compile(r"bearer +(?P<token>[-_.~+/A-Za-z0-9]+=*)", re.ASCII | re.IGNORECASE)


class OAuthBearerServer:
    """A broker's side of one exchange."""

    mechanism = NAME

    def __init__(self, validator: Validator) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self._validator = validator
        self._why: str | None = None
        self._waited = False

    def step(self, token: bytes) -> bytes:
        """Nothing for a good token, else the error that the client acknowledges. Raises BadCredentials, NotYet."""
        if self._why is not None:
            if token == KVSEP:
                raise BadCredentials(INVALID, f"the token is refused: {self._why}")
            raise BadCredentials(REFUSAL, f"the token is refused: {self._why}; the client goes on all the same")
        found = _FIRST.fullmatch(token.decode("ascii", "replace")) if len(token) <= MESSAGE_BYTES_MAX else None
        pairs = [] if found is None else found["pairs"].rstrip("\x01").split("\x01")
        said = [pair.removeprefix("auth=") for pair in pairs if pair.startswith("auth=")]
        bearer = _BEARER.fullmatch(said[0]) if len(said) == 1 else None
        if found is None or bearer is None:
            raise BadCredentials(REFUSAL, "what the client said is no message of OAUTHBEARER")
        try:
            claims = self._validator.judge(bearer["token"])
        except (BadToken, NotYet) as problem:
            if isinstance(problem, NotYet) and (problem.nothing_known or not self._waited):
                self._waited = True
                raise
            self._why = str(problem)
            return INVALID.encode()
        authzid = (found["authzid"] or "").replace("=2C", ",").replace("=3D", "=")
        if authzid and authzid != claims.user:
            raise BadCredentials(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        self.user, self.expires_ms = claims.user, claims.expires_ms
        return b""


class OAuthBearerClient:
    """A client's side."""

    mechanism = NAME

    def __init__(self, token: str) -> None:
        """ValueError, whose words have nothing of it, for what can be no token."""
        if _BEARER.fullmatch(f"Bearer {token}") is None:
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
