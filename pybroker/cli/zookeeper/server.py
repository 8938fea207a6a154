"""`pybroker zookeeper`: run a real ZooKeeper for development, and fetch its jars."""

import logging
import signal
import threading
from pathlib import Path

import click

from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Whole
from pybroker.logs import to_stderr
from pybroker.model import PORT_MAX


@click.group(name="zookeeper", invoke_without_command=True)
@click.option("--servers", type=Whole(1, 7), default=1, show_default=True, help="How many; 3 are an ensemble.")
@click.option("--port", type=Whole(1, PORT_MAX), default=2181, show_default=True, help="The first's; others follow.")
@click.option("--data-dir", metavar="DIR", help="Where the data lies; without it, it goes with the servers.")
@click.option("--jars", metavar="DIR",
              help="A directory with ZooKeeper's jars; without it, those that fetch got, or PySpark's.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, servers: int, port: int, data_dir: str | None, jars: str | None) -> None:
    """Run ZooKeeper until SIGTERM or Ctrl-C, for development and tests; it listens on this machine only.

    Once it serves, it prints the value for zookeeper.connect to standard output. It needs Java 17 or
    newer, and ZooKeeper's jars: those that `pybroker zookeeper fetch` gets, those of PySpark, or a directory of them.
    Other users cannot read its data.

    Exit codes: 0 stopped; 1 it could not start; 2 an option is wrong.
    """
    if ctx.invoked_subcommand is not None:
        return
    with importing():
        from pybroker.development.zookeeper_server import ZooKeeper
        from pybroker.errors import KafkaError

    if port + servers - 1 > PORT_MAX:
        raise click.UsageError(f"there are no {servers} ports from {port} on: {PORT_MAX} is the last")
    to_stderr(logging.WARNING)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    try:
        running = ZooKeeper(servers, ports=range(port, port + servers), data_dir=data_dir, jars=jars)
    except KafkaError as problem:
        raise Failure(problem.message) from None
    with running:
        click.echo(f"zookeeper ready: zookeeper.connect={running.connect}")
        ended.wait()


@command.command(name="fetch")
@click.option("--repository", metavar="URL", help="A Maven repository to read from, without Maven: https://HOST/PATH.")
@click.option("--to", "directory", metavar="DIR", help="Where to put them; without it, where commands look for them.")
def fetch(repository: str | None, directory: str | None) -> None:
    """Fetch the jars of a ZooKeeper server, 4.3 MB; it prints the directory that has them.

    Maven (mvn) fetches them, with the mirrors, proxies and passwords of its settings. With --repository no Maven is
    needed: the jars are read over HTTP, through the proxy that HTTPS_PROXY or HTTP_PROXY names. Only files with
    the right SHA-256 are kept. Without any network: copy the directory from another machine, and give it with --jars.

    Exit codes: 0 done; 1 they could not be fetched; 2 an option is wrong.
    """
    with importing():
        from pybroker.development import zookeeper_jars
        from pybroker.errors import StartError

    place = zookeeper_jars.home() if directory is None else Path(directory)
    try:
        zookeeper_jars.fetch(place, repository)
    except StartError as problem:
        raise Failure(problem.message) from None
    click.echo(f"ZooKeeper {zookeeper_jars.ZOOKEEPER} is in {place}")
