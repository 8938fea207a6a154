"""Whether this broker alone leads what it leads: asked before it answers what another leader may answer otherwise.

    the lease holds                            yes: no session of this broker has ended
    it has lapsed: ZooKeeper does not answer   yes, once all followers of the ISR asked for more, in our leader epoch
    the registration is gone, or another one   no, until the controller has spoken

A leader needs no proof for what no later leader contradicts: records below its high watermark, where its log starts,
the first record of a time, and acks=all, which followers confirm. It needs one for the end of its log and what lies
beyond, for the ends of leader epochs, for a deletion of records, and for what a coordinator knows of groups.

Only a member of the ISR is elected, and one that leads fetches no more: `core/partition/watermark.pyx`. While ZooKeeper
is away for all, groups and consumers go on so, each answer up to a second or two later.
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
"""Fetches of an idle follower after which it has proved what it can."""
MARGIN_S = 0.5


class Proof:
    """Asked by the handlers of one broker."""

    def __init__(self, replicas: Replicas, config: BrokerConfig) -> None:
        self._replicas = replicas
        self._patience_s = FETCHES * config["replica.fetch.wait.max.ms"] / 1000 + MARGIN_S

    @property
    def is_due(self) -> bool:
        """True if the lease does not prove it."""
        return self._replicas.lease_lapsed

    async def found(self, replica: Replica) -> bool:
        """True once it is certain that no other broker led a replica's partition when this was called; False where that
        cannot be told in time."""
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
        return True

    async def doubted(self, keys: Iterable[TopicPartition]) -> Set[TopicPartition]:
        """Return the partitions, of these, that this broker leads as far as it knows, and another may lead by now."""
        if not self.is_due:
            return set()
        led = {key: replica for key in keys if (replica := self._replicas.get(*key)) is not None and replica.leads}
        found = await asyncio.gather(*map(self.found, led.values()))
        return {key for key, is_certain in zip(led, found, strict=True) if not is_certain}

    async def check(self, replica: Replica) -> None:
        """Wait until it is certain. Raises NOT_LEADER_OR_FOLLOWER where it is not."""
        if self.is_due and not await self.found(replica):
            raise KafkaError(errors.NOT_LEADER_OR_FOLLOWER, f"another broker may lead {replica.key} by now")
