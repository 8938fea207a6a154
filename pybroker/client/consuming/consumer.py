"""A consumer: partitions assigned or subscribed to, and their records, fetched ahead."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeVar, Unpack, cast

from pybroker.client import arguments, foreign
from pybroker.client.arguments import IllegalStateError
from pybroker.client.consuming.base import TIMEOUT, WAIT_S, ConsumerBase, OffsetAndTimestamp, Partition
from pybroker.client.consuming.commits import OffsetCommits
from pybroker.client.consuming.group import RebalanceListener
from pybroker.client.consuming.positions import Place
from pybroker.client.foreign import OfOtherClients, no_settings_first, renamed
from pybroker.client.net.group_offsets import ConsumerGroupMetadata, OffsetAndMetadata
from pybroker.client.serialization.fields import Decoder, Deserializer
from pybroker.client.serialization.variables import Key, Value
from pybroker.client.settings import CONSUMER, ConsumerSettings, Settings, signed
from pybroker.core import COLUMNS, ColumnBatch, Columns, Record
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored

if TYPE_CHECKING:
    import pyarrow as pa

    from pybroker.client.columns.arrays import RecordArrays

__all__ = ["Consumer", "OffsetAndMetadata", "OffsetAndTimestamp", "RebalanceListener", "Record"]

Found = TypeVar("Found")

LEASE_S: Final = 0.1
"""Seconds that iteration goes on without a look at the group, commits and errors."""

_MOST: Final = "max_records"
_LISTENER: Final = "a method of listener=, a RebalanceListener"


@signed(CONSUMER, ConsumerSettings)
class Consumer(OfOtherClients, ConsumerBase, Generic[Key, Value]):
    """Reads records. One thread uses it at a time; `close()` it, or use it in a `with`.

    `Consumer("orders", bootstrap_servers=..., group_id=...)` subscribes to topics; without topics call `subscribe` or
    `assign`. Deserializers are callables of bytes, or objects like `pybroker.Json()`; a null stays None. Settings are
    Kafka's, with underscores (see docs/client.md); ConfigError if one is unknown or not allowed.
    """

    def __init__(
        self,
        *topics: str,
        key_deserializer: Deserializer[Key] | None = None,
        value_deserializer: Deserializer[Value] | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        no_settings_first("Consumer", topics, topics=True)
        decoder = Decoder.of(key_deserializer, value_deserializer)
        super().__init__(Settings("consumer", CONSUMER, settings), decoder)
        self._columns: dict[tuple[str, ...], Columns] = {}
        if topics:
            self.subscribe(topics)

    _OTHERS = foreign.CONSUMER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        s, places = self._settings, self._positions.places.values()
        self._reader.settle()
        group = f" in group {s.group_id!r}" if s.group_id is not None else ""
        shown = [f"{p.tp} {_at(p)}" for p in list(places)[:_SHOWN_MAX]]
        more = [f"{len(places) - _SHOWN_MAX} more"] if len(places) > _SHOWN_MAX else []
        topics = ", ".join(sorted(self.subscription()))
        nothing = f"subscribed to {topics}" if topics else "nothing to read"
        state = "closed" if self._closed else ", ".join(shown + more) or nothing
        return f"<Consumer of {s.bootstrap_servers}{group}: {state}>"

    # -- subscriptions -------------------------------------------------------------------------------------------------

    @renamed(on_assign=_LISTENER, on_revoke=_LISTENER, on_lost=_LISTENER)
    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Read these topics, or those that a regular expression matches, sharing their partitions with the group.

        Without group_id this consumer reads all their partitions. poll() assigns and revokes partitions, and calls the
        listener. ValueError for topics and a pattern together; IllegalStateError while partitions are assigned;
        TypeError for a listener that is no instance of RebalanceListener."""
        self._check_open()
        names = [topics] if isinstance(topics, str) else arguments.names(topics, "topics")
        matching = None if pattern is None else re.compile(pattern)
        if matching is not None and not isinstance(matching.pattern, str):
            raise TypeError("a pattern matches names, which are str: it is no bytes")
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError(f"a listener is an instance of RebalanceListener, not {listener!r}")
        if bool(names) == (pattern is not None):
            raise ValueError("a subscription is of topics, or by a pattern: one of both")
        if self._assigned:
            raise IllegalStateError("partitions are assigned, which excludes subscribe(): call unsubscribe() first")
        self._group.subscribe(names, matching, listener)

    def unsubscribe(self) -> None:
        """Leave the group and read nothing."""
        self._check_open()
        self._group.leave("the consumer unsubscribed", self._deadline(None))
        self._assigned = False
        self._positions.assign([])

    def subscription(self) -> set[str]:
        """The subscribed topics."""
        return set(self._group.topics) if self._group.active else set()

    # -- commits -------------------------------------------------------------------------------------------------------

    @renamed(asynchronous="commit_async(offsets)", message="commit({(topic, partition): offset + 1})")
    def commit(
        self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these offsets for the group, or the positions: records returned or yielded so far are done.

        KafkaError if the group has rebalanced since (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS,
        FENCED_INSTANCE_ID: other members read these records again), or REQUEST_TIMED_OUT."""
        commits = self._need_group()
        commits.commit(self._to_commit(offsets), self._deadline(timeout_ms))

    @renamed(callback="the future's: commit_async(offsets).add_done_callback(call)")
    def commit_async(self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None) -> Future[None]:
        """`commit` without a wait, and without a retry; the future has the KafkaError if it failed."""
        return self._need_group().commit_async(self._to_commit(offsets))

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group, and this consumer's place in it: what Producer.send_offsets_to_transaction() takes (KIP-447).

        KafkaError(UNKNOWN_MEMBER_ID) if other members read this consumer's partitions by now."""
        return self._need_group().identity()

    def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets of these partitions, None without one."""
        commits, wanted = self._need_group(), [TopicPartition.of(tp) for tp in partitions]
        what = "the committed offsets could not be had"
        found = self._network.retried(lambda: commits.find(wanted), what, self._deadline(timeout_ms))
        return {tp: found.get(tp) for tp in wanted}

    def _need_group(self) -> OffsetCommits:
        self._check_open()
        if self._commits is None:
            raise ValueError("committed offsets are a group's: this consumer has no group_id")
        return self._commits

    def _to_commit(
        self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._need_group().consumed()
        return {
            TopicPartition.of(tp): (at if isinstance(at, OffsetAndMetadata) else OffsetAndMetadata(at)).checked()
            for tp, at in offsets.items()
        }

    # -- records -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record[Key, Value]]:
        """Yield the next records, for ever. A record is consumed once it is yielded: position() and commit() count it,
        and no record that was only fetched."""
        while True:
            yield self.__next__()
            steps = self._reader.at_hand(LEASE_S)
            if steps is None:
                continue
            if self._reader.decoder is None:
                yield from cast("Iterator[Record[Key, Value]]", steps)
            else:
                for record in steps:
                    yield self._decode(self._reader.decoder, record)

    def __next__(self) -> Record[Key, Value]:
        """The next record, however long it takes; consumed once it is returned, as in a loop."""
        record = self._reader.take()
        if record is not None:
            decoder = self._reader.decoder
            return cast("Record[Key, Value]", record) if decoder is None else self._decode(decoder, record)
        while True:
            try:
                found = self.poll(1000, 1)
            except StopIteration as problem:  # of a listener: the loop would end as if there were no more records
                raise RuntimeError("a rebalance listener raised StopIteration") from problem
            if found:
                self._reader.at_hand(LEASE_S)
                return found[0]

    def _decode(self, decoder: Decoder, record: Record) -> Record[Key, Value]:
        """Deserialize a record of `at_hand`; the position stays before it if that fails."""
        try:
            return cast("Record[Key, Value]", decoder.decoded(record))
        except BaseException:  # KeyboardInterrupt in the deserializer, too
            self._reader.refuse(record)
            raise

    def _ready(self) -> bool:
        """True if records may be at hand, without taking any: a poll with a timeout of 0."""
        return self._poll(0, self._reader.ready)

    @renamed(timeout="timeout_ms", num_messages="max_records", update_offsets="always so")
    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record[Key, Value]]:
        """The next records, up to max_records (max_poll_records); waits for the first of them up to timeout_ms.

        Records of a partition are in order. KafkaError for what only the caller can fix; IllegalStateError without a
        subscription or assignment."""
        most = self._settings.max_poll_records if max_records is None else arguments.whole(max_records, _MOST, 1)
        return cast("list[Record[Key, Value]]", self._poll(timeout_ms, lambda: self._reader.records(most)))

    def poll_arrow(
        self,
        timeout_ms: int = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] = COLUMNS,
        timestamp_unit: Literal["ms", "us"] = "ms",
    ) -> "pa.RecordBatch":
        """The same as a pyarrow.RecordBatch, without an object a record: up to max_records, or 8 MiB as fetched; no
        more batches once 64 MiB of keys, values and headers are there.

        Columns: topic, partition, and those asked for of offset, timestamp, timestamp_type, key, value, headers; the
        others are not even read. Needs pyarrow (pybroker[arrow])."""
        from pybroker.client.columns import arrow

        read = columns if isinstance(columns, str) else [name for name in columns if name not in ("topic", "partition")]
        batch = self._poll_columns(timeout_ms, max_records, read, timestamp_unit, lambda tp: arrow.Origin(*tp))
        return arrow.record_batch(batch)

    def poll_numpy(
        self,
        timeout_ms: int = 0,
        max_records: int | None = None,
        *,
        columns: Iterable[str] = COLUMNS,
        timestamp_unit: Literal["ms", "us"] = "ms",
    ) -> "RecordArrays":
        """The same as NumPy arrays, an attribute a column; max_records and columns as of poll_arrow."""
        from pybroker.client.columns import arrays

        batch = self._poll_columns(timeout_ms, max_records, columns, timestamp_unit, lambda tp: tp)
        return arrays.record_arrays(batch)

    def _poll_columns(
        self,
        timeout_ms: int,
        most: int | None,
        names: Iterable[str],
        timestamp_unit: Literal["ms", "us"],
        tag: Callable[[TopicPartition], object],
    ) -> ColumnBatch:
        if isinstance(names, str):
            raise TypeError(f"columns is a list of names, like [{names!r}], and not one name")
        if most is not None:
            arguments.whole(most, _MOST, 1)
        key = (*names, timestamp_unit)
        columns = self._columns.get(key)  # one that was used before begins as large as it was
        if columns is None:
            columns = Columns(key[:-1], timestamp_unit=timestamp_unit, decompress=decompress_stored)
            self._columns[key] = columns

        def read() -> int:
            self._reader.columns(columns, most, tag)
            return len(columns)

        self._poll(timeout_ms, read)
        return columns.take()

    def _poll(self, timeout_ms: int, take: Callable[[], Found]) -> Found:
        """The result of `take`, as soon as it is true, or the time is over."""
        self._check_open()
        deadline_s = time.monotonic() + arguments.whole(timeout_ms, TIMEOUT) / 1000
        if not self._positions.places and not self._group.active:
            raise IllegalStateError("the consumer has nothing to read: subscribe() to topics, or assign() partitions")
        while True:
            now_s = time.monotonic()
            due_s = self._advance(now_s)
            found = take()
            if found:
                return found
            if any(self._is_due(place) for place in self._positions.places.values()):
                continue  # `take` met an error
            self._network.check_usable()
            self._network.check_login()
            if now_s >= deadline_s:
                return found
            self._bell.wait(min(deadline_s, due_s) - now_s)

    def listen(self, call: Callable[[], object] | None) -> None:
        """Have `call` made, on a thread of the client's, whenever a poll() may have something to do or to return; None
        ends that. For event loops, which do not block in poll()."""
        self._bell.also = call

    def _advance(self, now_s: float) -> float:
        """Do what is due between records, raise errors, and return when to look again if nothing comes in."""
        self._group.advance(now_s)
        if self._commits is not None:
            self._commits.tick(now_s)
        due_s = self._group.due_s
        for place in self._positions.places.values():
            if self._is_due(place):
                self._raise(place)
            elif place.position < 0 and place.error is None:
                if place.nowhere:
                    self._begin()
                    due_s = min(due_s, now_s + WAIT_S)
                self._fetcher.wake()
        return due_s

    def _is_due(self, place: Place) -> bool:
        """True if the place has an error to raise now: records fetched before it come first."""
        return place.error is not None and not self._reader.waits(place)


_SHOWN_MAX: Final = 4  # partitions in a repr


def _at(place: Place) -> str:
    return ("at an unknown offset" if place.position < 0 else f"at {place.position}") + " (paused)" * place.paused
