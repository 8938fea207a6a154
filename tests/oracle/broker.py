"""A broker of the slow plane: every request is executed in Python."""

from __future__ import annotations

from typing import Any

from pybroker.config import BrokerConfig
from pybroker.server.broker import Broker
from tests.oracle.plane import slow_plane
from tests.oracle.sessions import with_sessions


def slow_broker(config: BrokerConfig, **how: Any) -> Broker:
    """Make a Broker with these arguments on the slow plane."""
    slots = config["max.incremental.fetch.session.cache.slots"]
    return Broker(config, plane=slow_plane, through=with_sessions(slots), **how)
