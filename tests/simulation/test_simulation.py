"""Three simulated brokers with kills, freezes, cuts and a failing store, from seeds that replay exactly."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path

import pytest

from pybroker.decisions.image import PartitionState
from pybroker.decisions.orders import Stopped, StopReplica
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.planning import NewTopic
from pybroker.model import TopicPartition
from tests.simulation import planted, scripts
from tests.simulation.checker import T, U, Violated
from tests.simulation.planted import Plant
from tests.simulation.world import Script, World, simulate

SEEDS = (*range(1, 9), 5588)
"""With the last seed a leader restarts and stays leader in its epoch, while a follower lags."""
TRIES = 6
"""Schedules to search for a planted bug, as any change elsewhere changes all of them."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_must_hold_holds_after_each_step(seed: int, tmp_path: Path) -> None:
    """The invariants hold, and records were acknowledged meanwhile."""
    history = simulate(seed, tmp_path)
    assert sum(" acknowledged " in line for line in history) > 5


def test_a_seed_replays_exactly(tmp_path: Path) -> None:
    """A seed gives each event at the same moment; another seed gives other events."""
    first, again, other = (simulate(seed, tmp_path / name) for seed, name in ((1, "a"), (1, "b"), (2, "c")))
    assert first == again != other


def test_what_the_store_shows_is_judged(tmp_path: Path) -> None:
    """A leader outside the ISR fails the schedule, even if another program wrote it."""

    async def script(world: World) -> None:
        state, admin = world.checker.states[T], await world.store.session(60_000)
        wrong = state._replace(isr=tuple(n for n in state.isr if n != state.leader))
        await admin.set(nodes.state(*T), nodes.dump_state(wrong))
        await asyncio.sleep(1)

    with pytest.raises(Violated, match="is not in ISR"):
        simulate(1, tmp_path, script=script)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_controllership_that_people_delete(seed: int, tmp_path: Path) -> None:
    """No acknowledged record is lost, there is one controller in the end, and all is healthy again."""
    simulate(seed, tmp_path, script=scripts.the_controllership_goes)


ORDERS = {
    "the last first": (0, 1, 2),
    "the last first, and again": (0, 0, 1, 2),
    "the last in between": (1, 0, 2),
    "the last last": (2, 1, 0),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_the_last_in_sync_replica_loses_power(seed: int, order: tuple[int, ...], tmp_path: Path) -> None:
    """A replica that has what the last one in the ISR lost is elected, in whatever order the brokers return."""
    simulate(seed, tmp_path, script=partial(scripts.the_last_replica_loses_power, order=order))


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_broker_that_hides_its_loss_of_power_is_found(
    order: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the broker does not report the loss, it leads, and acknowledged records are gone."""
    planted.loss_of_power_not_reported(monkeypatch)
    with pytest.raises(Violated, match="are committed"):
        simulate(1, tmp_path, script=partial(scripts.the_last_replica_loses_power, order=order))


def test_a_callback_that_raises_fails_the_schedule(tmp_path: Path) -> None:
    """The exception is raised, although a broker's own loop would log it."""

    async def script(world: World) -> None:
        world.network.lives[1].run(asyncio.sleep(0)).add_done_callback(lambda task: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        simulate(1, tmp_path, script=script)


def test_a_replica_that_was_stopped_follows_when_it_is_told_to(tmp_path: Path) -> None:
    """The replica follows in the same leader epoch, as the late StopReplica was for its broker's earlier life."""

    async def script(world: World) -> None:
        await asyncio.sleep(1)
        state, life = world.checker.states[T], world.network.lives[3]
        life.run(life.manager.stop_replica(stop(T, state, life.epoch)))
        await asyncio.sleep(4)  # until its leader has shrunk the ISR and all brokers know
        assert world.checker.states[T].leader_epoch == state.leader_epoch

    simulate(1, tmp_path, script=script)


def stop(key: TopicPartition, state: PartitionState, broker_epoch: int) -> StopReplica:
    """The controller's request to a broker that shuts down and no longer leads the partition."""
    return StopReplica(1, state.controller_epoch, broker_epoch, [Stopped(key, state.leader_epoch, False)])


@pytest.mark.parametrize("planted_too", [False, True], ids=["sound", "planted"])
def test_all_brokers_forget_a_deleted_topic(
    planted_too: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the end the metadata of each broker has the topics of the store."""

    async def script(world: World) -> None:
        life = world.network.lives[1]
        made = await life.topics.create(NewTopic(U.topic, 1, 3))
        world.faults.ask(life, partial(life.topics.delete, U.topic, made.id))
        await asyncio.sleep(1)

    if not planted_too:
        simulate(1, tmp_path, script=script)
        return
    planted.deletions_not_announced(monkeypatch)
    with pytest.raises(Violated, match="the metadata of 1 has"):
        simulate(1, tmp_path, script=script)


FOUND = {
    planted.truncation_to_the_high_watermark: 1,
    planted.acks_before_replication: 1,
}


@pytest.mark.parametrize("plant", FOUND, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug breaks a rule in one of a few seeds, which hold without it."""
    plant(monkeypatch)
    with pytest.raises(Violated):
        for seed in range(FOUND[plant], FOUND[plant] + TRIES):
            simulate(seed, tmp_path / str(seed))


@pytest.mark.parametrize("plant", [None, planted.stale_controller_obeyed])
def test_a_controller_that_is_none_any_more_is_not_obeyed(
    plant: Plant | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A former controller's request that arrives after one of its successor is refused."""

    async def script(world: World) -> None:
        state = world.checker.states[T]
        world.network.lives[1].kill()
        await asyncio.sleep(0.5)
        assert world.checker.states[T].controller_epoch > state.controller_epoch
        life = world.network.lives[3]

        async def told_late() -> None:
            with contextlib.suppress(KafkaError):
                await life.manager.stop_replica(stop(T, state, life.epoch))

        life.run(told_late())
        await asyncio.sleep(0.1)

    if plant is None:
        simulate(1, tmp_path, script=script)
        return
    plant(monkeypatch)
    with pytest.raises(Violated, match="obeyed a controller"):
        simulate(1, tmp_path, script=script)


@pytest.mark.parametrize("planted_too", [False, True], ids=["sound", "planted"])
@pytest.mark.parametrize(
    ("script", "plant"),
    [
        (scripts.a_new_leader_lags, planted.growth_at_the_high_watermark),
        (scripts.a_follower_comes_back_with_less, planted.fetch_counted_for_a_later_life),
    ],
    ids=lambda each: each.__name__,
)
def test_who_may_join_the_isr(
    script: Script, plant: Plant, planted_too: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica without all committed records does not join the ISR."""
    if not planted_too:
        simulate(1, tmp_path, script=script)
        return
    plant(monkeypatch)
    with pytest.raises(Violated, match="are committed"):
        simulate(1, tmp_path, script=script)
