"""`pybroker reassign`: plan moves of replicas, execute them, watch and cancel them."""

import click

from pybroker.cli import output
from pybroker.cli.main import Failure, Whole
from pybroker.cli.options import address_options, admin_of
from pybroker.cli.reassign import assignments
from pybroker.cli.reassign.goals import Wanted, goal_options
from pybroker.cli.reassign.measuring import measure
from pybroker.cli.reassign.showing import show_plan
from pybroker.decisions.planning.planner import plan as plan_for
from pybroker.logs import printable

THROTTLE = Whole(1, (1 << 63) - 1)


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
