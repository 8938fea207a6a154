"""Checks the tokens of OAUTHBEARER: JSON Web Tokens (RFC 7519), signed by a known key.

PyJWT checks signatures, dates, audience and issuer; this module chooses the checks, and limits the input. A refusal
never quotes the token.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import jwt
from jwt.utils import base64url_decode

from pybroker.config.oauth_settings import OAuth
from pybroker.security.mechanism import NotYet
from pybroker.security.oauth.jwks import ALGORITHMS, Jwks
from pybroker.security.principals import can_log_in

TOKEN_BYTES_MAX: Final = 1 << 16
KID_MAX: Final = 1000
DATE_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""
_NONSENSE: Final = "it is not a JSON Web Token"
_WORDS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidIssuedAtError: "its issue date is invalid",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is from another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "it lacks a required claim",
}


class BadToken(Exception):
    """The token is refused; the message is the reason, and does not quote the token."""


class Claims(NamedTuple):
    """The user and expiry of a valid token."""

    user: str
    expires_ms: int
    """Milliseconds of the wall clock."""


class Validator(Protocol):
    """Checks tokens."""

    def judge(self, token: str) -> Claims:
        """The claims of a valid token. Raises BadToken; NotYet if keys must be read first."""


class SignedTokens:
    """Checks signed tokens by the settings and the known keys."""

    def __init__(self, settings: OAuth, keys: Jwks) -> None:
        self._settings = settings
        self._keys = keys

    def judge(self, token: str) -> Claims:
        """The claims of a valid token. Raises BadToken; NotYet if its key is not among those read last."""
        header = _header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise BadToken("its algorithm (alg) is not allowed")
        if not (kid is None or (isinstance(kid, str) and len(kid) <= KID_MAX)) or "crit" in header:
            raise BadToken("its header has an invalid kid, or crit, which is not supported")
        found = self._keys.find(kid, algorithm)
        if kid is None and len(self._keys.keys or ()) > 1:
            raise BadToken("it has no key id (kid), and there are several keys")
        if not found:
            raise NotYet(self._keys.again, "its key is unknown", self._keys.keys is None)
        for key in found[:-1]:  # several keys have one id while they are being replaced
            try:
                return self._claims(token, algorithm, key.key)
            except BadToken:
                continue
        return self._claims(token, algorithm, found[-1].key)

    def _claims(self, token: str, algorithm: str, key: Any) -> Claims:
        settings = self._settings
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=settings.skew_s,
                options={"require": ["exp", "iat"], "verify_aud": settings.audience is not None, "verify_sub": False},
            )
        except jwt.PyJWTError as problem:
            words = next((words for kind, words in _WORDS.items() if isinstance(problem, kind)), _NONSENSE)
            raise BadToken(words) from None
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise BadToken(_NONSENSE) from None
        return checked(claims, settings)


class UnsecuredTokens:
    """For tests: accepts unsigned tokens (alg none), as Kafka's unsecured validator."""

    def __init__(self, settings: OAuth, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s

    def judge(self, token: str) -> Claims:
        """The claims of a valid token. Raises BadToken."""
        header = _header(token)
        body, signature = token.split(".")[1:]
        if header.get("alg") != "none" or signature:
            raise BadToken("it is signed, but this listener accepts only unsigned tokens")
        claims = _parsed(body)
        found, skew_s, now_s = checked(claims, self._settings), self._settings.skew_s, self._now_s()
        if found.expires_ms / 1000 <= now_s - skew_s:
            raise BadToken("it has expired")
        if "nbf" in claims and not _date(claims["nbf"]) <= now_s + skew_s:
            raise BadToken("it is not valid yet")
        return found


def checked(claims: Mapping[str, object], settings: OAuth) -> Claims:
    """The user and expiry in the claims. Raises BadToken."""
    user, scope = claims.get(settings.sub_claim), claims.get(settings.scope_claim, "")
    if not isinstance(user, str) or not user.strip():
        raise BadToken("it names no user")
    if not user.isprintable() or not can_log_in(user):
        raise BadToken("its user name is not allowed")
    if not isinstance(scope, str) and not (isinstance(scope, list) and all(isinstance(each, str) for each in scope)):
        raise BadToken("its scope is neither a string nor a list of strings")
    return Claims(user, int(_date(claims.get("exp")) * 1000))


def _date(value: object) -> float:
    """A date in seconds since 1970. Raises BadToken for an invalid one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken("one of its dates is invalid")
    if not 0 <= value <= DATE_MAX:  # also refuses NaN
        raise BadToken("one of its dates is invalid")
    return value


def _header(token: str) -> dict[str, object]:
    """The header of a token with three parts. Raises BadToken."""
    if len(token) > TOKEN_BYTES_MAX:
        raise BadToken(f"it has more than {TOKEN_BYTES_MAX} bytes")
    if token.count(".") != 2:
        raise BadToken(_NONSENSE)
    return _parsed(token.partition(".")[0])


def _parsed(part: str) -> dict[str, object]:
    try:
        found = json.loads(base64url_decode(part))
    except (ValueError, RecursionError):
        raise BadToken(_NONSENSE) from None
    if not isinstance(found, dict):
        raise BadToken(_NONSENSE)
    return found
