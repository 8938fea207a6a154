"""The store on etcd equals the same simple model for any operations, sessions and restarts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from pybroker.coordination.store import Op, WatchEvent
from pybroker.development.etcd_server import Etcd
from tests.coordination.conftest import TIMEOUT_MS
from tests.coordination.proxied_etcd import ProxiedEtcd
from tests.coordination.test_model import Model, StoreMachine, ops

pytestmark = pytest.mark.xdist_group("etcd")


class EtcdMachine(StoreMachine):
    """The same steps; the session with the watches reads once before the events are compared."""

    port: ClassVar[int]

    @initialize()
    def begin(self) -> None:
        self.runner = asyncio.Runner()
        self.prefix = f"/model-{uuid.uuid4().hex}"
        self.model = Model()
        self.heard = []
        self.watched = set()
        self.run(self.reopen())

    async def reopen(self) -> None:
        self.store = ProxiedEtcd(self.port, self.prefix)  # type: ignore[assignment]
        self.sessions = [await self.store.session(TIMEOUT_MS) for _ in range(3)]
        self.watched.clear()

    def settle(self, events: list[WatchEvent]) -> None:
        async def read() -> None:
            await self.sessions[0].exists("/")

        self.run(read())
        super().settle(events)

    @rule(several=st.lists(ops, max_size=4, unique_by=lambda op: op.path), number=st.integers(0, 2))
    def multi(self, several: list[Op], number: int) -> None:
        """Other sessions hear what a transaction changed, not how: so here is one operation for each node."""
        super().multi(several, number)

    @rule(number=st.integers(1, 2), by_itself=st.booleans())
    def end_a_session(self, number: int, by_itself: bool) -> None:
        async def end() -> None:
            old = self.sessions[number]
            if by_itself:
                await old.close()
            else:
                old.expire()
                await old.expired.wait()
            self.sessions[number] = await self.store.session(TIMEOUT_MS)

        events = self.model.end(self.sessions[number].id)
        self.run(end())
        self.settle(events)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
            self.runner.close()


@pytest.fixture(autouse=True, scope="module")
def server() -> Iterator[None]:
    with Etcd() as etcd:
        EtcdMachine.port = etcd.servers[0].port
        yield


EtcdMachine.TestCase.settings = settings(
    max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEtcd = EtcdMachine.TestCase
