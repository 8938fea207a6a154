"""`pybroker completion`: print the shell code that completes commands, options, topics and groups."""

import os
from typing import Final

import click
from click.shell_completion import get_completion_class

from pybroker.cli.main import COMPLETION_VARIABLE, NAME, Misuse

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(name="completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def command(ctx: click.Context, shell: str | None) -> None:
    """Print the code with which SHELL completes commands, options, topics and groups; without SHELL, for $SHELL.

    Put this into the start file of bash or zsh; for fish, use `| source` instead of eval:

        eval "$(pybroker completion)"

    Topics and groups come from the broker of --bootstrap-server or PYBROKER_BOOTSTRAP_SERVER, if it answers at once.

    Exit codes: 0 printed; 2 the shell is not supported.
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    kind = get_completion_class(name)
    if kind is None:
        shown = f"the shell {name!r}" if name else "a shell that $SHELL does not name"
        raise Misuse(f"no completion for {shown}: name one of {', '.join(SHELLS)}")
    click.echo(kind(ctx.find_root().command, {}, NAME, COMPLETION_VARIABLE).source())
