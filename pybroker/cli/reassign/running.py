"""Carries out a plan: batch after batch, with a progress bar, a throttle that goes with it, and Ctrl-C at any time."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import click

from pybroker import errors
from pybroker.cli.main import Failure
from pybroker.cli.options import admin_of
from pybroker.cli.reassign import balancer
from pybroker.cli.reassign import throttle as throttles
from pybroker.cli.reassign.assignments import Targets
from pybroker.cli.reassign.measuring import log_dirs
from pybroker.cli.reassign.showing import number
from pybroker.cli.waiting import WaitReport
from pybroker.client.admin import Admin
from pybroker.decisions.planning.measuring import sizes_of
from pybroker.decisions.planning.snapshot import ClusterSnapshot, PlanPartition
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.model import TopicPartition, bytes_text
from pybroker.patience import patiently

POLL_S: Final = 0.5
SETTLE_S_MAX: Final = 10.0
"""Seconds for which a partition that is no longer being moved may still show its old replicas."""
NAMED_MAX: Final = 3


class RunOptions(NamedTuple):
    """Options of a run: bytes a second for each broker (None: no limit), partitions in a batch, the cluster."""

    throttle: int | None
    batch: int
    bootstrap: str
    timeout_s: float


class NothingMoved(Failure):
    """The controller refused each move."""


def carry_out(
    snapshot: ClusterSnapshot, targets: Targets, how: RunOptions,
    while_moving: Callable[[Admin], AbstractContextManager[None]] | None = None,
) -> None:  # fmt: skip
    """Move partitions to their targets, and wait until they are there. Failure if one is refused or cancelled, or if
    the cluster does not answer for the timeout of a request; NothingMoved if each is refused. `while_moving` is entered
    when the first move is about to begin: nothing on this side is in its way then.

    Ctrl-C ends the wait: what has begun goes on, and later batches do not begin."""
    known = {partition.partition: partition for partition in snapshot.partitions}
    if missing := [tp for tp in targets if tp not in known]:
        raise Failure(f"partition {missing[0]} does not exist")
    begun: list[TopicPartition] = []
    left: dict[TopicPartition, PlanPartition] = {}
    try:
        with admin_of(how.bootstrap, how.timeout_s) as admin:
            balancer.take_over(admin, how.timeout_s)
            before = _under_way(admin, targets)
            begun += before
            left |= {tp: known[tp]._replace(replicas=replicas) for tp, replicas in before.items()}
            left |= {tp: known[tp] for tp, to in targets.items() if tp not in left and known[tp].replicas != to}
            throttled = _throttle(admin, snapshot, left, targets, how)
            for sentence in throttled.kept:
                click.echo(f"pybroker: {printable(sentence)}", err=True)
            with while_moving(admin) if while_moving is not None and left else contextlib.nullcontext():
                _run(admin, snapshot, left, targets, how, begun, throttled.own)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_what_goes_on(begun, len(left) - len(begun))) from None
    except KafkaError as problem:
        raise Failure(f"{problem.message}; {_what_goes_on(begun, len(left) - len(begun))}") from problem


def _under_way(admin: Admin, targets: Targets) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the original replicas of partitions that are on the way to these targets. Failure if other partitions are
    being moved, or these ones to other brokers."""
    before = {}
    for tp, now in admin.list_partition_reassignments().items():
        goal = tuple(broker for broker in now.replicas if broker not in now.removing)
        if set(targets.get(tp, ())) != set(goal):
            ids = ",".join(map(str, goal))
            raise Failure(
                f"partition {tp} is being moved to {ids} already: see pybroker reassign status, or cancel it first"
            )
        before[tp] = tuple(broker for broker in now.replicas if broker not in now.adding)
    return before


def _throttle(
    admin: Admin, snapshot: ClusterSnapshot, left: Mapping[TopicPartition, PlanPartition], targets: Targets,
    how: RunOptions,
) -> throttles.Throttled:  # fmt: skip
    """Set the throttle of these moves, if the run has one. Returns and raises as `set_throttle`."""
    if how.throttle is None or not left:
        return throttles.Throttled([], throttles.NO_LISTS)
    live = [broker.id for broker in snapshot.brokers if broker.live]
    moves = {tp: (partition.replicas, targets[tp]) for tp, partition in left.items()}
    return throttles.set_throttle(admin, how.throttle, live, moves)


def _run(
    admin: Admin, snapshot: ClusterSnapshot, left: Mapping[TopicPartition, PlanPartition], targets: Targets,
    how: RunOptions, begun: list[TopicPartition], own: throttles.Lists,
) -> None:  # fmt: skip
    """Move the partitions that are left, batch after batch, and remove the throttle. Failure as `carry_out`.

    A command that looked at the cluster between two batches may have removed the throttle: each batch sets its own."""
    sizes = {tp: _copied(partition, targets[tp]) for tp, partition in left.items()}
    failed: list[str] = []
    refused: list[str] = []
    order = list(left)
    with _bar(sum(sizes.values())) as advance:
        for at in range(0, len(order), how.batch):
            batch = {tp: targets[tp] for tp in order[at : at + how.batch]}
            if at:
                part = {tp: left[tp] for tp in batch}
                patiently(functools.partial(_throttle, admin, snapshot, part, targets, how), how.timeout_s)
            fresh = {tp: replicas for tp, replicas in batch.items() if tp not in begun}
            begun += fresh
            refused += _begin(admin, fresh, how.timeout_s) if fresh else []
            _wait(admin, batch, advance, sizes, sum(sizes[tp] for tp in order[:at]), how.timeout_s)
            failed += _not_there(admin, batch, refused, how.timeout_s)
    rate = patiently(lambda: throttles.remove_throttle(admin, own), how.timeout_s)
    copied = bytes_text(sum(sizes.values()))
    if failed := refused + failed:
        kind = NothingMoved if len(refused) == len(order) else Failure
        rest = f" and {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        raise kind(f"{number(len(failed), 'partition')} not moved: {'; '.join(failed[:NAMED_MAX])}{rest}")
    removed = f" The throttle of {bytes_text(rate)}/s is removed." if rate is not None else ""
    click.echo(f"Moved {number(len(order), 'partition')}, {copied}.{removed}")


def _copied(partition: PlanPartition, target: Sequence[int]) -> int:
    return partition.size_bytes * len(set(target) - set(partition.replicas))


def _begin(admin: Admin, batch: Targets, timeout_s: float) -> list[str]:
    """Begin a batch; return a sentence for each partition that the controller refuses."""
    asked: Mapping[tuple[str, int], Sequence[int]] = {tp: list(replicas) for tp, replicas in batch.items()}
    answers = patiently(lambda: admin.alter_partition_reassignments(asked), timeout_s)
    return [f"{tp}: {error.message or error.name}" for tp, error in answers.items() if error is not None]


def _wait(
    admin: Admin, batch: Targets, advance: Callable[[int], None], sizes: Mapping[TopicPartition, int], before: int,
    timeout_s: float,
) -> None:  # fmt: skip
    """Wait until no partition of a batch is being moved; `before` are the bytes of earlier batches."""
    while moving := patiently(lambda: admin.list_partition_reassignments(batch), timeout_s):
        if sys.stderr.isatty():
            there = sum(sizes[tp] for tp in batch if tp not in moving)
            adding = {tp: each.adding for tp, each in moving.items()}
            copied = patiently(functools.partial(arrived, admin, adding), timeout_s)
            advance(before + there + sum(min(n, sizes[tp]) for tp, n in copied.items()))
        time.sleep(POLL_S)
    advance(before + sum(sizes[tp] for tp in batch))


def arrived(admin: Admin, adding: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, int]:
    """Return the bytes that the replicas to be added have so far, by partition."""
    wanted = {broker for brokers in adding.values() for broker in brokers}
    nodes = [node for node in admin.describe_cluster().nodes if node.id in wanted]
    found, _ = log_dirs(nodes, sorted({tp.topic for tp in adding}))
    sizes = sizes_of(found.values())
    return {tp: sum(sizes.get((tp, broker), 0) for broker in brokers) for tp, brokers in adding.items()}


def _not_there(admin: Admin, batch: Targets, refusals: Sequence[str], timeout_s: float) -> list[str]:
    """Return a sentence for each partition of a batch that is not on its target, though it was not refused."""
    refused = {sentence.partition(":")[0] for sentence in refusals}
    deadline_s = time.monotonic() + SETTLE_S_MAX
    while True:
        topics = patiently(admin.topics, timeout_s)
        now = {TopicPartition(topic.name, p.partition): p.replicas for topic in topics for p in topic.partitions}
        off = [tp for tp, wanted in batch.items() if set(now.get(tp, ())) != set(wanted) and str(tp) not in refused]
        if not off or time.monotonic() > deadline_s:
            return [f"{tp}: it was cancelled, or moved elsewhere, meanwhile" for tp in off]
        time.sleep(POLL_S)


def _what_goes_on(begun: Sequence[TopicPartition], later: int) -> str:
    words = f"the move of {number(len(begun), 'partition')} goes on" if begun else "no move was begun"
    rest = f"; {number(later, 'partition')} of later batches not begun: the same command goes on there" if later else ""
    return f"{words}{rest}. pybroker reassign status shows it, and removes its throttle."


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error while the block runs, if that is a terminal; yield what sets its bytes."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("moving"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("moving", total=max(1, total))
        yield lambda done: progress.update(task, completed=min(done, total))


def until_none(admin: Admin, partitions: Sequence[TopicPartition], timeout_s: float) -> bool:
    """Wait until no cancelled move of these partitions is under way; False if that took longer."""
    deadline_s = time.monotonic() + timeout_s
    with WaitReport() as wait:
        while moving := patiently(lambda: admin.list_partition_reassignments(partitions), timeout_s):
            if time.monotonic() > deadline_s:
                return False
            wait.on(f"for the cancelled move of {number(len(moving), 'partition')} to end")
            time.sleep(POLL_S)
    return True


NOT_MOVING: Final = errors.NO_REASSIGNMENT_IN_PROGRESS
