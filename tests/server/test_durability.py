"""flush.messages of a topic: applied natively, changed while the broker runs, and the error when the disk fails."""

from __future__ import annotations

import errno

import pytest

from pybroker import errors
from pybroker.protocol import messages as m
from tests.server.live import Live, Wire, batch

pytestmark = pytest.mark.both_planes


def native(live: Live) -> int:
    """The number of Produce requests that were executed without Python."""
    assert live.broker is not None and live.broker.replicas is not None
    return sum(int(stats["Produce"]["requests"]) for stats in live.broker.replicas.plane_stats())


async def test_a_topic_that_is_flushed_is_served_natively(live: Live, wire: Wire) -> None:
    """Each acknowledged record is on disk: a batch whose sync fails is not acknowledged."""
    await wire.create("t", 2, flush_messages="1")
    before = native(live)
    assert (await wire.produce("t", batch(b"a"))).base_offset == 0
    assert native(live) - before == live.native_plane
    assert live.broker is not None and live.broker.replicas is not None
    live.broker.replicas.arm("segment.sync", errno.EIO, 1)
    assert (await wire.produce("t", batch(b"b"))).error_code == errors.KAFKA_STORAGE_ERROR
    assert (await wire.produce("t", batch(b"c"), partition=1)).error_code == errors.KAFKA_STORAGE_ERROR


async def test_the_class_of_a_topic_changes_while_it_is_used(live: Live, wire: Wire) -> None:
    """Without the setting a failing sync affects no producer; with it the next Produce fails."""
    await wire.create("t")
    assert live.broker is not None and live.broker.replicas is not None
    assert (await wire.produce("t", batch(b"a"))).error_code == 0
    kind = m.IncrementalAlterConfigsRequest.Resources
    configs = [kind.Configs(name="flush.messages", config_operation=0, value="1")]
    altered = await wire.call(
        "IncrementalAlterConfigs", 1, resources=[kind(resource_type=2, resource_name="t", configs=configs)]
    )
    assert altered.responses[0].error_code == 0
    live.broker.replicas.arm("segment.sync", errno.EIO, 1)
    assert (await wire.produce("t", batch(b"b"))).error_code == errors.KAFKA_STORAGE_ERROR
