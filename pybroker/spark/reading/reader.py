"""Read a range of a partition in a task: core decodes Fetch answers into columns for Spark.

    ask -> answer -> decode -> ask the next -> hand the rows over, while the broker answers -> answer -> ...

Spark's workers serve one task after another, so connections stay open between tasks. When a leader moves or a broker
is down, the task looks for a leader for up to kafkaConsumer.pollTimeoutMs.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Final

import pyarrow

from pybroker import errors
from pybroker.client.security.tls import ClientTls
from pybroker.core import Columns, LogError, PartitionBatches
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import compression
from pybroker.protocol import messages as m
from pybroker.protocol.message import plain
from pybroker.security.login import Account
from pybroker.spark.options import SourceOptions
from pybroker.spark.reading.data_loss import check_data_loss
from pybroker.spark.reading.fetch_connection import FetchConnection
from pybroker.spark.reading.input_partitions import KafkaInputPartition
from pybroker.spark.reading.offset_reader import OffsetReader, PartitionLeader
from pybroker.spark.reading.planning import ANEW, Lost
from pybroker.spark.reading.rows import RowMaker
from pybroker.spark.reading.segment_reader import SegmentReader
from pybroker.spark.reading.worker import freeze_loaded

ROWS_MIN: Final = 8_000
"""A batch for Spark has at least this many rows, or BATCH_BYTES_MIN of keys and values, unless the range ends."""
ROWS_MAX: Final = 65_536
BATCH_BYTES_MIN: Final = 1 << 20
BATCH_BYTES_MAX: Final = 16 << 20
"""The last fetched batches may exceed this: they may have been compressed very well."""
FETCH_WAIT_MS: Final = 500
FETCH_BYTES_MIN: Final = 1 << 16
RECORD_BYTES_GUESS: Final = 1 << 10
"""Bytes of a record, until the first answer shows the real size."""
BACKOFF_S: Final = 0.1

_connections: dict[tuple[str, int, Account | None, ClientTls | None], FetchConnection] = {}
"""The worker's idle connections, by address; one in use by a task is removed."""


def read_range(
    options: SourceOptions, columns: tuple[str, ...], partition: KafkaInputPartition
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the records of one task, in order. Raises KafkaError if they cannot be read."""
    freeze_loaded()
    rows = RowMaker(columns, partition.range.topic, partition.range.partition)
    gathered = Columns(rows.decoded, timestamp_unit="us", decompress=compression.decompress_stored)
    offset = partition.range.start
    for source in (SegmentReader, RangeFetcher) if options.log_dirs else (RangeFetcher,):
        with contextlib.closing(source(options, partition, offset)) as reader:
            while (batches := reader.next_batches()) is not None:
                while not batches.finished:
                    _gather(gathered, batches, partition.range.tp)
                    if not batches.finished:
                        yield rows.make(gathered.take())
                reader.go_on(batches.next_offset)
                if len(gathered) >= ROWS_MIN or gathered.nbytes >= BATCH_BYTES_MIN:
                    yield rows.make(gathered.take())
            offset = reader.offset
    if len(gathered):
        yield rows.make(gathered.take())


def _gather(gathered: Columns, batches: PartitionBatches, tp: TopicPartition) -> None:
    try:
        gathered.read(batches, max_records=ROWS_MAX - len(gathered), max_bytes=BATCH_BYTES_MAX)
    except LogError as error:
        raise KafkaError(error.code, f"{tp}: {error}") from error


class RangeFetcher:
    """The Fetch answers of one range, one after another, across changes of the leader."""

    def __init__(self, options: SourceOptions, partition: KafkaInputPartition, offset: int) -> None:
        self.options = options
        self.range = partition.range
        self.offset = offset
        self._leader: PartitionLeader | None = partition.leader
        self._topic_id = partition.leader.topic_id
        self._connection: FetchConnection | None = None
        self._last_progress_s = time.monotonic()
        self._record_bytes = RECORD_BYTES_GUESS
        self._answer_bytes = 0

    def close(self) -> None:
        """Return the connection to the pool, unless an answer is still in flight on it."""
        if self._connection is not None:
            if self._connection.asked or not self._connection.is_open:
                self._connection.close()
            else:
                at = self._connection.host, self._connection.port, self.options.account, self.options.tls
                _connections[at] = self._connection
            self._connection = None

    def next_batches(self) -> PartitionBatches | None:
        """Return the batches at the current offset; None at the end of the range."""
        while self.offset < self.range.end:
            try:
                if self._connection is None or not self._connection.asked:
                    self._ask()
                assert self._connection is not None
                topics = self._connection.answer().responses
                batches = self._batches(topics[0].partitions[0]) if topics else None
                if batches is not None:
                    return batches
                self._check_patience(None)
            except KafkaError as error:
                if not error.retriable:
                    raise
                self._check_patience(error)
                self._look_for_leader()
        return None

    def go_on(self, offset: int) -> None:
        """Note that data is consumed up to this offset, and send the next Fetch early."""
        if offset > self.offset:
            self._last_progress_s = time.monotonic()
            self._record_bytes = max(1, self._answer_bytes // (offset - self.offset))
        self.offset = offset
        if self.offset < self.range.end:
            with contextlib.suppress(KafkaError):  # next_batches meets the same failure, and handles it
                self._ask()

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self._leader is None:
            self._look_for_leader()
        leader = self._leader
        if leader is None:
            raise KafkaError(errors.LEADER_NOT_AVAILABLE, f"{self.range.tp} has no leader at the moment")
        if self._connection is None or not self._connection.is_open:
            at = leader.host, leader.port, self.options.account, self.options.tls
            self._connection = _connections.pop(at, None)
        if self._connection is None or not self._connection.is_open:
            self._connection = FetchConnection(
                leader.host, leader.port, account=self.options.account, tls=self.options.tls
            )
        kind = m.FetchRequest.Topics
        wanted = kind.Partitions(
            partition=self.range.partition, fetch_offset=self.offset, partition_max_bytes=self._bytes_wanted()
        )
        self._connection.ask(
            m.FetchRequest(
                replica_id=-1,
                max_wait_ms=FETCH_WAIT_MS,
                min_bytes=1,
                max_bytes=self.options.fetch_bytes,
                isolation_level=int(self.options.read_committed),
                session_epoch=-1,
                topics=[kind(topic=self.range.topic, topic_id=leader.topic_id, partitions=[wanted])],
            )
        )

    def _bytes_wanted(self) -> int:
        """Return the bytes that the rest of the range probably needs: a small range must not fetch the data after
        it."""
        needed = (self.range.end - self.offset) * self._record_bytes
        return min(self.options.fetch_bytes, needed + needed // 4 + FETCH_BYTES_MIN)

    def _batches(self, answer: m.FetchResponse.Responses.Partitions) -> PartitionBatches | None:
        """Return the batches of an answer; None if it has none. Raises KafkaError for an error code."""
        if answer.error_code == errors.OFFSET_OUT_OF_RANGE:
            self._step_over_lost()
            return None
        if answer.error_code:
            raise KafkaError(answer.error_code, f"{self.range.tp}: {errors.lookup(answer.error_code).meaning}")
        records = plain(answer.records)
        if not records:
            return None
        self._answer_bytes = len(records)
        aborted = None
        if self.options.read_committed:
            aborted = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()]
        return PartitionBatches(records, start_offset=self.offset, end_offset=self.range.end, aborted=aborted)

    def _step_over_lost(self) -> None:
        """Handle records that are gone from here on: fail, or continue where records exist."""
        asker = OffsetReader(self.options)
        try:
            there = asker.partitions() & {self.range.tp}
            first = asker.earliest(there).get(self.range.tp, self.range.end)
        finally:
            asker.close()
        self._lost(f"it begins at {first} now")
        self.offset = min(first, self.range.end) if first > self.offset else self.range.end

    def _lost(self, instead: str) -> None:
        """Raise KafkaError, or warn: the records from here on are gone."""
        check_data_loss(self.options, [Lost(self.range.tp, f"was to be read from offset {self.offset}, but {instead}")])

    # -- when the broker does not answer
    # --------------------------------------------------------------------------------

    def _look_for_leader(self) -> None:
        """Ask the cluster for the leader; a topic that is gone is lost data."""
        self.close()
        time.sleep(BACKOFF_S)
        asker = OffsetReader(self.options)
        try:
            found = asker.leader(self.range.tp) if self.range.tp in asker.partitions() else None
            if found is None or found.topic_id != self._topic_id:
                self._lost("it no longer exists" if found is None else ANEW)
                self.offset = self.range.end
            self._leader = found
        except KafkaError as error:
            if not error.retriable or error.code == errors.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            self._leader = None
        finally:
            asker.close()

    def _check_patience(self, why: KafkaError | None) -> None:
        """Raise KafkaError if nothing has arrived for too long."""
        waited_ms = (time.monotonic() - self._last_progress_s) * 1000
        if waited_ms > self.options.poll_timeout_ms:
            said = f": {why.message}" if why is not None else ""
            raise KafkaError(
                errors.REQUEST_TIMED_OUT,
                f"{self.range.tp}: offset {self.offset} could not be read in {self.options.poll_timeout_ms} ms{said}",
            )
