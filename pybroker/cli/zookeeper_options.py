"""What the commands that go to ZooKeeper themselves have in common: where it is, and how it is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pybroker.cli import readable
from pybroker.cli.main import Misuse

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

F = TypeVar("F", bound=Callable[..., Any])


def zookeeper_options(function: F) -> F:
    where = click.option("--zookeeper", metavar="HOSTS", help="HOST:PORT,..., and a chroot if any. It wins over FILE.")
    file = click.option("--config", "file", metavar="FILE", type=click.Path(),
                        help="A broker's .properties file: its zookeeper. settings say how to reach it.")  # fmt: skip
    return where(file(function))


def config_of(zookeeper: str | None, file: str | None, program: Mapping[str, str] | None = None) -> BrokerConfig:
    """A broker's configuration, which names a ZooKeeper; `program`: what the command itself sets, of which it is told
    by its name. Raises Misuse."""
    from pybroker.config import BrokerConfig, ConfigError

    options = {name: (value, click.get_current_context().command_path) for name, value in (program or {}).items()}
    try:
        if zookeeper is not None:
            options["zookeeper.connect"] = (zookeeper, "--zookeeper")
        config = BrokerConfig.load(file, options=options)
    except ConfigError as problem:
        raise Misuse(problem.message) from None
    if file is not None:
        readable.warn_of_config(file)
    if config["zookeeper.connect"] is None:
        raise Misuse("where ZooKeeper is, --zookeeper says, or zookeeper.connect in the file of --config")
    return config
