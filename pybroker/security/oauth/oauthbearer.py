"""A broker's side of OAUTHBEARER (RFC 7628); a client's side is in oauthbearer_client.py.

    client  n,,^Aauth=Bearer TOKEN^A^A         >
            < nothing                              server: a good token
            < {"status":"invalid_token"}           server: a bad one
    client  ^A                                 >
            < the end                              server

Other extensions that a client sends are checked for their form, and ignored.
"""

import re
from typing import Final

from pybroker.security.mechanism import BadCredentials, NotYet
from pybroker.security.oauth.oauthbearer_client import BEARER, KVSEP, NAME
from pybroker.security.oauth.tokens import BadToken, Validator

MESSAGE_BYTES_MAX: Final = (1 << 16) + 4096
"""The largest token, and the rest of the message."""
INVALID: Final = '{"status":"invalid_token"}'
REFUSAL: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
)
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01",
    re.ASCII,
)


class OAuthBearerServer:
    """A broker's side of one exchange."""

    mechanism = NAME
    by_token = False  # not a delegation token
    claimed = ""  # only the unverified token has the name

    def __init__(self, validator: Validator) -> None:
        self.user: str | None = None
        self.expires_ms: int | None = None
        self._validator = validator
        self._why: str | None = None
        self._waited = False

    def step(self, token: bytes) -> bytes:
        """Return an empty answer to a good token, otherwise the error, which the client acknowledges. Raises
        BadCredentials, NotYet."""
        if self._why is not None:
            if token == KVSEP:
                raise BadCredentials(INVALID, f"the token is refused: {self._why}")
            raise BadCredentials(REFUSAL, f"the token is refused: {self._why}; the client did not acknowledge this")
        found = _FIRST.fullmatch(token.decode("ascii", "replace")) if len(token) <= MESSAGE_BYTES_MAX else None
        pairs = [] if found is None else found["pairs"].rstrip("\x01").split("\x01")
        said = [pair.removeprefix("auth=") for pair in pairs if pair.startswith("auth=")]
        bearer = BEARER.fullmatch(said[0]) if len(said) == 1 else None
        if found is None or bearer is None:
            raise BadCredentials(REFUSAL, "the client sent a malformed OAUTHBEARER message")
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
