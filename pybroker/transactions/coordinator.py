"""The transaction coordinator: the partitions of __transaction_state that this broker leads, and their transactional
ids.

`decisions/transaction.py` decides. A decision is stored first; once it is committed the client is answered, and the
markers go out to the partitions (`markers.py`). When all of them are written, the completion is stored. A broker that
becomes the coordinator finds the decisions in the log, and sends their markers again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from pybroker import core, errors
from pybroker.clock import wall_ms
from pybroker.config import BrokerConfig
from pybroker.config.settings import shown
from pybroker.decisions import transaction as decide
from pybroker.decisions.image import TRANSACTION_TOPIC
from pybroker.decisions.transaction import DECIDED, Init, ProducerIdAndEpoch, Transaction, TxnState
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.state_log.log import ACKS_ALL, StateLog
from pybroker.state_log.shards import CoordinatedPartitions
from pybroker.state_log.writer import Write, Writer
from pybroker.tasks import in_shares
from pybroker.transactions.markers import Decision, MarkerQueues
from pybroker.transactions.shard import TransactionEntry, TransactionShard, load, stored

EXPIRE_IDS = 500
"""Transactional ids whose tombstones are in one batch."""
COMPLETE_AGAIN_S = 0.1
COMPLETE_AGAIN_S_MAX = 10.0
WRITE_TIMEOUT_S = 30.0
"""Seconds until a request whose change is not committed gets COORDINATOR_NOT_AVAILABLE; the change stays pending."""

log = logging.getLogger(__name__)


class TransactionCoordinator(CoordinatedPartitions[TransactionShard, Mapping[str, Transaction]]):
    """Coordinates the transactions of the transactional ids whose partitions this broker leads."""

    topic, keyed = TRANSACTION_TOPIC, "transactional id"

    def __init__(
        self,
        config: BrokerConfig,
        workers: Executor,
        draw_producer_id: Callable[[], Awaitable[int]],
        markers: MarkerQueues,
        *,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`draw_producer_id` returns an id that was never given out."""
        super().__init__(workers, 0, WRITE_TIMEOUT_S, wall_ms, ACKS_ALL)
        self._draw = draw_producer_id
        self._markers = markers
        self._read_bytes: int = config["transaction.state.log.load.buffer.size"]
        self._timeout_ms_max: int = config["transaction.max.timeout.ms"]
        self._abort_s: float = config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000
        self._expire_s: float = config["transaction.remove.expired.transaction.cleanup.interval.ms"] / 1000
        self._expiration_ms: int = config["transactional.id.expiration.ms"]

    # -- partitions of __transaction_state ---------------------------------------------------------------------------

    def new_shard(self, index: int, replica: StateLog, writer: Writer) -> TransactionShard:
        return TransactionShard(index, replica, writer)

    def read(self, replica: StateLog) -> tuple[Mapping[str, Transaction], int]:
        return load(replica, self._read_bytes)

    async def begin(self, shard: TransactionShard, state: Mapping[str, Transaction]) -> None:
        shard.entries = {name: TransactionEntry(tx) for name, tx in state.items()}
        shard.loading = False
        for entry in list(shard.entries.values()):
            if entry.stored is not None and entry.stored.state in DECIDED:
                self._send_markers(shard, entry)

    def end(self, shard: TransactionShard) -> None:
        shard.entries = {}

    def not_loaded(self, shard: TransactionShard, reason: Exception) -> None:
        known = isinstance(reason, (KafkaError, core.LogError, OSError))
        event(
            log, logging.ERROR, "transactions not loaded", partition=shard.replica.key, reason=reason,
            exc_info=None if known else reason,
        )  # fmt: skip

    def was_lost(self, shard: TransactionShard, reason: str) -> None:
        event(log, logging.ERROR, "transactions resigned", partition=shard.replica.key, reason=reason)

    # -- requests of clients -----------------------------------------------------------------------------------------

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> ProducerIdAndEpoch:
        """Handle an InitProducerId: return the producer id and epoch. Raises as shard_of,
        INVALID_TRANSACTION_TIMEOUT, and as `decide.init_producer`."""
        if not 0 < timeout_ms <= self._timeout_ms_max:
            allowed = f"from 1 to transaction.max.timeout.ms, {self._timeout_ms_max}"
            raise KafkaError(errors.INVALID_TRANSACTION_TIMEOUT, f"the timeout of {timeout_ms} ms is not {allowed}")
        asked = Init(transactional_id, timeout_ms, expected)
        fresh_id = -1
        while True:
            shard = self._home(transactional_id)
            entry = shard.entries.get(transactional_id) or TransactionEntry()
            if entry.pending is not None:
                raise KafkaError(errors.CONCURRENT_TRANSACTIONS, "an earlier request of the id is being stored: retry")
            if fresh_id >= 0 or not decide.needs_producer_id(entry.stored, asked):
                break
            fresh_id = await self._draw()  # meanwhile everything may change
        to, error = decide.init_producer(entry.stored, asked, self.wall_ms(), fresh_id)
        await self._store(shard, entry, to)
        if error:
            event(log, logging.INFO, "transaction fenced", transactional_id=shown(to.id), producer_id=to.producer.id,
                  epoch=to.producer.epoch)  # fmt: skip
            raise KafkaError(error, "the open transaction is being aborted: retry")
        return to.producer

    async def add_partitions(
        self, transactional_id: str, by: ProducerIdAndEpoch, keys: Collection[TopicPartition],
        version: int = decide.CLASSIC,
    ) -> None:  # fmt: skip
        """Add partitions to the transaction. Raises as shard_of and `decide.add`."""
        shard, entry = self._existing(transactional_id)
        to = decide.add(
            entry.stored, by, keys, self.wall_ms(), pending=entry.pending is not None, version=version
        )
        if to is not None:
            await self._store(shard, entry, to)

    def verify(
        self, transactional_id: str, by: ProducerIdAndEpoch, keys: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """The error code of each partition, as `decide.verify`. Raises as shard_of."""
        return decide.verify(self._existing(transactional_id)[1].stored, by, keys)

    async def end_transaction(
        self, transactional_id: str, by: ProducerIdAndEpoch, commit: bool, version: int = decide.CLASSIC
    ) -> ProducerIdAndEpoch:
        """Handle an EndTxn: return the producer id and epoch to go on with, once the decision is committed. Raises as
        shard_of, and as `decide.end` or `decide.end_with_epoch`."""
        fresh_id = -1
        while True:
            shard, entry = self._existing(transactional_id)
            pending, now_ms = entry.pending is not None, self.wall_ms()
            if version == decide.CLASSIC:
                to = decide.end(entry.stored, by, commit, now_ms, pending=pending)
                break
            if pending or fresh_id >= 0 or not decide.needs_next_id(entry.stored, by):
                to = decide.end_with_epoch(entry.stored, by, commit, now_ms, pending=pending, fresh_id=fresh_id)
                break
            fresh_id = await self._draw()
        if to is not None:
            await self._store(shard, entry, to)
            return to.given
        assert entry.stored is not None
        return entry.stored.given

    def _home(self, transactional_id: str) -> TransactionShard:
        """The partition of a transactional id. Raises as shard_of, INVALID_REQUEST."""
        if not transactional_id:
            raise KafkaError(errors.INVALID_REQUEST, "the transactional id is empty")
        return self.shard_of(transactional_id)

    def _existing(self, transactional_id: str) -> tuple[TransactionShard, TransactionEntry]:
        """The partition and the entry of an id; an unknown one has an entry without a state."""
        shard = self._home(transactional_id)
        return shard, shard.entries.get(transactional_id) or TransactionEntry()

    # -- queries -----------------------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> Transaction | None:
        """The stored state of an id, None if it is unknown. Raises as shard_of, INVALID_REQUEST."""
        return self._existing(transactional_id)[1].stored

    def everything(self) -> Iterator[Transaction]:
        """The stored states of all ids that are coordinated here."""
        for shard in list(self._shards.values()):
            for entry in list(shard.entries.values()):
                if entry.stored is not None:
                    yield entry.stored

    # -- changes -----------------------------------------------------------------------------------------------------

    async def _store(self, shard: TransactionShard, entry: TransactionEntry, to: Transaction) -> None:
        """Store a change, and go on with a decided transaction. Raises the client's error."""
        await stored(self._change(shard, entry, to))

    def _change(self, shard: TransactionShard, entry: TransactionEntry, to: Transaction) -> Write:
        def after(in_log: bool) -> None:
            if in_log and to.state in DECIDED:
                self._send_markers(shard, entry)

        write = shard.store(entry, to, after)
        shard.entries[to.id] = entry
        return write

    def _send_markers(self, shard: TransactionShard, entry: TransactionEntry) -> None:
        tx = entry.stored
        assert tx is not None
        done = decide.complete(tx, self.wall_ms())
        self._markers.send(
            Decision(
                tx=tx,
                coordinator_epoch=lambda: shard.writer.leader_epoch,
                is_over=lambda: shard.resigned,
                on_written=partial(self._complete, shard, entry, done, COMPLETE_AGAIN_S),
            )
        )

    def _complete(self, shard: TransactionShard, entry: TransactionEntry, done: Transaction, again_s: float) -> None:
        """Store the completion of a transaction whose markers are all written; try until it is stored."""

        def after(in_log: bool) -> None:
            if not in_log:
                asyncio.get_running_loop().call_later(
                    again_s, self._complete, shard, entry, done, min(2 * again_s, COMPLETE_AGAIN_S_MAX)
                )

        if not shard.resigned:
            shard.store(entry, done, after)

    # -- chores ------------------------------------------------------------------------------------------------------

    async def keep_up(self) -> None:
        loop = asyncio.get_running_loop()
        expire_at_s = loop.time() + self._expire_s
        while True:
            await asyncio.sleep(self._abort_s)
            await self.abort_timed_out(self.wall_ms())
            if loop.time() >= expire_at_s:
                expire_at_s = loop.time() + self._expire_s
                await self.expire(self.wall_ms())

    def _active(self) -> list[TransactionShard]:
        return [shard for shard in self._shards.values() if not shard.loading and not shard.failed]

    async def abort_timed_out(self, now_ms: int) -> None:
        """Abort the open transactions that are older than their timeouts, under a higher epoch."""
        for shard in self._active():
            async for share in in_shares(list(shard.entries.values())):
                for entry in share:
                    tx = entry.stored
                    if shard.resigned or tx is None or entry.pending or not decide.has_timed_out(tx, now_ms):
                        continue
                    event(
                        log, logging.WARNING, "transaction timed out", transactional_id=shown(tx.id),
                        producer_id=tx.producer.id, timeout_ms=tx.timeout_ms, partitions=len(tx.partitions),
                    )  # fmt: skip
                    self._change(shard, entry, decide.fence(tx, now_ms))

    async def expire(self, now_ms: int) -> int:
        """Remove the transactional ids that were not used for transactional.id.expiration.ms; return their number."""
        gone = 0
        for shard in self._active():
            entries = list(shard.entries.values())
            for first in range(0, len(entries), EXPIRE_IDS):
                if shard.resigned:
                    break
                some = [
                    (entry, replace(entry.stored, state=TxnState.DEAD))
                    for entry in entries[first : first + EXPIRE_IDS]
                    if entry.stored is not None
                    and entry.pending is None
                    and decide.has_expired(entry.stored, now_ms, self._expiration_ms)
                ]
                if some and not await shard.forget(*zip(*some, strict=True)).answered():
                    gone += len(some)
                await asyncio.sleep(0)
        if gone:
            event(log, logging.INFO, "transactional ids expired", ids=gone)
        return gone
