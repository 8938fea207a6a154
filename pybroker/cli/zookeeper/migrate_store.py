"""`pybroker migrate-store`: move a stopped cluster, or a lone broker, to another store: ZooKeeper, etcd, or a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from random import SystemRandom
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from pybroker.cli import output
from pybroker.cli.interrupts import importing
from pybroker.cli.main import Failure, Misuse
from pybroker.cli.options import say
from pybroker.cli.waiting import WaitReport
from pybroker.cli.zookeeper.options import config_of, connect_of, run, store_of, zookeeper_options
from pybroker.errors import KafkaError

if TYPE_CHECKING:
    from pybroker.config import BrokerConfig
    from pybroker.coordination.store import Store
    from pybroker.metadata.migration.move import Moved, Side
    from pybroker.replication.disks.logdirs import LogDir

SESSION_MS: Final = 18_000
ROOT: Final = "/"
LOAD_MS: Final = 600_000
"""Time for a session with etcd to load a copy before it is compared."""
UNFINISHED: Final = ".migrating"
"""The suffix of an embedded store until the move is done."""


class StorePlan(NamedTuple):
    """The two stores of a move; None is the embedded one in `data_dirs`."""

    source: BrokerConfig | None
    target: BrokerConfig | None
    data_dirs: Sequence[str]
    create: bool


@click.command(name="migrate-store")
@click.option("--data-dir", "data_dirs", metavar="DIR", multiple=True, type=click.Path(),
              help="A lone broker's data directory; repeatable, for each of log.dirs.")  # fmt: skip
@zookeeper_options
@click.option("--etcd", metavar="URL", help="In place of a ZooKeeper: http://HOST:PORT,... and a prefix if any.")
@click.option("--from-zookeeper", metavar="HOSTS", help="The ZooKeeper that the cluster leaves.")
@click.option("--from-etcd", metavar="URL", help="The etcd that the cluster leaves.")
@click.option("--from-config", "from_file", metavar="FILE", type=click.Path(),
              help="A present .properties file: how to reach the store that the cluster leaves.")  # fmt: skip
@click.option("--create", is_flag=True, help="Make the chroot if it does not exist; without this, it may be mistyped.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    data_dirs: tuple[str, ...], zookeeper: str | None, file: str | None, etcd: str | None, from_zookeeper: str | None,
    from_etcd: str | None, from_file: str | None, create: bool, as_json: bool,
) -> None:  # fmt: skip
    """Move a stopped cluster into a ZooKeeper or etcd that has no cluster yet, or a lone broker in or out.

    Kept are the cluster's id, topics with their ids, settings, leader epochs, producer ids, users, ACLs and every
    record: the logs stay where they are. The store that the cluster leaves is only read, until the copy is compared
    with it; then it is marked, so that no broker starts with it again. To finish an interrupted move, run the same
    command again.

    With --data-dir alone a lone broker moves to --zookeeper or --etcd. With --from-zookeeper or --from-etcd a cluster
    leaves that: to --zookeeper or --etcd, or, if it has one broker, into its --data-dir. --config is a broker's
    future file, --from-config the present one: they say how to log in, and whether only the brokers may change the
    nodes (zookeeper.set.acl).

    Exit codes: 0 done; 1 the data cannot be moved, or a store cannot be reached; 2 an option is wrong.
    """
    with importing():
        from pybroker.coordination.store import StoreError

    leaves = any(given is not None for given in (from_zookeeper, from_etcd, from_file))
    comes = any(given is not None for given in (zookeeper, etcd, file))
    if not leaves and not data_dirs:
        raise Misuse(
            "nothing to move: add --data-dir of a lone broker, or --from-zookeeper or --from-etcd of a cluster"
        )
    if leaves and comes and data_dirs:
        raise Misuse("--data-dir is a lone broker's: leave it out, or --zookeeper, --etcd and --config")
    if leaves and not comes and not data_dirs:
        raise Misuse("no store to move to: add --zookeeper or --etcd, or --data-dir of the only broker")
    source = target = None
    if leaves:
        source = config_of(from_zookeeper, from_file, etcd=from_etcd, takes_etcd=True, prefix="--from-")
    if comes or not leaves:
        target = config_of(zookeeper, file, etcd=etcd, takes_etcd=True)
    plan = StorePlan(source, target, data_dirs, create)
    try:
        with WaitReport() as report:
            move = _Move(plan, report)
            moved = run(target or source, move.run())  # type: ignore[arg-type]
    except KafkaError as problem:
        raise Failure(problem.message) from None
    except StoreError as problem:
        raise Failure(str(problem)) from None
    say(as_json, move.facts(moved), move.sentence(moved, file))


class _Move:
    """One run of the command."""

    def __init__(self, plan: StorePlan, report: WaitReport) -> None:
        from pybroker.metadata.migration.marks import place

        self._plan = plan
        self._report = report
        self._place = place
        self._broker_id = -1
        """The lone broker's."""
        self._log_dirs: list[LogDir] = []
        self._holder: LogDir | None = None
        """The log dir with the embedded store, of the source or the target."""
        self._stack = contextlib.AsyncExitStack()

    # -- the move -----------------------------------------------------------------------------------------------------

    async def run(self) -> Moved:
        """Move the store; an embedded one under the locks of the log dirs, which a running broker holds."""
        with importing():
            from pybroker.metadata.migration.copies import TreeForm
            from pybroker.metadata.migration.move import FirstOfACluster, check_lone, check_sole, move
            from pybroker.server.cluster.directories import claim

        async with self._stack:
            self._open_log_dirs()
            source, form = await self._source(), TreeForm()
            if self._plan.source is None:
                form, self._broker_id = FirstOfACluster(), await check_lone(source.session)
            elif self._plan.target is None:
                await check_sole(source.session, self._broker_id)
            new = "" if self._plan.target is not None else self._unfinished
            fresh = bool(new) and not os.path.exists(new)
            target = await self._target()
            try:
                moved = await move(source, target, form, self._say)
            except BaseException:
                await target.store.close()
                if fresh:
                    os.remove(new)
                raise
            await target.store.close()
            if new and os.path.exists(new):
                os.rename(new, self._store_file)
            if self._log_dirs:
                holder = self._holder if self._plan.target is None else None
                claim(self._log_dirs, moved.cluster_id, self._broker_id, holder, SystemRandom())  # syncs the directory
            return moved

    def _say(self, verb: str, nodes: int) -> None:
        self._report.on(f"for the copy: {output.count(nodes)} nodes {verb}")

    def _open_log_dirs(self) -> None:
        from pybroker.errors import StartError
        from pybroker.replication.disks.logdirs import open_log_dirs
        from pybroker.server.cluster.directories import ZOOKEEPER, owner, with_store

        for path in self._plan.data_dirs:
            if not os.path.isdir(path):  # opening a missing one would create it
                raise StartError(f"{path} is not a directory")
        if not self._plan.data_dirs:
            return
        self._log_dirs = open_log_dirs(self._plan.data_dirs)
        for log_dir in self._log_dirs:
            self._stack.callback(log_dir.close)
        if self._plan.target is not None:
            self._holder = with_store(self._log_dirs, frozenset())
            return
        for log_dir in self._log_dirs:
            if log_dir.failure:
                raise StartError(f"{log_dir.path} cannot be used: {log_dir.failure}")
        self._holder = with_store(self._log_dirs, {ZOOKEEPER})
        broker_id = owner(self._log_dirs).broker_id
        if broker_id is None:
            raise StartError(f"there is no broker's data in {', '.join(self._plan.data_dirs)}")
        self._broker_id = broker_id

    @property
    def _store_file(self) -> str:
        from pybroker.server.cluster.directories import STORE_FILE

        assert self._holder is not None
        return os.path.join(self._holder.path, STORE_FILE)

    @property
    def _unfinished(self) -> str:
        """The file of an embedded target until the move is done; "" if there is a store already."""
        return "" if os.path.exists(self._store_file) else self._store_file + UNFINISHED

    async def _source(self) -> Side:
        from pybroker.errors import StartError

        if self._plan.source is not None:
            return await self._cluster(self._plan.source, create=False)
        if not os.path.exists(self._store_file):
            name, paths = os.path.basename(self._store_file), ", ".join(self._plan.data_dirs)
            raise StartError(f"there is no {name} in {paths}: this is not a lone broker's data")
        return await self._embedded(self._store_file)

    async def _target(self) -> Side:
        if self._plan.target is not None:
            return await self._cluster(self._plan.target, create=self._plan.create)
        return await self._embedded(self._unfinished or self._store_file)

    async def _embedded(self, path: str) -> Side:
        from pybroker.coordination.embedded import EmbeddedStore
        from pybroker.metadata.migration.move import Side

        store = EmbeddedStore(path)
        self._stack.push_async_callback(store.close)
        await store.open()
        return Side(store, await store.session(SESSION_MS), os.path.dirname(path))

    async def _cluster(self, config: BrokerConfig, *, create: bool) -> Side:
        from pybroker.coordination.commit import until_answered
        from pybroker.metadata.migration.move import Side

        store = store_of(config)
        self._stack.push_async_callback(store.close)
        self._report.on(f"for {self._place(connect_of(config))}")
        if create:
            await store.open()
        session = await store.session(SESSION_MS)
        if config["etcd.connect"] is None and await until_answered(lambda: session.exists(ROOT)) is None:
            hosts, _, chroot = config["zookeeper.connect"].partition("/")
            cure = ", or create it with --create" if config is self._plan.target else ""
            raise Failure(f"there is no /{chroot} in the ZooKeeper at {hosts}, check the chroot for a typo{cure}")
        self._report.on("")
        reads = store if config["etcd.connect"] is None else self._patient(config)
        return Side(reads, session, connect_of(config))

    def _patient(self, config: BrokerConfig) -> Store:
        """Return an etcd as a store whose sessions may take long to load a large tree."""
        from pybroker.coordination.etcd.settings import servers_of
        from pybroker.coordination.etcd.store import EtcdStore

        store = EtcdStore(servers_of(config), connection_timeout_ms=LOAD_MS)
        self._stack.push_async_callback(store.close)
        return store

    # -- what is said -------------------------------------------------------------------------------------------------

    def facts(self, moved: Moved) -> dict[str, object]:
        """The result for programs."""
        source, target = self._address(self._plan.source), self._address(self._plan.target)
        lone = {"broker_id": self._broker_id} if self._log_dirs else {}
        return {**moved._asdict(), **lone, "from": source, "to": target}

    def sentence(self, moved: Moved, file: str | None) -> str:
        """The result for people, with what to start the brokers with."""
        plan, target = self._plan, self._address(self._plan.target)
        what = f"broker {self._broker_id}" if plan.source is None else f"cluster {moved.cluster_id}"
        counts = f"{output.count(moved.topics)} topics of {output.count(moved.partitions)} partitions"
        done = f"Moved {what} with {counts} to {target}. "
        if moved.again:
            done = f"{what.capitalize() if plan.source is None else f'Cluster {moved.cluster_id}'} was moved before. "
        dirs = ",".join(plan.data_dirs)
        if plan.target is None:
            out = f"{_setting(plan.source)} out of the broker's properties"
            return f"{done}Take {out}, and start it with: pybroker serve --data-dir {dirs}"
        setting = _setting(plan.target)
        if plan.source is None:
            option = f"--{setting.removesuffix('.connect')} {target}"
            also = f" --config {file}" if file is not None else ""
            return f"{done}Start it with: pybroker serve --data-dir {dirs} {option}{also}"
        instead = "" if _setting(plan.source) == setting else f", in place of {_setting(plan.source)}"
        also = "" if file is None else f", with the other settings of {file} for that store"
        return f"{done}Put this into each broker's properties{instead}{also}:\n{setting}={target}"

    def _address(self, config: BrokerConfig | None) -> str:
        return os.path.dirname(self._store_file) if config is None else connect_of(config)


def _setting(config: BrokerConfig | None) -> str:
    return "etcd.connect" if config is not None and config["etcd.connect"] is not None else "zookeeper.connect"
