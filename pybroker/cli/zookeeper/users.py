"""A cluster's SCRAM users in ZooKeeper or etcd, with the methods that `pybroker users` calls on an `Admin`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, TypeVar

import click

from pybroker import errors
from pybroker.cli.main import Failure
from pybroker.cli.zookeeper.options import run, store_of
from pybroker.client.admin import ScramUser
from pybroker.config import BrokerConfig
from pybroker.coordination.commit import until_answered
from pybroker.coordination.store import Session, StoreError
from pybroker.errors import KafkaError
from pybroker.metadata import nodes, users
from pybroker.security.scram import HASHES, Credential

T = TypeVar("T")
Work = Callable[[Session], Coroutine[object, None, T]]

SESSION_MS: Final = 18_000


class ZooKeeperUsers:
    """Users in ZooKeeper. Each call opens its own session and raises Failure, KafkaError. Only `set_password` creates
    missing nodes."""

    def __init__(self, config: BrokerConfig) -> None:
        """`config` says how to reach ZooKeeper or etcd, and whether only the brokers may change the nodes."""
        self._config = config
        if config["etcd.connect"] is not None:
            self._place = f"etcd.connect={config['etcd.connect']}"
            self._no_cluster = f"there is no cluster in the etcd at {config['etcd.connect']}"
            return
        self._place = f"zookeeper.connect={config['zookeeper.connect']}"
        hosts, _, chroot = config["zookeeper.connect"].partition("/")
        self._no_cluster = f"there is no cluster at /{chroot.rstrip('/')} of the ZooKeeper at {hosts}"

    def __enter__(self) -> ZooKeeperUsers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def users(self) -> list[ScramUser]:
        """Return all users that can log in."""
        found = self._run(self._there(users.users))
        return [ScramUser(name, iterations) for name, iterations in found.items()]

    def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        """Set a user's password for these mechanisms. Prints a note if no broker has created the cluster yet."""
        made = {each: Credential.of_password(each, password, iterations).text() for each in mechanisms}

        async def give(session: Session) -> bool:
            await users.alter(session, user, lambda held: {**held, **made})
            return await until_answered(lambda: session.exists(nodes.CLUSTER_ID)) is not None

        if not self._run(give, makes_chroot=True):
            who = f"user {user} is for brokers with {self._place}"
            click.echo(f"pybroker: {self._no_cluster} yet: {who}", err=True)

    def remove_password(self, user: str) -> None:
        """Remove a user's passwords. KafkaError(RESOURCE_NOT_FOUND) if there are none."""

        def change(held: Mapping[str, str]) -> dict[str, str]:
            if not held.keys() & HASHES.keys():
                raise KafkaError(errors.RESOURCE_NOT_FOUND, f"the user {user!r} has no SCRAM credential")
            return {name: text for name, text in held.items() if name not in HASHES}

        self._run(self._there(lambda session: users.alter(session, user, change)))

    def _there(self, work: Work[T]) -> Work[T]:
        """Wrap `work` to raise a Failure first if there is no cluster."""

        async def look_first(session: Session) -> T:
            if await until_answered(lambda: session.exists(nodes.USER_CONFIGS)) is None:
                raise Failure(self._no_cluster)
            return await work(session)

        return look_first

    def _run(self, work: Work[T], *, makes_chroot: bool = False) -> T:
        async def in_session() -> T:
            store = store_of(self._config)
            try:
                if makes_chroot:
                    await store.open()
                return await work(await store.session(SESSION_MS))
            finally:
                await store.close()

        try:
            return run(self._config, in_session())
        except StoreError as problem:
            raise Failure(str(problem)) from None
