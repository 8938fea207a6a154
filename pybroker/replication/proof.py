"""Proves that this broker alone leads a partition, before it gives an answer that another leader may contradict.

    the lease holds                            proven: no session of this broker has ended
    it has lapsed: ZooKeeper does not answer   proven once each follower of the ISR has fetched, in our leader epoch;
    the registration is gone, or another one   not proven, until the controller has sent the roles again

A leader needs no proof for what no later leader contradicts: records below its high watermark, the start of its log,
the first record at or after a time, and acks=all, which followers confirm. It needs one for the end of its log and
reads beyond it, for the ends of leader epochs, for a deletion of records, and for a coordinator's answers about groups.

Only a member of the ISR is elected, and a new leader no longer fetches: `core/partition/watermark.pyx`. So while
ZooKeeper is away for all brokers, groups and consumers go on, each answer up to a second or two later.
"""

import asyncio
from collections.abc import Iterable, Set

from pybroker import errors
from pybroker.clock import monotonic_ms
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas

LOOK_S = 0.02
FETCHES = 3
"""Fetches of an idle follower within which a proof comes, if it comes at all."""
MARGIN_S = 0.5


class Proof:
    """Proves leadership for the handlers of one broker."""

    def __init__(self, replicas: Replicas, config: BrokerConfig) -> None:
        self._replicas = replicas
        self._patience_s = FETCHES * config["replica.fetch.wait.max.ms"] / 1000 + MARGIN_S

    @property
    def is_due(self) -> bool:
        """True if the lease has lapsed, so that followers have to prove leadership."""
        return self._replicas.lease_lapsed

    async def found(self, replica: Replica, leader_epoch: int = -1) -> bool:
        """True once it is certain that no other broker led the replica's partition when this was called; False if no
        proof comes in time.

        `leader_epoch`: the replica's leader epoch before the read, if it was read already. The controller may have sent
        roles since, so that the lease holds again: the read is valid only if no other leader was elected."""
        asked_ms, loop = monotonic_ms(), asyncio.get_running_loop()
        until_s = loop.time() + self._patience_s
        while self.is_due:
            if replica.log is None or not replica.leads or self._replicas.lease_lost:
                return False
            if replica.log.proven_ms > asked_ms:
                return True
            if loop.time() >= until_s:
                return False
            await asyncio.sleep(LOOK_S)
        return leader_epoch in (-1, replica.leader_epoch)

    async def doubted(self, keys: Iterable[TopicPartition]) -> Set[TopicPartition]:
        """Return those of the partitions that this broker believes it leads, but another broker may lead by now."""
        if not self.is_due:
            return set()
        led = {key: replica for key in keys if (replica := self._replicas.get(*key)) is not None and replica.leads}
        found = await asyncio.gather(*map(self.found, led.values()))
        return {key for key, is_certain in zip(led, found, strict=True) if not is_certain}

    async def check(self, replica: Replica, leader_epoch: int) -> None:
        """Wait for the proof, as `found`. Raises NOT_LEADER_OR_FOLLOWER if it does not come."""
        if not await self.found(replica, leader_epoch):
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"another broker may lead {replica.key} by now")
