"""`--help` of each command says what the command and each of its options does."""

from __future__ import annotations

from collections.abc import Iterator

import click

from pybroker.cli.main import cli


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
