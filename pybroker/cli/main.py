"""The `pybroker` command: find the subcommand, and turn a failure into one sentence and an exit code."""

import importlib
import os
import sys
from typing import IO, Any, Final, NamedTuple

import click

from pybroker import __version__
from pybroker.cli import sentences
from pybroker.cli.interrupts import importing
from pybroker.cli.waiting import WaitReport
from pybroker.errors import KafkaError, system_words
from pybroker.logs import printable
from pybroker.patience import waiting

NAME: Final = "pybroker"
COMPLETION_VARIABLE: Final = "_PYBROKER_COMPLETE"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
EXIT_TERMINATED: Final = 143  # 128 + SIGTERM


_OF_CLICK: Final = ("Could ", "Got ", "Invalid ", "Missing ", "No ", "Option ")
"""The beginnings of click's own sentences about a command line; ours may begin with a name."""


class Command(NamedTuple):
    """A subcommand: its module, its help in the list of commands, and its name in the module."""

    module: str
    summary: str
    attribute: str = "command"


# Modules are imported when their command runs: `serve` must not import tables, nor `version` a broker.
COMMANDS: Final = {
    "serve": Command("pybroker.cli.serve", "Run a broker."),
    "topics": Command("pybroker.cli.topics", "Create, list, describe, alter and delete topics."),
    "produce": Command("pybroker.cli.records.produce", "Write standard input to a topic."),
    "consume": Command("pybroker.cli.records.consume", "Read topics, to standard output."),
    "read": Command("pybroker.cli.records.read", "Read a topic as a table, into a Parquet, CSV or JSON file."),
    "groups": Command("pybroker.cli.groups", "List, describe, reset and delete consumer groups."),
    "transactions": Command("pybroker.cli.transactions", "List, describe and abort transactions."),
    "offsets": Command("pybroker.cli.offsets", "Show the offsets that partitions hold.", "offsets"),
    "delete-records": Command(
        "pybroker.cli.offsets", "Delete the records of partitions before an offset.", "delete_records"
    ),
    "cluster": Command("pybroker.cli.cluster.show", "Show, check and restart a cluster; start one here."),
    "top": Command("pybroker.cli.top.command", "Show throughput, lag, leaders and disks of a cluster, live."),
    "metrics": Command("pybroker.cli.metrics.command", "Write boards for Grafana, and alerts for Prometheus."),
    "console": Command("pybroker.cli.console", "Show a cluster in the browser."),
    "logdirs": Command("pybroker.cli.logdirs", "Show where partitions lie on disk, and how large they are."),
    "brokers": Command("pybroker.cli.reassign.brokers", "List, drain, retire and replace brokers."),
    "reassign": Command("pybroker.cli.reassign.command", "Plan, execute, watch and cancel moves of replicas."),
    "move-log-dir": Command("pybroker.cli.move_log_dir", "Move replicas to another log dir of their broker."),
    "configs": Command("pybroker.cli.configs", "Describe and alter the configs of topics and brokers."),
    "users": Command("pybroker.cli.security.users", "List, set and remove the passwords by which users log in."),
    "tokens": Command("pybroker.cli.security.tokens", "List, create, renew and expire delegation tokens."),
    "acls": Command("pybroker.cli.security.acls", "List, add and remove ACLs."),
    "quotas": Command("pybroker.cli.security.quotas", "List, set and delete client quotas."),
    "bench": Command("pybroker.cli.bench.command", "Measure what a broker can do."),
    "pipeline": Command("pybroker.cli.records.pipeline", "Write topics into a table of Parquet files, on Spark."),
    "backup": Command("pybroker.cli.backup.backup", "Back up topics, and verify backups."),
    "restore": Command("pybroker.cli.backup.restore", "Restore topics from a backup."),
    "dump": Command("pybroker.cli.files.dump", "Show a log segment, an index, a snapshot or a checkpoint."),
    "scrub": Command("pybroker.cli.files.scrub", "Have a running broker check its log dirs for damage now."),
    "doctor": Command("pybroker.cli.files.doctor", "Examine a log dir that no broker uses, and mend it."),
    "debug": Command("pybroker.cli.debug.command", "Gather what a report about a problem needs, as one file."),
    "migrate-store": Command("pybroker.cli.zookeeper.migrate_store", "Move a lone broker into a cluster's store."),
    "etcd": Command("pybroker.cli.zookeeper.etcd_server", "Run an etcd for development."),
    "zookeeper": Command("pybroker.cli.zookeeper.server", "Run a ZooKeeper for development."),
    "zookeeper-acls": Command("pybroker.cli.zookeeper.acls", "Close a cluster's nodes in ZooKeeper, or open them."),
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

    def show(self, file: IO[str] | None = None) -> None:
        sentences.fail(self.message)


class Misuse(Failure):
    """A failure to be fixed in the command line or the configuration."""

    exit_code = EXIT_USAGE


class WrongUsage(Misuse):
    """An error that click found in the command line: a sentence, and the line of the usage."""

    def __init__(self, error: click.UsageError) -> None:
        words = " ".join(map(str.strip, error.format_message().splitlines()))
        words = words if words.endswith("...") else words.removesuffix(".")
        super().__init__(words[:1].lower() + words[1:] if words.startswith(_OF_CLICK) else words)
        self._usage = " ".join(error.ctx.get_usage().split()) if error.ctx is not None else ""

    def show(self, file: IO[str] | None = None) -> None:
        super().show(file)
        if self._usage:
            click.echo(f"{self._usage} (-h for help)", err=True)


def failure_of(error: KafkaError | OSError) -> Failure:
    """Return the Failure that reports an error of a broker or of the system."""
    if isinstance(error, KafkaError):
        return Failure(error.message)
    why = system_words(error)
    return Failure(f"{error.filename}: {why}" if error.filename else why)


class Whole(click.IntRange):
    """The type of an option that is a whole number; click calls its own "integer range", in its messages too."""

    name = "integer"


class Commands(click.Group):
    """The group of all subcommands, each imported only when it is used."""

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
        except KeyboardInterrupt:  # while the command line is parsed
            sys.exit(EXIT_INTERRUPTED)
        except click.UsageError as error:
            raise _wrong_usage(error) from None

    def invoke(self, ctx: click.Context) -> Any:
        shown = waiting.set(WaitReport)
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:  # standard output's: those of connections have become KafkaErrors
            _close_stdout()
        except (KafkaError, OSError) as error:
            raise failure_of(error) from error
        except click.UsageError as error:
            raise _wrong_usage(error) from None
        except KeyboardInterrupt as interrupt:  # with a sentence where one says what stands
            for sentence in interrupt.args:
                if sys.stderr.isatty():
                    click.echo(err=True)  # ends the line on which the terminal has shown ^C
                click.echo(f"pybroker: {printable(sentence)}", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        finally:
            waiting.reset(shown)


def _wrong_usage(error: click.UsageError) -> click.ClickException:
    return error if isinstance(error, click.exceptions.NoArgsIsHelpError) else WrongUsage(error)


def _close_stdout() -> None:
    """Close standard output, whose reader has left (`| head`); that is not a failure."""
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
    except OSError as error:  # from --help, which is written before a command begins
        failure_of(error).show()
        sys.exit(EXIT_FAILED)
