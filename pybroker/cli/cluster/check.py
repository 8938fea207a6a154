"""`pybroker cluster check`: the health of a cluster as an exit code, and as sentences."""

import time
from typing import Final, NamedTuple

import click

from pybroker.cli import output
from pybroker.cli.each_broker import admin_at, in_command
from pybroker.cli.main import Failure
from pybroker.cli.options import admin_of, cluster_options
from pybroker.cli.waiting import WaitReport
from pybroker.errors import KafkaError
from pybroker.logs import printable
from pybroker.operations import health
from pybroker.operations.health import BrokerReports, ClusterHealth, counted

DEGRADED: Final = 1
UNREACHABLE: Final = 2
IN_SYNC: Final = "in-sync"
LOOK_EVERY_S: Final = 0.5
ANSWER_S_MIN: Final = 1.0
"""The least time that a broker gets for an answer, however little is left of --timeout."""


class Unreachable(Failure):
    """The cluster's state is unknown: no broker was reached, or the one that was refused."""

    exit_code = UNREACHABLE


class Checked(NamedTuple):
    """A cluster, what its brokers report of themselves, and a sentence for each way in which it is degraded."""

    cluster: ClusterHealth
    reports: BrokerReports
    problems: list[str]


@click.command(name="check")
@click.option("--wait", "wait_for", type=click.Choice([IN_SYNC]),
              help="First wait until each replica is in sync, for --timeout at most.")  # fmt: skip
@cluster_options
def command(wait_for: str | None, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Say whether a cluster is healthy, for people and scripts.

    It is degraded if a partition has no leader, too few replicas in sync for acks=all, or a replica that is not in
    sync; if a broker that has replicas is not registered; if a registered broker does not answer, or takes no writes;
    or if no controller is elected. Each is a sentence. The view is the one of the broker that answers.

    Exit codes: 0 healthy; 1 degraded; 2 unreachable, the state is not known; also 2 if an option is wrong.
    """
    try:
        checked = (in_sync if wait_for == IN_SYNC else check)(bootstrap_server, timeout_s)
    except KafkaError as error:
        if as_json:
            output.as_json({"state": "unreachable", "problems": [error.message]})
        raise Unreachable(error.message) from error
    _say(checked, as_json)
    if checked.problems:
        click.get_current_context().exit(DEGRADED)


def check(bootstrap: str, timeout_s: float) -> Checked:
    """Read the cluster, and ask each broker. Raises KafkaError."""
    with admin_of(bootstrap, timeout_s) as admin:
        found = health.read(admin)
    reports = health.probe(found.nodes, in_command(admin_at))
    return Checked(found, reports, health.problems(found, reports))


def in_sync(bootstrap: str, timeout_s: float) -> Checked:
    """Wait until no partition lacks a replica or its leader, then check. After `timeout_s` check as it is. Raises the
    KafkaError of the last look if no broker answers until then."""
    deadline = time.monotonic() + timeout_s
    with WaitReport("for an answer") as wait:
        while True:
            left_s = deadline - time.monotonic()
            try:
                with admin_of(bootstrap, max(left_s, ANSWER_S_MIN)) as admin:
                    lacks = _lacks(health.read(admin))
                if not lacks:
                    break
            except KafkaError as problem:
                if left_s <= 0:
                    raise
                lacks = f"an answer: {problem.message}"
            if left_s <= 0:
                break
            wait.on(f"for {lacks}")
            time.sleep(min(LOOK_EVERY_S, max(left_s, 0)))
    return check(bootstrap, max(deadline - time.monotonic(), ANSWER_S_MIN))


def _lacks(found: ClusterHealth) -> str:
    """Return what a cluster lacks until all is in sync, as words; empty for nothing."""
    if not found.nodes:
        return "a broker to register"
    return health.NO_CONTROLLER if found.controller is None else health.wait_words(found, found.troubled())


def _say(checked: Checked, as_json: bool) -> None:
    found = checked.cluster
    states = counted(each.state for each in found.troubled())
    if as_json:
        output.as_json(
            {
                "state": "degraded" if checked.problems else "healthy",
                "cluster": found.id, "controller": found.controller, "brokers": [node.id for node in found.nodes],
                "not_registered": found.away(), "not_answering": sorted(checked.reports.silent),
                "partitions": found.partitions,
                **{state.lower().replace(" ", "_").replace("-", "_"): number for state, number in states.items()},
                "problems": checked.problems,
            }
        )  # fmt: skip
        return
    size = f"{health.times(len(found.nodes), 'broker')}, controller {output.text(found.controller)}"
    what = f"{size}, {health.times(found.partitions, 'partition')}"
    if not checked.problems:
        click.echo(f"Cluster {output.text(found.id)} is healthy: {what}, each replica in sync.")
        return
    click.echo(f"Cluster {output.text(found.id)} is degraded: {what}.")
    for problem in checked.problems:
        click.echo(printable(f"- {problem}"))
