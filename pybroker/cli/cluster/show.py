"""`pybroker cluster`: a cluster's id, its brokers, and the partitions that lack a leader or a replica."""

from collections.abc import Mapping

import click
from click.core import ParameterSource

from pybroker.cli import output
from pybroker.cli.cluster import check, restart, start
from pybroker.cli.each_broker import admin_at, in_command
from pybroker.cli.options import admin_of, cluster_options
from pybroker.cli.output import Options
from pybroker.client.net.metadata import Node
from pybroker.operations import health
from pybroker.operations.health import BrokerReports, ClusterHealth, counted, ids


@click.group(name="cluster", invoke_without_command=True)
@cluster_options
@click.pass_context
def command(ctx: click.Context, bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show a cluster's id, its controller, its brokers with the partitions they lead, and each partition that lacks a
    leader or a replica, as one broker knows them.

    A partition is offline without a leader, under min ISR with fewer replicas in sync than its min.insync.replicas, and
    under-replicated with fewer than it has replicas. It counts in each state that is less serious, too: without
    under-replicated partitions each replica is in sync.

    A broker that does not answer within 2 s is named; it stays in the cluster until its session ends.

    A broker with a metrics.listener reports the epoch of its registration and that of the controller, and which of its
    log dirs are full; the epochs of leaders are in topics describe --json.

    The commands check, restart and start have exit codes and options of their own.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 an option is wrong.
    """
    if ctx.invoked_subcommand is not None:
        own = {"bootstrap_server": bootstrap_server, "timeout_s": timeout_s, "as_json": as_json}
        typed = {name: value for name, value in own.items() if _is_typed(ctx, name)}
        ctx.default_map = {ctx.invoked_subcommand: typed}  # cluster -b HOST check is cluster check -b HOST
        return
    with admin_of(bootstrap_server, timeout_s) as admin:
        found = health.read(admin)
    _show(found, health.probe(found.nodes, in_command(admin_at)), as_json)


command.add_command(check.command)
command.add_command(restart.command)
command.add_command(start.command)


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _show(found: ClusterHealth, told: BrokerReports, as_json: bool) -> None:
    epochs, led, held, lacks = told.epochs, found.led(), found.held(), found.troubled()
    of_controller = _controller_epoch(told)
    if as_json:
        output.as_json(document(found, told))
        return
    epoch = "" if of_controller is None else f" of epoch {of_controller}"
    click.echo(f"Cluster {output.text(found.id)}  controller {output.text(found.controller)}{epoch}")
    rows = [(n.id, _epoch(epochs, n), n.host, n.port, n.rack, led[n.id], held[n.id]) for n in found.nodes]
    output.table(("broker", "epoch", "host", "port", "rack", "leaders", "replicas"), rows)
    if away := found.away():
        click.echo(f"not registered, but named as replicas: {ids(away)}")
    for number, reason in told.silent.items():
        click.echo(f"broker {number} does not answer: {reason}")
    for number, dirs in told.full.items():
        for path, why in dirs.items():
            click.echo(f"broker {number} takes no writes in {output.text(path)}: {output.text(why)}")
    states = "".join(f", {number} {state}" for state, number in counted(each.state for each in lacks).items())
    click.echo(f"Partitions {found.partitions}{states}")
    if lacks:
        lists = [(p.topic, p.partition, p.leader, ids(p.replicas), ids(p.isr), p.state) for p in lacks]
        output.table(("topic", "partition", "leader", "replicas", "isr", "state"), lists)


def document(found: ClusterHealth, told: BrokerReports) -> output.Document:
    """Return a cluster for --json."""
    led, held = found.led(), found.held()
    brokers = [
        {
            "id": n.id, "epoch": _epoch(told.epochs, n), "host": n.host, "port": n.port, "rack": n.rack,
            "leaders": led[n.id], "replicas": held[n.id], "answers": n.id not in told.silent,
            "full_log_dirs": sorted(told.full.get(n.id, ())),
        }
        for n in found.nodes
    ]  # fmt: skip
    return {
        "cluster": found.id, "controller": found.controller, "controller_epoch": _controller_epoch(told),
        "brokers": brokers, "partitions": found.partitions,
        "troubled": [each.document() for each in found.troubled()],
    }  # fmt: skip


def _controller_epoch(told: BrokerReports) -> int | None:
    return max((each["controller_epoch"] for each in told.epochs.values()), default=None)


def _epoch(epochs: Mapping[int, Options], node: Node) -> int | None:
    return epochs.get(node.id, {}).get("broker_epoch")
