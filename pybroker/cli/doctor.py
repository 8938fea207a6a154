"""`pybroker doctor`: a log dir that no broker uses is looked through, and mended with --fix."""

import sys
from pathlib import Path

import click

from pybroker.cli import output
from pybroker.cli.examine import Examination, held
from pybroker.cli.main import EXIT_FAILED, Failure


@click.command(name="doctor")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--fix", is_flag=True, help="Mend what can be mended. What is cut or replaced is kept as *.damaged.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(directory: Path, fix: bool, as_json: bool) -> None:
    """Say what is wrong in a log dir, while no broker runs on it: torn tails, damaged batches and indexes, checkpoints
    that tell of more than there is, a damaged coordination store or meta.properties, files that nobody needs.

    Exit codes: 0 nothing is wrong; 1 something is, mended or not, or a broker holds the directory; 2 there is no such
    directory.
    """
    found = 0
    with held(directory) as mine:
        if not mine:
            raise Failure(f"a broker is using {directory}: stop it first")
        for trouble in Examination(directory).troubles():
            found += 1
            mended = fix and trouble.mend is not None
            if mended and trouble.mend is not None:
                trouble.mend()
            if as_json:
                line = {"file": str(trouble.path), "trouble": trouble.what, "cure": trouble.cure, "mended": mended}
                output.as_json_line(line)
            else:
                click.echo(f"{trouble.path}: {trouble.what}")
                click.echo(f"    {'done' if mended else 'to do'}: {trouble.cure}")
    if found:
        sys.exit(EXIT_FAILED)
    if not as_json:
        click.echo(f"{directory}: nothing is wrong.")
