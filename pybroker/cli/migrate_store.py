"""`pybroker migrate-store`: a lone broker's topics moved into ZooKeeper: it goes on as the first of a cluster."""

from __future__ import annotations

import asyncio
import os
from random import SystemRandom
from typing import TYPE_CHECKING

import click

from pybroker.cli import output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure
from pybroker.cli.options import say
from pybroker.config.cluster_settings import CLUSTER
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    from pybroker.controller.migration import Moved

SESSION_MS = 18_000


@click.command(name="migrate-store")
@click.option("--data-dir", "data_dirs", metavar="DIR", required=True, multiple=True, type=click.Path(),
              help="The broker's data directory; repeatable, for each of log.dirs.")  # fmt: skip
@click.option("--zookeeper", metavar="HOSTS", required=True, help="Where to: HOST:PORT,..., and a chroot if any.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(data_dirs: tuple[str, ...], zookeeper: str, as_json: bool) -> None:
    """Move a stopped broker's topics into a ZooKeeper that knows of no cluster yet.

    Kept are the cluster's id, topics with their ids, settings, leader epochs, producer ids and every record: the logs
    stay where they are. Afterwards the broker is started with zookeeper.connect, and no longer without. A move that was
    interrupted is finished by the same command.

    Exit codes: 0 done; 1 the data or ZooKeeper refuse, or cannot be reached; 2 an option is wrong.
    """
    with importing():
        from pybroker.coordination.store import StoreError
        from pybroker.replication.logdirs import StartError

    try:
        CLUSTER["zookeeper.connect"].parse(zookeeper, "--zookeeper")
        moved = asyncio.run(_move(data_dirs, zookeeper))
    except (KafkaError, StartError) as problem:
        raise Failure(problem.message) from None
    except StoreError as problem:
        raise Failure(str(problem)) from None
    facts = {**moved._asdict(), "zookeeper": zookeeper}
    if moved.again:
        sentence = f"Broker {moved.broker_id} was moved before"
    else:
        sentence = f"Moved broker {moved.broker_id} with {output.count(moved.topics)} topics of " \
                   f"{output.count(moved.partitions)} partitions to {zookeeper}"  # fmt: skip
    dirs = ",".join(data_dirs)
    say(as_json, facts, f"{sentence}. Start it with: pybroker serve --data-dir {dirs} --zookeeper {zookeeper}")


async def _move(data_dirs: tuple[str, ...], zookeeper: str) -> Moved:
    """Under the locks of the log dirs, which a running broker holds."""
    with importing():
        from pybroker.controller.migration import migrate
        from pybroker.coordination.embedded import EmbeddedStore
        from pybroker.coordination.zookeeper import ZooKeeperStore
        from pybroker.replication.logdirs import StartError, open_log_dirs
        from pybroker.server.directories import STORE_FILE, claim, with_store

    for path in data_dirs:
        if not os.path.isdir(path):  # which opening would make
            raise StartError(f"{path} is no directory")
    log_dirs = open_log_dirs(data_dirs)
    stores: list[EmbeddedStore | ZooKeeperStore] = []
    try:
        path = os.path.join(with_store(log_dirs, frozenset()).path, STORE_FILE)
        if not os.path.exists(path):
            raise StartError(f"there is no {STORE_FILE} in {', '.join(data_dirs)}: no lone broker's data")
        lone, cluster = EmbeddedStore(path), ZooKeeperStore(zookeeper)
        stores.append(lone)
        await lone.open()
        stores.append(cluster)
        await cluster.open()
        moved = await migrate(await lone.session(SESSION_MS), await cluster.session(SESSION_MS), zookeeper)
        claim(log_dirs, moved.cluster_id, moved.broker_id, None, SystemRandom())
        return moved
    finally:
        for store in reversed(stores):
            await store.close()
        for log_dir in log_dirs:
            log_dir.close()
