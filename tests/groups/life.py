"""The life of a few groups, which one seed decides to the last byte: `python -m tests.groups.life SEED` tells it.

Consumers come, join, sync, commit, fall silent or leave, while offsets expire and topics go.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from pybroker import errors
from pybroker.cluster.offsets import Committed
from pybroker.errors import KafkaError
from pybroker.groups.coordinator import Coordinator
from pybroker.model import TopicPartition
from tests.groups import virtual
from tests.groups.logs import Bench
from tests.groups.members import subscription

CONSUMERS = 6
GROUPS = ("a", "b", "c")
TOPICS = ("t", "u")
SESSION_MS = 6_000
LIFE_S = 300
SETS = ("offsets.retention.minutes=1", "offsets.retention.check.interval.ms=10000")


class Consumer:
    """A client that does as it is told, until it is silent for a while."""

    def __init__(self, groups: Coordinator, name: str, draws: random.Random) -> None:
        self.groups, self.name, self.draws = groups, name, draws
        self.group, self.id, self.generation = draws.choice(GROUPS), "", -1
        self.instance = name if draws.random() < 0.3 else None

    async def live(self) -> None:
        while True:
            try:
                if await self.join():
                    await self.work()
            except KafkaError:
                self.id = ""
            await asyncio.sleep(self.draws.random() * 20)

    async def join(self) -> bool:
        fields: dict[str, Any] = {
            "member_id": self.id, "instance_id": self.instance, "client_id": self.name, "client_host": "/h",
            "session_timeout_ms": SESSION_MS, "rebalance_timeout_ms": SESSION_MS, "protocol_type": "consumer",
            "protocols": (("range", subscription(self.draws.choice(TOPICS))),),
        }  # fmt: skip
        joined = await self.groups.join(self.group, fields)
        self.id = joined.member_id if joined.error in (errors.NONE, errors.MEMBER_ID_REQUIRED) else ""
        if joined.error:
            return False
        self.generation = joined.generation
        shares = {member: member.encode() for member, _, _ in joined.members}
        synced = await self.groups.sync(
            self.group, self.id, self.instance, self.generation, shares, "consumer", "range"
        )
        return not synced.error

    async def work(self) -> None:
        """Beat and commit until the group wants something else, or this one has enough."""
        while not self.groups.heartbeat(self.group, self.id, self.instance, self.generation):
            place = TopicPartition(self.draws.choice(TOPICS), self.draws.randrange(3))
            stand = Committed(self.draws.randrange(1000), -1, "", self.groups.wall_ms())
            await self.groups.commit(self.group, self.id, self.instance, self.generation, {place: stand})
            await asyncio.sleep(1)
            luck = self.draws.random()
            if luck < 0.03:
                self.groups.leave(self.group, self.id, self.instance, "enough")
            elif luck < 0.06:
                await asyncio.sleep(2 * SESSION_MS / 1000)


async def _story(bench: Bench, draws: random.Random) -> None:
    groups = bench.fresh(*SETS, **virtual.world(draws))
    await groups.lead(bench.logs, len(bench.logs))
    consumers = [Consumer(groups, f"c{n}", draws) for n in range(CONSUMERS)]
    lives = [asyncio.create_task(consumer.live()) for consumer in consumers]
    for _ in range(4):
        await asyncio.sleep(LIFE_S / 4)
        await groups.forget_topic("u")
    for life in lives:
        life.cancel()
    groups.resign()


def logs(seed: int, directory: Path) -> list[bytes]:
    """What the logs of the groups hold at the end."""
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
