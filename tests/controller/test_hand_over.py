"""A controller that stops: another one is elected before this broker leaves."""

from __future__ import annotations

import pytest

from pybroker.controller import controller as controller_module
from tests.controller.brokers import FakeCluster
from tests.harness import eventually


async def test_a_controller_that_stops_hands_over(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Another broker is elected at once while this one is still registered; this one becomes a candidate last."""
    caplog.set_level("INFO")
    old = cluster.controller
    await old.controller.hand_over()
    others = [broker for broker in cluster.living if broker is not old]
    await eventually("another controls", lambda: any(broker.controller.active for broker in others))
    assert not old.controller.active and 'cause="this broker stops"' in caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


async def test_a_controller_without_others_is_elected_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last broker is elected again, to answer its own controlled shutdown."""
    monkeypatch.setattr(controller_module, "HAND_OVER_S", 0.1)
    last = cluster.controller
    for broker in cluster.living:
        if broker is not last:
            await broker.leave()
    await last.controller.hand_over()
    await eventually("it controls again", lambda: last.controller.active)
