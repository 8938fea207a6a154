"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373).

A client that has logged in with a token, or not at all, gets DELEGATION_TOKEN_REQUEST_NOT_ALLOWED. The hmac in a
response is the token's password.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.decisions.caller import ANONYMOUS, Call
from pybroker.errors import KafkaError
from pybroker.metadata.delegation_tokens import TokenStore
from pybroker.protocol import messages as m
from pybroker.security.delegation_tokens import USER, Token, new_id
from pybroker.security.principals import can_log_in

TOKENS_PER_OWNER_MAX: Final = 1000
RENEWERS_MAX: Final = 100
NAMES_BYTES_MAX: Final = 8192
"""The names of a token's owner and renewers together, as one response may list a thousand tokens."""


class Periods(NamedTuple):
    """The longest lifetime of a token, and its lifetime without renewal, in milliseconds."""

    max_lifetime_ms: int
    expiry_ms: int


class DelegationTokenHandlers:
    """The handlers. `store` is None without delegation.token.secret.key. `judged`: guards filter described tokens."""

    def __init__(self, store: TokenStore | None, periods: Periods, wall_ms: Callable[[], int], *, judged: bool) -> None:
        self._store = store
        self._periods = periods
        self._wall_ms = wall_ms
        self._judged = judged

    async def create(self, request: m.CreateDelegationTokenRequest, call: Call) -> m.CreateDelegationTokenResponse:
        check_caller(call)
        requester = call.caller.principal
        name = request.owner_principal_name
        owner = f"{request.owner_principal_type}:{name}" if name else requester
        renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
        if not all(each.startswith(USER) and can_log_in(each.removeprefix(USER)) for each in (owner, *renewers)):
            words = "an owner or renewer of a token must be User:NAME, and NAME neither * nor ANONYMOUS"
            raise KafkaError(errors.INVALID_PRINCIPAL_TYPE, words)
        store = self._enabled()
        if len(renewers) > RENEWERS_MAX or Counter(t.owner for t in store.tokens.all())[owner] >= TOKENS_PER_OWNER_MAX:
            words = f"a token may have {RENEWERS_MAX} renewers, and an owner {TOKENS_PER_OWNER_MAX} tokens"
            raise KafkaError(errors.POLICY_VIOLATION, words)
        if sum(len(each.encode()) for each in (owner, *renewers)) > NAMES_BYTES_MAX:
            words = f"the names of owner and renewers exceed {NAMES_BYTES_MAX} bytes: name fewer renewers"
            raise KafkaError(errors.POLICY_VIOLATION, words)
        now_ms, longest = self._wall_ms(), self._periods.max_lifetime_ms
        max_ms = now_ms + (min(longest, request.max_lifetime_ms) if request.max_lifetime_ms > 0 else longest)
        expiry_ms = min(max_ms, now_ms + self._periods.expiry_ms)
        token = Token(new_id(), owner, requester, renewers, now_ms, expiry_ms, max_ms)
        await store.add(token)
        answer = m.CreateDelegationTokenResponse(
            issue_timestamp_ms=token.issue_ms, expiry_timestamp_ms=token.expiry_ms, max_timestamp_ms=token.max_ms
        )
        _fill(answer, token, store)
        return answer

    async def renew(self, request: m.RenewDelegationTokenRequest, call: Call) -> m.RenewDelegationTokenResponse:
        store, token = self._own(bytes(request.hmac), call)
        period_ms = self._periods.expiry_ms if request.renew_period_ms < 0 else request.renew_period_ms
        return m.RenewDelegationTokenResponse(expiry_timestamp_ms=await self._end_in(store, token, period_ms))

    async def expire(self, request: m.ExpireDelegationTokenRequest, call: Call) -> m.ExpireDelegationTokenResponse:
        store, token = self._own(bytes(request.hmac), call)
        if request.expiry_time_period_ms < 0:
            await store.remove(token.id)
            return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=self._wall_ms())
        ends_ms = await self._end_in(store, token, request.expiry_time_period_ms)
        return m.ExpireDelegationTokenResponse(expiry_timestamp_ms=ends_ms)

    async def _end_in(self, store: TokenStore, token: Token, period_ms: int) -> int:
        """Let a token expire in `period_ms`, or earlier at its maximum lifetime; return when, in ms since the epoch.
        Raises DELEGATION_TOKEN_EXPIRED."""
        now_ms = self._wall_ms()
        if token.ends_ms() <= now_ms:
            raise KafkaError(errors.DELEGATION_TOKEN_EXPIRED, "the delegation token has expired: create a new one")
        ends_ms = min(token.max_ms, now_ms + period_ms)
        await store.alter(token._replace(expiry_ms=ends_ms))
        return ends_ms

    def describe(self, request: m.DescribeDelegationTokenRequest, call: Call) -> m.DescribeDelegationTokenResponse:
        check_caller(call)
        store = self._enabled()
        asked = None if request.owners is None else {f"{o.principal_type}:{o.principal_name}" for o in request.owners}
        found = [
            _described(token, store)
            for token in store.tokens.all()
            if (asked is None or token.is_of_any(asked))
            and (self._judged or token.is_of(call.caller.principal))
        ]
        return m.DescribeDelegationTokenResponse(tokens=found)

    def _enabled(self) -> TokenStore:
        if self._store is None:
            words = "delegation tokens are disabled: set delegation.token.secret.key on the brokers"
            raise KafkaError(errors.DELEGATION_TOKEN_AUTH_DISABLED, words)
        return self._store

    def _own(self, secret: bytes, call: Call) -> tuple[TokenStore, Token]:
        """The token with this hmac, which the caller may renew and expire. Raises DELEGATION_TOKEN_AUTH_DISABLED,
        DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_OWNER_MISMATCH, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED."""
        check_caller(call)
        store = self._enabled()
        token = store.tokens.of_hmac(secret)
        if token is None:
            raise KafkaError(errors.DELEGATION_TOKEN_NOT_FOUND, "there is no such delegation token")
        if not token.is_of(call.caller.principal):
            words = f"{call.caller.principal} is neither owner nor renewer of the delegation token"
            raise KafkaError(errors.DELEGATION_TOKEN_OWNER_MISMATCH, words)
        return store, token


def check_caller(call: Call) -> None:
    """Raise DELEGATION_TOKEN_REQUEST_NOT_ALLOWED for an anonymous caller, or one that logged in with a token."""
    if call.caller.principal == ANONYMOUS or call.caller.by_token:
        words = "delegation token requests need a login that does not itself use a token"
        raise KafkaError(errors.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, words)


def _described(token: Token, store: TokenStore) -> m.DescribeDelegationTokenResponse.Tokens:
    kind = m.DescribeDelegationTokenResponse.Tokens
    named = (renewer.split(":", 1) for renewer in token.renewers)
    answer = kind(
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        renewers=[kind.Renewers(principal_type=type_, principal_name=name) for type_, name in named],
    )
    _fill(answer, token, store)
    return answer


def _fill(
    told: m.CreateDelegationTokenResponse | m.DescribeDelegationTokenResponse.Tokens, token: Token, store: TokenStore
) -> None:
    """Fill in the owner, requester, id and hmac of a token."""
    told.principal_type, told.principal_name = token.owner.split(":", 1)
    told.token_requester_principal_type, told.token_requester_principal_name = token.requester.split(":", 1)
    told.token_id, told.hmac = token.id, store.tokens.hmac(token.id)


def create_failed(request: m.CreateDelegationTokenRequest, code: int, message: str) -> m.CreateDelegationTokenResponse:
    return m.CreateDelegationTokenResponse(error_code=code)


def renew_failed(request: m.RenewDelegationTokenRequest, code: int, message: str) -> m.RenewDelegationTokenResponse:
    return m.RenewDelegationTokenResponse(error_code=code)


def expire_failed(request: m.ExpireDelegationTokenRequest, code: int, message: str) -> m.ExpireDelegationTokenResponse:
    return m.ExpireDelegationTokenResponse(error_code=code)


def describe_failed(
    request: m.DescribeDelegationTokenRequest, code: int, message: str
) -> m.DescribeDelegationTokenResponse:
    return m.DescribeDelegationTokenResponse(error_code=code)
