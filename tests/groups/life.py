"""The life of a few groups, decided to the last byte by a seed: `python -m tests.groups.life SEED` prints it.

Consumers join, sync, commit, fall silent or leave, while offsets expire and topics are deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import tempfile
from pathlib import Path

from pybroker.decisions.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.model import TopicPartition
from tests import virtual
from tests.groups.consumers import SESSION_MS, Consumer
from tests.groups.logs import Bench

CONSUMERS = 6
GROUPS = ("a", "b", "c")
TOPICS = ("t", "u")
LIFE_S = 300
SETS = ("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=10000")


class Wanderer(Consumer):
    """A consumer that follows the protocol, until it is silent for a while."""

    def __init__(self, groups: Coordinator, name: str, draws: random.Random) -> None:
        group = draws.choice(GROUPS)
        super().__init__(groups, group, instance=name if draws.random() < 0.3 else None, name=name)
        self.draws = draws

    async def live(self) -> None:
        while True:
            try:
                self.topic = self.draws.choice(TOPICS)
                joined = await self.join()
                if joined.error:
                    self.id = ""
                elif not (await self.sync()).error:
                    await self.work()
            except KafkaError:
                self.id = ""
            await asyncio.sleep(self.draws.random() * 20)

    async def work(self) -> None:
        """Send heartbeats and commits until the group rebalances, or the consumer stops."""
        while not self.heartbeat():
            place = TopicPartition(self.draws.choice(TOPICS), self.draws.randrange(3))
            await self.commit({place: Committed(self.draws.randrange(1000), -1, "", self.groups.wall_ms())})
            await asyncio.sleep(1)
            luck = self.draws.random()
            if luck < 0.03:
                self.leave()
            elif luck < 0.06:
                await asyncio.sleep(2 * SESSION_MS / 1000)


async def _story(bench: Bench, draws: random.Random) -> None:
    groups = bench.fresh(*SETS, **virtual.world(draws))
    await bench.lead(groups)
    consumers = [Wanderer(groups, f"c{n}", draws) for n in range(CONSUMERS)]
    lives = [asyncio.create_task(consumer.live()) for consumer in consumers]
    for _ in range(4):
        await asyncio.sleep(LIFE_S / 4)
        await groups.forget_topic("u")
    for life in lives:
        life.cancel()
    groups.resign_all()


def logs(seed: int, directory: Path) -> list[bytes]:
    """The content of the groups' logs at the end."""
    bench = Bench(directory, virtual.Inline())
    try:
        virtual.run(_story(bench, random.Random(seed)))
        return [log.everything() for log in bench.logs]
    finally:
        bench.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for data in logs(int(sys.argv[1]), Path(made)):
            print(len(data), hashlib.sha256(data).hexdigest())
