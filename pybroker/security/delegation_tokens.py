"""Delegation tokens (KIP-48): secrets with which a client logs in by SCRAM as the token's owner, until they expire.

    hmac = HMAC-SHA512(delegation.token.secret.key, id): the SCRAM password, in base64; the id is the user name

A token's node in the store has everything except the hmac, which brokers compute from the secret key. Node and JSON are
Kafka's.
"""

import base64
import hmac
import json
import uuid
from collections.abc import Iterable, Set
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from pybroker.security.scram import Credential

VERSION: Final = 3
VERSIONS: Final = (1, 2, VERSION)
USER: Final = "User:"


class Token(NamedTuple):
    """A delegation token; principals are texts like User:ann, times milliseconds of the wall clock."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int

    def ends_ms(self) -> int:
        return min(self.expiry_ms, self.max_ms)

    def is_of(self, principal: str) -> bool:
        """True if the principal may renew and see the token."""
        return principal in (self.owner, self.requester, *self.renewers)

    def is_of_any(self, principals: Set[str]) -> bool:
        return not principals.isdisjoint((self.owner, self.requester, *self.renewers))


def new_id() -> str:
    """A random id of 22 characters, as Kafka's ids."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def dump(token: Token) -> bytes:
    """The data of a token's node."""
    held = {
        "version": VERSION, "owner": _sanitized(token.owner), "tokenRequester": _sanitized(token.requester),
        "renewers": [_sanitized(renewer) for renewer in token.renewers], "issueTimestamp": token.issue_ms,
        "expiryTimestamp": token.expiry_ms, "maxTimestamp": token.max_ms, "tokenId": token.id,
    }  # fmt: skip
    return json.dumps(held, separators=(",", ":")).encode()


def load(data: bytes) -> Token:
    """The token in a node. Raises ValueError if it is malformed."""
    try:
        held = json.loads(data)
        if not isinstance(held, dict) or held["version"] not in VERSIONS:
            raise ValueError("its version is unknown")
        owner = _principal(held["owner"])
        return Token(
            _text(held["tokenId"]), owner, _principal(held.get("tokenRequester", quote(owner, safe=""))),
            tuple(_principal(renewer) for renewer in held.get("renewers", ())), _time(held["issueTimestamp"]),
            _time(held["expiryTimestamp"]), _time(held["maxTimestamp"]),
        )  # fmt: skip
    except KeyError as missing:
        raise ValueError(f"it has no {missing}") from None
    except (TypeError, RecursionError):
        raise ValueError("it is not a delegation token") from None


def _sanitized(principal: str) -> str:
    return quote(principal, safe="")


def _principal(held: object) -> str:
    found = unquote(_text(held))
    if ":" not in found:
        raise ValueError("one of its principals is malformed")
    return found


def _text(held: object) -> str:
    if not isinstance(held, str) or not held:
        raise ValueError("one of its strings is empty or of another type")
    held.encode()  # ValueError for an unpaired surrogate, which UTF-8 cannot encode
    return held


def _time(held: object) -> int:
    if type(held) is not int or not 0 <= held < 1 << 63:
        raise ValueError("one of its times is not a valid integer")
    return held


class DelegationTokens:
    """The tokens that a broker knows, updated token by token."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._held: dict[str, Token] = {}
        self._by_hmac: dict[bytes, str] = {}
        self._credentials: dict[tuple[str, str], Credential] = {}

    def all(self) -> list[Token]:
        return list(self._held.values())

    def hmac(self, token_id: str) -> bytes:
        """The secret of a token: 64 bytes."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def of_hmac(self, given: bytes) -> Token | None:
        """The token with this secret."""
        token_id = self._by_hmac.get(given)
        return None if token_id is None else self._held[token_id]

    def look_up(self, mechanism: str, token_id: str, now_ms: int, salt: bytes) -> tuple[Credential, Token] | None:
        """A token that has not expired, and its credential, which takes milliseconds the first time. An id is 122
        random bits, so the time does not help to guess ids."""
        token = self._held.get(token_id)
        if token is None or token.ends_ms() <= now_ms:
            return None
        key = mechanism, token_id
        if key not in self._credentials:
            password = base64.b64encode(self.hmac(token_id)).decode()
            self._credentials[key] = Credential.of_password(mechanism, password, salt=salt)
        return self._credentials[key], token

    def take(self, token_id: str, token: Token | None) -> None:
        """Replace what is known of a token; None if it no longer exists."""
        if token is not None and token.id == token_id:
            self._held[token_id] = token
            self._by_hmac[self.hmac(token_id)] = token_id
            return
        if self._held.pop(token_id, None) is not None:
            del self._by_hmac[self.hmac(token_id)]
            for key in [key for key in self._credentials if key[1] == token_id]:
                del self._credentials[key]

    def keep(self, ids: Iterable[str]) -> None:
        """Forget all other tokens."""
        for token_id in self._held.keys() - set(ids):
            self.take(token_id, None)
