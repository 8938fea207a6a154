"""What the commands about a cluster have in common: their options, how they ask, how they tell what they did."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from pybroker.cli import output
from pybroker.client.metadata import parse_bootstrap
from pybroker.errors import KafkaError

BOOTSTRAP_DEFAULT: Final = "localhost:9092"

F = TypeVar("F", bound=Callable[..., Any])


def _addresses(ctx: click.Context, option: click.Parameter, text: str) -> str:
    try:
        parse_bootstrap(text)
    except KafkaError as error:
        raise click.BadParameter(error.message) from error
    return text


def cluster_options(function: F) -> F:
    """The options that every command about a cluster has."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Answer with a JSON document."),
        click.option("--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=30.0, show_default=True,
                     metavar="SECONDS", help="How long to wait for the broker."),
        click.option("--bootstrap-server", "-b", default=BOOTSTRAP_DEFAULT, show_default=True, metavar="HOST:PORT,...",
                     envvar="PYBROKER_BOOTSTRAP_SERVER", show_envvar=True, callback=_addresses,
                     help="Where the cluster is found."),
    ):  # fmt: skip
        function = option(function)
    return function


def confirmed(question: str) -> bool:
    """The answer of a person; no, where there is no person to ask."""
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        return False


def name_value(text: str, option: str) -> tuple[str, str]:
    """NAME=VALUE as it was given to `option`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    return name.strip(), value.strip()


def say(as_json: bool, document: dict[str, Any], sentence: str) -> None:
    """What was done: a document for programs, a sentence for people."""
    if as_json:
        output.as_json(document)
    else:
        click.echo(sentence)
