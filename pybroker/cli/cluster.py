"""`pybroker cluster`: which cluster it is, and the brokers in it."""

import click

from pybroker.cli import output
from pybroker.cli.options import cluster_options
from pybroker.client.admin import Admin


@click.command(name="cluster")
@cluster_options
def command(bootstrap_server: str, timeout_s: float, as_json: bool) -> None:
    """Show a cluster's id, its controller and its brokers, as the broker that is asked knows them.

    Exit codes: 0 done; 1 the broker refused or could not be reached; 2 an option is wrong.
    """
    with Admin(bootstrap_server, timeout_s=timeout_s) as admin:
        found = admin.describe_cluster()
    controller = found.controller if found.controller >= 0 else None
    if as_json:
        brokers = [{"id": n.id, "host": n.host, "port": n.port, "rack": n.rack} for n in found.nodes]
        output.as_json({"cluster": found.id, "controller": controller, "brokers": brokers})
        return
    click.echo(f"Cluster {output.text(found.id)}  controller {output.text(controller)}")
    output.table(("broker", "host", "port", "rack"), [(n.id, n.host, n.port, n.rack) for n in found.nodes])
