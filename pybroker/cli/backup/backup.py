"""`pybroker backup`: topics of a running cluster into a directory or an object store, and backups verified."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pybroker.backup.manifest import Manifest
from pybroker.backup.partition_copy import CopyOptions
from pybroker.backup.taking import THREADS, BackupOptions, BackupRun, Connect, Taken
from pybroker.backup.targets import Target, open_target
from pybroker.backup.verifying import Verified, verify
from pybroker.cli import output, profiles
from pybroker.cli.backup.progress import bar
from pybroker.cli.main import Failure, Misuse, Whole
from pybroker.cli.options import admin_of, cluster_options, complete_topics
from pybroker.cli.output import Document
from pybroker.client.admin import Admin
from pybroker.clock import wall_ms
from pybroker.logs import printable
from pybroker.operations.times import time_text

SHOWN_MAX: Final = 20
"""The sentences of one kind that are printed; the last one counts the others."""


class _TakeByDefault(click.Group):
    """A group whose command is `take` unless another one is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [_TAKE, *args]
        return super().parse_args(ctx, args)


_TAKE: Final = "take"


@click.group(name="backup", cls=_TakeByDefault)
def command() -> None:
    """Back up topics: pybroker backup TOPIC... --to DIR (that is `pybroker backup take`); and verify backups.

    Exit codes: 0 done; 1 some partitions were not backed up, a backup is damaged, or the broker refused or could not be
    reached; 2 the command or its options are wrong; 130 ended by Ctrl-C.
    """


@command.command(_TAKE)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--to", required=True, metavar="DIR|ADDRESS",
              help="A directory, or an address such as s3://bucket/prefix; what is there is continued.")  # fmt: skip
@click.option("--from-log-dir", "log_dirs", multiple=True, metavar="DIR",
              type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A log dir of a broker, from which sealed segments are taken; repeatable. Without it, those of "
              "brokers on this machine that may be read.")  # fmt: skip
@click.option("--no-log-dirs", is_flag=True, help="Take everything through the brokers.")
@click.option("--copy", "copies", is_flag=True, help="Copy segments; do not make hard links.")
@click.option("--anew", is_flag=True,
              help="Replace the earlier copy of a partition whose log is another one now, instead of refusing.")
@click.option("--threads", type=Whole(1, 64), default=THREADS, show_default=True, metavar="N",
              help="How many partitions to copy at a time.")  # fmt: skip
@cluster_options
def take(
    topics: Sequence[str],
    to: str,
    log_dirs: Sequence[Path],
    no_log_dirs: bool,
    copies: bool,
    anew: bool,
    threads: int,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Back up topics, named or by patterns such as 'orders*', from a running cluster: their records up to the high
    watermark, their configs, and the offsets of groups.

    A second run to the same place adds what is new. A run that is interrupted leaves a valid backup, which the next one
    continues.

    Exit codes: 0 done; 1 some partitions were not backed up, or the broker refused or could not be reached; 2 the
    command or its options are wrong; 130 ended by Ctrl-C.
    """
    if no_log_dirs and log_dirs:
        raise Misuse("--from-log-dir and --no-log-dirs contradict each other")
    chosen = () if no_log_dirs else list(log_dirs) or None
    options = BackupOptions(chosen, CopyOptions(anew=anew, links=not copies), threads)
    with opened(to, write=True) as target, bar("Backing up") as begin:
        taken = BackupRun(connector(bootstrap_server, timeout_s), target, wall_ms(), options).take(topics, begin=begin)
    if as_json:
        output.as_json(_taken_document(to, taken))
    else:
        _show_taken(taken)
    warn(taken.warnings)
    if taken.failed:
        warn(taken.failed[1:])
        others = f"; {len(taken.failed) - 1} more partitions failed, as said above" if len(taken.failed) > 1 else ""
        raise Failure(f"{taken.failed[0]}{others}")


@command.command("verify")
@click.argument("backup", metavar="DIR|ADDRESS")
@click.option("--json", "as_json", is_flag=True, help="Answer with a JSON document.")
def verify_command(backup: str, as_json: bool) -> None:
    """Read a whole backup, and check every file and every batch in it against the manifest and their CRCs.

    Exit codes: 0 the backup is sound; 1 it is damaged, or cannot be read; 2 the command is wrong.
    """
    with opened(backup, write=False) as target, bar("Verifying") as begin:
        found = verify(target, begin)
    if as_json:
        output.as_json({**contents(backup, found.manifest), "files": found.files, "damage": found.damage})
    else:
        _show_verified(found)
    if found.damage:
        warn(found.damage[1:])
        others = f"; {len(found.damage) - 1} more files are damaged" if len(found.damage) > 1 else ""
        raise Failure(f"{found.damage[0]}{others}")


def connector(bootstrap: str, timeout_s: float) -> Connect:
    """A function that makes an admin client on any thread; the options are known only to this one. Misuse if they
    contradict each other."""
    admin_of(bootstrap, timeout_s).close()
    login = profiles.security()
    return lambda: Admin(bootstrap, timeout_s=timeout_s, **login)


@contextlib.contextmanager
def opened(place: str, *, write: bool) -> Iterator[Target]:
    """The target of a backup, closed in the end."""
    with contextlib.closing(open_target(place, write=write)) as target:
        yield target


def warn(sentences: Sequence[str]) -> None:
    """Print sentences to standard error, but not thousands of them."""
    for words in sentences[:SHOWN_MAX]:
        click.echo(f"pybroker: {printable(words)}", err=True)
    if len(sentences) > SHOWN_MAX:
        click.echo(f"pybroker: and {len(sentences) - SHOWN_MAX} more", err=True)


def contents(place: str, manifest: Manifest) -> Document:
    """The contents of a backup, as a document."""
    return {
        "backup": place,
        "cluster_id": manifest.cluster_id,
        "taken": time_text(manifest.taken_ms),
        "complete": manifest.complete,
        "bytes": manifest.size,
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "bytes": topic.size,
                "configs": dict(topic.configs),
                "partitions": [
                    {"partition": p.partition, "directory": p.directory, "earliest": p.start_offset,
                     "latest": p.end_offset, "missing": [list(each) for each in p.missing]}
                    for p in topic.partitions
                ],
            }
            for topic in manifest.topics
        ],
        "groups": sorted(manifest.groups),
    }  # fmt: skip


def _taken_document(place: str, taken: Taken) -> Document:
    new = {topic.backup.name: topic.new_bytes for topic in taken.topics}
    return {
        **contents(place, taken.manifest), "new_bytes": new, "linked_bytes": taken.linked_bytes,
        "warnings": list(taken.warnings), "failed": list(taken.failed),
    }  # fmt: skip


def _show_taken(taken: Taken) -> None:
    rows = [
        (topic.backup.name, len(topic.backup.partitions), output.size(topic.new_bytes), output.size(topic.backup.size))
        for topic in taken.topics
    ]
    output.table(("topic", "partitions", "new", "in all"), rows)
    linked = f", {output.size(taken.linked_bytes)} of it as hard links" if taken.linked_bytes else ""
    new = output.size(sum(topic.new_bytes for topic in taken.topics))
    click.echo(f"Backed up {new}{linked}; offsets of {len(taken.manifest.groups)} groups.")


def _show_verified(found: Verified) -> None:
    manifest = found.manifest
    rows = [
        (topic.name, len(topic.partitions), sum(p.end_offset - p.start_offset for p in topic.partitions),
         output.size(topic.size))
        for topic in manifest.topics
    ]  # fmt: skip
    output.table(("topic", "partitions", "offsets", "size"), rows)
    if not found.damage:
        state = "sound" if manifest.complete else "sound, but its last run did not end"
        words = f"{found.files} files, {found.batches} batches"
        click.echo(f"The backup of {time_text(manifest.taken_ms)} is {state}: {words}.")
