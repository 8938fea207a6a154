"""`pybroker move-log-dir`: moves replicas to another log dir of their broker, and shows how far they are."""

import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import click

from pybroker.cli import output
from pybroker.cli.main import Failure, Whole
from pybroker.cli.options import admin_of, cluster_options, complete_topics
from pybroker.cli.reset import partitions_of
from pybroker.client.admin import LogDir
from pybroker.model import TopicPartition
from pybroker.patience import patiently

_EVERY_S: Final = 0.5
_ERASE: Final = "\r\x1b[K"


@click.command(name="move-log-dir")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC[:P,P]...", shell_complete=complete_topics)
@click.option("--to", required=True, metavar="DIR", help="The log dir, as `pybroker logdirs` names it.")
@click.option("--broker", type=Whole(0), metavar="ID",
              help="The broker whose replicas move; needed if several brokers have some.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Begin the moves, and end.")
@cluster_options
def command(
    topics: Sequence[str],
    to: str,
    broker: int | None,
    no_wait: bool,
    bootstrap_server: str,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Move replicas to another log dir of their broker, while they are in use.

    The command waits, and shows the progress on a terminal. Ctrl-C ends only the command: the broker goes on, and
    `pybroker logdirs TOPIC` shows the copies. To cancel a move, give the log dir that the replica is in.

    Exit codes: 0 done; 1 the broker refused or could not be reached, or a replica was not moved; 2 the command or its
    options are wrong.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        partitions = partitions_of(admin, topics)
        names = sorted({partition.topic for partition in partitions})
        found = admin.log_dirs(None if broker is None else [broker], names)
        broker = _broker(found, partitions, to)
        admin.alter_replica_log_dirs(broker, dict.fromkeys(partitions, to))
        if no_wait:
            _say(partitions, broker, to, as_json, "Moving")
            return
        look = functools.partial(admin.log_dirs, [broker], names)
        left = _Progress(lambda: patiently(look, timeout_s), to).wait(partitions)
    if left:
        raise Failure(f"not in {to}: {', '.join(map(str, left))}; the log of broker {broker} says why")
    _say(partitions, broker, to, as_json, "Moved")


def _broker(found: Iterable[LogDir], partitions: Iterable[TopicPartition], to: str) -> int:
    """The one broker that has the log dir and replicas of the partitions. Failure if there is none, or several."""
    holding = {d.broker for d in found for replica in d.replicas if replica.partition in set(partitions)}
    having = {log_dir.broker for log_dir in found if log_dir.path == to}
    if len(holding & having) == 1:
        return next(iter(holding & having))
    if holding & having:
        ids = ", ".join(map(str, sorted(holding & having)))
        raise Failure(f"brokers {ids} have replicas of these partitions and the log dir {to}: give one as --broker")
    if not having:
        raise Failure(f"no broker has the log dir {to}: `pybroker logdirs` shows those that there are")
    raise Failure(f"no broker with the log dir {to} has a replica of these partitions")


def _say(partitions: Iterable[TopicPartition], broker: int, to: str, as_json: bool, done: str) -> None:
    rows = [(partition.topic, partition.partition) for partition in sorted(partitions)]
    if as_json:
        output.as_json([{"topic": t, "partition": p, "broker": broker, "log_dir": to} for t, p in rows])
        return
    for topic, index in rows:
        click.echo(f"{done} {topic}-{index} on broker {broker} to {to}.")


class _Look(NamedTuple):
    """The replicas that are being copied and those that are not in the new log dir, and their bytes."""

    moving: list[TopicPartition]
    stays: list[TopicPartition]
    copied: int
    size: int


class _Progress:
    """Waits until replicas have moved, or no longer move."""

    def __init__(self, look: Callable[[], list[LogDir]], to: str) -> None:
        self._ask = look
        self._to = to
        self._began_s = time.monotonic()
        self._is_shown = sys.stderr.isatty()

    def wait(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that stayed where they were."""
        wanted = set(partitions)
        drawn = False
        try:
            while True:
                found = self._look(wanted)
                if not found.moving:
                    return found.stays
                if self._is_shown:
                    drawn = True
                    sys.stderr.write(f"{_ERASE}{self._line(found)}")
                    sys.stderr.flush()
                time.sleep(_EVERY_S)
        finally:
            if drawn:
                sys.stderr.write(_ERASE)
                sys.stderr.flush()

    def _look(self, wanted: set[TopicPartition]) -> _Look:
        moving, stays, copied, size = [], set(wanted), 0, 0
        for log_dir in self._ask():
            for replica in log_dir.replicas:
                if replica.partition not in wanted:
                    continue
                if replica.future:
                    moving.append(replica.partition)
                    copied += replica.size_bytes
                elif log_dir.path != self._to:
                    size += replica.size_bytes
                else:
                    stays.discard(replica.partition)
        return _Look(sorted(moving), sorted(stays), copied, size)

    def _line(self, found: _Look) -> str:
        seconds = max(time.monotonic() - self._began_s, 1e-3)
        left = f"{len(found.stays)} to move: " if len(found.stays) > 1 else ""
        return f"{left}{output.size(found.copied)} of {output.size(found.size)} copied in {seconds:.0f} s"
