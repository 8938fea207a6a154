"""`pybroker brokers`: list them, and empty, retire or replace one."""

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import click

from pybroker.cli import output
from pybroker.cli.main import Failure
from pybroker.cli.options import address_options, admin_of, cluster_options
from pybroker.cli.reassign import balancer
from pybroker.cli.reassign.goals import BROKER, limit_options, run_options
from pybroker.cli.reassign.measuring import log_dirs, measure
from pybroker.cli.reassign.running import POLL_S, RunOptions
from pybroker.cli.reassign.showing import number, share
from pybroker.cli.reassign.steps import move_by_plan
from pybroker.client.admin import Admin
from pybroker.decisions.planning.planner import plan
from pybroker.decisions.planning.snapshot import Goals
from pybroker.logs import printable

ROUNDS_MAX: Final = 3
"""Times that a broker is drained: topics that are created meanwhile may get replicas on it."""
F = TypeVar("F", bound=Callable[..., object])


@click.group(name="brokers")
def command() -> None:
    """List the brokers of a cluster, and empty, retire or replace one while clients go on.

    Exit codes: 0 done; 1 the plan or the broker refused, or could not be reached; 2 the command or its options are
    wrong.
    """


def _run_options(function: F) -> F:
    return limit_options(run_options(address_options(function)))


@command.command("list")
@cluster_options
def list_(bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show each broker: where it is, how full its disks are, and how many replicas it has and partitions it prefers to
    lead. A broker that is not live, but has replicas, is shown without an address. The balancer moves nothing to
    drained ones."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        nodes = {node.id: node for node in admin.describe_cluster().nodes}
        measured, drained = measure(admin), balancer.excluded(admin)
    held = plan(measured.snapshot, Goals()).before
    if as_json:
        output.as_json(
            [
                {
                    "id": broker, "live": broker in nodes,
                    "host": nodes[broker].host if broker in nodes else None,
                    "port": nodes[broker].port if broker in nodes else None,
                    "rack": nodes[broker].rack if broker in nodes else None,
                    "data_bytes": each.data_bytes, "disk_share": each.disk_share, "replicas": each.replicas,
                    "preferred_leaders": each.leaders, "drained": broker in drained,
                }
                for broker, each in held.items()
            ]
        )  # fmt: skip
        return
    rows: list[tuple[output.Cell, ...]] = []
    for broker, each in held.items():
        host, port, rack = nodes[broker][1:4] if broker in nodes else (None, None, None)
        size = output.size(each.data_bytes)
        mark = "yes" if broker in drained else None
        rows.append((broker, host, port, rack, size, share(each), each.replicas, each.leaders, mark))
    output.table(("broker", "host", "port", "rack", "bytes", "disk", "replicas", "preferred", "drained"), rows)
    for why in measured.silent:
        click.echo(f"pybroker: {printable(why)}", err=True)


@command.command()
@click.argument("broker", type=BROKER)
@_run_options
def drain(
    broker: int, throttle: int | None, batch: int, yes: bool, disk_limit: int, fewer_racks: bool, bootstrap_server: str,
    timeout_s: float,
) -> None:  # fmt: skip
    """Move all replicas off a broker, which stays in the cluster: new topics may be placed on it again.

    The continuous balancer and drains of other brokers move nothing to it until `brokers admit`.
    """
    how = RunOptions(throttle, batch, bootstrap_server, timeout_s)
    if not _is_gone(broker, how):
        _drain(broker, {}, how, yes, disk_limit, fewer_racks)
    click.echo(f"Broker {broker} holds no replica.")


@command.command()
@click.argument("broker", type=BROKER)
@_run_options
def retire(
    broker: int, throttle: int | None, batch: int, yes: bool, disk_limit: int, fewer_racks: bool, bootstrap_server: str,
    timeout_s: float,
) -> None:  # fmt: skip
    """Move all replicas off a broker, and say when it may be switched off."""
    how = RunOptions(throttle, batch, bootstrap_server, timeout_s)
    if not _is_gone(broker, how):
        _drain(broker, {}, how, yes, disk_limit, fewer_racks)
    click.echo(f"Broker {broker} holds no replica: it may be switched off.")


@command.command()
@click.argument("broker", type=BROKER)
@click.argument("successor", type=BROKER)
@_run_options
def replace(
    broker: int, successor: int, throttle: int | None, batch: int, yes: bool, disk_limit: int, fewer_racks: bool,
    bootstrap_server: str, timeout_s: float,
) -> None:  # fmt: skip
    """Move all replicas of a broker to SUCCESSOR, a live broker, and say when the old one may be switched off.

    A replica goes to another broker where SUCCESSOR has one of the partition, is in a rack that has one, or is full.
    The old broker need not be live. The continuous balancer may move replicas to SUCCESSOR again if it was drained.
    """
    how = RunOptions(throttle, batch, bootstrap_server, timeout_s)
    if not _is_gone(broker, how):
        _drain(broker, {broker: successor}, how, yes, disk_limit, fewer_racks)
    click.echo(f"Broker {broker} holds no replica: it may be switched off.")


@command.command()
@click.argument("broker", type=BROKER)
@address_options
def admit(broker: int, bootstrap_server: str, timeout_s: float) -> None:
    """Let the balancer, and drains of other brokers, move replicas to one again that was drained or replaced."""
    with admin_of(bootstrap_server, timeout_s) as admin:
        was = balancer.admit(admin, {broker})
    click.echo(f"Broker {broker} may get replicas from the balancer{' again' if was else ''}.")


def _drain(
    broker: int, successors: Mapping[int, int], how: RunOptions, yes: bool, disk_limit: int, fewer_racks: bool
) -> None:
    """Move replicas off a broker until it holds none, and none to brokers that were drained before. Failure if a plan
    is refused, or new ones keep coming."""
    with admin_of(how.bootstrap, how.timeout_s) as admin:
        drained = frozenset(balancer.excluded(admin) - {broker})
    goals = Goals(frozenset({broker}), successors, drained, disk_limit=disk_limit / 100, fewer_racks=fewer_racks)
    for _ in range(ROUNDS_MAX):
        move_by_plan(lambda _: goals, how, yes, emptied={broker})
        with admin_of(how.bootstrap, how.timeout_s) as admin:
            if not (held := _held(admin, broker)) and _deleted(admin, broker, how.timeout_s):
                return
    raise Failure(
        f"broker {broker} still holds {number(held, 'replica')}: topics that were created meanwhile are on it"
    )


def _is_gone(broker: int, how: RunOptions) -> bool:
    """True if a broker was drained before, and is neither live nor holds a replica: no plan knows it any more."""
    with admin_of(how.bootstrap, how.timeout_s) as admin:
        is_live = any(node.id == broker for node in admin.describe_cluster().nodes)
        return not is_live and broker in balancer.excluded(admin) and not _held(admin, broker)


def _held(admin: Admin, broker: int) -> int:
    """The number of replicas that the cluster assigns to a broker."""
    return sum(broker in partition.replicas for topic in admin.topics() for partition in topic.partitions)


def _deleted(admin: Admin, broker: int, timeout_s: float) -> bool:
    """Wait until a live broker has deleted the logs of its last replicas. Failure if that takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        nodes = [node for node in admin.describe_cluster().nodes if node.id == broker]
        found, silent = log_dirs(nodes)
        logs = sum(len(log_dir.replicas) for log_dir in found.get(broker, ()))
        if not logs and not silent:
            return True
        if time.monotonic() > deadline_s:
            why = f"still has the logs of {number(logs, 'replica')}"
            if broker in silent:
                why = f"does not report its logs: {silent[broker]}"
            raise Failure(f"broker {broker} has no replica assigned, and {why}")
        time.sleep(POLL_S)
