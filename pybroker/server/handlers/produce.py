"""Produce: one batch for each partition named, appended in the order of the request.

Batches go to core as they came, which walks their records unless they are compressed. A batch that is compressed, or
whose topic has rules for records, is worked on by a thread first, and the request waits; the connection's later
requests wait behind it, so that order is kept.
"""

import asyncio
import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.cluster.caller import Call, Disconnect
from pybroker.cluster.image import TopicImage
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.compression import Buffer
from pybroker.replication.leaders import tell_leader
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.replication.validation import RefusedRecords, apply

ACKS_ALL = -1
ACKS = (ACKS_ALL, 0, 1)
IDS_VERSION = 13
ZSTD_VERSION = 7
BATCH_HEADER_BYTES = 61
ATTRIBUTES = slice(21, 23)
PRODUCER_ID = slice(43, 51)
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
"""What clients are used to; as in Kafka, the answer has the code alone."""
_FULL = {
    errno.ENOSPC: "disk full: the log dir of the partition has no space left",
    errno.EDQUOT: "disk full: the disk quota of the log dir of the partition is used up",
}
_OTHER_EPOCHS = {errors.FENCED_LEADER_EPOCH, errors.UNKNOWN_LEADER_EPOCH}
_REFUSALS = (KafkaError, core.LogError, OSError)


class _Part(NamedTuple):
    """One partition of a request: where it goes, what is to be appended, and the answer that is being filled in."""

    replica: Replica | None
    records: Any
    answer: Any


class _Wait(NamedTuple):
    """A batch that its replicas must have before it is acknowledged."""

    replica: Replica
    end: int
    leader_epoch: int
    answer: Any


class Produce:
    def __init__(self, replicas: Replicas, metadata: MetadataCache, workers: Executor) -> None:
        self._replicas = replicas
        self._metadata = metadata
        self._workers = workers

    async def __call__(self, request: Any, call: Call) -> Any:
        if request.acks not in ACKS:
            refusal = KafkaError(errors.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it can be -1, 0 or 1")
            return failed(request, refusal.code, refusal.message)
        response = m.ProduceResponse()
        parts = list(self._parts(request, call.version, response))
        now_ms = wall_ms()
        loop = asyncio.get_running_loop()
        waits: list[_Wait] = []
        for replica, records, answer in parts:
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
                end = await self._append(replica, records, answer, now_ms, epoch, request.acks)
                if request.acks == ACKS_ALL and end is not None:
                    waits.append(_Wait(replica, end, epoch, answer))
        if waits:
            await self._await_replicas(waits, max(0, request.timeout_ms) / 1000)
        self._show_leaders(response, call.caller.listener)
        return _finish(request, response)

    def _parts(self, request: Any, version: int, response: Any) -> Iterator[_Part]:
        """Find each partition's replica; where that fails the answer says so already, and there is no replica."""
        kind, image = m.ProduceResponse.Responses, self._metadata.image
        for topic in request.topic_data:
            known = image.topic_by_id(topic.topic_id) if version >= IDS_VERSION else image.topic(topic.name)
            answers: list[Any] = []
            response.responses.append(kind(name=topic.name, topic_id=topic.topic_id, partition_responses=answers))
            for data in topic.partition_data:
                answer = kind.PartitionResponses(index=data.index)
                answers.append(answer)
                replica = None
                try:
                    if version >= IDS_VERSION and known is None:
                        raise KafkaError(errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic.topic_id.hex()}")
                    replica = self._writable(known, topic.name, data.index)
                    _check(data.records, version)
                except KafkaError as problem:
                    _refuse(answer, problem)
                    replica = None
                yield _Part(replica, data.records, answer)

    def _writable(self, topic: TopicImage | None, asked: str, index: int) -> Replica:
        """Where to append, of the topic that was found, by its id or by the name that was asked for."""
        if topic is not None and topic.internal:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, f"{topic.name} is written by brokers only")
        return self._replicas.leader(asked if topic is None else topic.name, index)

    def _show_leaders(self, response: Any, listener: str) -> None:
        image = self._metadata.image
        for topic in response.responses:
            for answer in topic.partition_responses:
                if answer.error_code == errors.NOT_LEADER_OR_FOLLOWER:
                    known = image.topic(topic.name) or image.topic_by_id(topic.topic_id)
                    if known is not None:
                        leader = self._replicas.leader_of(known.name, answer.index)
                        tell_leader(response, answer, leader, image, listener)

    async def _append(
        self, replica: Replica, records: Buffer, answer: Any, now_ms: int, leader_epoch: int, acks: int
    ) -> int | None:
        """Append in this leader epoch; the offset behind the batch, None where it was refused."""
        try:
            appended = await replica.append(records, now_ms, leader_epoch, acks)
        except _REFUSALS as problem:
            _refuse(answer, problem)
            return None
        answer.base_offset = appended.base_offset
        answer.log_append_time_ms = appended.log_append_time_ms
        answer.log_start_offset = appended.log_start_offset
        return appended.last_offset + 1

    async def _await_replicas(self, waits: Sequence[_Wait], timeout_s: float) -> None:
        """With acks=all: wait until the high watermark has passed what was appended, and refuse where it does not in
        time, or where another leads by then."""
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


def _check(records: Any, version: int) -> None:
    """What the version of the request, and the transactions that there are not yet, say of a batch."""
    if not records:
        raise KafkaError(errors.INVALID_RECORD, "there are no records")
    if len(records) < BATCH_HEADER_BYTES:
        return  # core says what is wrong with it
    attributes = int.from_bytes(records[ATTRIBUTES], "big")
    if attributes & CODEC_MASK == ZSTD and version < ZSTD_VERSION:
        raise KafkaError(errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{ZSTD_VERSION}, not v{version}")
    if attributes & TRANSACTIONAL and int.from_bytes(records[PRODUCER_ID], "big", signed=True) >= 0:
        raise KafkaError(errors.INVALID_TXN_STATE, "no transaction was begun for this batch")


def _refuse(answer: Any, problem: KafkaError | core.LogError | OSError) -> None:
    code = errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code
    # A client that named no epoch is told of another leader, as by whoever looks before it appends.
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
        return _FULL.get(number) or f"the log dir of the partition cannot be written: {os.strerror(number)}"
    if problem.code == errors.KAFKA_STORAGE_ERROR:
        return "the log dir of the partition is offline"
    return problem.message if isinstance(problem, KafkaError) else str(problem)


def _finish(request: Any, response: Any) -> Any:
    """No answer to acks=0; there an error can only be told by closing the connection."""
    if request.acks != 0:
        return response
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code != errors.NONE:
                name = errors.lookup(answer.error_code).name
                raise Disconnect(f"Produce with acks=0 to {topic.name}-{answer.index}: {name}, {answer.error_message}")
    return None


def failed(request: Any, code: int, message: str) -> Any:
    """Every partition of the request, with the error. Raises Disconnect where acks=0 leaves no other way to tell."""
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
