"""`pybroker configs`: the settings of topics and brokers, shown with their source, and altered one by one.

The levels of a broker's loggers work in the same way.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from pybroker.cli import output, secrets
from pybroker.cli.main import Misuse, Whole
from pybroker.cli.options import admin_of, cluster_options, complete_topics, name_value, say
from pybroker.cli.output import Document
from pybroker.client.admin import (
    Alteration,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from pybroker.config import ConfigError
from pybroker.config.broker import read_properties

F = TypeVar("F", bound=Callable[..., object])


def _resource_options(function: F) -> F:
    """Add the options that name the resource."""
    for option in (
        click.option("--broker-logger", type=Whole(0, (1 << 31) - 1), metavar="ID", help="The log levels of a broker."),
        click.option("--broker-default", is_flag=True, help="The default of all brokers."),
        click.option("--broker", type=Whole(0, (1 << 31) - 1), metavar="ID", help="A broker."),
        click.option("--topic", "-t", metavar="NAME", help="A topic.", shell_complete=complete_topics),
    ):
        function = option(function)
    return function


def _resource(topic: str | None, broker: int | None, broker_default: bool, logger: int | None) -> ConfigResource:
    if sum(given is not None for given in (topic, broker, logger)) + broker_default != 1:
        raise click.UsageError("exactly one of --topic, --broker, --broker-default and --broker-logger is needed")
    if topic is not None:
        return ConfigResource(ResourceType.TOPIC, topic)
    if logger is not None:
        return ConfigResource(ResourceType.BROKER_LOGGER, str(logger))
    return ConfigResource(ResourceType.BROKER, "" if broker is None else str(broker))


@click.group(name="configs")
def command() -> None:
    """Describe and alter the configs of topics and brokers, of any broker that speaks Kafka's protocol.

    With --broker-logger the configs are the broker's loggers, and their values the levels: INFO, DEBUG and so on.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 the command or its options are wrong.
    """


@command.command()
@click.argument("names", nargs=-1, metavar="[CONFIG]...")
@_resource_options
@click.option("--all", "everything", is_flag=True, help="Show configs at their built-in default too.")
@cluster_options
def describe(
    names: Sequence[str],
    topic: str | None,
    broker: int | None,
    broker_default: bool,
    broker_logger: int | None,
    everything: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Show configs with their values and sources: those named, or those that differ from their default."""
    resource = _resource(topic, broker, broker_default, broker_logger)
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = admin.configs(resource, names or None)
    shown = [entry for entry in found if names or everything or entry.source != ConfigSource.DEFAULT]
    if as_json:
        output.as_json([_document(entry) for entry in shown])
        return
    output.table(
        ("config", "value", "source", ""),
        [(c.name, "(sensitive)" if c.sensitive else c.value, source_name(c.source), _remark(c)) for c in shown],
    )


@command.command()
@_resource_options
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE", help="Set a config to a value; repeatable.")
@click.option("--set-file", metavar="FILE", type=click.Path(),
              help="A .properties file of configs to set, such as passwords; - is standard input.")
@click.option("--delete", "deletes", multiple=True, metavar="NAME",
              help="Set a config back to its default; repeatable.")  # fmt: skip
@click.option("--append", "appends", multiple=True, metavar="NAME=VALUE", help="Add to a list; repeatable.")
@click.option("--subtract", "subtracts", multiple=True, metavar="NAME=VALUE", help="Take from a list; repeatable.")
@click.option("--dry-run", is_flag=True, help="Ask the broker whether it would accept the change; change nothing.")
@cluster_options
def alter(
    topic: str | None,
    broker: int | None,
    broker_default: bool,
    broker_logger: int | None,
    sets: Sequence[str],
    set_file: str | None,
    deletes: Sequence[str],
    appends: Sequence[str],
    subtracts: Sequence[str],
    dry_run: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Alter configs, all of those given or none. Other configs stay as they are."""
    resource = _resource(topic, broker, broker_default, broker_logger)
    wanted = [Alteration(name, ConfigOperation.DELETE) for name in deletes]
    for option, given in (("set", sets), ("append", appends), ("subtract", subtracts)):
        pairs = [name_value(text, f"--{option}") for text in given]
        wanted += [Alteration(name, ConfigOperation[option.upper()], value) for name, value in pairs]
        secrets.warn((name for name, _ in pairs), "a file for --set-file")
    if set_file is not None:
        wanted += _of_file("/dev/stdin" if set_file == "-" else set_file)
    if not wanted and set_file is not None:
        raise Misuse(f"{'standard input' if set_file == '-' else set_file} sets nothing: it has no line NAME=VALUE")
    if not wanted:
        raise click.UsageError("nothing to alter: give --set, --set-file, --delete, --append or --subtract")
    with admin_of(bootstrap_server, timeout_s) as admin:
        admin.alter_configs(resource, wanted, validate_only=dry_run)
    names = [alteration.name for alteration in wanted]
    done = "would be altered" if dry_run else "altered"
    document = {"resource": resource.type.name.lower(), "name": resource.name, "configs": names, "dry_run": dry_run}
    say(as_json, document, f"Configs of {resource} {done}: {', '.join(names)}.")


def _of_file(file: str) -> list[Alteration]:
    """The alterations in a .properties file. Misuse if it is not one."""
    try:
        return [Alteration(name, ConfigOperation.SET, value) for name, value, _ in read_properties(file)]
    except ConfigError as error:
        raise Misuse(error.message) from error


def source_name(code: int) -> str:
    """Return a source as Kafka's tools name it, in lower case; its number if unknown."""
    known = code in ConfigSource._value2member_map_
    return ConfigSource(code).name.lower() if known else str(code)


def _remark(entry: ConfigEntry) -> str:
    return "read-only" if entry.read_only else ""


def _document(entry: ConfigEntry) -> Document:
    return {
        "name": entry.name,
        "value": entry.value,
        "source": source_name(entry.source),
        "read_only": entry.read_only,
        "sensitive": entry.sensitive,
    }
