"""The number of threads of the native plane: those of clients, and those that copy from leaders."""

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
    """Threads that take the connections of clients, and those to leaders."""

    serving: int
    copying: int

    @classmethod
    def of(cls, config: BrokerConfig, *, follows: bool) -> "NetworkThreads":
        """The threads that the settings ask for now; not set, one of clients for each processor but one, which the rest
        of the broker has. `follows`: the broker copies from others."""
        processors = len(os.sched_getaffinity(0))
        serving = config[SERVING] if config.is_set(SERVING) else min(NETWORK_THREADS_MAX, max(1, processors - 1))
        return cls(serving, config[COPYING] if follows else 0)

    def applied(self, replicas: Replicas, before: "NetworkThreads") -> "NetworkThreads":
        """Have so many threads take new connections; the number that does, which is `before` if a thread cannot start.
        The log has the reason then."""
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
