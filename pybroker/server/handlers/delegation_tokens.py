"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373).

Who has logged in by a token, or not at all, is told nothing of tokens. What the answers call hmac opens the door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pybroker import errors
from pybroker.cluster.caller import ANONYMOUS, Call
from pybroker.controller.delegation_tokens import TokenStore
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.security.delegation_tokens import USER, Token, new_id
from pybroker.security.principals import can_log_in

TOKENS_PER_OWNER_MAX: Final = 1000
RENEWERS_MAX: Final = 100
NAMES_BYTES_MAX: Final = 8192
"""Of a token's owner and renewers, all together: an answer has those of a thousand tokens."""


class Periods(NamedTuple):
    """Milliseconds: the longest life of a token, and how long one lives that is not renewed."""

    max_lifetime_ms: int
    expiry_ms: int


class DelegationTokens:
    """`store` is None where the settings have no secret key. `judged`: guards leave out what a caller may not see."""

    def __init__(self, store: TokenStore | None, periods: Periods, wall_ms: Callable[[], int], *, judged: bool) -> None:
        self._store = store
        self._periods = periods
        self._wall_ms = wall_ms
        self._judged = judged

    async def create(self, request: Any, call: Call) -> Any:
        check_caller(call)
        requester = call.caller.principal
        name = getattr(request, "owner_principal_name", None)
        owner = f"{request.owner_principal_type}:{name}" if name else requester
        renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
        if not all(each.startswith(USER) and can_log_in(each.removeprefix(USER)) for each in (owner, *renewers)):
            words = "owners and renewers of tokens are users: User and a name, which is neither * nor ANONYMOUS"
            raise KafkaError(errors.INVALID_PRINCIPAL_TYPE, words)
        store = self._enabled()
        if len(renewers) > RENEWERS_MAX or Counter(t.owner for t in store.tokens.all())[owner] >= TOKENS_PER_OWNER_MAX:
            words = f"a token has {RENEWERS_MAX} renewers at most, and an owner {TOKENS_PER_OWNER_MAX} tokens"
            raise KafkaError(errors.POLICY_VIOLATION, words)
        if sum(len(each.encode()) for each in (owner, *renewers)) > NAMES_BYTES_MAX:
            words = f"the names of a token's owner and renewers have {NAMES_BYTES_MAX} bytes at most"
            raise KafkaError(errors.POLICY_VIOLATION, words)
        now_ms, longest = self._wall_ms(), self._periods.max_lifetime_ms
        max_ms = now_ms + (min(longest, request.max_lifetime_ms) if request.max_lifetime_ms > 0 else longest)
        expiry_ms = min(max_ms, now_ms + self._periods.expiry_ms)
        token = Token(new_id(), owner, requester, renewers, now_ms, expiry_ms, max_ms)
        await store.add(token)
        return _fill(m.CreateDelegationTokenResponse(), token, store, "issue_timestamp_ms", "expiry_timestamp_ms",
                     "max_timestamp_ms")  # fmt: skip

    async def renew(self, request: Any, call: Call) -> Any:
        store, token = self._own(bytes(request.hmac), call)
        period_ms = self._periods.expiry_ms if request.renew_period_ms < 0 else request.renew_period_ms
        return m.RenewDelegationTokenResponse(expiry_timestamp_ms=await self._end_in(store, token, period_ms))

    async def expire(self, request: Any, call: Call) -> Any:
        store, token = self._own(bytes(request.hmac), call)
        if request.expiry_time_period_ms < 0:
            await store.remove(token.id)
            return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=self._wall_ms())
        ends_ms = await self._end_in(store, token, request.expiry_time_period_ms)
        return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=ends_ms)

    async def _end_in(self, store: TokenStore, token: Token, period_ms: int) -> int:
        """Have a token end then, or with its longest life. Raises DELEGATION_TOKEN_EXPIRED."""
        now_ms = self._wall_ms()
        if token.ends_ms() <= now_ms:
            raise KafkaError(errors.DELEGATION_TOKEN_EXPIRED, "the delegation token has ended")
        ends_ms = min(token.max_ms, now_ms + period_ms)
        await store.alter(token._replace(expiry_ms=ends_ms))
        return ends_ms

    def describe(self, request: Any, call: Call) -> Any:
        check_caller(call)
        store = self._enabled()
        asked = None if request.owners is None else {f"{o.principal_type}:{o.principal_name}" for o in request.owners}
        kind = m.DescribeDelegationTokenResponse
        found = [
            _fill(kind.Tokens(), token, store, "issue_timestamp", "expiry_timestamp", "max_timestamp")
            for token in store.tokens.all()
            if (asked is None or token.is_of_any(asked))
            and (self._judged or token.is_of(call.caller.principal))
        ]
        return kind(tokens=found)

    def _enabled(self) -> TokenStore:
        if self._store is None:
            words = "there are no delegation tokens: delegation.token.secret.key is not set"
            raise KafkaError(errors.DELEGATION_TOKEN_AUTH_DISABLED, words)
        return self._store

    def _own(self, secret: bytes, call: Call) -> tuple[TokenStore, Token]:
        """The token that a caller may renew and end. Raises KafkaError: 61 to 64."""
        check_caller(call)
        store = self._enabled()
        token = store.tokens.of_hmac(secret)
        if token is None:
            raise KafkaError(errors.DELEGATION_TOKEN_NOT_FOUND, "there is no such delegation token")
        if not token.is_of(call.caller.principal):
            words = "the delegation token is another's, who has not named you as a renewer"
            raise KafkaError(errors.DELEGATION_TOKEN_OWNER_MISMATCH, words)
        return store, token


def check_caller(call: Call) -> None:
    """Raises KafkaError (64) for who is nobody, or logged in by a token."""
    if call.caller.principal == ANONYMOUS or call.caller.by_token:
        words = "tokens are for who has logged in, and not by a token"
        raise KafkaError(errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, words)


def _fill(told: Any, token: Token, store: TokenStore, issue: str, expiry: str, longest: str) -> Any:
    """Tell of a token, and its secret."""
    told.principal_type, told.principal_name = token.owner.split(":", 1)
    told.token_requester_principal_type, told.token_requester_principal_name = token.requester.split(":", 1)
    setattr(told, issue, token.issue_ms)
    setattr(told, expiry, token.expiry_ms)
    setattr(told, longest, token.max_ms)
    told.token_id, told.hmac = token.id, store.tokens.hmac(token.id)
    if hasattr(told, "renewers"):
        kind = m.DescribeDelegationTokenResponse.Tokens.Renewers
        named = (renewer.split(":", 1) for renewer in token.renewers)
        told.renewers = [kind(principal_type=kind_, principal_name=name) for kind_, name in named]
    return told


def create_failed(request: Any, code: int, message: str) -> Any:
    return m.CreateDelegationTokenResponse(error_code=code)


def renew_failed(request: Any, code: int, message: str) -> Any:
    return m.RenewDelegationTokenResponse(error_code=code)


def expire_failed(request: Any, code: int, message: str) -> Any:
    return m.ExpireDelegationTokenResponse(error_code=code)


def describe_failed(request: Any, code: int, message: str) -> Any:
    return m.DescribeDelegationTokenResponse(error_code=code)
