"""Plans and carries out: what `reassign execute` and the commands about brokers share."""

from collections.abc import Callable

import click

from pybroker.cli.main import Failure
from pybroker.cli.options import admin_of, confirmed
from pybroker.cli.reassign import assignments, balancer
from pybroker.cli.reassign.measuring import measure
from pybroker.cli.reassign.running import RunOptions, carry_out
from pybroker.cli.reassign.showing import show_plan, summary
from pybroker.decisions.planning.planner import plan as plan_for
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals
from pybroker.logs import printable


def move_by_plan(goals_for: Callable[[ClusterSnapshot], Goals], how: RunOptions, yes: bool) -> None:
    """Plan for the cluster as it is, show the plan, ask unless `yes`, and carry it out. Failure if it is refused.

    Brokers that it is to fill are no longer excluded from the balancer, which would else never use them again."""
    with admin_of(how.bootstrap, how.timeout_s) as admin:
        balancer.take_over(admin, how.timeout_s)
        measured = measure(admin)
    goals = goals_for(measured.snapshot)
    made = plan_for(measured.snapshot, goals)
    for why in measured.silent:
        click.echo(f"pybroker: {printable(why)}", err=True)
    if made.refused:
        raise Failure("refused: " + "; ".join(made.refused))
    if not made.moves:
        _admit(goals, how)
        click.echo(summary(made, None))
        return
    show_plan(measured.snapshot, made, how.throttle, partitions=False)
    if not yes and not confirmed("Move them?"):
        raise Failure("nothing was moved: answer yes, or give --yes")
    _admit(goals, how)
    carry_out(measured.snapshot, assignments.of_plan(made), how)


def _admit(goals: Goals, how: RunOptions) -> None:
    """Let the balancer use the brokers that a plan adds, or that take over from others."""
    with admin_of(how.bootstrap, how.timeout_s) as admin:
        balancer.admit(admin, {*goals.add, *goals.successors.values()})
