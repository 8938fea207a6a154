"""The requests of a session on etcd: how many operations share one, and what waits for the watch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker.coordination.memory import Fate
from pybroker.coordination.store import EventType, Session, Store, WatchEvent
from pybroker.development.etcd_server import Etcd
from tests.coordination.conftest import ETCD, TIMEOUT_MS
from tests.harness import eventually

pytestmark = [pytest.mark.parametrize("store", [ETCD], indirect=True), pytest.mark.xdist_group("etcd")]
ANY_KEY = "Lw=="


def revision(etcd: Etcd) -> int:
    header = etcd.servers[0].ask("v3/kv/range", key=ANY_KEY)["header"]
    assert isinstance(header, dict)
    return int(header["revision"])


async def test_many_operations_cost_few_transactions(store: Store, etcd: Etcd, a: Session) -> None:
    """A thousand operations of one turn of the loop take effect in the order of the calls, in two transactions."""
    await a.create("/p")
    before = revision(etcd)
    await asyncio.gather(*(a.create("/p/n-", sequential=True) for _ in range(1000)))
    after = revision(etcd)
    assert after - before == 2
    assert len((await a.children("/p"))[0]) == 1000


async def test_many_reads_cost_one_request(store: Store) -> None:
    a: Any = await store.session(TIMEOUT_MS)
    await a.create("/n", b"0")
    asked = 0

    def fate() -> Fate:
        nonlocal asked
        asked += 1
        return Fate.ANSWERED

    a.fate = fate
    assert {data for data, _ in await asyncio.gather(*(a.get("/n") for _ in range(1000)))} == {b"0"}
    assert asked == 1


async def test_a_write_does_not_wait_for_the_watch_and_a_read_does(store: Store) -> None:
    """While the watch is held back, own writes are answered, and their watches fire. What another session writes after
    them is seen once the watch has brought it, and its event fires then."""
    a: Any = await store.session(10 * TIMEOUT_MS)
    b = await store.session(10 * TIMEOUT_MS)
    await a.create("/n", b"0")
    events: list[WatchEvent] = []
    await a.get("/n", watch=events.append)
    a.proxy.watching.clear()
    await a.set("/n", b"1")
    await a.set("/n", b"2")
    assert events == [(EventType.DATA_CHANGED, "/n")]
    await a.get("/n", watch=events.append)
    await b.set("/n", b"3")
    heard = a.proxy.answered_bytes
    reading = asyncio.ensure_future(a.get("/n"))
    await eventually("its request is answered", lambda: a.proxy.answered_bytes > heard)
    assert not reading.done() and len(events) == 1
    a.proxy.watching.set()
    assert (await reading)[0] == b"3"
    assert events == 2 * [(EventType.DATA_CHANGED, "/n")]
    assert (await a.set("/n", b"4")).version == 4
