"""A lease is renewed while the event loop is blocked, but not while an unread session event is pending."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from pybroker.clock import boot_ms
from pybroker.coordination.renewals import Renewals
from pybroker.model import TopicPartition
from pybroker.replication.lease import LAPSED_MS, NO_MEMBER_MS, Lease
from tests.coordination.system.test_silence import Slow

LED = TopicPartition("t", 0)
PATH = "/brokers/ids/1"
GRANT_MS = 1500
WAIT_S = 60


@pytest.fixture
def server() -> Iterator[Slow]:
    """A server in its own thread, so that a blocked test loop does not stop it."""
    server, loop, there = Slow(0.0, GRANT_MS), asyncio.new_event_loop(), threading.Event()

    async def begin() -> None:
        await server.begin()
        there.set()

    def serve() -> None:
        loop.create_task(begin())
        loop.run_forever()
        loop.run_until_complete(server.end())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert there.wait(WAIT_S)
    yield server
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def test_a_lease_goes_on_while_the_loop_stands_still(server: Slow) -> None:
    session = server.session()
    await session.open(WAIT_S)
    since = session.renewals.look(PATH)
    await session.exists(PATH)
    later = threading.Event()
    stood_ms = boot_ms()
    session.renewals.keep(since, lambda sent_ms: sent_ms > stood_ms + GRANT_MS and later.set())
    assert later.wait(WAIT_S), "nothing sent a session timeout later was answered"
    assert session.answered_ms > stood_ms + GRANT_MS
    await session.close()


async def test_no_lease_goes_on_behind_news(server: Slow) -> None:
    """After a new session state that the loop has not processed, no answer renews the lease."""
    session = server.session()
    await session.open(WAIT_S)
    renewed: list[int] = []
    session.renewals.keep(session.renewals.look(PATH), renewed.append)
    asked_ms, until = session.answered_ms, threading.Event()
    session._client.add_listener(lambda state: until.set())
    session._client.hang_up()
    assert until.wait(WAIT_S)
    had = len(renewed)
    while session.answered_ms <= asked_ms:
        await session.exists("/")
    assert len(renewed) == had and not session.renewals.are_due
    await session.close()


def test_what_is_looked_at_too_early_is_not_kept() -> None:
    renewals, renewed = Renewals(), list[int]()
    since = renewals.look(PATH)
    renewals.news(PATH)  # the node was deleted while the answer was under way
    renewals.keep(since, renewed.append)
    renewals.moved(boot_ms() + 1)
    assert renewed == []
    renewals.keep(renewals.look(PATH), renewed.append)
    renewals.news("/brokers/ids/2")
    renewals.moved(boot_ms() + 2)
    assert len(renewed) == 1
    renewals.news(PATH)
    renewals.moved(boot_ms() + 3)
    assert len(renewed) == 1


def test_a_late_answer_brings_no_lost_lease_back() -> None:
    held, prolonged = list[int](), list[int]()
    lease = Lease(held.append, prolonged.append)
    lease.registered(1, [])
    lease.go_on(1000)
    assert prolonged == [], "it was never held"
    lease.renew(1000)
    lease.go_on(2000)
    assert prolonged == [2000]
    for lost_ms in (NO_MEMBER_MS, LAPSED_MS):
        lease.renew(lost_ms)
        lease.go_on(3000)
        assert (prolonged, held[-1]) == ([2000], lost_ms)


def test_a_leader_that_is_not_told_what_it_leads_has_no_lease() -> None:
    held, prolonged = list[int](), list[int]()
    lease = Lease(held.append, prolonged.append)
    lease.renew(1000)
    lease.registered(2, [LED])
    lease.go_on(2000)
    assert (prolonged, held[-1]) == ([], NO_MEMBER_MS)
    lease.told(2, [LED])
    assert held[-1] == 2000
