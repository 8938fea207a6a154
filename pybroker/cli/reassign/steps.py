"""Plans and carries out: what `reassign execute` and the commands about brokers share."""

import contextlib
from collections.abc import Callable, Collection, Iterator

import click

from pybroker.cli.main import Failure
from pybroker.cli.options import admin_of, ask
from pybroker.cli.reassign import assignments, balancer
from pybroker.cli.reassign.measuring import measure
from pybroker.cli.reassign.running import NothingMoved, RunOptions, carry_out
from pybroker.cli.reassign.showing import show_plan, summary
from pybroker.client.admin import Admin
from pybroker.decisions.planning.planner import plan as plan_for
from pybroker.decisions.planning.snapshot import ClusterSnapshot, Goals
from pybroker.logs import printable


def move_by_plan(
    goals_for: Callable[[ClusterSnapshot], Goals], how: RunOptions, yes: bool, emptied: Collection[int] = ()
) -> None:
    """Plan for the cluster as it is, show the plan, ask unless `yes`, and carry it out. Failure if it is refused.

    The balancer may use the brokers that the plan fills, and no longer the `emptied` ones, once the first move is about
    to begin, or there is none to make: a plan that is refused or declined, by the controller too, changes nothing."""
    with admin_of(how.bootstrap, how.timeout_s) as admin:
        balancer.take_over(admin, how.timeout_s)
        measured = measure(admin)
    goals = goals_for(measured.snapshot)
    made = plan_for(measured.snapshot, goals)

    @contextlib.contextmanager
    def marked(admin: Admin) -> Iterator[None]:
        out = balancer.exclude(admin, emptied)
        back = balancer.admit(admin, {*goals.add, *goals.successors.values()})
        try:
            yield
        except NothingMoved:
            balancer.admit(admin, out)
            balancer.exclude(admin, back)
            raise

    for why in measured.silent:
        click.echo(f"pybroker: {printable(why)}", err=True)
    if made.refused:
        raise Failure("refused: " + "; ".join(made.refused))
    if not made.moves:
        with admin_of(how.bootstrap, how.timeout_s) as admin, marked(admin):
            pass
        click.echo(summary(made, None))
        return
    show_plan(measured.snapshot, made, how.throttle, partitions=False)
    ask("Move them?", yes, "nothing was moved")
    carry_out(measured.snapshot, assignments.of_plan(made), how, while_moving=marked)
