"""`pybroker reassign`: plan moves of replicas, execute them, watch and cancel them."""

from collections.abc import Sequence

import click

from pybroker.cli import output
from pybroker.cli.main import Failure
from pybroker.cli.options import address_options, admin_of, cluster_options, complete_topics, say
from pybroker.cli.reassign import assignments, balancer
from pybroker.cli.reassign import throttle as throttles
from pybroker.cli.reassign.goals import THROTTLE, Wanted, goal_options, run_options
from pybroker.cli.reassign.measuring import measure
from pybroker.cli.reassign.running import NOT_MOVING, RunOptions, arrived, carry_out, until_none
from pybroker.cli.reassign.showing import number, show_plan
from pybroker.cli.reassign.steps import move_by_plan
from pybroker.client.admin import PartitionReassignment
from pybroker.decisions.planning.planner import plan as plan_for
from pybroker.logs import printable
from pybroker.model import TopicPartition, bytes_text


@click.group(name="reassign")
def command() -> None:
    """Move replicas to other brokers, while clients go on.

    Exit codes: 0 done; 1 the plan or the broker refused, or could not be reached; 2 the command or its options are
    wrong.
    """


@command.command()
@goal_options
@click.option(
    "--throttle",
    type=THROTTLE,
    metavar="BYTES",
    help="Show the time that the plan takes at so many bytes a second, for each broker.",
)
@click.option("--partitions", is_flag=True, help="Show the replicas of each partition before and after.")
@click.option(
    "--json",
    "file",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Write the plan to a file, in the format of kafka-reassign-partitions; - is standard output.",
)
@address_options
def plan(
    wanted: Wanted, throttle: int | None, partitions: bool, file: str | None, bootstrap_server: str, timeout_s: float
) -> None:  # fmt: skip
    """Plan moves that reach goals with few bytes copied, and show what each broker will hold. Moves nothing.

    A plan that would fill a disk above --disk-limit, or that lacks brokers or racks, is refused.
    """
    if not wanted.given:
        raise click.UsageError("no goal: give --drain, --add, --spread, --even-disks, --racks or --replication-factor")
    with admin_of(bootstrap_server, timeout_s) as admin:
        measured = measure(admin)
    made = plan_for(measured.snapshot, wanted.goals(measured.snapshot))
    for why in measured.silent:
        click.echo(f"pybroker: {printable(why)}", err=True)
    if made.refused and file == "-":
        raise Failure("refused: " + "; ".join(made.refused))
    if file == "-":
        output.as_json(assignments.document_of(assignments.of_plan(made)))
        return
    show_plan(measured.snapshot, made, throttle, partitions=partitions)
    if made.refused:
        raise click.exceptions.Exit(1)
    if file is not None:
        assignments.write_file(file, assignments.of_plan(made))
        click.echo(f"Wrote {file}.")


@command.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@goal_options
@run_options
@address_options
def execute(
    file: str | None, wanted: Wanted, throttle: int | None, batch: int, yes: bool, bootstrap_server: str,
    timeout_s: float,
) -> None:  # fmt: skip
    """Move replicas as FILE says, in the format of kafka-reassign-partitions, or as a plan for these goals does.

    Shows a progress bar until all are there. Ctrl-C ends the command, and not the moves that have begun: see `status`.
    The same command goes on where it was. A throttle is removed with the last move, by this command or by `status`.
    """
    if (file is None) != wanted.given:
        raise click.UsageError(
            "give either a FILE or goals" if wanted.given else "nothing to do: give a FILE, or goals"
        )
    how = RunOptions(throttle, batch, bootstrap_server, timeout_s)
    if file is None:
        move_by_plan(wanted.goals, how, yes)
        return
    targets = assignments.read_file(file)
    with admin_of(bootstrap_server, timeout_s) as admin:
        measured = measure(admin)
    carry_out(measured.snapshot, targets, how)


@command.command()
@cluster_options
def status(bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show which partitions are being moved, and how much of each has arrived.

    If none is, remove the throttle that an `execute` ended by Ctrl-C left. One that was set by hand stays. Moves of the
    continuous balancer are named as such, and end by themselves.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        moving = admin.list_partition_reassignments()
        its = {tp for tp in balancer.moves(admin) if tp in moving}
        note = throttles.noted(admin)
        there = arrived(admin, {tp: each.adding for tp, each in moving.items()}) if moving else {}
        sizes = {p.partition: p.size_bytes for p in measure(admin).snapshot.partitions} if moving else {}
        removed = throttles.remove_throttle(admin) if note is not None and not moving else None
    if as_json:
        partitions = [_document(tp, each, there[tp], sizes.get(tp, 0)) for tp, each in sorted(moving.items())]
        rate = note.rate if note is not None and moving else None
        output.as_json(
            {
                "partitions": partitions, "throttle": rate, "throttle_removed": removed is not None,
                "balancer": [str(tp) for tp in sorted(its)],
            }
        )  # fmt: skip
        return
    if moving:
        columns = ("topic", "partition", "replicas", "adding", "removing", "arrived", "of")
        rows = [
            (tp.topic, tp.partition, _ids(each.replicas), _ids(each.adding), _ids(each.removing),
             output.size(there[tp]), output.size(sizes.get(tp, 0) * len(each.adding)))
            for tp, each in sorted(moving.items())
        ]  # fmt: skip
        output.table(columns, rows)
        limited = "" if note is None else f", at {bytes_text(note.rate)}/s a broker"
        click.echo(f"{number(len(moving), 'partition')} being moved{limited}.")
        if its:
            click.echo(f"The balancer moves {len(its)} of them; its reasons are in the log of the controller's broker.")
        return
    words = f" Removed the throttle of {bytes_text(removed)}/s." if removed is not None else ""
    click.echo(f"No partition is being moved.{words}")


@command.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@cluster_options
def cancel(topics: Sequence[str], bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Cancel the moves of these topics, or all: each partition goes back to the replicas that it had.

    Partitions that have arrived stay where they are. The throttle is removed with the last move.
    """
    with admin_of(bootstrap_server, timeout_s) as admin:
        if unknown := [name for name in topics if not admin.exists(name)]:
            raise Failure(f"topic {unknown[0]} does not exist")
        moving = [tp for tp in admin.list_partition_reassignments() if not topics or tp.topic in topics]
        answers = admin.alter_partition_reassignments(dict.fromkeys(moving)) if moving else {}
        failed = {tp: e for tp, e in answers.items() if e is not None and e.code != NOT_MOVING}
        gone = until_none(admin, [tp for tp in moving if tp not in failed], timeout_s) if moving else True
        removed = throttles.remove_throttle(admin)
    if failed:
        raise Failure("; ".join(f"{tp} was not cancelled: {error.message}" for tp, error in sorted(failed.items())))
    if not gone:
        raise Failure(f"the moves are being cancelled, but not all were within {timeout_s:g} s: see reassign status")
    words = f" Removed the throttle of {bytes_text(removed)}/s." if removed is not None else ""
    document = {"cancelled": [str(tp) for tp in sorted(moving)], "throttle_removed": removed is not None}
    say(as_json, document, f"Cancelled the move of {number(len(moving), 'partition')}.{words}")


def _document(tp: TopicPartition, each: PartitionReassignment, there: int, size: int) -> output.Document:
    return {
        "topic": tp.topic, "partition": tp.partition, "replicas": list(each.replicas), "adding": list(each.adding),
        "removing": list(each.removing), "arrived_bytes": there, "bytes": size * len(each.adding),
    }  # fmt: skip


def _ids(brokers: Sequence[int]) -> str:
    return ",".join(map(str, brokers))
