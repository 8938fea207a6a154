"""`pybroker scrub`: have a running broker check its sealed segments now, and report the damage.

    request: 0 in scrub-checkpoint ──> a pass that began after the request ──> damage-checkpoint has the result
     ^                                   │
     └── a pass was under way: ask again ┘
"""

import fcntl
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from pybroker.cli import output
from pybroker.cli.files.finding import lost_offsets
from pybroker.cli.main import EXIT_FAILED, Failure
from pybroker.model import TopicPartition
from pybroker.replication import scrub
from pybroker.replication.disks import checkpoints
from pybroker.replication.disks.checkpoints import Pass, Spot
from pybroker.replication.disks.damage import segment_file
from pybroker.replication.disks.lock_file import LOCK

DIRECTORY: Final = click.Path(path_type=Path, exists=True, file_okay=False)
LOOK_S: Final = 0.1
FIRST_LOOK_S: Final = 10.0
"""A broker looks at each of its log dirs every second, and for the first time within this time of its start."""
_FLOCK: Final = "hhqqi0q"
"""struct flock of fcntl(2): type, whence, start, length, pid."""


@click.command(name="scrub")
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=DIRECTORY)
@click.option("--no-wait", is_flag=True, help="Ask for the check, and do not wait for its result.")
@click.option("--json", "as_json", is_flag=True, help="Write a JSON object on a line for each damaged place.")
def command(directories: Sequence[Path], no_wait: bool, as_json: bool) -> None:
    """Have the broker that uses these log dirs check every batch of their sealed segments now. List what is
    damaged.

    Run the command on the machine of the broker. The check reads no faster than log.scrub.io.max.bytes.per.second,
    which you can alter while it runs. If you interrupt the command, the check goes on. For a log dir that no broker
    uses, run pybroker doctor.

    Exit codes: 0 nothing is damaged, or --no-wait; 1 something is, or could not be checked, or no broker uses a
    directory; 2 there is no such directory.
    """
    asked = {directory: _ask(directory) for directory in directories}
    found = 0
    for directory, asked_ms in asked.items():
        if no_wait:
            continue
        unchecked = _wait(directory, asked_ms)
        before = found
        for spot in _damaged(directory):
            found += 1
            _show(spot, as_json)
        if unchecked:
            found += 1
            what = f"{unchecked} partitions or segments could not be checked: the broker's log says why"
            click.echo(f"pybroker: {directory}: {what}", err=True)
        if found == before and not as_json:
            click.echo(f"{directory}: nothing is damaged in sealed segments.")
    if found:
        sys.exit(EXIT_FAILED)


def in_use(directory: Path) -> bool:
    """True if a broker holds a log dir. Tests the lock without taking it, so a starting broker is not disturbed."""
    try:
        with open(directory / LOCK, "rb") as lock:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            held: int = struct.unpack(_FLOCK, fcntl.fcntl(lock, fcntl.F_GETLK, asked))[0]
    except FileNotFoundError:
        return False
    return held != fcntl.F_UNLCK


def _ask(directory: Path) -> int:
    """Request a check; return the time of the request. A broker that has just started creates its checkpoint at its
    first look."""
    deadline = time.monotonic() + FIRST_LOOK_S
    while True:
        if not in_use(directory):
            raise Failure(f"no broker uses {directory}: pybroker doctor {directory} examines it")
        try:
            return scrub.ask(directory)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise Failure(f"the broker that uses {directory} does not scrub it: is it pybroker?") from None
            time.sleep(LOOK_S)


def _wait(directory: Path, asked_ms: int) -> int:
    """Wait for a pass that began after the request; return the number of partitions and segments that it left out."""
    began_s = time.monotonic()
    shown = sys.stderr.isatty()
    while (last := scrub.read_last(directory) or Pass(0)).began_ms < asked_ms:
        if last.began_ms:  # that pass began before the request
            asked_ms = _ask(directory)
        elif not in_use(directory):
            raise Failure(f"the broker that uses {directory} ended: it checks the directory after its next start")
        if shown:
            click.echo(f"\r{directory}: checking for {time.monotonic() - began_s:.0f} s ", nl=False, err=True)
        time.sleep(LOOK_S)
    if shown:
        click.echo("\r\x1b[K", nl=False, err=True)
    return last.unchecked


def _damaged(directory: Path) -> Iterator[tuple[str, TopicPartition, Spot]]:
    """Yield the bad spots that the broker recorded: file, partition, bytes and offsets."""
    path = directory / checkpoints.DAMAGE
    try:
        known = checkpoints.read_damage(path.read_text("utf-8"))
    except FileNotFoundError:  # no damage was ever recorded
        return
    except (UnicodeDecodeError, checkpoints.Malformed) as problem:
        remedy = "pybroker doctor --fix repairs it while the broker is stopped"
        raise Failure(f"{path} cannot be used: {problem}; {remedy}") from None
    for key, spots in sorted(known.items()):
        for spot in sorted(spots):
            yield segment_file(str(directory / str(key)), spot.base), key, spot


def _show(damaged: tuple[str, TopicPartition, Spot], as_json: bool) -> None:
    path, key, spot = damaged
    size = spot.end - spot.position
    if as_json:
        place = {"file": path, "topic": key.topic, "partition": key.partition, "position": spot.position, "bytes": size}
        output.as_json_line({**place, "first_offset": spot.first, "last_offset": spot.next - 1})
    else:
        click.echo(f"{path}: {size} bytes at position {spot.position} are not a valid batch")
        click.echo(f"    {lost_offsets(spot, f' of {key}')}")
