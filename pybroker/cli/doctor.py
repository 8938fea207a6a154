"""`pybroker doctor`: log dirs that no broker uses are looked through, and mended with --fix."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.examine import Examination, held
from pybroker.cli.main import EXIT_FAILED, Failure, Misuse
from pybroker.cli.stored import STORE_FILE, Known, partitions_in
from pybroker.cli.trouble import Trouble
from pybroker.replication import checkpoints

DIRECTORY: Final = click.Path(path_type=Path, exists=True, file_okay=False)
MARKS: Final = (checkpoints.META, STORE_FILE)
"""Files of which a log dir has one at least, unless partitions are all that is left of it."""


@click.command(name="doctor")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--fix", is_flag=True, help="Mend what can be mended. What is cut or replaced is kept as *.damaged.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(directories: Sequence[Path], fix: bool, as_json: bool) -> None:
    """Say what is wrong in log dirs that no broker uses.

    The command finds torn tails, damaged batches and indexes, checkpoints with offsets beyond the end of a log, a
    damaged coordination store or meta.properties, files that a deletion or a compaction left, and partitions that only
    the store or only a log dir has. Name all log dirs of the broker.

    Exit codes: 0 nothing is wrong; 1 something is or was wrong, or a broker uses a directory; 2 a directory does not
    exist, or is no log dir.
    """
    found = 0
    directories = list({(said.st_dev, said.st_ino): path for path in directories for said in [path.stat()]}.values())
    with contextlib.ExitStack() as holding:
        for directory in directories:
            if not any((directory / name).exists() for name in MARKS) and not any(partitions_in(directory)):
                raise Misuse(f"{directory} is no log dir: it holds no {', no '.join(MARKS)} and no partition")
            if not holding.enter_context(held(directory)):
                raise Failure(f"a broker is using {directory}: stop it first")
        for trouble in _troubles(directories):
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
        click.echo(f"{', '.join(map(str, directories))}: nothing is wrong.")


def _troubles(directories: Sequence[Path]) -> Iterator[Trouble]:
    known = Known(directories)
    for directory in directories:
        yield from Examination(directory, known).troubles()
    yield from known.troubles()
