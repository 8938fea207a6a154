"""The users of a cluster by its ZooKeeper itself, as `pybroker users` asks an `Admin` for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from pybroker import errors
from pybroker.cli.main import Failure
from pybroker.client.admin import ScramUser
from pybroker.config import BrokerConfig
from pybroker.controller import users
from pybroker.coordination.store import Session, StoreError
from pybroker.coordination.zookeeper import store_of
from pybroker.errors import KafkaError
from pybroker.security.scram import HASHES, Credential

T = TypeVar("T")

SESSION_MS: Final = 18_000


class ZooKeeperUsers:
    """Each call has a session of its own, and raises Failure, KafkaError."""

    def __init__(self, config: BrokerConfig) -> None:
        """`config` says how ZooKeeper is reached, and whether nodes are made for the brokers alone."""
        self._config = config

    def __enter__(self) -> ZooKeeperUsers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def users(self) -> list[ScramUser]:
        """All who can log in."""
        return [ScramUser(name, iterations) for name, iterations in self._run(users.users).items()]

    def set_password(self, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        """Let a user log in by these mechanisms with this password from now on."""
        made = {each: Credential.of_password(each, password, iterations).text() for each in mechanisms}
        self._run(lambda session: users.alter(session, user, lambda held: {**held, **made}))

    def remove_password(self, user: str) -> None:
        """Let a user log in no more. KafkaError(RESOURCE_NOT_FOUND) for one who cannot."""

        def change(held: Mapping[str, str]) -> dict[str, str]:
            if not held.keys() & HASHES.keys():
                raise KafkaError(errors.RESOURCE_NOT_FOUND, f"the user {user!r} has no SCRAM credential")
            return {name: text for name, text in held.items() if name not in HASHES}

        self._run(lambda session: users.alter(session, user, change))

    def _run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        async def in_session() -> T:
            store = store_of(self._config)
            try:
                await store.open()
                return await work(await store.session(SESSION_MS))
            finally:
                await store.close()

        try:
            return asyncio.run(in_session())
        except StoreError as problem:
            raise Failure(str(problem)) from None
