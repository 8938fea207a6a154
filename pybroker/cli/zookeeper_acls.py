"""`pybroker zookeeper-acls`: whom ZooKeeper lets at the nodes of a cluster that is there already."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from pybroker.cli import output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure
from pybroker.cli.options import say
from pybroker.cli.zookeeper_options import config_of, zookeeper_options

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

SESSION_MS = 18_000


@click.command(name="zookeeper-acls")
@click.argument("acl", type=click.Choice(("secure", "unsecure")))
@zookeeper_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(acl: str, zookeeper: str | None, file: str | None, as_json: bool) -> None:
    """Have the nodes of a cluster be its brokers' alone (secure), or everybody's (unsecure).

    As zookeeper-security-migration of Kafka does: it is for nodes that are there already, and brokers with
    zookeeper.set.acl make theirs so. --config is a broker's file, which says how ZooKeeper is reached and whom it is to
    know this command by: the same as the brokers.

    Exit codes: 0 done; 1 ZooKeeper refuses, or cannot be reached, or has no cluster; 2 an option or a setting is wrong.
    """
    with importing():
        from pybroker.coordination.store import StoreError

    secure = acl == "secure"
    config = config_of(zookeeper, file, {"zookeeper.set.acl": str(secure).lower()})
    connect = config["zookeeper.connect"]
    try:
        nodes = asyncio.run(_set(config, secure))
    except StoreError as problem:
        raise Failure(str(problem)) from None
    if not nodes:
        raise Failure(f"ZooKeeper at {connect} has no node of a cluster: is there a chroot to name?")
    whose = "the brokers' alone to change" if secure else "everybody's to change"
    say(as_json, {"acl": acl, "nodes": nodes, "zookeeper": connect},
        f"{output.count(nodes)} nodes at {connect} are {whose}.")  # fmt: skip


async def _set(config: BrokerConfig, secure: bool) -> int:
    with importing():
        from pybroker.coordination.zookeeper import store_of
        from pybroker.coordination.zookeeper_acls import set_all

    store = store_of(config)
    try:
        return await set_all(await store.session(SESSION_MS), secure=secure)
    finally:
        await store.close()
