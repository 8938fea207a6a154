"""Fetch: whole batches from several partitions, now or, where there are too few bytes, when an append brings them.

    read ──enough, or an error, or no time to wait──> answer
      └──too few──> parked on its replicas ──append, deletion, deadline, the broker stops──> read again ──> answer

Records are never touched: an answer carries slices of log files, which send themselves.

A follower's fetch, on the inter-broker listener of a cluster, reads to the log's end, and tells that the follower has
all before the offset that it fetches from; but not where its log diverges from ours.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pybroker import core, errors
from pybroker.clock import monotonic_ms
from pybroker.cluster.caller import Call
from pybroker.cluster.fetch_sessions import Fetch as Plan
from pybroker.cluster.fetch_sessions import Key, Sessions, Wanted
from pybroker.cluster.image import Image
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.cluster.replica_selector import ReplicaView, preferred_read_replica
from pybroker.errors import KafkaError
from pybroker.model import CONSUMER
from pybroker.protocol import messages as m
from pybroker.replication.fetch_reads import (
    Fetcher,
    Parked,
    Read,
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

IDS_VERSION = 13
ZSTD_VERSION = 10
READ_COMMITTED = 1
ANSWER_BYTES, PARTITION_BYTES = 40, 40
"""About what an answer takes beside its partitions, and each of them beside its records: as the native plane has it."""
AT_DISK = 2_000
"""Partitions of one fetch that a thread of a log dir reads before other requests have their turn there."""
MOVED = (errors.NOT_LEADER_OR_FOLLOWER, errors.FENCED_LEADER_EPOCH)


class Followers(NamedTuple):
    """What a broker of a cluster does with its followers' fetches: those that come by its inter-broker listener."""

    listener: str
    fetched: Callable[[Replica, int], object]
    """Called with a replica and the broker that fetched it."""
    broker_id: int = -1
    rack: str | None = None
    rack_aware: bool = False
    """Consumers fetch from a replica in their rack."""


class Fetch:
    def __init__(
        self, replicas: Replicas, metadata: MetadataCache, sessions: Sessions, bytes_max: int,
        followers: Followers | None, proof: Proof,
    ) -> None:  # fmt: skip
        """`followers`: of a broker of a cluster; a lone one has none."""
        self._followers = followers
        self._proof = proof
        self._replicas = replicas
        self._metadata = metadata
        self._sessions = sessions
        self._bytes_max = bytes_max
        self._parked: set[Parked] = set()
        self._stopping = False

    async def __call__(self, request: Any, call: Call) -> Any:
        loop = asyncio.get_running_loop()
        by_id = call.version >= IDS_VERSION
        named: dict[Key, Wanted] = {}
        async for share in in_shares((topic, p) for topic in request.topics for p in topic.partitions):
            for topic, p in share:
                named[Key(topic.topic_id if by_id else topic.topic, p.partition)] = Wanted(
                    p.fetch_offset,
                    p.partition_max_bytes,
                    p.current_leader_epoch,
                    p.last_fetched_epoch,
                    log_start=p.log_start_offset,
                )
        try:
            plan = self._sessions.find(request.session_id, request.session_epoch, by_id, named, loop.time())
        except KafkaError as problem:
            return m.FetchResponse(error_code=problem.code)
        if plan.incremental:
            async for changes in in_shares(named.items()):
                plan.want(changes)
            forgotten = (
                Key(topic.topic_id if by_id else topic.topic, partition)
                for topic in request.forgotten_topics_data
                for partition in topic.partitions
            )
            async for keys in in_shares(forgotten):
                plan.forget(keys)
            self._sessions.settle(plan)
        return await self._when_enough(plan, request, call, loop.time() + request.max_wait_ms / 1000)

    async def _when_enough(self, plan: Plan, request: Any, call: Call, until: float) -> Any:
        """Read, and again at each news, until there is enough to answer or no time is left."""
        loop = asyncio.get_running_loop()
        by, noted = self._fetcher(request, call), False
        while True:
            late = self._stopping or loop.time() >= until
            reads = await self._read(plan, request, call.version, by, noted)
            noted = True
            size, settled, replicated = 0, not reads, 0
            async for share in in_shares(reads):
                size += sum(len(read.answer.records) for read in share)
                settled = settled or any(read.settled for read in share)
                replicated += replicated_bytes(share, by)
            if late or settled or size >= request.min_bytes:
                if replicated > 0:
                    self._replicas.throttles.leader.record(replicated, monotonic_ms())
                wait_ms, refused = (0, False) if call.fetched is None else call.fetched(_bytes(size, reads))
                if refused:
                    return await self._throttled(plan, reads, wait_ms)
                return await self._answer(plan, reads, call.caller.listener, wait_ms)
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
        """The broker stops: answer every parked fetch, park no more."""
        self._stopping = True
        for parked in self._parked:
            parked.release()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _fetcher(self, request: Any, call: Call) -> Fetcher:
        """Return the follower, or the consumer, that the request names."""
        broker, epoch, state = int(request.replica_id), -1, request.replica_state
        if broker == CONSUMER and state is not None:  # from v15 on (KIP-903)
            broker, epoch = int(state.replica_id), int(state.replica_epoch)
        if broker == CONSUMER:
            aware = self._followers is not None and self._followers.rack_aware
            return Fetcher(CONSUMER, -1, rack=request.rack_id if aware else "")
        refused = self._followers is None or call.caller.listener != self._followers.listener
        return Fetcher(broker, epoch, refused)

    async def _read(self, plan: Plan, request: Any, version: int, by: Fetcher, noted: bool) -> list[Read]:
        """Read each partition in turn until the answer is full; the first that has any gives one batch at least.

        `noted`: a follower's offsets are known from an earlier pass."""
        image = self._metadata.image
        reads: list[Read] = []
        by_disk: list[list[Read]] = []  # neighbours of one log dir
        async for some in in_shares(list(plan.wanted.items())):
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
                    read.replica = None  # no fetch waits for its news
        return reads

    async def _doubt(self, read: Read) -> None:
        """Answer NOT_LEADER_OR_FOLLOWER unless it is proven that this broker leads: else a client might go back."""
        assert read.replica is not None
        if not await self._proof.found(read.replica, read.leader_epoch):
            answer = read.answer
            answer.error_code, answer.diverging_epoch, answer.high_watermark = errors.NOT_LEADER_OR_FOLLOWER, None, -1

    def _tell(self, reads: Iterable[Read], by: Fetcher) -> None:
        """Report a follower's position to those that wait for the high watermark, and to the ISR."""
        for read in reads:
            if read.replica is not None and not read.settled and self._followers is not None:
                read.replica.tell()
                self._followers.fetched(read.replica, by.broker)

    def _find(self, image: Image, key: Key, wanted: Wanted, version: int, by: Fetcher) -> Read:
        """Whose records are wanted, with nothing read yet; no replica where it cannot be read."""
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
            return Read(key, wanted, None, answer)
        return Read(key, wanted, replica, answer, leader_epoch=replica.leader_epoch)

    def _fill_all(
        self, reads: Iterable[Read], isolation: int, left: int, empty: bool, by: Fetcher, notes: Fetcher | None
    ) -> int:
        """Put what the logs of one log dir have into the answers, `left` bytes at most; how many. It reads the disk."""
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
            total += len(read.answer.records)
        return total

    def _replica(self, image: Image, key: Key, leader_epoch: int, by: Fetcher) -> Replica:
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
        """The other broker that a consumer is to fetch this from; -1: this one."""
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
        self, answer: Any, log: core.Partition, wanted: Wanted, isolation: int, limit: int, minimum_one: bool,
        by: Fetcher, notes: Fetcher | None,
    ) -> int:  # fmt: skip
        """Put what the log has into the answer, or where the client's log diverges from it; how far the reader saw.
        `notes`: a follower whose offset is news. Raises core.LogError."""
        if wanted.last_fetched_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(wanted.last_fetched_epoch)
            if epoch < 0 or wanted.fetch_offset < log.log_start_offset:
                raise KafkaError(errors.OFFSET_OUT_OF_RANGE, f"nothing is known of epoch {wanted.last_fetched_epoch}")
            if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset:
                kind = m.FetchResponse.Responses.Partitions.DivergingEpoch
                answer.diverging_epoch = kind(epoch=epoch, end_offset=end)
                limit, minimum_one = 0, False
        diverges = answer.diverging_epoch is not None
        if notes is not None and notes.broker >= 0 and not diverges:
            # Behind the look for a divergence: what only lies at the same offsets is not replicated.
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
            answer.aborted_transactions = []
        if read.slice is not None:
            answer.records = _sendable(read.slice, slow=log.slow_reads)
        return read.log_end_offset if by.to_log_end else read.high_watermark

    # -- throttled replication (KIP-73) ----------------------------------------------------------------------------

    def _is_withheld(self, log: core.Partition, by: Fetcher) -> bool:
        """Was too much given of throttled partitions, and is this one, to a follower that is not in sync?"""
        return is_throttled(log, by) and bool(self._replicas.throttles.leader.wait(monotonic_ms()))

    def _look_again(self, by: Fetcher, until: float) -> float:
        """When a fetch that finds too little is looked at again, though nothing comes."""
        wait_ms = self._replicas.throttles.leader.wait(monotonic_ms()) if by.broker >= 0 else 0
        if wait_ms <= 0:
            return until
        return min(until, asyncio.get_running_loop().time() + max(wait_ms, core.WITHHELD_MS_MIN) / 1000)

    # -- answering -------------------------------------------------------------------------------------------------

    async def _throttled(self, plan: Plan, reads: list[Read], wait_ms: int) -> Any:
        """Nothing, for now: the session is as it was, and one that would begin does not (KIP-219)."""
        await drop(reads)
        if not plan.incremental:
            self._sessions.end(plan.session_id)
        return m.FetchResponse(session_id=plan.session_id if plan.incremental else 0, throttle_time_ms=wait_ms)

    async def _answer(self, plan: Plan, reads: list[Read], listener: str, wait_ms: int) -> Any:
        kind, image = m.FetchResponse, self._metadata.image
        response = kind(session_id=plan.session_id, throttle_time_ms=wait_ms)
        topic: str | bytes | None = None
        async for share in in_shares(reads):
            by_key = {read.key: read for read in share}
            for key in plan.told((read.key, read.news) for read in share):
                read = by_key.pop(key)
                if key.topic != topic:  # adjacent partitions of one topic share an entry, as in Kafka's answers
                    topic = key.topic
                    named = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
                    response.responses.append(kind.Responses(**named))
                response.responses[-1].partitions.append(read.answer)
                if read.answer.error_code in MOVED:
                    self._show_leader(response, key, read.answer, image, listener)
            for read in by_key.values():
                read.drop()
        return response

    def _show_leader(self, response: Any, key: Key, answer: Any, image: Image, listener: str) -> None:
        topic = image.topic(key.topic) if isinstance(key.topic, str) else image.topic_by_id(key.topic)
        if topic is not None:
            tell_leader(response, answer, self._replicas.leader_of(topic.name, key.partition), image, listener)


def _bytes(size: int, reads: Sequence[Read]) -> int:
    """Of an answer with so many bytes of records, with as many around them as there mostly are."""
    return size + ANSWER_BYTES + len(reads) * PARTITION_BYTES


def _sendable(found: core.Slice, *, slow: bool) -> core.Slice | bytes:
    """What was found, so that who sends it does not hold up others: in the page cache or, from a slow disk, copied."""
    if not slow:
        found.warm()
        return found
    try:
        return found.tobytes()
    finally:
        found.close()


def _no_replica(broker_id: int, wanted: Wanted) -> KafkaError:
    """What Kafka tells a broker that is none of a partition's replicas, as nobody is who comes by this listener."""
    code = errors.UNKNOWN_LEADER_EPOCH if wanted.leader_epoch >= 0 else errors.NOT_LEADER_OR_FOLLOWER
    return KafkaError(code, f"broker {broker_id} is no replica of this partition")


def _everywhere(request: Any, code: int) -> Any:
    """The error for each partition named."""
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


def failed(request: Any, code: int, message: str) -> Any:
    response = _everywhere(request, code)
    response.error_code = code
    return response
