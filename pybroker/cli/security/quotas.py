"""`pybroker quotas`: list, set and delete client quotas."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pybroker.cli import output
from pybroker.cli.main import Misuse
from pybroker.cli.options import admin_of, cluster_options, name_value, say, warn_of_type
from pybroker.cli.output import Options
from pybroker.errors import KafkaError
from pybroker.security.quotas import (
    CLIENT_ID,
    IP,
    USER,
    ClientQuotaFilterComponent,
    Component,
    Entity,
    entity_of,
    keys_of,
    text_of,
)

F = TypeVar("F", bound=Callable[..., object])
DEFAULT = "<default>"
OPTIONS = {USER: "user", CLIENT_ID: "client", IP: "ip"}
"""Option names, as in Kafka's tools."""


def _entity_options(function: F) -> F:
    """Add the options that name the entity, as in kafka-configs.sh."""
    for type_, option in reversed(OPTIONS.items()):
        noun = {USER: "user", CLIENT_ID: "client id", IP: "address"}[type_]
        named = click.option(f"--{option}", metavar="NAME" if type_ != IP else "ADDRESS", help=f"This {noun}'s quotas.")
        default = click.option(f"--{option}-defaults", is_flag=True, help=f"Quotas of every {noun} without its own.")
        function = named(default(function))
    return function


def _components(how: Options) -> list[Component]:
    """Return the entity's components. UsageError if two options contradict each other."""
    found: list[Component] = []
    for type_, option in OPTIONS.items():
        name, default = how[option], how[f"{option}_defaults"]
        if name is not None and default:
            raise click.UsageError(f"give --{option} or --{option}-defaults, not both")
        if name is not None or default:
            found.append((type_, name))
    return found


def _entity(how: Options) -> Entity:
    components = _components(how)
    if not components:
        raise click.UsageError("name the entity: --user, --client (or both) or --ip, or --user-defaults and the like")
    try:
        return entity_of(components)
    except KafkaError as problem:
        raise Misuse(problem.message) from problem


@click.group(name="quotas")
def command() -> None:
    """List, set and delete client quotas, of any broker that speaks Kafka's protocol.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command(name="list")
@_entity_options
@cluster_options
def list_quotas(bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any) -> None:
    """List quotas: all, or those of the entities that the options name."""
    wanted = [ClientQuotaFilterComponent(*component) for component in _components(how)]
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.quotas(*wanted)
    entities = sorted(found, key=lambda entity: [(type_, name or "") for type_, name in entity])
    if as_json:
        output.as_json([{"entity": dict(entity), "quotas": found[entity]} for entity in entities])
        return
    output.table(
        ("user", "client-id", "ip", "quota", "value"),
        [
            (*_names(entity), key, f"{value:.12g}")
            for entity in entities
            for key, value in sorted(found[entity].items())
        ],
    )


def _names(entity: Entity) -> list[str | None]:
    components = dict(entity)
    return [(components[type_] or DEFAULT) if type_ in components else None for type_ in OPTIONS]


@command.command(name="set")
@_entity_options
@click.argument("quotas", nargs=-1, required=True, metavar="QUOTA=VALUE...")
@cluster_options
def set_quotas(quotas: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any) -> None:
    """Set quotas of an entity; its other quotas stay.

    Of users and clients: producer_byte_rate and consumer_byte_rate in bytes a second, request_percentage of a thread's
    time, controller_mutation_rate in partitions a second. Of addresses: connection_creation_rate. Each applies on each
    broker by itself.
    """
    entity = _entity(how)
    warn_of_type(how[OPTIONS[USER]] or "")
    changes = dict(_value(entity, *name_value(text, "QUOTA=VALUE")) for text in quotas)
    with admin_of(bootstrap_server, timeout_s) as admin:
        admin.alter_quotas(entity, changes)
    told = ", ".join(f"{key}={text_of(entity, key, value)}" for key, value in changes.items())
    say(as_json, {"entity": dict(entity), "quotas": changes}, f"Set for {_text(entity)}: {told}.")


def _value(entity: Entity, key: str, text: str) -> tuple[str, float]:
    try:
        value = float(text)
    except ValueError:
        raise Misuse(f"{key} is {text!r}, which is not a number") from None
    try:
        text_of(entity, key, value)
    except KafkaError as problem:
        raise Misuse(problem.message) from problem
    return key, value


@command.command(name="delete")
@_entity_options
@click.argument("quotas", nargs=-1, metavar="[QUOTA]...")
@cluster_options
def delete_quotas(quotas: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool, **how: Any) -> None:
    """Delete quotas of an entity: those named, or all. A missing quota is not a failure."""
    entity = _entity(how)
    for key in quotas:
        if key not in keys_of(entity):
            raise Misuse(f"{key!r} is not a quota of this entity: the quotas are {', '.join(keys_of(entity))}")
    with admin_of(bootstrap_server, timeout_s) as admin:
        wanted = (ClientQuotaFilterComponent(*component) for component in entity)
        held = admin.quotas(*wanted, strict=True).get(entity, {})
        gone = [key for key in quotas or held if key in held]
        if gone:
            admin.alter_quotas(entity, dict.fromkeys(gone))
    sentence = f"There are no such quotas for {_text(entity)}."
    if gone:
        sentence = f"Deleted for {_text(entity)}: {', '.join(gone)}."
    say(as_json, {"entity": dict(entity), "deleted": gone}, sentence)


def _text(entity: Entity) -> str:
    return " with ".join(f"{type_} {name or DEFAULT}" for type_, name in entity)
