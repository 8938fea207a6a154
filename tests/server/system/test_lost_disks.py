"""A failed log dir takes its consumer groups offline; the last one ends the broker."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.state_log.placement import partition_of
from tests.groups.members import Member, commit, committed, stable
from tests.harness import BrokerProcess
from tests.server.live import Live, Wire
from tests.server.system.test_failed_disks import replicas
from tests.server.test_metrics import get
from tests.wire import Wire as PlainWire
from tests.wire import batch as plain_batch

PARTITIONS = 4
SECONDS_MAX = 20


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with two log dirs that each hold some of the groups."""
    dirs = f"log.dirs={tmp_path / 'one'},{tmp_path / 'two'}"
    few = [f"offsets.topic.num.partitions={PARTITIONS}", "group.initial.rebalance.delay.ms=0"]
    made = Live(tmp_path, [dirs, *few, "metrics.listener=127.0.0.1:0"])
    await made.start()
    yield made
    await made.stop()


async def coordinator(wire: Wire, group: str) -> int:
    """Send FindCoordinator; return its error code."""
    answer: Any = await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
    return int(answer.coordinators[0].error_code)


async def groups(live: Live, wire: Wire) -> tuple[str, str]:
    """Store two groups, one with its partition in log dir `two`, one in the other; return their names."""
    while (code := await coordinator(wire, "any")) == errors.COORDINATOR_NOT_AVAILABLE:
        await asyncio.sleep(0.01)
    assert code == 0 and (await wire.create("t")).error_code == 0
    found: dict[bool, str] = {}
    for n in range(100):
        index = partition_of(f"g{n}", PARTITIONS)
        found.setdefault((live.data_dir / "two" / f"{OFFSETS_TOPIC}-{index}").exists(), f"g{n}")
    for group in found.values():
        while (code := (await commit(wire, group, {"t0": 5}))[0]) == errors.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.01)
        assert code == 0
    return found[True], found[False]


async def test_the_groups_of_a_log_dir_that_fails(live: Live, wire: Wire) -> None:
    """Waiting members of the failed log dir's groups are answered within moments, others at their next heartbeat, and
    FindCoordinator finds no coordinator. The other groups go on; the lost ones are back with the disk."""
    lost, kept = await groups(live, wire)
    members = [Member(await live.connect(), group, session_ms=300_000) for group in (lost, kept)]
    for member in members:
        await stable(member)
    waiting = Member(await live.connect(), lost, session_ms=300_000)
    waiting.send_join()
    assert await waiting.receive_join() == errors.MEMBER_ID_REQUIRED
    waiting.send_join()  # which waits for the first to join again: for five minutes
    async with asyncio.timeout(SECONDS_MAX):
        while await members[0].heartbeat() != errors.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(0.01)
    replicas(live).arm("segment.write", errno.EIO, 1)
    assert await members[0].commit(t0=6) == [errors.NOT_COORDINATOR]
    async with asyncio.timeout(SECONDS_MAX):
        assert await waiting.receive_join() == errors.NOT_COORDINATOR
    assert await members[0].heartbeat() == errors.NOT_COORDINATOR
    assert await members[0].join() == errors.NOT_COORDINATOR
    assert await members[0].sync({}) == (errors.NOT_COORDINATOR, b"")
    assert await members[0].leave() == errors.NOT_COORDINATOR
    assert await coordinator(wire, lost) == errors.COORDINATOR_NOT_AVAILABLE
    assert await coordinator(wire, kept) == 0
    assert await members[1].heartbeat() == 0 and await members[1].commit(t0=7) == [0]
    assert "are being loaded" not in (await get(live, "/readyz"))[1]
    await live.restart()
    wire = await live.connect()
    not_yet = (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR, errors.COORDINATOR_NOT_AVAILABLE)
    for group, offset in ((lost, 5), (kept, 7)):
        async with asyncio.timeout(SECONDS_MAX):
            while (code := (await commit(wire, group, {"t0": 0}, generation=99))[0]) in not_yet:
                await asyncio.sleep(0.01)
        assert code == errors.UNKNOWN_MEMBER_ID
        assert (await committed(wire, group))["t0"] == offset


async def test_the_groups_of_a_log_dir_that_is_not_there(live: Live, wire: Wire) -> None:
    """Groups of a missing log dir have no coordinator and are not answered as loading; the others are served."""
    lost, kept = await groups(live, wire)
    await live.stop()
    (live.data_dir / "two").rename(live.data_dir / "away")
    await live.start()
    wire = await live.connect()
    async with asyncio.timeout(SECONDS_MAX):
        while await commit(wire, kept, {"t0": 8}) == [errors.COORDINATOR_LOAD_IN_PROGRESS]:
            await asyncio.sleep(0.01)
    assert await commit(wire, lost, {"t0": 8}) == [errors.NOT_COORDINATOR]
    assert await coordinator(wire, lost) == errors.COORDINATOR_NOT_AVAILABLE
    assert (await committed(wire, kept))["t0"] == 8
    status, reason = await get(live, "/readyz")
    assert status == 503 and "log directories are offline" in reason


@pytest.mark.parametrize("what", ["file", "log dir"])
def test_a_broker_ends_with_its_store(start_broker: Callable[..., BrokerProcess], tmp_path: Path, what: str) -> None:
    """The broker ends when its store is removed, alone or with its log dir: no topic is created only to be lost."""
    one, two = tmp_path / "one", tmp_path / "two"
    broker = start_broker(sets={"log.dirs": f"{one},{two}"})
    with PlainWire(broker.port) as w:
        assert w.create_topic("a") == 0
    if what == "file":
        (one / "coordination.sqlite").unlink()
    else:
        shutil.rmtree(one)
    assert broker.wait_end(SECONDS_MAX) == 1
    last = broker.output().strip().splitlines()[-2]  # the last line is printed by this process
    assert "its coordination store was removed" in last and str(one) in last and str(two) not in last


@pytest.mark.parametrize("how", ["write", "removed", "stuck"])
def test_a_broker_ends_with_its_last_log_dir(
    start_broker: Callable[..., BrokerProcess], tmp_path: Path, how: str
) -> None:
    """A broker goes on after one of two log dirs fails, and ends with the second: its last line says why, with exit
    status 1. It does not wait for a disk that does not answer."""
    one, two = tmp_path / "one", tmp_path / "two"
    point = {"write": "segment.write=errno:5:2:1000", "stuck": "segment.sync=sleep:60000:0:1"}.get(how, "")
    broker = start_broker(sets={"log.dirs": f"{one},{two}"}, failpoints=point)
    with PlainWire(broker.port) as w:
        config = {"flush.messages": "1"} if how == "stuck" else {}
        for name in ("a", "b"):
            assert w.create_topic(name, config=config if name == "a" else {}) == 0
        if how == "write":
            assert [w.produce(name, plain_batch([b"x"])).error for name in "aabb"] == [0, 0, 56, 56]
            with pytest.raises(ConnectionError):
                while True:
                    w.produce("a", plain_batch([b"x"]))
        elif how == "stuck":
            w.send(w.produce_frame("a", plain_batch([b"x"])))
    for path in (two, one) if how != "write" else ():
        shutil.rmtree(path, ignore_errors=True)
    assert broker.wait_end(SECONDS_MAX) == 1
    last = broker.output().strip().splitlines()[-2]  # the last line is printed by this process
    assert "the broker ends because " in last and str(one) in last
    assert how != "write" or ("all of its log directories failed" in last and str(two) in last)
