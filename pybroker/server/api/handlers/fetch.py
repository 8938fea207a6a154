"""Fetch: reads whole batches from several partitions, and waits for appends while there are fewer than min_bytes.

    read ──min_bytes, an error, or no time to wait──> answer
      └──fewer──> parked on its replicas ──append, deletion, deadline, the broker stops──> read again ──> answer

Records are never decoded: the response holds slices of log files, which are sent as they are.

A follower's fetch, on the inter-broker listener of a cluster, reads to the log end. Its fetch offset is recorded as the
follower's position, unless the follower's log diverges from ours.

Fetch sessions are kept by the native plane, which passes a fetch of a session on as a full fetch. So the response to a
client that asks this handler for a session has session id 0, and the client continues with full fetches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pybroker import core, errors
from pybroker.clock import monotonic_ms
from pybroker.decisions.caller import Call
from pybroker.decisions.image import Image
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.replica_selector import ReplicaView, preferred_read_replica
from pybroker.errors import KafkaError
from pybroker.model import CONSUMER
from pybroker.protocol import messages as m
from pybroker.protocol.apis import ZSTD_SINCE
from pybroker.replication.fetch_reads import (
    FetchingReplica,
    Parked,
    PartitionName,
    PartitionRead,
    WantedPartition,
    are_of_one_disk,
    drop,
    ends_a_log,
    is_throttled,
    replicated_bytes,
)
from pybroker.replication.leaders import tell_leader
from pybroker.replication.proof import Proof
from pybroker.replication.replica import Replica
from pybroker.replication.replicas import Replicas
from pybroker.tasks import in_shares

FULL_EPOCHS = (0, -1)
"""Session epochs of full fetches: 0 asks for a session, -1 for none (KIP-227)."""
IDS_VERSION = 13
ZSTD_VERSION = ZSTD_SINCE["Fetch"]
READ_COMMITTED = 1
ANSWER_BYTES, PARTITION_BYTES = 40, 40
"""Estimated bytes of a response without its partitions, and of a partition without its records, as in the plane."""
AT_DISK = 2_000
"""Partitions of one fetch that a log dir's thread reads before it serves other requests."""
MOVED = (errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH)


class Followers(NamedTuple):
    """The handling of followers' fetches, which arrive on the inter-broker listener of a cluster."""

    listener: str
    fetched: Callable[[Replica, int], object]
    """Called with a replica and the id of the broker that fetched from it."""
    broker_id: int = -1
    rack: str | None = None
    rack_aware: bool = False
    """Consumers fetch from a replica in their rack."""


class Fetch:
    def __init__(
        self, replicas: Replicas, metadata: MetadataCache, bytes_max: int, followers: Followers | None, proof: Proof
    ) -> None:
        """`followers` is None at a lone broker."""
        self._followers = followers
        self._proof = proof
        self._replicas = replicas
        self._metadata = metadata
        self._bytes_max = bytes_max
        self._parked: set[Parked] = set()
        self._stopping = False

    async def __call__(self, request: m.FetchRequest, call: Call) -> m.FetchResponse:
        loop = asyncio.get_running_loop()
        by_id = call.version >= IDS_VERSION
        if request.session_epoch not in FULL_EPOCHS:
            return m.FetchResponse(error_code=errors.FETCH_SESSION_ID_NOT_FOUND)
        named: dict[PartitionName, WantedPartition] = {}
        async for share in in_shares((topic, p) for topic in request.topics for p in topic.partitions):
            for topic, p in share:
                named[PartitionName(topic.topic_id if by_id else topic.topic, p.partition)] = WantedPartition(
                    p.fetch_offset,
                    p.partition_max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                    p.log_start_offset,
                )
        return await self._when_enough(named, request, call, loop.time() + request.max_wait_ms / 1000)

    async def _when_enough(
        self, named: Mapping[PartitionName, WantedPartition], request: m.FetchRequest, call: Call, until: float
    ) -> m.FetchResponse:
        """Read, and read again after each change, until min_bytes are there or no time is left."""
        loop = asyncio.get_running_loop()
        by, noted = self._fetcher(request, call), False
        while True:
            late = self._stopping or loop.time() >= until
            reads = await self._read(named, request, call.version, by, noted)
            noted = True
            size, settled, replicated = 0, not reads, 0
            async for share in in_shares(reads):
                size += sum(read.size for read in share)
                settled = settled or any(read.settled for read in share)
                replicated += replicated_bytes(share, by)
            if late or settled or size >= request.min_bytes:
                if replicated > 0:
                    self._replicas.throttles.leader.record(replicated, monotonic_ms())
                wait_ms, refused = (0, False) if call.fetched is None else call.fetched(_bytes(size, reads))
                if refused:
                    await drop(reads)
                    return m.FetchResponse(throttle_time_ms=wait_ms)  # without records (KIP-219)
                return await self._answer(reads, call.caller.listener, wait_ms)
            await drop(reads)
            parked = Parked(reads, self._look_again(by, until), to_log_end=by.to_log_end)
            self._parked.add(parked)
            if self._stopping:
                parked.release()
            try:
                await parked.wait()
            finally:
                self._parked.discard(parked)

    def release(self) -> None:
        """Answer every parked fetch and park no more; the broker is stopping."""
        self._stopping = True
        for parked in self._parked:
            parked.release()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _fetcher(self, request: m.FetchRequest, call: Call) -> FetchingReplica:
        """Return the follower, or the consumer, that the request names."""
        broker, epoch, state = request.replica_id, -1, request.replica_state
        if broker == CONSUMER and state is not None:  # from v15 on (KIP-903)
            broker, epoch = state.replica_id, state.replica_epoch
        if broker == CONSUMER:
            aware = self._followers is not None and self._followers.rack_aware
            return FetchingReplica(CONSUMER, -1, rack=request.rack_id if aware else "")
        refused = self._followers is None or call.caller.listener != self._followers.listener
        return FetchingReplica(broker, epoch, refused)

    async def _read(
        self, named: Mapping[PartitionName, WantedPartition], request: m.FetchRequest, version: int,
        by: FetchingReplica, noted: bool,
    ) -> list[PartitionRead]:  # fmt: skip
        """Read each partition in turn until the response is full. The first one with records returns at least a batch.

        `noted`: the follower's offsets were recorded in an earlier pass."""
        image = self._metadata.image
        reads: list[PartitionRead] = []
        by_disk: list[list[PartitionRead]] = []  # adjacent reads of one log dir
        async for some in in_shares(named.items()):
            for read in [self._find(image, key, wanted, version, by) for key, wanted in some]:
                reads.append(read)
                if read.replica is None or read.replica.directory is None:
                    continue
                if not by_disk or len(by_disk[-1]) >= AT_DISK or not are_of_one_disk(by_disk[-1][0], read):
                    by_disk.append([])
                by_disk[-1].append(read)
        left = min(request.max_bytes, self._bytes_max)
        empty = True
        for here in by_disk:
            assert here[0].replica is not None
            notes = None if noted else by
            size = await here[0].replica.at_disk(self._fill_all, here, request.isolation_level, left, empty, by, notes)
            left -= size
            empty = empty and size == 0
        async for found in in_shares(reads):
            if by.broker >= 0 and not noted:
                self._tell(found, by)
            if not by.to_log_end and (doubted := [read for read in found if ends_a_log(read)]):
                await asyncio.gather(*map(self._doubt, doubted))
            for read in found:
                if read.answer.error_code:
                    read.replica = None  # the fetch is not parked on it
        return reads

    async def _doubt(self, read: PartitionRead) -> None:
        """Answer NOT_LEADER_OR_FOLLOWER unless it is proven that this broker leads: else clients might reset."""
        assert read.replica is not None
        if not await self._proof.found(read.replica, read.leader_epoch):
            answer = read.answer
            answer.error_code, answer.diverging_epoch, answer.high_watermark = errors.NOT_LEADER_OR_FOLLOWER, None, -1

    def _tell(self, reads: Iterable[PartitionRead], by: FetchingReplica) -> None:
        """Report a follower's position to requests that wait for the high watermark, and to the ISR manager."""
        for read in reads:
            if read.replica is not None and not read.settled and self._followers is not None:
                read.replica.tell()
                self._followers.fetched(read.replica, by.broker)

    def _find(
        self, image: Image, key: PartitionName, wanted: WantedPartition, version: int, by: FetchingReplica
    ) -> PartitionRead:
        """Return a partition to read, with nothing read yet; its replica is None if there is an error."""
        answer = m.FetchResponse.Responses.Partitions(
            partition_index=key.partition, high_watermark=-1, aborted_transactions=None, records=b""
        )
        try:
            replica = self._replica(image, key, wanted.leader_epoch, by)
            if by.broker >= 0 and by.refused:
                raise _no_replica(by.broker, wanted)
            if by.rack and replica.leads:
                answer.preferred_read_replica = self._preferred(image, replica, wanted.fetch_offset, by.rack)
            if by.broker < 0 and version < ZSTD_VERSION and replica.config["compression.type"] == "zstd":
                raise KafkaError(errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Fetch v{ZSTD_VERSION}")
            replica.partition()
        except KafkaError as problem:
            answer.error_code = problem.code
            return PartitionRead(key, wanted, None, answer)
        return PartitionRead(key, wanted, replica, answer, leader_epoch=replica.leader_epoch)

    def _fill_all(
        self, reads: Iterable[PartitionRead], isolation: int, left: int, empty: bool, by: FetchingReplica,
        notes: FetchingReplica | None,
    ) -> int:
        """Read at most `left` bytes from logs of one log dir into the responses; return how many. Blocks on disk."""
        total = 0
        for read in reads:
            assert read.replica is not None
            limit = max(0, min(left - total, read.wanted.max_bytes))
            elsewhere = read.answer.preferred_read_replica >= 0
            if elsewhere:
                limit = 0
            try:
                log = read.replica.partition()
                alone = empty and total == 0 and not elsewhere
                read.end = self._fill(read.answer, log, read.wanted, isolation, limit, alone, by, notes)
            except (KafkaError, core.LogError, OSError) as problem:
                read.answer.error_code = errors.KAFKA_STORAGE_ERROR if isinstance(problem, OSError) else problem.code
                read.answer.high_watermark = -1
                if read.answer.error_code == errors.CORRUPT_MESSAGE and by.broker < 0:
                    read.answer.readable_from = read.replica.readable_from(read.wanted.fetch_offset)
            total += read.size
        return total

    def _replica(self, image: Image, key: PartitionName, leader_epoch: int, by: FetchingReplica) -> Replica:
        if isinstance(key.topic, str):
            name = key.topic
        elif (topic := image.topic_by_id(key.topic)) is not None:
            name = topic.name
        else:
            raise KafkaError(errors.UNKNOWN_TOPIC_ID, f"no topic has the id {key.topic.hex()}")
        if by.rack and self._followers is not None and by.rack == self._followers.rack:
            replica = self._replicas.held(name, key.partition)
            replica.check_has_role(leader_epoch)
            return replica
        return self._replicas.readable(name, key.partition, by.broker, leader_epoch)

    def _preferred(self, image: Image, replica: Replica, offset: int, rack: str) -> int:
        """The preferred read replica of a consumer; -1 for this broker."""
        state, followers = image.partition(*replica.key), self._followers
        if state is None or followers is None:
            return -1
        log = replica.partition()
        there = [
            ReplicaView(f.broker, image.brokers[f.broker].rack, f.log_end_offset)
            for f in log.followers
            if f.broker in state.isr and f.broker in image.brokers
        ]
        here = ReplicaView(followers.broker_id, followers.rack, log.log_end_offset)
        chosen = preferred_read_replica(rack, offset, here, there)
        return -1 if chosen == here.broker else chosen

    def _fill(
        self, answer: m.FetchResponse.Responses.Partitions, log: core.Partition, wanted: WantedPartition,
        isolation: int,
        limit: int, minimum_one: bool, by: FetchingReplica, notes: FetchingReplica | None,
    ) -> int:  # fmt: skip
        """Read from the log into the response, or report where the client's log diverges; return the end it could see.

        `notes`: a follower whose fetch offset is to record. Raises core.LogError."""
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
            if epoch < 0 or wanted.fetch_offset < log.log_start_offset:
                words = f"no offset {wanted.fetch_offset} of leader epoch {wanted.last_fetched_epoch} in this log"
                raise KafkaError(errors.OFFSET_OUT_OF_RANGE, words)
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                kind = m.FetchResponse.Responses.Partitions.DivergingEpoch
                answer.diverging_epoch = kind(epoch=epoch, end_offset=end)
                limit, minimum_one = 0, False
        diverges = answer.diverging_epoch is not None
        if notes is not None and notes.broker >= 0 and not diverges:
            # After the divergence check: other records at the same offsets do not count as replicated.
            log.note_fetch(
                notes.broker, wanted.fetch_offset, leader_epoch=wanted.leader_epoch, broker_epoch=notes.epoch,
                log_start=wanted.log_start, now_ms=monotonic_ms(),
            )  # fmt: skip
        if self._is_withheld(log, by):
            limit, minimum_one = 0, False
        offset = log.log_start_offset if diverges else wanted.fetch_offset
        read = log.read(offset, limit, isolation_level=isolation, minimum_one=minimum_one, to_log_end=by.to_log_end)
        answer.high_watermark = read.high_watermark
        answer.last_stable_offset = read.last_stable_offset
        answer.log_start_offset = read.log_start_offset
        if isolation == READ_COMMITTED:
            listed = m.FetchResponse.Responses.Partitions.AbortedTransactions
            answer.aborted_transactions = [listed(producer_id=p, first_offset=o) for p, o in read.aborted_transactions]
        if read.slice is not None:
            answer.records = _sendable(read.slice, slow=log.slow_reads)
        return read.log_end_offset if by.to_log_end else read.high_watermark

    # -- throttled replication (KIP-73) ----------------------------------------------------------------------------

    def _is_withheld(self, log: core.Partition, by: FetchingReplica) -> bool:
        """True if this partition is throttled for the follower, and the throttled rate is used up."""
        return is_throttled(log, by) and bool(self._replicas.throttles.leader.wait(monotonic_ms()))

    def _look_again(self, by: FetchingReplica, until: float) -> float:
        """The loop time at which a parked fetch is read again although nothing changed."""
        wait_ms = self._replicas.throttles.leader.wait(monotonic_ms()) if by.broker >= 0 else 0
        if wait_ms <= 0:
            return until
        return min(until, asyncio.get_running_loop().time() + max(wait_ms, core.WITHHELD_MS_MIN) / 1000)

    # -- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, reads: list[PartitionRead], listener: str, wait_ms: int) -> m.FetchResponse:
        kind, image = m.FetchResponse, self._metadata.image
        response = kind(throttle_time_ms=wait_ms)
        topic: str | bytes | None = None
        async for share in in_shares(reads):
            for read in share:
                key = read.key
                if key.topic != topic:  # adjacent partitions of one topic share an entry, as in Kafka's answers
                    topic = key.topic
                    response.responses.append(
                        kind.Responses(topic=topic) if isinstance(topic, str) else kind.Responses(topic_id=topic)
                    )
                response.responses[-1].partitions.append(read.answer)
                if read.answer.error_code in MOVED:
                    self._show_leader(response, key, read.answer, image, listener)
        return response

    def _show_leader(
        self, response: m.FetchResponse, key: PartitionName, answer: m.FetchResponse.Responses.Partitions, image: Image,
        listener: str,
    ) -> None:  # fmt: skip
        topic = image.topic(key.topic) if isinstance(key.topic, str) else image.topic_by_id(key.topic)
        if topic is not None:
            tell_leader(response, answer, self._replicas.leader_of(topic.name, key.partition), image, listener)


def _bytes(size: int, reads: Sequence[PartitionRead]) -> int:
    """The estimated size of a response with `size` bytes of records."""
    return size + ANSWER_BYTES + len(reads) * PARTITION_BYTES


def _sendable(found: core.Slice, *, slow: bool) -> core.Slice | bytes:
    """Return records that can be sent without blocking: a slice in the page cache, or a copy from a slow disk."""
    if not slow:
        found.warm()
        return found
    try:
        return found.tobytes()
    finally:
        found.close()


def _no_replica(broker_id: int, wanted: WantedPartition) -> KafkaError:
    """Kafka's error for a broker that is not a replica of the partition; on this listener no broker counts as one."""
    code = errors.UNKNOWN_LEADER_EPOCH if wanted.leader_epoch >= 0 else errors.NOT_LEADER_OR_FOLLOWER
    return KafkaError(code, f"broker {broker_id} is not a replica of this partition")


def _everywhere(request: m.FetchRequest, code: int) -> m.FetchResponse:
    """Return a response with this error for each partition of the request."""
    kind = m.FetchResponse.Responses
    return m.FetchResponse(
        responses=[
            kind(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    kind.Partitions(
                        partition_index=p.partition,
                        error_code=code,
                        high_watermark=-1,
                        aborted_transactions=None,
                        records=b"",
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def failed(request: m.FetchRequest, code: int, message: str) -> m.FetchResponse:
    response = _everywhere(request, code)
    response.error_code = code
    return response
