"""The scripted life of a controller; `python -m tests.controller.life SEED` prints the store's tree at its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import NamedTuple

from pybroker.cluster.config_changes import Change
from pybroker.controller import identity, loading
from pybroker.controller.adoption import Adoption
from pybroker.controller.planning import NewTopic
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.controller.stage import Stage


class Left(NamedTuple):
    """What lies in a log dir."""

    topic_id: bytes | None = None
    leader_epoch: int = 3


async def live(seed: int) -> bytes:
    """Topics come, some at once, grow, are refused and go; settings change; ids are drawn; another takes over."""
    stage = await Stage(seed, brokers=6).begin()
    who = await identity.settle(stage.session, -1, None, None, None, stage.random)
    await identity.record_cluster_id(stage.session, who.cluster_id)
    await asyncio.gather(*(stage.topics.create(NewTopic(f"topic-{n}", 5, 3)) for n in range(6)))
    stage.holders.refuses.add("topic-bad")
    with contextlib.suppress(KafkaError):
        await stage.topics.create(NewTopic("topic-bad", 2, 2))
    for number in range(3):
        stage.topics.auto_create(f"auto-{number}")
    changes = [Change("retention.ms", 0, "1000"), Change("segment.bytes", 0, "1048576")]
    await asyncio.gather(
        stage.topics.grow("topic-1", 9, None),
        stage.configs.alter_topic("topic-2", changes, replace=False, validate_only=False),
        *(stage.ids.draw() for _ in range(1500)),
    )
    # Alone: a broker's settings are judged on a thread, which ends among others when the system lets it.
    await stage.configs.alter_broker("", [Change("log.retention.ms", 0, "5000")], replace=False, validate_only=False)
    await stage.topics.delete("topic-3", stage.context.topics["topic-3"].id)
    await stage.topics.create(NewTopic("topic-3", 1, 2))
    await stage.session.close()
    await stage.take_over(2)
    found = {TopicPartition("topic-0", 0): Left(), TopicPartition("left-over", 1): Left()}
    adoption = Adoption(stage.session, stage.context.fence, 2, stage.random)
    await adoption.all(found, await loading.load(stage.session), dict, lost=True)
    loaded = await loading.load(stage.session)
    await loading.lead_again(stage.session, stage.context.fence, loaded.topics, found, 2)
    tree = await stage.tree()
    await stage.end()
    return tree


if __name__ == "__main__":
    sys.stdout.buffer.write(asyncio.run(live(int(sys.argv[1]))))
