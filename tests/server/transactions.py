"""A transactional producer that sends single messages to a broker."""

from __future__ import annotations

import asyncio
from typing import Any

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.protocol import messages as m
from tests.harness import eventually
from tests.server.live import Wire, batch, produce_data

TRANSACTIONAL = 0x10
ADD = m.AddPartitionsToTxnRequest.V3AndBelowTopics
BUSY = (
    errors.CONCURRENT_TRANSACTIONS, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)  # fmt: skip
"""Errors after which a client asks again."""


class Transactional:
    """A producer with a transactional id, in the classic protocol."""

    def __init__(self, wire: Wire, name: str = "tx") -> None:
        self.wire, self.name = wire, name
        self.me = ProducerIdAndEpoch(-1, -1)
        self.sequences: dict[tuple[str, int], int] = {}

    async def again(self, api: str, version: int, **fields: Any) -> Any:
        """Send a request until the coordinator is not busy."""
        while True:
            answer = await self.wire.call(api, version, **fields)
            if answer.error_code not in BUSY:
                return answer
            await asyncio.sleep(0.01)

    async def find(self) -> None:
        """Look up the coordinator, until there is one."""

        async def found() -> bool:
            answer = await self.wire.call("FindCoordinator", 4, key_type=1, coordinator_keys=[self.name])
            return not answer.coordinators[0].error_code

        await eventually("there is a coordinator", found)

    async def init(self, timeout_ms: int = 60_000, *, brings: bool = False) -> int:
        """Get the producer id and epoch; return the error code."""
        await self.find()
        mine = self.me if brings else ProducerIdAndEpoch(-1, -1)
        answer = await self.again(
            "InitProducerId", 4, transactional_id=self.name, transaction_timeout_ms=timeout_ms, producer_id=mine.id,
            producer_epoch=mine.epoch,
        )  # fmt: skip
        if not answer.error_code:
            self.me = ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
            self.sequences.clear()
        return int(answer.error_code)

    async def add(self, topic: str, *partitions: int, version: int = 3) -> list[int]:
        """Add partitions; return their error codes."""
        while True:
            answer = await self.wire.call(
                "AddPartitionsToTxn", version, v3_and_below_transactional_id=self.name,
                v3_and_below_producer_id=self.me.id, v3_and_below_producer_epoch=self.me.epoch,
                v3_and_below_topics=[ADD(name=topic, partitions=list(partitions))],
            )  # fmt: skip
            codes = [p.partition_error_code for p in answer.results_by_topic_v3_and_below[0].results_by_partition]
            if not set(codes) & set(BUSY):
                return codes
            await asyncio.sleep(0.01)

    def records(self, topic: str, partition: int, *values: bytes) -> bytes:
        """The next batch of the transaction for a partition."""
        sequence = self.sequences.get((topic, partition), 0)
        self.sequences[topic, partition] = sequence + len(values)
        return batch(
            *values, timestamp_ms=wall_ms(), attributes=TRANSACTIONAL, producer_id=self.me.id,
            producer_epoch=self.me.epoch, base_sequence=sequence,
        )  # fmt: skip

    async def write(self, topic: str, *values: bytes, partition: int = 0, version: int = 9) -> Any:
        """Write to a partition; return its part of the answer."""
        data = produce_data(topic, {partition: self.records(topic, partition, *values)})
        answer = await self.wire.call(
            "Produce", version, transactional_id=self.name, acks=-1, timeout_ms=5000, topic_data=data
        )
        return answer.responses[0].partition_responses[0]

    async def end(self, commit: bool, version: int = 3) -> Any:
        """End the transaction; return the answer."""
        return await self.again(
            "EndTxn", version, transactional_id=self.name, producer_id=self.me.id, producer_epoch=self.me.epoch,
            committed=commit,
        )  # fmt: skip

    async def settled(self) -> str:
        """Wait until the transaction is completed; return its state."""
        state = ""

        async def complete() -> bool:
            nonlocal state
            answer = await self.wire.call("DescribeTransactions", 0, transactional_ids=[self.name])
            state = answer.transaction_states[0].transaction_state
            return state.startswith("Complete")

        await eventually("the markers are written", complete)
        return state

    async def commit_offsets(
        self, group: str, topic: str, offset: int, version: int = 3, **member: Any
    ) -> int:
        """Commit an offset of partition 0 in the transaction; return its error code."""
        kind = m.TxnOffsetCommitRequest.Topics
        asked = [kind(name=topic, partitions=[kind.Partitions(partition_index=0, committed_offset=offset)])]
        answer = await self.wire.call(
            "TxnOffsetCommit", version, transactional_id=self.name, group_id=group, producer_id=self.me.id,
            producer_epoch=self.me.epoch, topics=asked, **member,
        )  # fmt: skip
        return int(answer.topics[0].partitions[0].error_code)

    async def add_offsets(self, group: str) -> int:
        """Add the partition of a group; return the error code."""
        answer = await self.again(
            "AddOffsetsToTxn", 3, transactional_id=self.name, producer_id=self.me.id, producer_epoch=self.me.epoch,
            group_id=group,
        )  # fmt: skip
        return int(answer.error_code)
