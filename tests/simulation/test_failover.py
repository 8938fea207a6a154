"""One failover as a text, testdata/failover.txt; `pytest --rewrite tests/simulation/test_failover.py` writes it anew.

Read it beside the section on a cluster in docs/architecture.md; a change of the file is a change of the protocol.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.simulation.checker import T
from tests.simulation.scripts import log, until
from tests.simulation.trace import SEED, TracedWorld
from tests.simulation.world import World, simulate

GOLDEN = Path(__file__).parent / "testdata/failover.txt"
HEADER = f"""\
# One failover of the partition {T}: when in virtual time, who, and what. Written by
# pytest --rewrite tests/simulation/test_failover.py, which has the schedule; tests/simulation/trace.py has the words.
"""
FETCHES_LATE = {(2, 1), (3, 1)}
"""The ways of both followers' requests to the first leader."""


async def failover(world: World) -> None:
    """A leader dies with a record that no follower has; it comes back, truncates that record, and is in sync again."""
    assert isinstance(world, TracedWorld)
    lives, states = world.network.lives, world.checker.states
    world.stage("Three brokers start. Broker 3 is first, and becomes the controller.")
    world.start(3)
    await until("it reigns", lambda: (found := lives[3].controller) is not None and found.active)
    world.start(1)
    world.start(2)
    await until("all are registered", lambda: all(life.epoch >= 0 for life in lives.values()))
    await asyncio.sleep(0.1)

    world.stage("A topic is created. The first of its replicas leads.")
    await world.create_topic(1, 2, 3)
    await until("it has a leader", lambda: T in states and log_is_led(world, 1))
    await asyncio.sleep(0.1)

    world.stage("A record is acknowledged when every member of the ISR has it.")
    await world.produce(1, b"one")
    await asyncio.sleep(0.6)

    world.stage("No fetch reaches broker 1 any more. It appends a record that no other broker has, and is killed.")
    world.network.cut |= FETCHES_LATE
    await asyncio.sleep(0.6)  # until fetches parked at broker 1 are answered
    writing = world.loop.create_task(world.produce(1, b"two"), context=world.loop.outside)
    await asyncio.sleep(0.02)
    world.kill(1)
    world.network.heal()
    await until("another leads", lambda: states[T].leader == 2)
    await writing

    world.stage("The client sends the record again, to the new leader.")
    await world.produce(2, b"two")
    await asyncio.sleep(0.6)

    world.stage("Broker 1 comes back. Its log has an offset 1 of leader epoch 0, which was never committed.")
    world.start(1)
    await until("all are in sync", lambda: len(states[T].isr) == 3)
    await asyncio.sleep(0.6)

    world.stage("The ISR is whole: the next record waits for all three again.")
    await world.produce(2, b"three")
    await asyncio.sleep(0.6)
    assert {(log(world, n).log_end_offset, log(world, n).high_watermark) for n in (1, 2, 3)} == {(3, 3)}


def log_is_led(world: World, number: int) -> bool:
    replica = world.network.lives[number].replicas.get(*T)
    return replica is not None and replica.log is not None and replica.log.role.kind == "leader"


def test_a_failover_goes_as_it_is_written(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each epoch, offset and ISR change happens at its virtual millisecond."""
    text = HEADER + "".join(f"{line}\n" for line in simulate(SEED, tmp_path, failover, TracedWorld))
    if request.config.getoption("rewrite"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
