"""A consumer: partitions assigned or shared with a group, and their records, fetched ahead."""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar, Unpack

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.commits import Commits
from pybroker.client.committed import OffsetAndMetadata
from pybroker.client.fetcher import Fetcher
from pybroker.client.find_coordinator import Coordinator
from pybroker.client.group import Group, RebalanceListener
from pybroker.client.list_offsets import EARLIEST, LATEST
from pybroker.client.lookups import Lookups
from pybroker.client.network import Network
from pybroker.client.positions import RESETS, Bell, Place, Positions
from pybroker.client.reader import Reader
from pybroker.client.settings import CONSUMER, ConsumerSettings, Settings
from pybroker.config.settings import ConfigError
from pybroker.core import COLUMNS, ColumnBatch, Columns, Record
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol.compression import decompress_stored

if TYPE_CHECKING:
    import pyarrow as pa

    from pybroker.client.arrays import RecordArrays

__all__ = ["Consumer", "OffsetAndMetadata", "OffsetAndTimestamp", "RebalanceListener", "Record"]

Partition = tuple[str, int]
Found = TypeVar("Found")

_TIMEOUT: Final = "timeout_ms"
_MOST: Final = "max_records"
_WAIT_S: Final = 0.1  # how long a call waits before it looks whether there is something to do
_REVOKE_S: Final = 5.0  # what a commit may take while others wait for the partitions


class OffsetAndTimestamp(NamedTuple):
    """The first record that is not older than a time."""

    offset: int
    timestamp_ms: int


class Consumer:
    """Reads records. One thread uses it at a time; `close()` it, or use it in a `with`.

    Settings are Kafka's, with underscores (see docs/client.md); ConfigError if one is unknown or not allowed.
    """

    def __init__(self, **settings: Unpack[ConsumerSettings]) -> None:
        self._settings = s = Settings("consumer", CONSUMER, settings)
        if s.group_id is None and s.group_instance_id is not None:
            raise ConfigError("group_instance_id needs group_id")
        self._api_s = s.default_api_timeout_ms / 1000
        self._closed = False
        self._bell = Bell()
        self._positions = Positions(RESETS[s.auto_offset_reset])
        self._network = Network("consumer", s, create_topics=s.allow_auto_create_topics)
        self._fetcher = Fetcher(self._network, s, self._positions, self._bell)
        self._reader = Reader(self._fetcher, self._positions, check_crcs=s.check_crcs)
        self._lookups = Lookups(self._network, s)
        self._columns: dict[tuple[str, ...], Columns] = {}
        self._coordinator: Coordinator | None = None
        self._commits: Commits | None = None
        self._group: Group | None = None
        self._network.listen(self._bell.ring)
        if s.group_id is not None:
            self._join_group(s)

    def _join_group(self, s: Settings) -> None:
        coordinator = self._coordinator = Coordinator(self._network, s.group_id)
        commits = self._commits = Commits(self._network, coordinator, s, self._positions, self._begun)
        group = self._group = Group(self._network, coordinator, s, self._positions, self._bell)
        commits.identity = group.committing_as
        commits.lost = group.expelled
        group.before_revoked = lambda partitions: commits.before_leaving(partitions, time.monotonic() + _REVOKE_S)

    def _begun(self) -> None:
        """On the loop's thread: places have positions, or errors."""
        self._fetcher.pump()
        self._bell.ring()

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout_ms: int | None = None) -> None:
        """Commit where that is automatic, leave the group, and end. Calling it again does nothing, nor does calling it
        in a process that was forked."""
        if self._closed or self._network.was_forked:
            return
        died = self._network.died is not None  # without the thread no request can be sent
        deadline_s = 0.0 if died else self._deadline(timeout_ms)
        self._closed = True
        try:
            if self._commits is not None and not died:
                self._commits.before_leaving(set(self._positions.places), deadline_s)
            if self._group is not None and not died:
                self._group.leave("the consumer was closed", deadline_s)
        finally:
            self._network.close()
            self._reader.close()

    def _check_open(self) -> None:
        """KafkaError once the thread has ended that would ask brokers; until then listeners may still commit. And in a
        process that was forked, which never had that thread."""
        self._network.check_usable()
        if not self._network.loop.running:
            raise KafkaError(errors.INVALID_REQUEST, "the consumer is closed")

    # -- what is read --------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | re.Pattern[str] | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Share these topics, or those that a regular expression is found in, with the group.

        Partitions come and go in poll(), of which the listener is told. Raises ValueError without a group_id, and for
        topics and a pattern together; TypeError for a listener that is no instance of RebalanceListener."""
        self._check_open()
        names = [topics] if isinstance(topics, str) else arguments.names(topics, "topics")
        matching = None if pattern is None else re.compile(pattern)
        if matching is not None and not isinstance(matching.pattern, str):
            raise TypeError("a pattern matches names, which are str: it is no bytes")
        if listener is not None and not isinstance(listener, RebalanceListener):
            raise TypeError(f"a listener is an instance of RebalanceListener, not {listener!r}")
        if bool(names) == (pattern is not None):
            raise ValueError("a subscription is of topics, or by a pattern: one of both")
        if self._group is None:
            raise ValueError("subscribe needs a group_id: assign() reads without one")
        self._group.subscribe(names, matching, listener)

    def unsubscribe(self) -> None:
        """Leave the group and read nothing."""
        self._check_open()
        if self._group is not None:
            self._group.leave("the consumer unsubscribed", self._deadline(None))
        self._positions.assign([])

    def subscription(self) -> set[str]:
        """The topics that are shared with the group."""
        return set(self._group.topics) if self._group is not None else set()

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, and no others: from where this consumer stood in them, or the group, or else by
        auto_offset_reset."""
        wanted = [TopicPartition.of(tp) for tp in partitions]
        self._check_open()
        if self._group is not None:
            self._group.leave("the consumer was assigned partitions", self._deadline(None))
        self._positions.assign(wanted)
        self._network.want({tp.topic for tp in wanted})
        self._begin()
        self._fetcher.wake()

    def _begin(self) -> None:
        """Find a position for the places that have none."""
        if self._commits is not None:
            self._commits.look_up(time.monotonic())
            return
        for place in self._positions.places.values():
            if place.nowhere:
                self._positions.begin(place)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._positions.places)

    def pause(self, *partitions: Partition) -> None:
        """Return nothing of these until `resume`; what was prefetched of them is fetched again then."""
        self._check_open()
        for tp in partitions:
            place = self._positions.get(tp)
            place.paused = True
            if place.position >= 0:
                place.move(place.position, place.epoch)

    def resume(self, *partitions: Partition) -> None:
        """Go on with these where they were paused."""
        self._check_open()
        for tp in partitions:
            self._positions.get(tp).paused = False
        self._fetcher.wake()

    def paused(self) -> set[TopicPartition]:
        """The partitions of which nothing is returned until `resume`."""
        return {tp for tp, place in self._positions.places.items() if place.paused}

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek(self, partition: Partition, offset: int) -> None:
        """Read this partition from an offset on. ValueError if it is not assigned or the offset is negative."""
        self._check_open()
        self._positions.get(partition).move(arguments.whole(offset, "an offset"))
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read these, or all assigned ones, from their start."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Read of these, or all assigned ones, only what comes from now on."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, to: int, partitions: Collection[Partition]) -> None:
        self._check_open()
        for tp in partitions or self._positions.places:
            self._positions.get(tp).reset(to)
        self._fetcher.wake()

    def position(self, partition: Partition, *, timeout_ms: int | None = None) -> int:
        """The offset of the record that poll() returns next. KafkaError(7) if it is not known in time."""
        deadline_s = self._deadline(timeout_ms)
        place = self._positions.get(partition)
        while place.position < 0:
            self._begin()
            self._fetcher.wake()
            self._raise(place)
            self._network.check_login()
            self._network.check_wanted()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                problem = self._coordinator.failure if self._coordinator is not None else None
                reason = problem.message if problem is not None else ""
                raise self._network.timed_out(f"the position in {place.tp} could not be had", [place.tp], reason)
            self._bell.wait(min(left_s, _WAIT_S))
        return place.position

    def beginning_offsets(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offset of the first record of each."""
        return self._offsets(partitions, EARLIEST, timeout_ms)

    def end_offsets(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each: of the last stable one with read_committed."""
        return self._offsets(partitions, LATEST, timeout_ms)

    def _offsets(self, partitions: Iterable[Partition], at: int, timeout_ms: int | None) -> dict[TopicPartition, int]:
        found = self._lookups.offsets({TopicPartition.of(tp): at for tp in partitions}, self._deadline(timeout_ms))
        return {tp: one.offset for tp, one in found.items()}

    def offsets_for_times(
        self, times_ms: Mapping[Partition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than its time; None where there is none."""
        asked = {TopicPartition.of(tp): arguments.whole(at, "a time in ms") for tp, at in times_ms.items()}
        found = self._lookups.offsets(asked, self._deadline(timeout_ms))
        return {
            tp: None if one.offset < 0 else OffsetAndTimestamp(one.offset, one.timestamp_ms)
            for tp, one in found.items()
        }

    def lag(self) -> dict[TopicPartition, int | None]:
        """How many offsets each assigned partition is ahead of what poll() returned, as its last fetch told."""
        committed = self._settings.isolation_level == "read_committed"
        found: dict[TopicPartition, int | None] = {}
        for tp, place in self._positions.places.items():
            end = place.last_stable_offset if committed else place.high_watermark
            found[tp] = None if end < 0 or place.position < 0 else max(0, end - place.position)
        return found

    def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[int]:
        """The partitions of a topic. KafkaError(3) if there is no such topic."""
        return self._lookups.partitions(arguments.name(topic, "a topic's name"), self._deadline(timeout_ms))

    # -- commits -------------------------------------------------------------------------------------------------------

    def commit(
        self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Commit these offsets for the group, or what poll() returned. KafkaError if the group has moved on (22, 25,
        27, 82: what was read will be read again by whoever has the partitions now) or in time it could not be done."""
        commits = self._need_group()
        commits.commit(self._to_commit(offsets), self._deadline(timeout_ms))

    def commit_async(self, offsets: Mapping[Partition, int | OffsetAndMetadata] | None = None) -> Future[None]:
        """The same without a wait, and without another try; the future has the KafkaError if it failed."""
        return self._need_group().commit_async(self._to_commit(offsets))

    def committed(
        self, partitions: Iterable[Partition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group committed for these partitions, None where nothing."""
        commits, wanted = self._need_group(), [TopicPartition.of(tp) for tp in partitions]
        what = "the committed offsets could not be had"
        found = self._network.retried(lambda: commits.find(wanted), what, self._deadline(timeout_ms))
        return {tp: found.get(tp) for tp in wanted}

    def _need_group(self) -> Commits:
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

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """The next records, up to max_records (max_poll_records); waits for the first of them up to timeout_ms.

        Those of a partition are in their order. Raises KafkaError for what only the caller can mend, once."""
        most = self._settings.max_poll_records if max_records is None else arguments.whole(max_records, _MOST, 1)
        return self._poll(timeout_ms, lambda: self._reader.records(most))

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
        from pybroker.client import arrow

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
        from pybroker.client import arrays

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
        """What `take` finds, as soon as it finds anything, or when the time is over."""
        self._check_open()
        deadline_s = time.monotonic() + arguments.whole(timeout_ms, _TIMEOUT) / 1000
        while True:
            now_s = time.monotonic()
            due_s = self._advance(now_s)
            found = take()
            if found:
                return found
            if any(self._is_due(place) for place in self._positions.places.values()):
                continue  # what was to be taken has an error
            self._network.check_usable()
            self._network.check_login()
            if now_s >= deadline_s:
                return found
            self._bell.wait(min(deadline_s, due_s) - now_s)

    def listen(self, call: Callable[[], object] | None) -> None:
        """Have a call made, on a thread of the client's, whenever a poll() may have something new to do or to return;
        None ends that. For those who wait by other means, as an event loop does."""
        self._bell.also = call

    def __iter__(self) -> "Consumer":
        return self

    def __next__(self) -> Record:
        """The next record, however long it takes."""
        while True:
            try:
                found = self.poll(1000, 1)
            except StopIteration as problem:  # of a listener: the loop would end by it as if there were no more records
                raise RuntimeError("a rebalance listener raised StopIteration") from problem
            if found:
                return found[0]

    def _advance(self, now_s: float) -> float:
        """What goes on between records; when to look again though nothing comes in."""
        due_s = float("inf")
        if self._commits is not None and self._group is not None:
            self._group.advance(now_s)
            self._commits.tick(now_s)
            due_s = self._group.due_s
        for place in self._positions.places.values():
            if self._is_due(place):
                self._raise(place)
            elif place.position < 0 and place.error is None:
                if place.nowhere:
                    self._begin()
                    due_s = min(due_s, now_s + _WAIT_S)
                self._fetcher.wake()
        return due_s

    def _is_due(self, place: Place) -> bool:
        """Whether it has an error that is to be told: what was fetched before it is told before it."""
        return place.error is not None and not self._reader.waits(place)

    def _raise(self, place: Place) -> None:
        if place.error is not None:
            error, place.error = place.error, None
            if place.position < 0 and place.reset_to is None:
                place.error = error  # without a position it stays as it is
            self._fetcher.wake()  # where nobody moves it, it is asked for again, and the same is told again
            raise error

    def _deadline(self, timeout_ms: int | None) -> float:
        self._check_open()
        return time.monotonic() + (self._api_s if timeout_ms is None else arguments.whole(timeout_ms, _TIMEOUT) / 1000)
