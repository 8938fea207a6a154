"""What the commands about a cluster have in common: their options, how they ask, how they tell what they did."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import click

from pybroker.cli import output
from pybroker.cli.lines import unescaped
from pybroker.client.admin import Admin
from pybroker.client.metadata import parse_bootstrap
from pybroker.errors import KafkaError

BOOTSTRAP_DEFAULT: Final = "localhost:9092"
BOOTSTRAP_VARIABLE: Final = "PYBROKER_BOOTSTRAP_SERVER"
COMPLETION_S_MAX: Final = 1.0
"""How long somebody who pressed the tab key waits for a broker."""

F = TypeVar("F", bound=Callable[..., Any])


def _addresses(ctx: click.Context, option: click.Parameter, text: str) -> str:
    try:
        parse_bootstrap(text)
    except KafkaError as error:
        raise click.BadParameter(error.message) from error
    return text


def cluster_options(function: F) -> F:
    """The options that every command about a cluster has, if it answers with a document."""
    return click.option("--json", "as_json", is_flag=True, help="Answer with a JSON document.")(
        address_options(function)
    )


def address_options(function: F) -> F:
    """Where the cluster is, and how long to wait for it."""
    for option in (
        click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=30.0, show_default=True,
                     metavar="SECONDS", help="How long to wait for the broker."),
        click.option("--bootstrap-server", "-b", default=BOOTSTRAP_DEFAULT, show_default=True, metavar="HOST:PORT,...",
                     envvar=BOOTSTRAP_VARIABLE, show_envvar=True, callback=_addresses,
                     help="Where the cluster is found."),
    ):  # fmt: skip
        function = option(function)
    return function


def complete_topics(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The topics whose names begin so, for the shell; none while no broker answers at once."""
    return _complete(ctx, incomplete, lambda admin: (topic.name for topic in admin.topics() if not topic.internal))


def complete_groups(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The groups whose names begin so."""
    return _complete(ctx, incomplete, lambda admin: (group.id for group in admin.groups()))


def _complete(ctx: click.Context, incomplete: str, names: Callable[[Admin], Iterable[str]]) -> list[str]:
    bootstrap = ctx.params.get("bootstrap_server") or os.environ.get(BOOTSTRAP_VARIABLE) or BOOTSTRAP_DEFAULT
    with contextlib.suppress(KafkaError), Admin(bootstrap, timeout_s=COMPLETION_S_MAX) as admin:
        return [name for name in names(admin) if name.startswith(incomplete)]
    return []


def confirmed(question: str) -> bool:
    """The answer of a person; no, where there is no person to ask."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def delete_each(
    kind: str, names: Sequence[str], delete: Callable[[str], None], absent: int | None, as_json: bool
) -> None:
    """Delete one after the other and tell which went, and which were not there: `absent` is the code that says so, None
    where it is a failure like any other. A failure tells what was deleted before it."""
    deleted, missing = [], []
    for name in names:
        try:
            delete(name)
            deleted.append(name)
        except KafkaError as error:
            if error.code != absent:
                done = f" ({', '.join(deleted)}: deleted before that)" if deleted else ""
                raise KafkaError(error.code, error.message + done) from error
            missing.append(name)
    words = [f"Deleted {kind} {name}." for name in deleted]
    words += [f"{kind.capitalize()} {name} does not exist." for name in missing]
    say(as_json, {"deleted": deleted, "missing": missing}, "\n".join(words))


def name_value(text: str, option: str) -> tuple[str, str]:
    """NAME=VALUE as it was given to `option`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def escaped(_: click.Context, __: click.Parameter, text: str | None) -> bytes | None:
    """The bytes of an option, with escapes for those that are hard to type."""
    try:
        return None if text is None else unescaped(os.fsencode(text))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def header(text: str) -> tuple[str, bytes]:
    """NAME=VALUE as the header of a record."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, os.fsencode(value)


def client_settings(texts: Sequence[str]) -> dict[str, str]:
    """Settings of a client by Kafka's names, as its keyword arguments."""
    pairs = (name_value(text, "--setting") for text in texts)
    return {name.replace(".", "_"): value for name, value in pairs}


def say(as_json: bool, document: dict[str, Any], sentence: str) -> None:
    """What was done: a document for programs, a sentence for people."""
    if as_json:
        output.as_json(document)
    else:
        click.echo(sentence)
