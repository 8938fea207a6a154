"""The scripted life of a controller; `python -m tests.controller.life SEED` prints the store's tree at its end."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import NamedTuple

from pybroker.decisions.config_changes import ConfigChange
from pybroker.errors import KafkaError
from pybroker.metadata import identity
from pybroker.metadata.lone_broker import loading
from pybroker.metadata.lone_broker.adoption import Adoption
from pybroker.metadata.planning import NewTopic
from pybroker.model import TopicPartition
from tests.controller.stage import Stage


class Left(NamedTuple):
    """The contents of one partition's directory in a log dir."""

    topic_id: bytes | None = None
    leader_epoch: int = 3


async def live(seed: int) -> bytes:
    """Create, extend, refuse and delete topics, alter settings, draw ids, and change the controller."""
    stage = await Stage(seed, brokers=6).begin()
    who = await identity.settle(stage.session, -1, None, None, None, stage.random)
    await identity.record_cluster_id(stage.session, who.cluster_id)
    await asyncio.gather(*(stage.topics.create(NewTopic(f"topic-{n}", 5, 3)) for n in range(6)))
    with contextlib.suppress(KafkaError):
        await stage.topics.create(NewTopic("topic-bad", 2, 9))
    for number in range(3):
        stage.topics.auto_create(f"auto-{number}")
    changes = [ConfigChange("retention.ms", 0, "1000"), ConfigChange("segment.bytes", 0, "1048576")]
    await asyncio.gather(
        stage.topics.grow("topic-1", 9, None),
        stage.configs.alter_topic("topic-2", changes, replace=False, validate_only=False),
        *(stage.ids.draw() for _ in range(1500)),
    )
    # Not in the gather above: a broker's settings are checked on a thread, which ends at an unpredictable time.
    kept = [ConfigChange("log.retention.ms", 0, "5000")]
    await stage.configs.alter_broker("", kept, replace=False, validate_only=False)
    gone = stage.context.topics["topic-3"].id
    await stage.topics.delete("topic-3", gone)
    await stage.topics.gone("topic-3", gone)
    await stage.topics.create(NewTopic("topic-3", 1, 2))
    await stage.leave()
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
