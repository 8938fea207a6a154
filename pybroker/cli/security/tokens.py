"""`pybroker tokens`: delegation tokens, with which a client logs in by SCRAM as the token's owner until they expire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from pybroker.cli import output
from pybroker.cli.options import Hours, admin_of, cluster_options, say
from pybroker.cli.output import Document
from pybroker.errors import DELEGATION_TOKEN_NOT_FOUND, KafkaError
from pybroker.operations.times import time_text

if TYPE_CHECKING:
    from pybroker.client.admin import Admin, DelegationToken

HOURS = 3_600_000
HOURS_MAX = 24 * 366 * 100


@click.group(name="tokens")
def command() -> None:
    """Create, list, renew and expire delegation tokens (KIP-48), of any broker that speaks Kafka's protocol.

    A token's id and secret are a user and a password of SCRAM, with tokenauth=true. A client that logged in by a token
    cannot use these commands.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command(name="create")
@click.option("--owner", metavar="PRINCIPAL", help="The owner, like User:ann; you, if not given.")
@click.option("--renewer", "renewers", multiple=True, metavar="PRINCIPAL", help="A renewing principal; repeatable.")
@click.option("--max-lifetime", type=Hours(0, HOURS_MAX, min_open=True), metavar="HOURS",
              help="The longest life, with renewals; without it, the broker's limit.")  # fmt: skip
@cluster_options
def create(
    owner: str | None, renewers: Sequence[str], max_lifetime: float | None, bootstrap_server: str, timeout_s: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Create a token, and print its id and its secret, which logs clients in until the token ends."""
    longest_ms = -1 if max_lifetime is None else max(1, round(max_lifetime * HOURS))
    with admin_of(bootstrap_server, timeout_s) as admin:
        token = admin.create_token(owner, renewers, longest_ms)
    words = f"Created a token of {token.owner} that ends {time_text(token.expiry_ms)}."
    say(as_json, {**_document(token), "secret": token.secret}, f"{words}\nid {token.id}\nsecret {token.secret}")


@command.command(name="list")
@click.option("--owner", "owners", multiple=True, metavar="PRINCIPAL", help="Of this principal; repeatable.")
@cluster_options
def list_tokens(owners: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """List the tokens that you may see, without their secrets."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.tokens(owners or None)
    if as_json:
        output.as_json([_document(token) for token in found])
        return
    rows = [
        (t.id, t.owner, t.requester, ", ".join(t.renewers), *map(time_text, (t.issue_ms, t.expiry_ms, t.max_ms)))
        for t in found
    ]
    output.table(("id", "owner", "requester", "renewers", "issued", "ends", "ends at last"), rows)


@command.command(name="renew")
@click.argument("token_id", metavar="ID")
@click.option("--for", "hours", type=Hours(0, HOURS_MAX), metavar="HOURS",
              help="From now on; without it, the broker's default.")  # fmt: skip
@cluster_options
def renew(token_id: str, hours: float | None, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Extend the life of token ID."""
    period_ms = -1 if hours is None else round(hours * HOURS)
    with admin_of(bootstrap_server, timeout_s) as admin:
        ends_ms = admin.renew_token(_secret(admin, token_id), period_ms)
    say(as_json, {"id": token_id, "expiry_ms": ends_ms}, f"Token {token_id} ends {time_text(ends_ms)}.")


@command.command(name="expire")
@click.argument("token_id", metavar="ID")
@click.option("--in", "hours", type=Hours(0, HOURS_MAX), metavar="HOURS", help="Then, and not at once.")
@cluster_options
def expire(token_id: str, hours: float | None, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """End token ID. Connections opened with it stay until the end that the token had at their login."""
    period_ms = -1 if hours is None else round(hours * HOURS)
    with admin_of(bootstrap_server, timeout_s) as admin:
        ends_ms = admin.expire_token(_secret(admin, token_id), period_ms)
    words = f"Deleted token {token_id}." if hours is None else f"Token {token_id} ends {time_text(ends_ms)}."
    say(as_json, {"id": token_id, "expiry_ms": ends_ms}, words)


def _secret(admin: Admin, token_id: str) -> str:
    """Return the secret of a visible token, so that no user has to type it."""
    for token in admin.tokens():
        if token.id == token_id:
            return token.secret
    raise KafkaError(DELEGATION_TOKEN_NOT_FOUND, f"there is no token {token_id}, or it belongs to another user")


def _document(token: DelegationToken) -> Document:
    names = ("id", "owner", "requester", "renewers", "issue_ms", "expiry_ms", "max_ms")
    return {name: list(value) if isinstance(value := getattr(token, name), tuple) else value for name in names}
