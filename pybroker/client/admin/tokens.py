"""Delegation tokens (KIP-48): secrets for logins by SCRAM as the token's owner, until they expire."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

from pybroker.client import arguments
from pybroker.client.admin.base import AdminBase, raise_for
from pybroker.errors import INVALID_PRINCIPAL_TYPE, UNSUPPORTED_VERSION, KafkaError
from pybroker.protocol import messages as m


class DelegationToken(NamedTuple):
    """A token; principals are texts like User:ann, times milliseconds since the epoch. `secret` is the password."""

    id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_ms: int
    expiry_ms: int
    max_ms: int
    hmac: bytes

    def __repr__(self) -> str:
        return f"DelegationToken({self.id!r}, {self.owner!r})"

    @property
    def secret(self) -> str:
        """The password that goes with the id."""
        return base64.b64encode(self.hmac).decode()


class TokensAdmin(AdminBase):
    """Operations on delegation tokens; the client must have logged in, and not by a token."""

    def create_token(
        self, owner: str | None = None, renewers: Sequence[str] = (), max_lifetime_ms: int = -1
    ) -> DelegationToken:
        """Create a token for this user, or for an owner like User:ann. Renewers may renew it too; a lifetime of -1 is
        the broker's maximum.

        Raises KafkaError: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
        DELEGATION_TOKEN_AUTHORIZATION_FAILED, INVALID_PRINCIPAL_TYPE."""
        kind = m.CreateDelegationTokenRequest
        named = [_principal(each) for each in arguments.names(renewers, "renewers")]
        request = kind(renewers=[kind.Renewers(principal_type=t, principal_name=n) for t, n in named],
                       max_lifetime_ms=arguments.whole(max_lifetime_ms, "max_lifetime_ms", None),
                       owner_principal_type=None, owner_principal_name=None)  # fmt: skip
        if owner is not None:
            request.owner_principal_type, request.owner_principal_name = _principal(owner)
        answer = self.cluster.any().request(request)
        raise_for(answer.error_code, "the delegation token")
        if owner not in (None, f"{answer.principal_type}:{answer.principal_name}"):
            raise KafkaError(UNSUPPORTED_VERSION, "the broker creates tokens only for the user that asks")
        told = f"{answer.principal_type}:{answer.principal_name}"
        requester = f"{answer.token_requester_principal_type}:{answer.token_requester_principal_name}"
        return DelegationToken(
            answer.token_id, told, requester if requester != ":" else told, tuple(renewers), answer.issue_timestamp_ms,
            answer.expiry_timestamp_ms, answer.max_timestamp_ms, bytes(answer.hmac),
        )  # fmt: skip

    def tokens(self, owners: Sequence[str] | None = None) -> list[DelegationToken]:
        """The tokens that this user may describe, of these owners or of all, by id.

        Raises KafkaError: DELEGATION_TOKEN_AUTH_DISABLED, DELEGATION_TOKEN_REQUEST_NOT_ALLOWED."""
        kind = m.DescribeDelegationTokenRequest
        named = None if owners is None else map(_principal, arguments.names(owners, "owners"))
        asked = None if named is None else [kind.Owners(principal_type=t, principal_name=n) for t, n in named]
        answer = self.cluster.any().request(kind(owners=asked))
        raise_for(answer.error_code, "the delegation tokens")
        return sorted(map(_token, answer.tokens))

    def renew_token(self, secret: str, period_ms: int = -1) -> int:
        """Renew a token for `period_ms` (-1: the broker's period), and return its expiry in ms since the epoch.

        Raises KafkaError: DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, and those of `create_token`."""
        period_ms = arguments.whole(period_ms, "period_ms", None)
        request = m.RenewDelegationTokenRequest(hmac=_hmac(secret), renew_period_ms=period_ms)
        answer = self.cluster.any().request(request)
        raise_for(answer.error_code, "the delegation token")
        return int(answer.expiry_timestamp_ms)

    def expire_token(self, secret: str, period_ms: int = -1) -> int:
        """Let a token expire after `period_ms` (-1: at once), and return its expiry in ms since the epoch.

        Raises KafkaError as `renew_token` does."""
        period_ms = arguments.whole(period_ms, "period_ms", None)
        request = m.ExpireDelegationTokenRequest(hmac=_hmac(secret), expiry_time_period_ms=period_ms)
        answer = self.cluster.any().request(request)
        raise_for(answer.error_code, "the delegation token")
        return int(answer.expiry_timestamp_ms)


def _token(told: m.DescribeDelegationTokenResponse.Tokens) -> DelegationToken:
    owner = f"{told.principal_type}:{told.principal_name}"
    requester = f"{told.token_requester_principal_type}:{told.token_requester_principal_name}"
    renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in told.renewers)
    return DelegationToken(
        told.token_id, owner, requester if requester != ":" else owner, renewers, told.issue_timestamp,
        told.expiry_timestamp, told.max_timestamp, bytes(told.hmac),
    )  # fmt: skip


def _principal(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise KafkaError(INVALID_PRINCIPAL_TYPE, f"{text!r} is no principal like User:ann")
    return kind, name


def _hmac(secret: str) -> bytes:
    """The bytes of a secret; none if it is no base64, for which the broker knows no token."""
    try:
        return base64.b64decode(secret, validate=True)
    except ValueError:
        return b""
