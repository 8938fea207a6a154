"""`pybroker zookeeper`: run a real ZooKeeper for development, from jars on this machine."""

import logging
import signal
import threading

import click

from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Whole
from pybroker.logs import to_stderr
from pybroker.model import PORT_MAX


@click.command(name="zookeeper")
@click.option("--servers", type=Whole(1, 7), default=1, show_default=True, help="How many; 3 are an ensemble.")
@click.option("--port", type=Whole(1, PORT_MAX), default=2181, show_default=True, help="The first's; others follow.")
@click.option("--data-dir", metavar="DIR", help="Where the data lies; without it, it goes with the servers.")
@click.option("--jars", metavar="DIR", help="A directory with ZooKeeper's jars; without it, PySpark's.")
def command(servers: int, port: int, data_dir: str | None, jars: str | None) -> None:
    """Run ZooKeeper until SIGTERM or Ctrl-C, for development and tests; it listens on this machine only.

    Once it serves, it prints the value for zookeeper.connect to standard output. It needs Java 17 or
    newer, and the jars of PySpark or a directory of them. Other users cannot read its data.

    Exit codes: 0 stopped; 1 it could not start; 2 an option is wrong.
    """
    with importing():
        from pybroker.development.zookeeper_server import ZooKeeper
        from pybroker.errors import StartError

    if port + servers - 1 > PORT_MAX:
        raise click.UsageError(f"there are no {servers} ports from {port} on: {PORT_MAX} is the last")
    to_stderr(logging.WARNING)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        running = ZooKeeper(servers, port=port, data_dir=data_dir, jars=jars)
    except StartError as problem:
        raise Failure(problem.message) from None
    with running:
        click.echo(f"zookeeper ready: zookeeper.connect={running.connect}")
        ended.wait()
