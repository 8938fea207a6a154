"""`pybroker zookeeper-acls`: set the ACLs of a cluster's existing nodes in ZooKeeper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pybroker.cli import output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure
from pybroker.cli.options import say
from pybroker.cli.zookeeper.options import config_of, run, zookeeper_options

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig

SESSION_MS = 18_000


@click.command(name="zookeeper-acls")
@click.argument("acl", type=click.Choice(("secure", "unsecure")))
@zookeeper_options
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(acl: str, zookeeper: str | None, file: str | None, as_json: bool) -> None:
    """Let only the brokers change a cluster's nodes (secure), or every client (unsecure).

    Like Kafka's zookeeper-security-migration, this changes existing nodes; brokers with zookeeper.set.acl create secure
    ones. --config is a broker's file, with the settings for ZooKeeper; this command must log in there as the
    same user as the brokers.

    Exit codes: 0 done; 1 ZooKeeper refuses, or cannot be reached, or has no cluster; 2 an option or a setting is wrong.
    """
    with importing():
        from pybroker.coordination.store import StoreError

    secure = acl == "secure"
    config = config_of(zookeeper, file, {"zookeeper.set.acl": str(secure).lower()})
    connect = config["zookeeper.connect"]
    try:
        nodes = run(config, _set(config, secure))
    except StoreError as problem:
        raise Failure(str(problem)) from None
    if not nodes:
        raise Failure(f"ZooKeeper at {connect} has no cluster: does its address need a chroot?")
    whose = "now writable by the brokers only" if secure else "now writable by every client"
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
