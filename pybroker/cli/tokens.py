"""`pybroker tokens`: delegation tokens, by which somebody logs in by SCRAM in another's name until they end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from pybroker.cli import output
from pybroker.cli.options import Hours, admin_of, cluster_options, say
from pybroker.errors import DELEGATION_TOKEN_NOT_FOUND, KafkaError

if TYPE_CHECKING:
    from pybroker.client.admin import Admin, DelegationToken

HOURS = 3_600_000
HOURS_MAX = 24 * 366 * 100


@click.group(name="tokens")
def command() -> None:
    """Create, list, renew and expire delegation tokens (KIP-48), of any broker that speaks Kafka's protocol.

    A token's id and secret are a user and a password of SCRAM, with tokenauth=true. Who has logged in by one is told
    nothing of tokens.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command(name="create")
@click.option("--owner", metavar="PRINCIPAL", help="In whose name, like User:ann; yours, if not given.")
@click.option("--renewer", "renewers", multiple=True, metavar="PRINCIPAL", help="Who else may renew it; repeatable.")
@click.option("--max-lifetime", type=Hours(0, HOURS_MAX, min_open=True), metavar="HOURS",
              help="How long it may live, renewed or not; as long as the broker lets it, if not given.")  # fmt: skip
@cluster_options
def create(
    owner: str | None, renewers: Sequence[str], max_lifetime: float | None, bootstrap_server: str, timeout_s: float,
    as_json: bool,
) -> None:  # fmt: skip
    """Create a token, and print its id and its secret, which opens the door until it ends."""
    longest_ms = -1 if max_lifetime is None else max(1, round(max_lifetime * HOURS))
    with admin_of(bootstrap_server, timeout_s) as admin:
        token = admin.create_token(owner, renewers, longest_ms)
    words = f"Created a token of {token.owner} that ends {output.moment(token.expiry_ms)}."
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
        (t.id, t.owner, t.requester, ", ".join(t.renewers), *map(output.moment, (t.issue_ms, t.expiry_ms, t.max_ms)))
        for t in found
    ]
    output.table(("id", "owner", "requester", "renewers", "issued", "ends", "ends at last"), rows)


@command.command(name="renew")
@click.argument("token_id", metavar="ID")
@click.option("--for", "hours", type=Hours(0, HOURS_MAX), metavar="HOURS",
              help="From now on; for the broker's own time, if not given.")  # fmt: skip
@cluster_options
def renew(token_id: str, hours: float | None, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Have the token ID end later."""
    period_ms = -1 if hours is None else round(hours * HOURS)
    with admin_of(bootstrap_server, timeout_s) as admin:
        ends_ms = admin.renew_token(_secret(admin, token_id), period_ms)
    say(as_json, {"id": token_id, "expiry_ms": ends_ms}, f"Token {token_id} ends {output.moment(ends_ms)}.")


@command.command(name="expire")
@click.argument("token_id", metavar="ID")
@click.option("--in", "hours", type=Hours(0, HOURS_MAX), metavar="HOURS", help="Then, and not at once.")
@cluster_options
def expire(token_id: str, hours: float | None, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """End the token ID. Connections that were opened by it go on until the end that it had then."""
    period_ms = -1 if hours is None else round(hours * HOURS)
    with admin_of(bootstrap_server, timeout_s) as admin:
        ends_ms = admin.expire_token(_secret(admin, token_id), period_ms)
    words = f"Deleted token {token_id}." if hours is None else f"Token {token_id} ends {output.moment(ends_ms)}."
    say(as_json, {"id": token_id, "expiry_ms": ends_ms}, words)


def _secret(admin: Admin, token_id: str) -> str:
    """That of a token which one may see: nobody need type it, where others could read it."""
    for token in admin.tokens():
        if token.id == token_id:
            return token.secret
    raise KafkaError(DELEGATION_TOKEN_NOT_FOUND, f"there is no token {token_id}, or it is another's")


def _document(token: DelegationToken) -> dict[str, Any]:
    names = ("id", "owner", "requester", "renewers", "issue_ms", "expiry_ms", "max_ms")
    return {name: list(value) if isinstance(value := getattr(token, name), tuple) else value for name in names}
