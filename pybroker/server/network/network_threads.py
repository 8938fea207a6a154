"""The numbers of threads of the native plane: for clients, and for fetching from leaders."""

import logging
import os
from typing import Final, NamedTuple

from pybroker.config import BrokerConfig
from pybroker.config.broker_settings import NETWORK_THREADS_MAX
from pybroker.logs import event
from pybroker.replication.replicas import Replicas

log = logging.getLogger(__name__)

SERVING: Final = "num.network.threads"
COPYING: Final = "num.replica.fetchers"


class NetworkThreads(NamedTuple):
    """The numbers of threads for client connections and for connections to leaders."""

    serving: int
    copying: int

    @classmethod
    def of(cls, config: BrokerConfig, *, follows: bool) -> "NetworkThreads":
        """The numbers by the current settings. If num.network.threads is not set: one for each processor but one, which
        is left to the rest of the broker. `follows`: the broker fetches from others."""
        processors = len(os.sched_getaffinity(0))
        serving = config[SERVING] if config.is_set(SERVING) else min(NETWORK_THREADS_MAX, max(1, processors - 1))
        return cls(serving, config[COPYING] if follows else 0)

    def applied(self, replicas: Replicas, before: "NetworkThreads") -> "NetworkThreads":
        """Apply these numbers to new connections, and return the numbers in use: `before` if a thread cannot start,
        which is logged."""
        if self == before:
            return before
        try:
            replicas.resize_plane(self.serving, self.copying)
        except (OSError, RuntimeError) as problem:
            event(log, logging.ERROR, "network threads not started", serving=self.serving, copying=self.copying,
                  reason=problem)  # fmt: skip
            return before
        event(log, logging.INFO, "network threads changed", serving=self.serving, copying=self.copying)
        return self
