"""A broker's node: what it says, how long it is there, and who hears of it."""

from __future__ import annotations

import json

import pytest

from pybroker.controller import nodes
from pybroker.controller.channel import Channel
from pybroker.controller.registration import Registration
from pybroker.coordination.store import NodeExists, StoreDamaged
from tests.controller.stage import Stage, live_broker


async def test_a_broker_is_registered_as_it_is(stage: Stage) -> None:
    """Its node goes with its session, its epoch is the transaction's; brokers hear of it, and of each change."""
    current = [live_broker(7, INSIDE=1, OUTSIDE=2)]
    channel = Channel(stage.context, stage.metadata, stage.topic_configs)
    mine = Registration(stage.session, stage.context, channel, lambda: current[-1], stage.wall_ms)
    epoch = await mine.register()
    data, stat = await stage.session.get(nodes.broker(7))
    assert (epoch, stage.session.id) == (stat.czxid, stat.ephemeral_owner)
    assert nodes.load_broker(7, data) == current[0] == stage.metadata.image.brokers[7]
    found = json.loads(data)
    assert (found["host"], found["port"], found["rack"]) == ("host-7", 1, "rack-1")
    await mine.renew()
    assert (await stage.session.get(nodes.broker(7)))[1].version == 0, "nothing changed"
    current.append(live_broker(7, INSIDE=1, OUTSIDE=3))
    await mine.renew()
    data, stat = await stage.session.get(nodes.broker(7))
    assert (nodes.load_broker(7, data), stat.czxid) == (current[1], epoch)
    node = stage.metadata.image.node(7, "OUTSIDE")
    assert node is not None and node.port == 3
    with pytest.raises(NodeExists):
        await mine.register()


def test_a_registration_without_plaintext_has_no_old_address() -> None:
    """As Kafka writes it; and one whose listeners and protocols differ is damage."""
    broker = live_broker(7, SAFE=1)._replace(protocols={"SAFE": "SSL"})
    data = nodes.dump_broker(broker, 0)
    found = json.loads(data)
    assert (found["host"], found["port"], found["endpoints"]) == (None, -1, ["SAFE://host-7:1"])
    assert nodes.load_broker(7, data) == broker
    with pytest.raises(StoreDamaged):
        nodes.load_broker(7, data.replace(b'"SAFE":', b'"OTHER":'))
