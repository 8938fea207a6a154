"""The `pybroker` command: finds the subcommand, and turns a failure into one sentence and an exit code."""

import importlib
import os
import sys
from typing import Any, Final, NamedTuple

import click

from pybroker import __version__
from pybroker.cli.interrupts import importing
from pybroker.errors import KafkaError, system_words
from pybroker.logs import printable

NAME: Final = "pybroker"
COMPLETION_VARIABLE: Final = "_PYBROKER_COMPLETE"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
EXIT_TERMINATED: Final = 143  # 128 + SIGTERM


class Command(NamedTuple):
    """A subcommand: where it lives, the line that the list of commands says of it, and its name in its module."""

    module: str
    summary: str
    attribute: str = "command"


# The modules are imported when their command runs: `serve` must not pay for tables, nor `version` for a broker.
COMMANDS: Final = {
    "serve": Command("pybroker.cli.serve", "Run a broker."),
    "topics": Command("pybroker.cli.topics", "Create, list, describe, alter and delete topics."),
    "produce": Command("pybroker.cli.produce", "Write standard input to a topic."),
    "consume": Command("pybroker.cli.consume", "Read topics, to standard output."),
    "groups": Command("pybroker.cli.groups", "List, describe, reset and delete consumer groups."),
    "offsets": Command("pybroker.cli.offsets", "Show the offsets that partitions hold.", "offsets"),
    "delete-records": Command(
        "pybroker.cli.offsets", "Delete the records of partitions before an offset.", "delete_records"
    ),
    "cluster": Command("pybroker.cli.cluster", "Show a cluster's brokers, and what partitions lack."),
    "logdirs": Command("pybroker.cli.logdirs", "Show where partitions lie on disk, and how large they are."),
    "configs": Command("pybroker.cli.configs", "Describe and alter the configs of topics and brokers."),
    "users": Command("pybroker.cli.users", "List, set and remove the passwords by which users log in."),
    "tokens": Command("pybroker.cli.tokens", "List, create, renew and expire delegation tokens."),
    "acls": Command("pybroker.cli.acls", "List, add and remove ACLs: who may do what."),
    "quotas": Command("pybroker.cli.quotas", "List, set and delete client quotas: who may do how much."),
    "bench": Command("pybroker.cli.bench", "Measure what a broker can do."),
    "pipeline": Command("pybroker.cli.pipeline", "Write topics into a table of Parquet files, on Spark."),
    "dump": Command("pybroker.cli.dump", "Show a log segment, an index, a snapshot or a checkpoint."),
    "scrub": Command("pybroker.cli.scrub", "Have a running broker check its log dirs for damage now."),
    "doctor": Command("pybroker.cli.doctor", "Examine a log dir that no broker uses, and mend it."),
    "migrate-store": Command("pybroker.cli.migrate_store", "Move a lone broker's topics into ZooKeeper."),
    "zookeeper": Command("pybroker.cli.zookeeper", "Run a ZooKeeper for development."),
    "zookeeper-acls": Command("pybroker.cli.zookeeper_acls", "Close a cluster's nodes in ZooKeeper, or open them."),
    "completion": Command("pybroker.cli.completion", "Print what a shell runs to complete commands."),
    "version": Command("pybroker.cli.version", "Print the version."),
}

EPILOG: Final = """\b
Exit codes: 0 done; 1 the operation failed, or a file is damaged; 2 the command, its options or the configuration are
wrong; 130 interrupted. A command that fails writes one sentence to standard error.

\b
Completion: put   eval "$(pybroker completion)"   into the start file of bash or zsh; in that of fish, put
pybroker completion fish | source
"""


class Failure(click.ClickException):
    """A failure that is not the program's fault: shown as one sentence, without a traceback."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        click.echo(f"pybroker: {printable(self.message)}", file=sys.stderr)


class Misuse(Failure):
    """A failure that the command line or the configuration would have to be changed for."""

    exit_code = EXIT_USAGE


def failure_of(error: KafkaError | OSError) -> Failure:
    """What a person is told of a broker's or the system's error."""
    if isinstance(error, KafkaError):
        return Failure(error.message)
    why = system_words(error)
    return Failure(f"{error.filename}: {why}" if error.filename else why)


class Whole(click.IntRange):
    """The type of an option that is a whole number; click calls its own "integer range", in its messages too."""

    name = "integer"


class Commands(click.Group):
    """The group of all subcommands, each imported only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name]
        with importing():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            for near in get_close_matches(args[0], COMMANDS, n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {near!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])

    def make_context(self, *args: Any, **named: Any) -> click.Context:
        try:
            return super().make_context(*args, **named)
        except KeyboardInterrupt:  # while the command line is read
            sys.exit(EXIT_INTERRUPTED)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # of standard output: those of a connection are KafkaErrors by now
            _close_stdout()
        except (KafkaError, OSError) as error:
            raise failure_of(error) from error
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def _close_stdout() -> None:
    """The reader of our output left (`| head`): nothing failed, and nothing more can be said to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, message="pybroker %(version)s")
def cli() -> None:
    """A Kafka-compatible message broker, and its tools."""


def main() -> None:
    """Run `pybroker`, by that name however it was started."""
    try:
        cli(prog_name=NAME, complete_var=COMPLETION_VARIABLE)
    except OSError as error:  # of --help, which is written before a command begins
        failure_of(error).show()
        sys.exit(EXIT_FAILED)
