"""The throttles on replication (KIP-73): one rate for copying as a follower, one for sending as a leader."""

from typing import NamedTuple

from pybroker import core
from pybroker.config import BrokerConfig

BURST_MS = 5
"""What a leader sends at once, at its rate: small pieces, as clients wait behind large ones."""


class Throttles(NamedTuple):
    """Quota buckets for the bytes of throttled partitions, by the role of the replica here."""

    leader: core.QuotaBucket
    follower: core.QuotaBucket

    def follow(self, config: BrokerConfig) -> None:
        """Apply the rates in the settings, in bytes a second."""
        for role, bucket in zip(self._fields, self, strict=True):
            bucket.set_limit(config[_rate(role)])


def throttles_of(config: BrokerConfig) -> Throttles:
    return Throttles(*(core.QuotaBucket(config[_rate(role)], burst_ms=BURST_MS) for role in Throttles._fields))


def _rate(role: str) -> str:
    return f"{role}.replication.throttled.rate"
