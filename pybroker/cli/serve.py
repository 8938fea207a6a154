"""`pybroker serve`: run a broker in this process, from its configuration to its last flushed byte."""

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from pybroker.cli import file_permissions, secrets, sentences, serve_console
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Misuse, Whole
from pybroker.logs import FORMATS, TEXT, event, to_stderr

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.server.broker import Broker

HOST_DEFAULT: Final = "127.0.0.1"
"""Only this machine, unless a host is given, because there is no authentication by default."""
PORT_DEFAULT: Final = 9092
KIND: Final = "PLAINTEXT"
"""The protocol of the listener that --host and --port stand for."""
GROUP_DELAY: Final = "group.initial.rebalance.delay.ms"
"""Kafka's default is 3 s, for groups whose members start together. With one broker and an embedded store a person
usually waits for a single reader; members that join later get their share in a rebalance."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@click.command(name="serve")
@click.option("--data-dir", "data_dirs", multiple=True, metavar="DIR",
              type=click.Path(readable=False),  # the broker itself checks each log dir, and reports what is wrong
              help="The directory for the data; the broker makes it if it does not exist. Repeatable, for several "
              "disks. Sets log.dirs.")  # fmt: skip
@click.option("--host", help=f"The address to listen on; without it and listeners, {HOST_DEFAULT}.")
@click.option("--port", type=Whole(0, 65535),
              help=f"The port to listen on; 0: any free port; without it and listeners, {PORT_DEFAULT}.")  # fmt: skip
@click.option(
    "--metrics-port",
    type=Whole(0, 65535),
    help="Serve /metrics, /healthz and /readyz over HTTP on this port. Sets metrics.listener.",
)
@click.option("--zookeeper", metavar="HOSTS",
              help="Be a broker of a cluster: HOST:PORT,..., and a chroot if any. Sets zookeeper.connect.")  # fmt: skip
@click.option("--etcd", metavar="URL",
              help="The same on etcd: http://HOST:PORT,... and a prefix if any. Sets etcd.connect.")  # fmt: skip
@click.option("--config", "file", metavar="FILE", type=click.Path(), help="A .properties file with Kafka's names.")
@click.option("--set", "sets", multiple=True, metavar="NAME=VALUE",
              help="A setting, which wins over FILE; repeatable.")  # fmt: skip
@click.option(
    "--give-up",
    multiple=True,
    metavar="NAME",
    help="Go on without a missing log dir (its directory.id or path) or partition (TOPIC-N), or the data of broker N "
    "(broker-N); or leave the cluster for good (zookeeper). Repeatable.",
)
@click.option("--console", "console_at", is_flag=False, flag_value=serve_console.ADDRESS, metavar="[HOST:PORT]",
              help="Show the cluster in the browser, by a process beside the broker; at "
              f"{serve_console.ADDRESS} unless an address follows.")  # fmt: skip
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True,
              help="The lowest level to log.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), default=TEXT, show_default=True,
              help="Log lines as text, or as one JSON object each.")  # fmt: skip
def command(
    data_dirs: Sequence[str],
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    zookeeper: str | None,
    etcd: str | None,
    file: str | None,
    sets: Sequence[str],
    give_up: Sequence[str],
    console_at: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C, which end it cleanly.

    As soon as the broker serves, it writes a line with its address to standard output: `pybroker ready on HOST:PORT
    (...)`. It logs to standard error; with --log-format json each line there is a JSON object. docs/config.md lists
    the settings.

    Exit codes: 0 stopped cleanly; 1 it could not start or go on (the port or the data directory is in use, a disk
    failed); 2 an option or a setting is wrong.
    """
    to_stderr(logging.getLevelName(log_level.upper()), log_format)
    config = _configuration(data_dirs, host, port, metrics_port, zookeeper, etcd, file, sets)
    _warn(config, file, sets)
    with importing():
        from pybroker.server.process import run

    with serve_console.with_console(console_at, config, _say_ready) as on_ready:
        run(config, on_ready, give_up)


def _warn(config: "BrokerConfig", file: str | None, sets: Sequence[str]) -> None:
    """Warn about settings that do nothing, and about secrets that others can read."""
    for warning in config.warnings:
        sentences.warn(warning)
    if config.without_effect:
        names = ", ".join(config.without_effect)
        sentences.warn(f"settings of Kafka that have no effect here: {names}")
    if file is not None:
        file_permissions.warn_of_config(file)
    pairs = (pair.partition("=") for pair in sets)
    file_permissions.warn_of_keys((name.strip(), text.strip()) for name, _, text in pairs)
    secrets.warn((pair.partition("=")[0].strip() for pair in sets), "the file of --config")


def _configuration(
    data_dirs: Sequence[str],
    host: str | None,
    port: int | None,
    metrics_port: int | None,
    zookeeper: str | None,
    etcd: str | None,
    file: str | None,
    sets: Sequence[str],
) -> "BrokerConfig":
    """Return the configuration that the options amount to: --set overrides the other options, and these override the
    file."""
    from pybroker.config import BrokerConfig, ConfigError
    from pybroker.config.cluster_settings import CLUSTER
    from pybroker.config.etcd_settings import ETCD

    from_options = []
    if data_dirs:
        from_options.append(f"log.dirs={','.join(data_dirs)}")
    if metrics_port is not None:
        shown_at = host or HOST_DEFAULT
        from_options.append(f"metrics.listener={f'[{shown_at}]' if ':' in shown_at else shown_at}:{metrics_port}")
    defaults = {"listeners": _listener(HOST_DEFAULT, PORT_DEFAULT), GROUP_DELAY: "0"}
    try:
        if host is not None or port is not None:
            from_options.append(f"listeners={_listener_of(host, port, file)}")
        if zookeeper is not None:
            CLUSTER["zookeeper.connect"].parse(zookeeper, "--zookeeper")
            from_options.append(f"zookeeper.connect={zookeeper}")
        if etcd is not None:
            ETCD["etcd.connect"].parse(etcd, "--etcd")
            from_options.append(f"etcd.connect={etcd}")
        config = BrokerConfig.load(file, [*from_options, *sets], defaults)
    except ConfigError as error:
        for warning in error.warnings:
            sentences.warn(warning)
        raise Misuse(error.message) from error
    if not config.is_set("log.dirs") and not config.is_set("log.dir"):
        raise Misuse("no data directory is given: add --data-dir DIR, or set log.dirs")
    return config


def _listener_of(host: str | None, port: int | None, file: str | None) -> str:
    """Return the listener of --host and --port, if it agrees with the file's listeners. Misuse if not."""
    from pybroker.config.broker import read_properties
    from pybroker.model import Endpoint

    set_host, set_port = HOST_DEFAULT, PORT_DEFAULT
    for name, text, line in read_properties(file) if file is not None else ():
        if name == "listeners":
            try:
                kind, set_host, set_port = Endpoint.parse(text)
            except ValueError:
                kind = ""
            if kind != KIND:
                option = "--host" if port is None else "--port"
                raise Misuse(
                    f"{option} stands for one {KIND} listener, and listeners = {text!r} ({file}:{line}) is another "
                    f"one: remove {option}, or change the setting"
                )
    return _listener(set_host if host is None else host, set_port if port is None else port)


def _listener(host: str, port: int) -> str:
    return f"{KIND}://[{host}]:{port}" if ":" in host else f"{KIND}://{host}:{port}"


def _say_ready(broker: "Broker") -> None:
    """Print the line that people, scripts and tests wait for; log the defaults in which serve differs from Kafka."""
    from pybroker.config.broker import BY_PROGRAM

    facts = (
        f"data {','.join(broker.config.log_dirs)}, {broker.topic_count} topics, {broker.partition_count} partitions, "
        f"cluster {broker.cluster_id}, start {_age_s():.2f} s"
    )
    first, *others = broker.addresses.items()
    more = "".join(f", {name} on {address}" for name, address in others)
    click.echo(f"pybroker ready on {first[1]}{more} ({facts})")
    if broker.config.where(GROUP_DELAY) == BY_PROGRAM:
        reason = "a group's first read does not wait for more members; Kafka's default is 3000"
        event(log, logging.INFO, "default changed", **{GROUP_DELAY: broker.config[GROUP_DELAY]}, reason=reason)


def _age_s() -> float:
    """Seconds since the process was started, before its first line of Python ran (proc(5), field 22)."""
    with open("/proc/self/stat") as stat:
        after_name = stat.read().rpartition(")")[2].split()
    started_s = int(after_name[22 - 3]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
