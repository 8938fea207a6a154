"""Produce: appends one batch to each partition of the request, in its order.

Batches are passed unchanged to core, which checks their records unless they are compressed. A compressed batch, or one
whose topic has rules for records, is first checked on a worker thread while the request waits; later requests of the
connection wait too, so that order is kept.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.caller import Call, Disconnect
from pybroker.decisions.image import TopicImage
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.transaction import ProducerIdAndEpoch
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.apis import ZSTD_SINCE
from pybroker.protocol.compression import Buffer
from pybroker.protocol.message import Sliced
from pybroker.replication.leaders import tell_leader
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.validation import RefusedRecords, apply
from pybroker.transactions.verification import Verification, refusal

ACKS_ALL = -1
ACKS = (ACKS_ALL, 0, 1)
IDS_VERSION = 13
ZSTD_VERSION = ZSTD_SINCE["Produce"]
BATCH_HEADER_BYTES = 61
ATTRIBUTES = slice(21, 23)
PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE = slice(43, 51), slice(51, 53), slice(53, 57)
UNVERIFIED = -1
"""The guard of a batch that is appended without verification."""
ADDS_VERSION = 12
"""The first version whose clients have not added the partition to the transaction before."""
ABORTABLE_VERSION = 11
"""The first version whose clients know TRANSACTION_ABORTABLE."""
TRANSACTIONAL = 0x10
CODEC_MASK, ZSTD = 0x07, 4
UNEXPLAINED = {
    errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.DUPLICATE_SEQUENCE_NUMBER,
    errors.INVALID_PRODUCER_EPOCH,
    errors.UNKNOWN_PRODUCER_ID,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.REQUEST_TIMED_OUT,
}
"""Errors that clients handle by their code; as in Kafka, they come without a message."""
_FULL = {
    errno.ENOSPC: "disk full: no space left in the partition's log dir: free some on the broker, then retry",
    errno.EDQUOT: "disk full: the disk quota of the partition's log dir is used up: raise it, then retry",
}
_OTHER_EPOCHS = {errors.FENCED_LEADER_EPOCH, errors.UNKNOWN_LEADER_EPOCH}
_REFUSALS = (KafkaError, core.LogError, OSError)


class _Part(NamedTuple):
    """One partition of a request: its replica, its batch, and its part of the response."""

    replica: Replica | None
    records: Buffer
    answer: m.ProduceResponse.Responses.PartitionResponses
    guard: int = 0
    """The guard of the partition, for the first batch of a transaction there."""


class _Wait(NamedTuple):
    """A batch that in-sync replicas must have before it is acknowledged; `end` is the offset after it."""

    replica: Replica
    end: int
    leader_epoch: int
    answer: m.ProduceResponse.Responses.PartitionResponses


class Produce:
    def __init__(
        self, replicas: Replicas, metadata: MetadataCache, workers: Executor, verification: Verification,
        config: BrokerConfig,
    ) -> None:  # fmt: skip
        self._replicas = replicas
        self._metadata = metadata
        self._workers = workers
        self._verification = verification
        self._config = config

    async def __call__(self, request: m.ProduceRequest, call: Call) -> m.ProduceResponse | None:
        if request.acks not in ACKS:
            refusal = KafkaError(errors.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; allowed are -1, 0 and 1")
            return failed(request, refusal.code, refusal.message)
        response = m.ProduceResponse()
        parts = list(self._parts(request, call.version, response))
        if any(part.replica is not None and _is_transactional(part.records) for part in parts):
            parts = await self._verified(parts, request, call.version)
        now_ms = wall_ms()
        loop = asyncio.get_running_loop()
        waits: list[_Wait] = []
        for replica, records, answer, guard in parts:
            if replica is None:
                continue
            try:
                if replica.rules.concern(records):
                    work = partial(apply, replica.rules, records, now_ms, replica.key)
                    records = await loop.run_in_executor(self._workers, work)
            except _REFUSALS as problem:
                _refuse(answer, problem)
            else:
                epoch = replica.leader_epoch
                end = await self._append(replica, records, answer, now_ms, epoch, request.acks, guard)
                if request.acks == ACKS_ALL and end is not None:
                    waits.append(_Wait(replica, end, epoch, answer))
        if waits:
            await self._await_replicas(waits, max(0, request.timeout_ms) / 1000)
        self._show_leaders(response, call.caller.listener)
        return _finish(request, response)

    def _parts(
        self, request: m.ProduceRequest, version: int, response: m.ProduceResponse
    ) -> Iterator[_Part]:
        """Find each partition's replica and batch. After a failure the replica is None and the answer has the error."""
        kind, image = m.ProduceResponse.Responses, self._metadata.image
        for topic in request.topic_data:
            known = image.topic_by_id(topic.topic_id) if version >= IDS_VERSION else image.topic(topic.name)
            answers: list[m.ProduceResponse.Responses.PartitionResponses] = []
            response.responses.append(kind(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
            for data in topic.partition_data:
                answer = kind.PartitionResponses(index=data.index)
                answers.append(answer)
                replica: Replica | None = None
                records: Buffer = b""
                try:
                    if version >= IDS_VERSION and known is None:
                        raise KafkaError(errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id.hex()}")
                    replica = self._writable(known, topic.name, data.index)
                    records = _checked(data.records, version)
                except KafkaError as problem:
                    _refuse(answer, problem)
                    replica = None
                yield _Part(replica, records, answer)

    def _writable(self, topic: TopicImage | None, asked: str, index: int) -> Replica:
        """The replica to append to. `topic` is None if the topic is unknown, and `asked` the name in the request."""
        if topic is not None and topic.internal:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal: only brokers write to it")
        return self._replicas.leader(asked if topic is None else topic.name, index)

    async def _verified(self, parts: Sequence[_Part], request: m.ProduceRequest, version: int) -> list[_Part]:
        """Verify that partitions without an open transaction of the producer are in the one that its coordinator has
        (KIP-890). Return the parts with their guards; the others are refused. Raises
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_ID_MAPPING."""
        own = [part.replica is not None and _is_transactional(part.records) for part in parts]
        producers = {_producer(part.records) for part, is_own in zip(parts, own, strict=True) if is_own}
        if request.transactional_id is None:
            words = "a transactional batch needs a transactional id"
            raise KafkaError(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, words)
        if len({producer.id for producer in producers}) > 1:
            raise KafkaError(errors.INVALID_PRODUCER_ID_MAPPING, "the transactional batches have several producer ids")
        if not self._config["transaction.partition.verification.enable"]:
            return [part._replace(guard=UNVERIFIED * is_own) for part, is_own in zip(parts, own, strict=True)]
        guarded = [await self._guarded(part) if is_own else part for part, is_own in zip(parts, own, strict=True)]
        asked = {part.replica.key for part in guarded if part.replica is not None and part.guard}
        if not asked:
            return guarded
        adds = version >= ADDS_VERSION
        by = max(producers)
        codes = await self._verification.check(request.transactional_id, by, asked, adds=adds)
        return [_heed(part, codes, version) if part.guard else part for part in guarded]

    @staticmethod
    async def _guarded(part: _Part) -> _Part:
        """Add the guard of a partition to a part, 0 if the transaction is open there."""
        assert part.replica is not None
        producer_id, epoch = _producer(part.records)
        sequence = int.from_bytes(part.records[BASE_SEQUENCE], "big", signed=True)
        try:
            return part._replace(guard=await part.replica.verify(producer_id, epoch, sequence))
        except _REFUSALS as problem:
            return _refuse_part(part, problem)

    def _show_leaders(self, response: m.ProduceResponse, listener: str) -> None:
        image = self._metadata.image
        for topic in response.responses:
            for answer in topic.partition_responses:
                if answer.error_code == errors.NOT_LEADER_OR_FOLLOWER:
                    known = image.topic(topic.name) or image.topic_by_id(topic.topic_id)
                    if known is not None:
                        leader = self._replicas.leader_of(known.name, answer.index)
                        tell_leader(response, answer, leader, image, listener)

    async def _append(
        self, replica: Replica, records: Buffer, answer: m.ProduceResponse.Responses.PartitionResponses, now_ms: int,
        leader_epoch: int, acks: int, guard: int,
    ) -> int | None:
        """Append in this leader epoch; return the offset after the batch, or None if it was refused."""
        try:
            appended = await replica.append(records, now_ms, leader_epoch, acks, guard)
        except _REFUSALS as problem:
            _refuse(answer, problem)
            return None
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = appended.log_start_offset
        return appended.last_offset + 1

    async def _await_replicas(self, waits: Sequence[_Wait], timeout_s: float) -> None:
        """Wait until the high watermark has passed each batch (acks=all); set the error of those for which it has not
        within the timeout, or whose leader changed."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        for replica, end, epoch, answer in waits:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await replica.committed(end, epoch, lambda: self._replicas.lease_lost)
            except TimeoutError:
                few = replica.log is not None and replica.log.under_min_isr
                code = errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND if few else errors.REQUEST_TIMED_OUT
                _refuse(answer, KafkaError(code, f"{replica.key} was not replicated in time"))
            except _REFUSALS as problem:
                _refuse(answer, problem)


def _checked(records: Buffer | Sliced | None, version: int) -> Buffer:
    """Return the batch if its codec suits the version. Raises KafkaError."""
    if not isinstance(records, bytes | bytearray | memoryview) or not records:
        raise KafkaError(errors.INVALID_RECORD, "the partition has no records")
    if len(records) < BATCH_HEADER_BYTES:
        return records  # core raises the error
    attributes = int.from_bytes(records[ATTRIBUTES], "big")
    if attributes & CODEC_MASK == ZSTD and version < ZSTD_VERSION:
        raise KafkaError(errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_VERSION}, not v{version}")
    return records


def _is_transactional(records: Buffer) -> bool:
    """True for a batch of a transaction. One without a producer id is appended like any other, as in Kafka."""
    if len(records) < BATCH_HEADER_BYTES or not int.from_bytes(records[ATTRIBUTES], "big") & TRANSACTIONAL:
        return False
    return int.from_bytes(records[PRODUCER_ID], "big", signed=True) >= 0


def _refuse_part(part: _Part, problem: KafkaError | core.LogError | OSError) -> _Part:
    _refuse(part.answer, problem)
    return part._replace(replica=None)


def _refuse(
    answer: m.ProduceResponse.Responses.PartitionResponses, problem: KafkaError | core.LogError | OSError
) -> None:
    code = errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code
    # The request has no leader epoch, so an epoch error of the append means that the leader has changed.
    answer.error_code = errors.NOT_LEADER_OR_FOLLOWER if code in _OTHER_EPOCHS else code
    answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = -1
    if answer.error_code not in UNEXPLAINED:
        answer.error_message = _words(problem)
    if isinstance(problem, RefusedRecords):
        kind = m.ProduceResponse.Responses.PartitionResponses.RecordErrors
        answer.record_errors = [
            kind(batch_index=fault.batch_index, batch_index_error_message=fault.message) for fault in problem.faults
        ]


def _words(problem: KafkaError | core.LogError | OSError) -> str:
    """The error message for the client, without paths of the broker."""
    if isinstance(problem, OSError):
        number = problem.errno or 0
        return _FULL.get(number) or f"cannot write to the partition's log dir: {os.strerror(number)}"
    if problem.code == errors.KAFKA_STORAGE_ERROR:
        return "the partition's log dir is offline: its disk failed, see the broker's log"
    return problem.message if isinstance(problem, KafkaError) else str(problem)


def _producer(records: Buffer) -> ProducerIdAndEpoch:
    """The producer of a batch."""
    return ProducerIdAndEpoch(
        int.from_bytes(records[PRODUCER_ID], "big", signed=True),
        int.from_bytes(records[PRODUCER_EPOCH], "big", signed=True),
    )


def _heed(part: _Part, codes: Mapping[TopicPartition, int], version: int) -> _Part:
    """Refuse a part that was not verified."""
    assert part.replica is not None
    code = codes[part.replica.key]
    if not code:
        return part
    code = refusal(code, knows_abortable=version >= ABORTABLE_VERSION, adds=version >= ADDS_VERSION)
    return _refuse_part(part, KafkaError(code, "the partition was not added to the transaction"))


def _finish(request: m.ProduceRequest, response: m.ProduceResponse) -> m.ProduceResponse | None:
    """Return the response, or None for acks=0. Raises Disconnect after an error with acks=0, as clients then refresh
    their metadata."""
    if request.acks != 0:
        return response
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code != errors.NONE:
                name = errors.lookup(answer.error_code).name
                raise Disconnect(f"Produce with acks=0 to {topic.name}-{answer.index}: {name}, {answer.error_message}")
    return None


def failed(request: m.ProduceRequest, code: int, message: str) -> m.ProduceResponse:
    """Return the error for every partition of the request. Raises Disconnect with acks=0, which has no response."""
    if request.acks == 0:
        raise Disconnect(f"Produce with acks=0: {errors.lookup(code).name}, {message}")
    kind = m.ProduceResponse.Responses
    return m.ProduceResponse(
        responses=[
            kind(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    kind.PartitionResponses(index=data.index, error_code=code, base_offset=-1, error_message=message)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
