"""The continuous balancer on the stage: what it writes and when, which controller ends a batch, when nothing moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping

import pytest

from pybroker import errors
from pybroker.config import Source
from pybroker.controller.balancer import HELD_INTERVALS
from pybroker.controller.controller import Controller
from pybroker.controller.reassignments import Reassignments
from pybroker.coordination.store import Check
from pybroker.decisions.config_changes import AlterOperation, ConfigChange
from pybroker.decisions.planning.balance_note import NOTE, BalanceNote
from pybroker.decisions.planning.throttle_note import ThrottleNote
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from tests.controller.balanced import INTERVAL_S, MB, RATE, BalancedCluster

pytestmark = pytest.mark.virtual_time
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADERS, FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
ON_2 = ((2,),) * 6
BROKERS, TOPIC = nodes.broker_config(None), nodes.topic_config("t")


@pytest.fixture
async def cluster(caplog: pytest.LogCaptureFixture) -> AsyncIterator[BalancedCluster]:
    """Three brokers; broker 1 is the controller."""
    caplog.set_level(logging.INFO)
    made = BalancedCluster()
    await made.begin()
    yield made
    await made.end()


def waits(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The logged reasons why nothing moves."""
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith("balancer waits")]


async def written(cluster: BalancedCluster, path: str) -> int:
    """The transaction that last wrote a node."""
    return (await cluster.admin.get(path))[1].mzxid


# -- a batch -----------------------------------------------------------------------------------------------------------


async def test_a_batch(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The note and the rates are written first, then the lists, then the moves; at the end the lists go before the
    note, and no throttle is left."""
    await cluster.fill("t", *ON_2)
    zero, one = moving = await cluster.until_batch()
    assert (zero.partition, one.partition) == (0, 1), "as many as auto.balance.partitions.at.once"
    note = await cluster.note()
    assert note is not None and note.rate == RATE and note.roles == ("leader", "follower")
    assert {key: after for key, (_, after) in note.moves.items()} == {
        key: state.adding for key, state in moving.items()
    }
    held = await cluster.all_brokers()
    assert held.keys() == {NOTE, LEADER_RATE, FOLLOWER_RATE}
    assert held[LEADER_RATE] == held[FOLLOWER_RATE] == str(RATE)
    [first], [second] = (state.adding for state in moving.values())
    assert await cluster.of_topic("t") == {LEADERS: "0:2,1:2", FOLLOWERS: f"0:{first},1:{second}"}
    order = [await written(cluster, path) for path in (BROKERS, TOPIC, nodes.topic("t"))]
    assert order == sorted(order)
    assert caplog.text.count("balancer moves partition") == 2

    await cluster.arrive(zero)
    await asyncio.sleep(10)
    assert await cluster.note() == note and list(cluster.under_way()) == [one], "one of them is still under way"
    version = (await cluster.admin.get(TOPIC))[1].version
    await cluster.set(auto__balance__enable="false")  # and so no batch follows
    await cluster.arrive(one)
    await cluster.until_ended()
    assert await cluster.of_topic("t") == {} and await cluster.all_brokers() == {"auto.balance.enable": "false"}
    assert (await cluster.admin.get(TOPIC))[1].version == version + 1
    assert await written(cluster, TOPIC) < await written(cluster, BROKERS)
    await cluster.nothing_moves(2 * INTERVAL_S)


async def test_batch_after_batch_until_all_is_even(cluster: BalancedCluster) -> None:
    """The next batch follows at once, each planned anew; an even cluster is left as it is."""
    await cluster.fill("t", *ON_2)
    began_s = asyncio.get_running_loop().time()
    for _ in range(2):
        for key in await cluster.until_batch():
            await cluster.arrive(key)
    assert asyncio.get_running_loop().time() - began_s < INTERVAL_S
    assert sorted(cluster.replicas("t")) == [(1,), (1,), (2,), (2,), (3,), (3,)]
    await cluster.until_ended()
    before = await written(cluster, BROKERS)
    await cluster.nothing_moves(5 * INTERVAL_S)
    assert await written(cluster, BROKERS) == before and await cluster.of_topic("t") == {}


async def test_it_is_off_by_default(cluster: BalancedCluster) -> None:
    await cluster.set(auto__balance__enable="false")
    await cluster.fill("t", *ON_2)
    await cluster.nothing_moves(2 * INTERVAL_S)
    await cluster.set(auto__balance__enable="true")
    assert await cluster.until_batch()


async def test_moves_that_cannot_begin_are_tried_once_in_an_interval(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of a batch of which no move begins is removed, and nothing is written until the next interval: the store
    is not written to each second."""
    refusal = KafkaError(errors.LEADER_NOT_AVAILABLE, "not now")

    async def refused(_: Reassignments, targets: Mapping[TopicPartition, object], **__: object) -> object:
        return dict.fromkeys(targets, refusal)

    with monkeypatch.context() as patched:
        patched.setattr(Reassignments, "alter", refused)
        await cluster.fill("t", *ON_2)
        await asyncio.sleep(10 * INTERVAL_S)
        version = (await cluster.admin.get(BROKERS))[1].version
        assert 10 <= version <= 2 * 11, "it writes and removes one note in an interval"
    assert "the controller accepts no move" in waits(caplog)[-1]
    assert await cluster.until_batch()


async def test_a_topic_whose_settings_cannot_be_altered(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing moves without its throttle; the log says why, and the topic is left alone for ten intervals."""

    async def failing(*_: object, **__: object) -> None:
        raise KafkaError(errors.INVALID_CONFIG, "another setting of the topic is wrong")

    monkeypatch.setattr(cluster.brokers[1].settings, "alter_topic", failing)
    await cluster.fill("t", *ON_2)
    await cluster.nothing_moves(HELD_INTERVALS * INTERVAL_S - 5)
    assert (await cluster.admin.get(BROKERS))[1].version <= 2 and await cluster.note() is None
    assert "another setting of the topic is wrong" in waits(caplog)[0]
    monkeypatch.undo()
    assert await cluster.until_batch()


# -- moves that do not end ---------------------------------------------------------------------------------------------


async def test_a_broker_that_a_move_adds_is_absent(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """After an interval the move to it is taken back, with the throttle; another move goes on. The absence of a moment
    changes nothing."""
    await cluster.fill("t", *ON_2)
    moving = await cluster.until_batch()
    to = {state.adding: key for key, state in moving.items()}
    assert to.keys() == {(1,), (3,)}
    await cluster.brokers[3].crash()
    await asyncio.sleep(INTERVAL_S / 2)
    assert len(cluster.under_way()) == 2
    cluster.brokers[3].links.clear()
    await cluster.join(3)
    await asyncio.sleep(INTERVAL_S * 2)
    assert len(cluster.under_way()) == 2 and "balancer takes moves back" not in caplog.text

    await cluster.brokers[3].crash()
    await asyncio.sleep(INTERVAL_S / 2)
    assert len(cluster.under_way()) == 2, "the absence before does not count"
    await cluster.until("it is taken back", lambda: list(cluster.under_way()) == [to[1,]])
    assert await cluster.note() is not None, "the other one is under way"
    assert caplog.text.count("balancer takes moves back") == 1
    await cluster.arrive(to[1,])
    await cluster.until_ended()
    assert await cluster.of_topic("t") == await cluster.all_brokers() == {}
    assert cluster.replicas("t").count((2,)) == 5


async def test_a_move_that_somebody_cancels(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The throttle goes with the batch, and nothing moves for ten intervals; then the balancer tries again."""
    await cluster.fill("t", *ON_2)
    zero, one = await cluster.until_batch()
    await cluster.move(zero)
    await cluster.arrive(one)
    await cluster.until_ended()
    assert await cluster.of_topic("t") == await cluster.all_brokers() == {}
    assert f"the move of {zero} was cancelled" in waits(caplog)[-1]
    await cluster.nothing_moves(HELD_INTERVALS * INTERVAL_S - 5)
    assert await cluster.until_batch()


async def test_a_topic_is_deleted_while_it_moves(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """The batch ends with the topic, and does not count as cancelled: its note is removed."""
    await cluster.fill("t", *ON_2)
    await cluster.until_batch()
    await cluster.admin.create(nodes.deletion("t"), b"")
    await cluster.until_ended()
    assert await cluster.all_brokers() == {} and "cancelled=0" in caplog.text


# -- another controller ------------------------------------------------------------------------------------------------


@pytest.fixture
async def four(cluster: BalancedCluster) -> BalancedCluster:
    """Four brokers, of which broker 1, the controller, gets no replicas from the balancer."""
    await cluster.set(auto__balance__excluded__brokers="1")
    await cluster.join(4)
    return cluster


async def test_the_next_controller_ends_the_batch(four: BalancedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next controller waits for the moves that are under way, with their throttle, even if it takes over slowly;
    then it removes the throttle, and goes on."""
    take_over = Controller._take_over

    async def slowly(controller: Controller) -> None:
        await asyncio.sleep(10)
        await take_over(controller)

    monkeypatch.setattr(Controller, "_take_over", slowly)
    await four.fill("t", *ON_2)
    moving = await four.until_batch()
    note, lists = await four.note(), await four.of_topic("t")
    await four.brokers[1].crash()
    await four.until("another is the controller", lambda: any(b.controller.active for b in four.living))
    await asyncio.sleep(30)
    assert four.under_way().keys() == moving.keys()
    assert await four.note() == note and await four.of_topic("t") == lists
    for key in moving:
        await four.arrive(key)
    await four.until_ended()
    assert await four.of_topic("t") == {} and LEADER_RATE not in await four.all_brokers()
    assert len(await four.until_batch()) == 2


async def test_a_batch_of_which_nothing_began(four: BalancedCluster) -> None:
    """The controller died after the note and the lists: the next one removes both, and plans anew."""
    await four.set(auto__balance__enable="false")
    t0, *_ = await four.fill("t", *ON_2)
    note = BalanceNote(77, ("leader",), {t0: ((2,), (3,))})
    await four.write("topics/t", {**note.lists()["t"]})
    await four.set(**{NOTE.replace(".", "__"): note.text(), LEADER_RATE.replace(".", "__"): "77"})
    await four.until_ended()
    assert await four.of_topic("t") == {}
    assert await four.all_brokers() == {"auto.balance.enable": "false", "auto.balance.excluded.brokers": "1"}


async def test_a_note_that_is_not_read_yet(four: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A controller that has yet to read the note of the former one does not write over it: its lists would stay."""
    await four.set(auto__balance__enable="false")
    for broker in four.living:
        await broker.stop_reading()
        broker.config.overlay(Source.DYNAMIC_DEFAULT_BROKER, {"auto.balance.excluded.brokers": "1"})
    t0, *_ = await four.fill("t", *ON_2)
    note = BalanceNote(77, ("leader",), {t0: ((2,), (4,))})
    await four.write("topics/t", {**note.lists()["t"]})
    await four.write("brokers/<default>", {NOTE: note.text(), "auto.balance.enable": None})
    await four.nothing_moves(3 * INTERVAL_S)
    assert await four.note() == note
    assert "has yet to read the note" in waits(caplog)[-1]
    await four.controller.watch.take(four.controller.session, "brokers/<default>")
    await four.until_batch()
    assert await four.note() != note


async def test_an_earlier_note_is_not_taken_for_the_latest(cluster: BalancedCluster) -> None:
    """A controller that ends the batch of a note removes no later one that it has not read."""
    await cluster.fill("t", *ON_2)
    moving = await cluster.until_batch()
    await cluster.brokers[1].stop_reading()
    later = BalanceNote(88, ("leader",), {})
    await cluster.write("brokers/<default>", {NOTE: later.text()})
    for key in moving:
        await cluster.arrive(key)
    await asyncio.sleep(INTERVAL_S)
    assert await cluster.note() == later


async def test_a_deposed_controller_writes_no_throttle(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another controller is elected between the note and the lists: no list is written, as it would stay."""
    settings = cluster.brokers[1].settings
    alter_topic = settings.alter_topic

    async def late(*given: object, **how: object) -> None:
        data, stat = await cluster.admin.get(nodes.CONTROLLER_EPOCH)
        if stat.version == version:
            await cluster.admin.set(nodes.CONTROLLER_EPOCH, data)
        await alter_topic(*given, **how)

    version = (await cluster.admin.get(nodes.CONTROLLER_EPOCH))[1].version
    monkeypatch.setattr(settings, "alter_topic", late)
    await cluster.fill("t", *ON_2)
    await cluster.nothing_moves(INTERVAL_S)
    assert await cluster.of_topic("t") == {}
    assert await cluster.note() is not None, "the next controller removes it"
    assert "another broker has become the controller" in caplog.text
    change = [ConfigChange(NOTE, AlterOperation.DELETE, None)]
    with pytest.raises(KafkaError) as refused:
        fence = Check(nodes.CONTROLLER_EPOCH, version)
        await settings.alter_broker("", change, replace=False, validate_only=False, fence=fence)
    assert refused.value.code == errors.NOT_CONTROLLER and await cluster.note() is not None


# -- what others have set ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["nonsense", "[" * 100_000, '{"moves":{"../..":{"0":[[1],[2]]}},"rate":1,"roles":[]}'],
    ids=["no JSON", "deep", "a path"],
)  # fmt: skip
async def test_a_note_that_is_nonsense(cluster: BalancedCluster, text: str) -> None:
    """The note is removed, nothing else is, and balancing goes on."""
    await cluster.write("brokers/<default>", {NOTE: text, LEADER_RATE: "5"})
    await cluster.fill("t", *ON_2)
    await cluster.until_batch()
    held = await cluster.all_brokers()
    assert held[LEADER_RATE] == "5" and BalanceNote.parse(held[NOTE]) is not None and held[NOTE] != text


async def test_a_note_of_one_broker_is_no_note(cluster: BalancedCluster) -> None:
    """Only the note of all brokers counts: another one, which the balancer could not remove, does not stop it."""
    await cluster.write("brokers/1", {NOTE: BalanceNote(1, (), {}).text()})
    await cluster.fill("t", *ON_2)
    assert await cluster.until_batch()


async def test_a_throttle_that_was_set_by_hand_stays(cluster: BalancedCluster) -> None:
    """Before the batch: the rate is used, a topic with a list is left alone, `*` does. While it runs: what was changed
    stays."""
    await cluster.set(leader__replication__throttled__rate="5")
    pinned, every = {LEADERS: "0:2", FOLLOWERS: ""}, {LEADERS: "*", FOLLOWERS: "*"}
    await cluster.fill("left", *ON_2)
    await cluster.write("topics/left", {**pinned})
    await cluster.fill("every", *ON_2[:2], size=MB)
    await cluster.write("topics/every", {**every})
    await cluster.fill("t", *ON_2)
    moving = dict(await cluster.until_batch())
    assert await cluster.all_brokers() == {
        NOTE: (await cluster.all_brokers())[NOTE], LEADER_RATE: "5", FOLLOWER_RATE: str(RATE)
    }  # fmt: skip
    await cluster.set(follower__replication__throttled__rate="6")
    for topic in {key.topic for key in moving}:
        await cluster.write(f"topics/{topic}", {LEADERS: "0:2,1:2,2:2"})
    while moving:
        for key in moving:
            await cluster.arrive(key)
        await cluster.until_ended()
        await asyncio.sleep(5)
        moving = dict(cluster.under_way())
    assert cluster.replicas("left") == [*ON_2] and await cluster.of_topic("left") == pinned
    assert await cluster.of_topic("every") == every
    assert await cluster.of_topic("t") == {LEADERS: "0:2,1:2,2:2"}
    assert await cluster.all_brokers() == {LEADER_RATE: "5", FOLLOWER_RATE: "6"}


# -- when it stays still -----------------------------------------------------------------------------------------------


async def test_others_come_first(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing begins while others move replicas, and for an interval after."""
    t0, *_ = await cluster.fill("t", *ON_2)
    await cluster.move(t0, 3)
    await asyncio.sleep(3 * INTERVAL_S)
    assert list(cluster.under_way()) == [t0] and await cluster.note() is None
    assert f"{t0} is being moved, not by the balancer" in waits(caplog)[-1]
    await cluster.arrive(t0)
    await cluster.nothing_moves(INTERVAL_S - 5)
    assert t0 not in await cluster.until_batch() or cluster.replicas("t")[0] != (3,)


async def test_a_throttle_of_a_command_comes_first(cluster: BalancedCluster) -> None:
    note = ThrottleNote(1000, {"leader": (2,)}, {"leader": ("t",)})
    await cluster.set(reassign__throttle__note=note.text())
    await cluster.fill("t", *ON_2)
    await cluster.nothing_moves(3 * INTERVAL_S)
    await cluster.set(reassign__throttle__note=None)
    assert await cluster.until_batch()


async def test_a_broker_with_replicas_is_absent(cluster: BalancedCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing moves until it is back, and in sync."""
    [u0] = await cluster.fill("u", (2, 3))
    await cluster.brokers[3].crash()
    await cluster.until("it is gone", lambda: 3 not in cluster.controller.controller.context.brokers)
    await cluster.fill("t", *ON_2)
    await cluster.nothing_moves(3 * INTERVAL_S)
    assert "broker 3 has replicas and is not there" in waits(caplog)[-1]
    await cluster.join(3)
    await cluster.nothing_moves(3 * INTERVAL_S)
    assert f"{u0} is under-replicated: broker 3 is not in sync" in waits(caplog)[-1]
    await cluster.report_isr(u0, 2, 3)
    assert await cluster.until_batch()


async def test_a_broker_that_is_excluded_gets_nothing(cluster: BalancedCluster) -> None:
    """The others get its part."""
    await cluster.set(auto__balance__excluded__brokers="3")
    await cluster.fill("t", *ON_2)
    moved = set()
    for _ in range(2):
        for key, state in (await cluster.until_batch()).items():
            moved |= {*state.adding}
            await cluster.arrive(key)
        await cluster.until_ended()
    assert moved == {1}
    await cluster.nothing_moves(3 * INTERVAL_S)
    assert sorted(cluster.replicas("t")) == [(1,)] * 3 + [(2,)] * 3


@pytest.mark.parametrize(
    ("setting", "text", "to"), [("excluded.brokers", "3", [(1,)]), ("enable", "false", [])], ids=["excluded", "off"]
)
async def test_a_setting_that_changes_after_the_plan(
    cluster: BalancedCluster, monkeypatch: pytest.MonkeyPatch, setting: str, text: str, to: list[tuple[int, ...]]
) -> None:
    """An operator excludes a broker, or switches the balancer off, while it sets its throttle: no such move begins, and
    the throttle goes."""
    settings = cluster.brokers[1].settings
    alter_topic = settings.alter_topic

    async def late(*given: object, **how: object) -> None:
        monkeypatch.undo()
        await cluster.set(**{f"auto__balance__{setting.replace('.', '__')}": text})
        await alter_topic(*given, **how)

    monkeypatch.setattr(settings, "alter_topic", late)
    await cluster.fill("t", *ON_2)
    await cluster.until("the setting is changed", lambda: settings.alter_topic == alter_topic)
    await asyncio.sleep(0.5)
    assert [state.adding for state in cluster.under_way().values()] == to
    for key in cluster.under_way():
        await cluster.arrive(key)
    await cluster.until_ended()
    assert await cluster.of_topic("t") == {}


async def test_a_broker_that_does_not_report_its_disks(
    cluster: BalancedCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is planned with sizes that are not known."""
    with monkeypatch.context() as patched:
        refusing = m.DescribeLogDirsResponse(error_code=errors.CLUSTER_AUTHORIZATION_FAILED, results=[])
        patched.setattr(cluster.brokers[3], "_log_dirs", lambda: refusing)
        await cluster.fill("t", *ON_2)
        await cluster.nothing_moves(3 * INTERVAL_S)
        assert "broker 3 does not report its disks: CLUSTER_AUTHORIZATION_FAILED" in waits(caplog)[-1]
    assert await cluster.until_batch()
