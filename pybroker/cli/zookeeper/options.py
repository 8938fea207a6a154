"""Options that the commands for ZooKeeper share: its address, and how to reach it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from pybroker.cli import file_permissions
from pybroker.cli.main import Misuse
from pybroker.cli.waiting import WaitReport

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.coordination.store import Store

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")


def zookeeper_options(function: F) -> F:
    where = click.option("--zookeeper", metavar="HOSTS", help="HOST:PORT,..., and a chroot if any. It wins over FILE.")
    file = click.option("--config", "file", metavar="FILE", type=click.Path(),
                        help="A broker's .properties file, whose zookeeper. settings say how to reach it.")  # fmt: skip
    return where(file(function))


def config_of(
    zookeeper: str | None, file: str | None, program: Mapping[str, str] | None = None, *, etcd: str | None = None,
    takes_etcd: bool = False, prefix: str = "--",
) -> BrokerConfig:  # fmt: skip
    """Return a broker's configuration with a ZooKeeper, or with an etcd if the command takes one. `program` has
    settings of the command itself, named in its errors; the options begin with `prefix`. Raises Misuse."""
    from pybroker.config import BrokerConfig, ConfigError

    options = {name: (value, click.get_current_context().command_path) for name, value in (program or {}).items()}
    try:
        if zookeeper is not None:
            options["zookeeper.connect"] = (zookeeper, f"{prefix}zookeeper")
        if etcd is not None:
            options["etcd.connect"] = (etcd, f"{prefix}etcd")
        config = BrokerConfig.load(file, options=options)
    except ConfigError as problem:
        raise Misuse(problem.message) from None
    if file is not None:
        file_permissions.warn_of_config(file)
    if config["zookeeper.connect"] is None and not (takes_etcd and config["etcd.connect"] is not None):
        raise Misuse(
            f"no ZooKeeper is given: add {prefix}zookeeper, or zookeeper.connect in the file of {prefix}config"
        )
    return config


def run(config: BrokerConfig, work: Coroutine[object, None, T]) -> T:
    """Run a command's work with its store. Parts of a broker do it, whose log lines are not the command's output."""
    import asyncio

    from pybroker.config.cluster_settings import StoreWords

    logging.getLogger().addHandler(logging.NullHandler())
    words = StoreWords.of(connect := connect_of(config))
    with WaitReport(f"for {words.name} at {connect}"):
        return asyncio.run(work)


def connect_of(config: BrokerConfig) -> str:
    """Return the etcd.connect or zookeeper.connect of a configuration of `config_of`."""
    connect: str = config["etcd.connect"] or config["zookeeper.connect"]
    return connect


def store_of(config: BrokerConfig) -> Store:
    """Return the store of the cluster that a configuration of `config_of` names. Raises ConfigError."""
    if config["etcd.connect"] is not None:
        from pybroker.coordination.etcd.settings import store_of as etcd_of

        return etcd_of(config)
    from pybroker.coordination.zookeeper import store_of as zookeeper_of

    return zookeeper_of(config)
