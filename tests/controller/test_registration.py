"""A broker's node: its content, its lifetime, and the brokers that get it."""

from __future__ import annotations

import json

import pytest

from pybroker.coordination.store import NodeExists, StoreDamaged
from pybroker.metadata import nodes
from pybroker.metadata.lone_broker.registration import register, renew
from tests.controller.stage import Stage, live_broker
from tests.harness import eventually


async def test_a_broker_is_registered_as_it_is(stage: Stage) -> None:
    """The node lives as long as the session, its epoch is the transaction's, and brokers get each change."""
    broker = live_broker(7, INSIDE=1, OUTSIDE=2)
    stage.brokers[7] = broker
    epoch = stage.epochs[7] = await register(stage.session, broker, stage.wall_ms)
    data, stat = await stage.session.get(nodes.broker(7))
    assert (epoch, stage.session.id) == (stat.czxid, stat.ephemeral_owner)
    assert nodes.load_broker(7, data) == broker
    await eventually("brokers hear of it", lambda: stage.metadata.image.brokers.get(7) == broker)
    found = json.loads(data)
    assert (found["host"], found["port"], found["rack"]) == ("host-7", 1, "rack-1")
    moved = live_broker(7, INSIDE=1, OUTSIDE=3)
    await renew(stage.session, moved, stage.wall_ms)
    data, stat = await stage.session.get(nodes.broker(7))
    assert (nodes.load_broker(7, data), stat.czxid) == (moved, epoch)
    await eventually("brokers hear of the change", lambda: stage.metadata.image.brokers[7] == moved)
    with pytest.raises(NodeExists):
        await register(stage.session, broker, stage.wall_ms)


def test_a_registration_without_plaintext_has_no_old_address() -> None:
    """A registration without PLAINTEXT has no host and port, as in Kafka; listeners without a protocol are damage."""
    broker = live_broker(7, SAFE=1)._replace(protocols={"SAFE": "SSL"})
    data = nodes.dump_broker(broker, 0)
    found = json.loads(data)
    assert (found["host"], found["port"], found["endpoints"]) == (None, -1, ["SAFE://host-7:1"])
    assert nodes.load_broker(7, data) == broker
    with pytest.raises(StoreDamaged):
        nodes.load_broker(7, data.replace(b'"SAFE":', b'"OTHER":'))
