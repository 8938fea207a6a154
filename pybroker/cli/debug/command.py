"""`pybroker debug bundle`: write what a report about a problem needs into one file."""

import contextlib
import io
import os
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.debug import parts
from pybroker.cli.debug.parts import ClusterParts, Files, Unasked
from pybroker.cli.main import Failure
from pybroker.cli.options import Seconds, cluster_options
from pybroker.cli.waiting import WaitReport
from pybroker.errors import KafkaError
from pybroker.logs import printable

README: Final = """\
`pybroker debug bundle` gathered this. Look through it before you send it to others: it has the names of hosts,
topics, groups, users and files, and the settings of brokers and topics. Passwords and keys are left out, and no record
of a topic is in it.

"""
Gathered = dict[str, tuple[list[str], str]]
"""The files of each part, and why it is incomplete, or ""."""


@click.group(name="debug")
def command() -> None:
    """Gather what a report about a problem needs.

    Exit codes: 0 the file is written, also if parts are missing; 1 it cannot be written; 2 an option is wrong.
    """


@command.command()
@click.option("--output", "-o", "file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
              help="The file to write; without it pybroker-debug-TIME.tar.gz in this directory.")  # fmt: skip
@click.option("--log", "logs", multiple=True, metavar="FILE", type=click.Path(path_type=Path),
              help="A log of a broker, of which the last 16 MiB are added; repeatable.")  # fmt: skip
@click.option("--data-dir", "data_dirs", multiple=True, metavar="DIR", type=click.Path(path_type=Path),
              help="A log dir of a stopped broker, which is examined as pybroker doctor does; repeatable.")  # fmt: skip
@click.option("--interval", "interval_s", type=Seconds(0.0, 600.0), default=5.0, show_default=True, metavar="SECONDS",
              help="How far apart the two looks at the metrics are.")  # fmt: skip
@cluster_options
def bundle(
    file: Path | None,
    logs: Sequence[Path],
    data_dirs: Sequence[Path],
    interval_s: float,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Write one .tar.gz to attach to a report: versions, the cluster, settings, metrics, changes of partitions with
    their causes, and logs and the result of pybroker doctor where paths are given.

    A part that cannot be had is named, with the reason, and the others are written. Passwords and keys are left out;
    look through the file before you send it to others.
    """
    name = time.strftime("pybroker-debug-%Y%m%dT%H%M%SZ", time.gmtime())
    file = Path(f"{name}.tar.gz") if file is None else file
    cluster = ClusterParts(bootstrap_server, timeout_s)
    wanted: dict[str, Callable[[], Files]] = {
        "versions": parts.versions, "cluster": cluster.read, "configs of topics": cluster.topic_configs,
        "configs of brokers": cluster.broker_configs, "metrics": partial(cluster.metrics, interval_s),
        "changes": cluster.changes,
        **{f"log {path}": partial(parts.log, path) for path in logs},
        **({"doctor": partial(parts.examination, data_dirs)} if data_dirs else {}),
    }  # fmt: skip
    gathered: Gathered = {}
    with _written(file) as archive, WaitReport() as wait:
        for part, of in wanted.items():
            wait.on(f"for {part}")
            gathered[part] = _gather(archive, name, part, of())
        _add(archive, f"{name}/README.txt", README + _contents(gathered))
    if as_json:
        told = [{"part": part, "files": files, "missing": why or None} for part, (files, why) in gathered.items()]
        output.as_json({"file": str(file), "parts": told})
        return
    click.echo(f"Wrote {file}, {output.size(file.stat().st_size)}:")
    click.echo(printable_lines(_contents(gathered)), nl=False)
    click.echo("It holds names of hosts, topics, groups and users: look through it before you send it to others.")


def printable_lines(text: str) -> str:
    """Return lines without control characters of names in them."""
    return "".join(f"{printable(line)}\n" for line in text.splitlines())


def _contents(gathered: Gathered) -> str:
    lines = []
    for part, (files, why) in gathered.items():
        there = files[0] if len(files) == 1 else f"{len(files)} files" if files else "missing"
        lines.append(f"  {part}: {there}{f' ({why})' if why else ''}\n")
    return "".join(lines)


def _gather(archive: tarfile.TarFile, name: str, part: str, files: Files) -> tuple[list[str], str]:
    """Add the files of a part; return their names, and why the part is incomplete. No failure of a part is raised, as
    the others are needed all the more then; a traceback of an unexpected one is added."""
    names: list[str] = []
    try:
        for path, content in files:
            there = archive.getnames()
            path = path if f"{name}/{path}" not in there else f"{path}.{len(there)}"
            _add(archive, f"{name}/{path}", content)
            names.append(path)
    except (KafkaError, Failure, Unasked) as problem:
        return names, parts.reason(problem)
    except Exception as problem:
        if not isinstance(problem, OSError):
            path = f"errors/{part.split()[0]}.txt"
            _add(archive, f"{name}/{path}", traceback.format_exc())
            names.append(path)
        return names, parts.reason(problem)
    return names, ""


def _add(archive: tarfile.TarFile, path: str, content: str) -> None:
    data = content.encode(errors="replace")
    member = tarfile.TarInfo(path)
    member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(data))


@contextlib.contextmanager
def _written(file: Path) -> Iterator[tarfile.TarFile]:
    """Yield an archive that has its name once it is complete. Only its owner may read it. Raises OSError."""
    partial_file = file.with_name(f"{file.name}.part")
    descriptor = os.open(partial_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as opened:
            os.fchmod(descriptor, 0o600)
            with tarfile.open(fileobj=opened, mode="w:gz") as archive:
                yield archive
        os.replace(partial_file, file)
    finally:
        partial_file.unlink(missing_ok=True)
