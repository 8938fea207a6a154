"""`pybroker doctor`: examine log dirs that no broker uses, and repair them with --fix."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.files.examination import Examination, hold_log_dir
from pybroker.cli.files.finding import Finding
from pybroker.cli.files.store_metadata import STORE_FILE, KnownLogDirs, partitions_in
from pybroker.cli.main import EXIT_FAILED, Failure, Misuse
from pybroker.replication.disks import checkpoints

DIRECTORY: Final = click.Path(path_type=Path, exists=True, file_okay=False)
MARKS: Final = (checkpoints.META, STORE_FILE)
"""A log dir has at least one of these files, unless only partitions are left in it."""


@click.command(name="doctor")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--fix", is_flag=True, help="Mend what can be mended. What is cut or replaced is kept as *.damaged.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(directories: Sequence[Path], fix: bool, as_json: bool) -> None:
    """Report damage in log dirs that no broker uses.

    The command finds torn tails, damaged batches and indexes, and checkpoints with offsets beyond the end of a log. It
    finds a damaged coordination store or meta.properties, files that a deletion or a compaction left, and partitions
    known only to the store or only to a log dir. Name all log dirs of the broker.

    Exit codes: 0 nothing is wrong; 1 something is or was wrong, or a broker uses a directory; 2 a directory does not
    exist, or is not a log dir.
    """
    found = 0
    directories = list({(said.st_dev, said.st_ino): path for path in directories for said in [path.stat()]}.values())
    for finding in examined(directories):
        found += 1
        mended = fix and finding.mend is not None
        if mended and finding.mend is not None:
            finding.mend()
        if as_json:
            output.as_json_line(line(finding, mended=mended))
        else:
            click.echo(f"{finding.path}: {finding.what}")
            click.echo(f"    {'done' if mended else 'to do'}: {finding.cure}")
    if found:
        sys.exit(EXIT_FAILED)
    if not as_json:
        click.echo(f"{', '.join(map(str, directories))}: nothing is wrong.")


def line(finding: Finding, *, mended: bool) -> output.Document:
    """Return a finding for --json."""
    return {"file": str(finding.path), "trouble": finding.what, "cure": finding.cure, "mended": mended}


def examined(directories: Sequence[Path]) -> Iterator[Finding]:
    """Yield what is wrong in log dirs, which are locked until the last one. Raises Misuse for another directory,
    Failure for one in use, OSError."""
    with contextlib.ExitStack() as holding:
        for directory in directories:
            if not any((directory / name).exists() for name in MARKS) and not any(partitions_in(directory)):
                raise Misuse(f"{directory} is not a log dir: it holds no {', no '.join(MARKS)} and no partition")
            if not holding.enter_context(hold_log_dir(directory)):
                raise Failure(f"a broker is using {directory}: stop it first")
        yield from _findings(directories)


def _findings(directories: Sequence[Path]) -> Iterator[Finding]:
    known = KnownLogDirs(directories)
    for directory in directories:
        yield from Examination(directory, known).findings()
    yield from known.findings()
