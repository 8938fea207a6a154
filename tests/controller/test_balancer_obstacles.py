"""The continuous balancer where something is broken: damaged settings, log dirs that cannot be used, odd notes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from pybroker import errors
from pybroker.controller import balancer
from pybroker.controller.balancer import HELD_INTERVALS
from pybroker.decisions.election import TAKES_NO_APPENDS
from pybroker.decisions.planning.balance_note import NOTE, BalanceNote
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from tests.controller.balanced import INTERVAL_S, MB, RATE, BalancedCluster

pytestmark = pytest.mark.virtual_time
ON_2 = ((2,),) * 6


@pytest.fixture
async def cluster(caplog: pytest.LogCaptureFixture) -> AsyncIterator[BalancedCluster]:
    """Three brokers; broker 1 is the controller."""
    caplog.set_level(logging.INFO)
    made = BalancedCluster()
    await made.begin()
    yield made
    await made.end()


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The log lines with these words."""
    return [r.getMessage() for r in caplog.records if words in r.getMessage()]


# -- damaged settings --------------------------------------------------------------------------------------------------


DAMAGED = [b"no JSON", b"[]", b'{"version": 1, "config": 5}', b'{"version": 1, "config": {"retention.ms": "soon"}}']


async def damage(cluster: BalancedCluster, topic: str, data: bytes) -> None:
    """Write a topic's node of settings by hand, without a notice."""
    await cluster.admin.set(nodes.topic_config(topic), data)


@pytest.mark.parametrize("data", DAMAGED, ids=["no JSON", "a list", "a number", "a wrong value"])
async def test_a_topic_whose_settings_are_damaged_is_left_out(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """The log names the topic, which does not move; others move until the brokers are even, and no throttle stays."""
    await cluster.fill("bad", *ON_2)
    await damage(cluster, "bad", data)
    await cluster.fill("good", *ON_2)
    moved = set[TopicPartition]()
    while len(moved) < 6:
        for key in await cluster.until_batch():
            moved.add(key)
            await cluster.arrive(key)
    assert {key.topic for key in moved} == {"good"}
    await cluster.until_ended()
    assert await cluster.of_topic("good") == await cluster.all_brokers() == {}
    assert "bad" in logged(caplog, "balancer leaves topic as it is")[0]


@pytest.mark.parametrize("data", DAMAGED, ids=["no JSON", "a list", "a number", "a wrong value"])
async def test_settings_are_damaged_while_the_topic_moves(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    """The batch ends all the same, with its rates and the lists of other topics, and the next one begins."""
    await cluster.fill("bad", *ON_2)
    moving = await cluster.until_batch()
    if b"soon" in data:
        data = nodes.dump_config({**await cluster.of_topic("bad"), "retention.ms": "soon"})
    await damage(cluster, "bad", data)
    await cluster.fill("good", *ON_2)
    note = await cluster.note()
    for key in moving:
        await cluster.arrive(key)
    await cluster.until("the next batch begins", cluster.under_way)
    assert {key.topic for key in cluster.under_way()} == {"good"}
    assert await cluster.note() != note and NOTE in await cluster.all_brokers()
    assert "bad" in logged(caplog, "balancer leaves topic as it is")[0]


# -- log dirs that cannot be used --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (TAKES_NO_APPENDS, "the log dir of broker 3 is full"),
        (errors.KAFKA_STORAGE_ERROR, "broker 3 cannot use its log dir"),
    ],
    ids=["full", "failed"],
)  # fmt: skip
async def test_a_broker_cannot_write_what_it_is_to_get(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, code: int, words: str
) -> None:
    """After an interval the move is taken back, and the log says why; the other one goes on. The next batches leave
    that broker out for ten intervals."""
    await cluster.fill("t", *ON_2)
    to = {state.adding: key for key, state in (await cluster.until_batch()).items()}
    stuck, other = to[3,], to[1,]
    cluster.brokers[3].refuses[stuck] = code
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(3), sequential=True)
    await asyncio.sleep(INTERVAL_S / 2)
    assert cluster.under_way().keys() == {stuck, other}
    await cluster.until("it is taken back", lambda: list(cluster.under_way()) == [other])
    [line] = logged(caplog, "balancer takes moves back")
    assert words in line and str(stuck) in line
    await cluster.arrive(other)
    await cluster.until_ended()
    assert await cluster.of_topic("t") == await cluster.all_brokers() == {}
    began_s = asyncio.get_running_loop().time()
    for key, state in (await cluster.until_batch()).items():
        assert state.adding == (1,)
        await cluster.arrive(key)
    await cluster.until_ended()
    assert asyncio.get_running_loop().time() - began_s < 2 * INTERVAL_S
    await cluster.nothing_moves(HELD_INTERVALS * INTERVAL_S - 3 * INTERVAL_S)
    cluster.brokers[3].refuses.clear()
    assert {state.adding for state in (await cluster.until_batch()).values()} == {(3,)}


async def test_a_log_dir_that_is_full_for_a_moment(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A target whose log dir has room again within an interval keeps its move."""
    await cluster.fill("t", *ON_2)
    to = {state.adding: key for key, state in (await cluster.until_batch()).items()}
    for _ in range(3):
        cluster.brokers[3].refuses[to[3,]] = TAKES_NO_APPENDS
        await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(3), sequential=True)
        await asyncio.sleep(INTERVAL_S / 2)
        cluster.brokers[3].refuses.clear()
        await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(3), sequential=True)
        await asyncio.sleep(INTERVAL_S / 2)
    assert len(cluster.under_way()) == 2 and not logged(caplog, "balancer takes moves back")


# -- a cluster that cannot become even ---------------------------------------------------------------------------------


async def test_what_was_moved_may_move_again_later(cluster: BalancedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition moves once at most while the brokers are uneven. Where they cannot become even, for so many intervals
    only: sizes change."""
    monkeypatch.setattr(balancer, "MOVED_INTERVALS", 6)
    [large] = await cluster.fill("large", (2,), size=1000 * MB)
    small = await cluster.fill("small", *ON_2[:4])
    moved = dict[TopicPartition, tuple[int, ...]]()
    while len(moved) < 4:
        for key, state in (await cluster.until_batch()).items():
            moved[key] = state.adding
            await cluster.arrive(key)
    assert moved.keys() == {*small} and sorted(moved.values()) == [(1,), (1,), (3,), (3,)]
    await cluster.nothing_moves(2 * INTERVAL_S)
    cluster.sizes |= {large: 0, small[0]: 1000 * MB}
    await cluster.nothing_moves(2 * INTERVAL_S)
    assert set(await cluster.until_batch()) <= {*small}


# -- odd notes ---------------------------------------------------------------------------------------------------------


async def test_a_note_that_names_a_role_twice_is_removed(cluster: BalancedCluster) -> None:
    """The rate is removed with the note, and balancing goes on."""
    text = BalanceNote(77, ("leader", "leader"), {}).text()
    await cluster.write("brokers/<default>", {NOTE: text, "leader.replication.throttled.rate": "77"})
    await cluster.fill("t", *ON_2)
    await cluster.until_batch()
    assert (await cluster.all_brokers())["leader.replication.throttled.rate"] == str(RATE)


@pytest.mark.parametrize("text", ["{}", "soon", '{"rate":1,"brokers":{"leader":[-1]},"topics":{}}'])
async def test_a_note_of_a_command_that_is_none(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """A config that no `pybroker reassign` can remove does not stop the balancer: the log names it once."""
    await cluster.set(reassign__throttle__note=text)
    await cluster.fill("t", *ON_2)
    for _ in range(2):
        for key in await cluster.until_batch():
            await cluster.arrive(key)
    assert len(logged(caplog, "throttle note ignored")) == 1
