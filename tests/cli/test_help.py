"""`--help` of each command says what the command and each of its options does."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pybroker.cli.main import cli
from tests.cli.conftest import run
from tests.rows import with_each


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Each command with its words, those of groups too."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def test_every_command_and_option_has_help() -> None:
    lacking = []
    for words, command in commands(cli, click.Context(cli, info_name="pybroker")):
        lacking += [] if command.help else [words]
        options = (each for each in command.params if isinstance(each, click.Option) and not each.hidden)
        lacking += [f"{words} {each.opts[0]}" for each in options if not each.help]
    assert not lacking


def test_exit_codes_are_told() -> None:
    """Commands have them in their own help or in that of their group; `version` cannot fail."""
    told: dict[str, bool] = {}
    for words, command in commands(cli, click.Context(cli, info_name="pybroker")):
        above = words.rpartition(" ")[0]
        told[words] = "Exit codes" in f"{command.help}{command.epilog}" or (" " in above and told.get(above, False))
    assert [words for words, is_told in told.items() if not is_told] == ["pybroker version"]


@with_each(
    ("arguments", "words", "usage"),
    [
        (("topics", "create"), "missing argument 'NAME'", "pybroker topics create [OPTIONS] NAME"),
        (("topics", "create", "t", "--partitons", 1), "no such option '--partitons'. Did you mean '--partitions'?",
         "pybroker topics create [OPTIONS] NAME"),
        (("topics", "create", "t", "-p", "x"), "invalid value for '--partitions' / '-p': 'x' is not a valid integer",
         "pybroker topics create [OPTIONS] NAME"),
        (("delete-records",), "either TOPIC and --before or --offset-json-file is needed",
         "pybroker delete-records [OPTIONS] [TOPIC[:P,P]]..."),
        (("--nothing",), "no such option '--nothing'", "pybroker [OPTIONS] COMMAND [ARGS]..."),
        (("serve", "a\x1b[2J"), "got unexpected extra argument (a\\x1b[2J)", "pybroker serve [OPTIONS]"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_sentence_and_the_usage(arguments: tuple[object, ...], words: str, usage: str) -> None:
    """An error in the command line is one sentence, as other errors are, and the line of the usage."""
    done = run(*arguments)
    assert (done.code, done.out, done.err) == (2, "", f"pybroker: {words}\nUsage: {usage} (-h for help)\n")
