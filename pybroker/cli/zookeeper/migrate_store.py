"""`pybroker migrate-store`: move a lone broker's topics into ZooKeeper or etcd; it becomes the first of a cluster."""

from __future__ import annotations

import os
from random import SystemRandom
from typing import TYPE_CHECKING

import click

from pybroker.cli import output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure
from pybroker.cli.options import say
from pybroker.cli.zookeeper.options import config_of, run, store_of, zookeeper_options
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.coordination.store import Store
    from pybroker.metadata.lone_broker.migration import Moved

SESSION_MS = 18_000
ROOT = "/"


@click.command(name="migrate-store")
@click.option("--data-dir", "data_dirs", metavar="DIR", required=True, multiple=True, type=click.Path(),
              help="The broker's data directory; repeatable, for each of log.dirs.")  # fmt: skip
@zookeeper_options
@click.option("--etcd", metavar="URL", help="In place of a ZooKeeper: http://HOST:PORT,... and a prefix if any.")
@click.option("--create", is_flag=True, help="Make the chroot if it does not exist; without this, it may be mistyped.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    data_dirs: tuple[str, ...], zookeeper: str | None, file: str | None, etcd: str | None, create: bool,
    as_json: bool,
) -> None:
    """Move a stopped broker's topics into a ZooKeeper or etcd that has no cluster yet.

    Kept are the cluster's id, topics with their ids, settings, leader epochs, producer ids and every record: the logs
    stay where they are. From then on, start the broker with zookeeper.connect or etcd.connect. To finish an interrupted
    move, run the same command again. --config is the broker's future file: it says how to reach
    ZooKeeper or etcd, and whether only the brokers may change the nodes (zookeeper.set.acl).

    Exit codes: 0 done; 1 the data cannot be moved, or ZooKeeper cannot be reached; 2 an option is wrong.
    """
    with importing():
        from pybroker.config.cluster_settings import StoreWords
        from pybroker.coordination.store import StoreError
        from pybroker.errors import StartError

    config = config_of(zookeeper, file, etcd=etcd, takes_etcd=True)
    connect = config["etcd.connect"] or config["zookeeper.connect"]
    try:
        moved = run(config, _move(data_dirs, config, create))
    except (KafkaError, StartError) as problem:
        raise Failure(problem.message) from None
    except StoreError as problem:
        raise Failure(str(problem)) from None
    words = StoreWords.of(connect)
    facts = {**moved._asdict(), words.name.lower(): connect}
    if moved.again:
        sentence = f"Broker {moved.broker_id} was moved before"
    else:
        sentence = f"Moved broker {moved.broker_id} with {output.count(moved.topics)} topics of " \
                   f"{output.count(moved.partitions)} partitions to {connect}"  # fmt: skip
    start = f"pybroker serve --data-dir {','.join(data_dirs)} {words.option} {connect}"
    say(as_json, facts, f"{sentence}. Start it with: {start}" + (f" --config {file}" if file is not None else ""))


async def _move(data_dirs: tuple[str, ...], config: BrokerConfig, create: bool) -> Moved:
    """Move the store under the locks of the log dirs, which a running broker holds."""
    with importing():
        from pybroker.coordination.commit import until_answered
        from pybroker.coordination.embedded import EmbeddedStore
        from pybroker.errors import StartError
        from pybroker.metadata.lone_broker.migration import migrate
        from pybroker.replication.disks.logdirs import open_log_dirs
        from pybroker.server.cluster.directories import STORE_FILE, claim, with_store

    for path in data_dirs:
        if not os.path.isdir(path):  # opening a missing one would create it
            raise StartError(f"{path} is not a directory")
    log_dirs = open_log_dirs(data_dirs)
    stores: list[Store] = []
    try:
        path = os.path.join(with_store(log_dirs, frozenset()).path, STORE_FILE)
        if not os.path.exists(path):
            raise StartError(f"there is no {STORE_FILE} in {', '.join(data_dirs)}: this is not a lone broker's data")
        lone, cluster = EmbeddedStore(path), store_of(config)
        stores.append(lone)
        await lone.open()
        stores.append(cluster)
        if create:
            await cluster.open()
        sessions = await lone.session(SESSION_MS), await cluster.session(SESSION_MS)
        if await until_answered(lambda: sessions[1].exists(ROOT)) is None:
            hosts, _, chroot = config["zookeeper.connect"].partition("/")
            where = f"there is no /{chroot} in the ZooKeeper at {hosts}"
            raise Failure(f"{where}, check the chroot for a typo, or create it with --create")
        moved = await migrate(*sessions, config["etcd.connect"] or config["zookeeper.connect"])
        claim(log_dirs, moved.cluster_id, moved.broker_id, None, SystemRandom())
        return moved
    finally:
        for store in reversed(stores):
            await store.close()
        for log_dir in log_dirs:
            log_dir.close()
