"""In any interleaving of clients and followers the coordinator shows what the next one finds in committed records."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker import errors
from pybroker.decisions.group import State
from pybroker.errors import KafkaError
from tests import virtual
from tests.groups.consumers import Consumer
from tests.groups.logs import T0, T1, U0
from tests.groups.test_commitment import MINUTE_MS, G, H, Stage, at

PLACES = (T0, T1, U0)
STEP = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from([G, H]), st.sampled_from(PLACES)),
    st.tuples(st.just("forget"), st.sampled_from([G, H]), st.sampled_from(PLACES)),
    st.tuples(st.sampled_from(["delete", "member"]), st.sampled_from([G, H])),
    st.tuples(st.just("follow"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 2, 7])),
    st.tuples(st.sampled_from(["refuse", "take", "expire", "forget topic"])),
)


class World:
    """Two groups of one partition; requests are sent without waiting, and answered sooner or later."""

    def __init__(self, directory: Path) -> None:
        self.stage = Stage(directory)
        self.asked: list[asyncio.Task[Any]] = []
        self.commits = 0

    async def do(self, what: str, *about: Any) -> None:
        stage, groups, log = self.stage, self.stage.groups, self.stage.log
        if what == "commit":
            self.commits += 1
            self.ask(groups.offsets.commit(about[0], "", None, -1, {about[1]: at(self.commits, virtual.wall_ms())}))
        elif what == "forget":
            self.ask(groups.offsets.forget(about[0], [about[1]]))
        elif what == "delete":
            self.ask(groups.offsets.delete(about[0]))
        elif what == "member":
            self.ask(self.member(about[0]))
        elif what == "follow":
            await log.move(min(log.high_watermark + about[0], log.log_end_offset))
        elif what == "pass":
            await asyncio.sleep(about[0])
        elif what in ("refuse", "take"):
            log.refuses = errors.NOT_ENOUGH_REPLICAS if what == "refuse" else None
        elif what == "expire":
            self.ask(groups.expire(virtual.wall_ms() + MINUTE_MS))
        else:
            self.ask(groups.forget_topic("u"))
        await virtual.settle()
        stage.check()

    def ask(self, work: Any) -> None:
        async def refused() -> None:
            try:
                await work
            except KafkaError as problem:
                assert problem.code in (errors.UNKNOWN_MEMBER_ID, errors.COORDINATOR_NOT_AVAILABLE)

        self.asked.append(asyncio.create_task(refused()))

    async def member(self, group: str) -> None:
        """Join as a member that commits once and is then silent."""
        one = Consumer(self.stage.groups, group)
        if not (await one.join()).error and not (await one.sync()).error:
            await one.commit({T0: at(1000, virtual.wall_ms())})

    async def live(self, steps: list[tuple[Any, ...]]) -> None:
        """Run all steps; at the end the followers have everything, and every request an answer."""
        await self.stage.begin("offsets.commit.timeout.ms=3000")
        for step in steps:
            await self.do(*step)
        self.stage.log.refuses = None
        for _ in range(8):  # sessions end, and their consequences are written
            await self.do("follow", 1000)
            await self.do("pass", 7)
        assert all(task.done() and not task.exception() for task in self.asked)
        for entry in self.stage.groups.entries():
            assert entry.group.state is State.EMPTY and not entry.writes and not entry.moving


@settings(max_examples=60)
@given(st.lists(STEP, max_size=25))
def test_what_is_shown_is_what_is_committed(steps: list[tuple[Any, ...]]) -> None:
    """The rule holds after every step; every request is answered, and no record is left waiting."""
    with tempfile.TemporaryDirectory() as directory:
        world = World(Path(directory))
        try:
            virtual.run(world.live(steps))
        finally:
            world.stage.bench.close()
