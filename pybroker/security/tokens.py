"""What a token must be to open the door: a JSON Web Token (RFC 7519), signed by a key that is known.

PyJWT checks signatures, dates, audience and issuer; here stand what it is asked to check, and limits of what it is
given. No word of a refusal is of the token.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import jwt
from jwt.utils import base64url_decode

from pybroker.config.oauth_settings import OAuth
from pybroker.security.jwks import ALGORITHMS, Jwks
from pybroker.security.mechanism import NotYet
from pybroker.security.principals import can_log_in

TOKEN_BYTES_MAX: Final = 1 << 16
KID_MAX: Final = 1000
DATE_MAX: Final = 253_402_300_799
"""The last second of the year 9999."""
_NONSENSE: Final = "it is no JSON Web Token"
_WORDS: Final[Mapping[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidIssuedAtError: "its date of issue is none",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "it lacks a claim that is needed",
}


class BadToken(Exception):
    """It opens no door; the message says why, in words that are none of the token's."""


class Claims(NamedTuple):
    """What a good token says."""

    user: str
    expires_ms: int
    """In milliseconds of the wall clock."""


class Validator(Protocol):
    """Judges tokens."""

    def judge(self, token: str) -> Claims:
        """Raises BadToken; NotYet if that cannot be said before keys are read."""


class SignedTokens:
    """Tokens as the settings want them, by keys that are known."""

    def __init__(self, settings: OAuth, keys: Jwks) -> None:
        self._settings = settings
        self._keys = keys

    def judge(self, token: str) -> Claims:
        """Raises BadToken; NotYet if its key is none of those that were read last."""
        header = _header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise BadToken("its algorithm is none of those that are allowed")
        if not (kid is None or (isinstance(kid, str) and len(kid) <= KID_MAX)) or "crit" in header:
            raise BadToken("its header has what is not understood")
        found = self._keys.find(kid, algorithm)
        if kid is None and len(self._keys.keys or ()) > 1:
            raise BadToken("it names no key, and there are several")
        if not found:
            raise NotYet(self._keys.again, "no key of that name is known", self._keys.keys is None)
        for key in found[:-1]:  # two of one name: while they are exchanged
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
    """For tests: tokens that nobody signed (alg none), as Kafka's unsecured validator takes them."""

    def __init__(self, settings: OAuth, now_s: Callable[[], float]) -> None:
        self._settings = settings
        self._now_s = now_s

    def judge(self, token: str) -> Claims:
        """Raises BadToken."""
        header = _header(token)
        body, signature = token.split(".")[1:]
        if header.get("alg") != "none" or signature:
            raise BadToken("it is signed, and this listener checks no signatures")
        claims = _parsed(body)
        found, skew_s, now_s = checked(claims, self._settings), self._settings.skew_s, self._now_s()
        if found.expires_ms / 1000 <= now_s - skew_s:
            raise BadToken("it has expired")
        if "nbf" in claims and not _date(claims["nbf"]) <= now_s + skew_s:
            raise BadToken("it is not valid yet")
        return found


def checked(claims: Mapping[str, Any], settings: OAuth) -> Claims:
    """The claims that say who somebody is, until when. Raises BadToken."""
    user, scope = claims.get(settings.sub_claim), claims.get(settings.scope_claim, "")
    if not isinstance(user, str) or not user.strip():
        raise BadToken("it names no user")
    if not user.isprintable() or not can_log_in(user):
        raise BadToken("its user is no name")
    if not isinstance(scope, str) and not (isinstance(scope, list) and all(isinstance(each, str) for each in scope)):
        raise BadToken("its scope is neither a text nor a list of texts")
    return Claims(user, int(_date(claims.get("exp")) * 1000))


def _date(value: Any) -> float:
    """Seconds. Raises BadToken for what is no date."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken("a date of it is none")
    if not 0 <= value <= DATE_MAX:  # as it is not of NaN, either
        raise BadToken("a date of it is none")
    return value


def _header(token: str) -> dict[str, Any]:
    """Of a token that has three parts. Raises BadToken."""
    if len(token) > TOKEN_BYTES_MAX:
        raise BadToken(f"it has more than {TOKEN_BYTES_MAX} bytes")
    if token.count(".") != 2:
        raise BadToken(_NONSENSE)
    return _parsed(token.partition(".")[0])


def _parsed(part: str) -> dict[str, Any]:
    try:
        found = json.loads(base64url_decode(part))
    except (ValueError, RecursionError):
        raise BadToken(_NONSENSE) from None
    if not isinstance(found, dict):
        raise BadToken(_NONSENSE)
    return found
