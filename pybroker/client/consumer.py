"""A consumer: partitions assigned or shared with a group, and their records, fetched ahead."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pybroker import core, errors
from pybroker.client import list_offsets, records
from pybroker.client.fetcher import Chunk, Fetcher
from pybroker.client.network import STALE, Network
from pybroker.client.positions import EARLIEST, LATEST, Bell, Place, Positions
from pybroker.client.records import Record
from pybroker.client.settings import CONSUMER, Settings
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

__all__ = ["Consumer", "OffsetAndTimestamp", "Record"]

Partition = tuple[str, int]


class OffsetAndTimestamp(NamedTuple):
    """The first record that is not older than a time."""

    offset: int
    timestamp_ms: int


class Consumer:
    """Reads records. One thread uses it at a time; `close()` it, or use it in a `with`.

    Settings are Kafka's, with underscores (see docs/client.md); ConfigError if one is unknown or not allowed.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = s = Settings("consumer", CONSUMER, settings)
        self._positions = Positions()
        self._bell = Bell()
        self._network = Network("pybroker-consumer", s, create_topics=s.allow_auto_create_topics)
        self._fetcher = Fetcher(self._network, s, self._positions, self._bell)
        self._open: tuple[Chunk, Any] | None = None
        self._api_s = s.default_api_timeout_ms / 1000
        self._closed = False

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what is read --------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, and no others: from where this consumer stood in them, or auto_offset_reset."""
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._positions.assign(wanted)
        for place in self._positions.places.values():
            if place.position < 0 and place.reset_to is None:
                self._reset(place)
        self._network.want({tp.topic for tp in wanted})
        self._fetcher.wake()

    def _reset(self, place: Place) -> None:
        policy = self._settings.auto_offset_reset
        if policy == "none":
            place.error = KafkaError(
                errors.OFFSET_OUT_OF_RANGE, f"{place.tp} has no position, and auto_offset_reset is none"
            )
        else:
            place.reset(EARLIEST if policy == "earliest" else LATEST)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are read."""
        return set(self._positions.places)

    def pause(self, *partitions: Partition) -> None:
        """Return nothing of these until `resume`; what was prefetched of them is fetched again then."""
        for tp in partitions:
            place = self._positions.get(tp)
            place.paused = True
            if place.position >= 0:
                place.move(place.position)

    def resume(self, *partitions: Partition) -> None:
        for tp in partitions:
            self._positions.get(tp).paused = False
        self._fetcher.wake()

    def paused(self) -> set[TopicPartition]:
        return {tp for tp, place in self._positions.places.items() if place.paused}

    # -- positions -----------------------------------------------------------------------------------------------------

    def seek(self, partition: Partition, offset: int) -> None:
        """Read this partition from an offset on. ValueError if it is not assigned or the offset is negative."""
        if offset < 0:
            raise ValueError(f"an offset is not negative: {offset}")
        self._positions.get(partition).move(offset)
        self._fetcher.wake()

    def seek_to_beginning(self, *partitions: Partition) -> None:
        """Read these, or all assigned ones, from their start."""
        self._seek_to(EARLIEST, partitions)

    def seek_to_end(self, *partitions: Partition) -> None:
        """Read of these, or all assigned ones, only what comes from now on."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, to: int, partitions: Collection[Partition]) -> None:
        for tp in partitions or self._positions.places:
            self._positions.get(tp).reset(to)
        self._fetcher.wake()

    def position(self, partition: Partition, *, timeout_ms: int | None = None) -> int:
        """The offset of the record that poll() returns next. KafkaError(7) if it is not known in time."""
        place = self._positions.get(partition)
        deadline_s = self._deadline(timeout_ms)
        while place.position < 0:
            self._fetcher.wake()
            self._raise(place)
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._timed_out(f"the position in {place.tp}")
            self._bell.wait(min(left_s, 0.1))
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
        found = self._list_offsets({TopicPartition(*tp): at for tp in partitions}, timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    def offsets_for_times(
        self, times_ms: Mapping[Partition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than its time; None where there is none."""
        asked = {TopicPartition(*tp): at for tp, at in times_ms.items()}
        if any(at < 0 for at in asked.values()):
            raise ValueError("a time in milliseconds is not negative")
        found = self._list_offsets(asked, timeout_ms)
        return {
            tp: None if one.offset < 0 else OffsetAndTimestamp(one.offset, one.timestamp_ms)
            for tp, one in found.items()
        }

    def _list_offsets(
        self, times: Mapping[TopicPartition, int], timeout_ms: int | None
    ) -> dict[TopicPartition, list_offsets.Found]:
        deadline_s = self._deadline(timeout_ms)
        found: dict[TopicPartition, list_offsets.Found] = {}
        isolation = int(self._settings.isolation_level == "read_committed")
        self._network.want({tp.topic for tp in times})
        while True:
            view = self._network.view
            left = {tp: at for tp, at in times.items() if tp not in found}
            asked = list_offsets.by_leader(view, left)
            for tp in asked.pop(-1, ()):
                self._raise_unknown(tp)
            calls = [
                self._network.call(
                    leader,
                    list_offsets.request(view, part, isolation_level=isolation, timeout_ms=30_000),
                    timeout_s=max(0.001, deadline_s - time.monotonic()),
                )
                for leader, part in asked.items()
            ]
            for call in calls:
                self._collect(call, found)
            if len(found) == len(times):
                return found
            if time.monotonic() >= deadline_s:
                missing = ", ".join(str(tp) for tp in times if tp not in found)
                raise self._timed_out(f"the offsets of {missing}")
            if calls:
                self._network.refresh_soon()
            time.sleep(0.01 if self._network.view is view and not calls else self._network.pauses.first_s)

    def _collect(self, call: Any, found: dict[TopicPartition, list_offsets.Found]) -> None:
        try:
            answers = list_offsets.answers(call.result())
        except KafkaError as error:
            if error.retriable or error.code in STALE:
                return
            raise
        for tp, one in answers.items():
            if one.error is None:
                found[tp] = one
            elif not one.error.retriable:
                raise one.error

    def _raise_unknown(self, tp: TopicPartition) -> None:
        """A topic whose metadata says that asking again is of no use."""
        info = self._network.view.topics.get(tp.topic)
        if info is not None and info.error:
            error = errors.lookup(info.error)
            if not error.retriable or (error.code == 3 and not self._settings.allow_auto_create_topics):
                raise KafkaError(error.code, f"topic {tp.topic!r}: {error.meaning}")
        elif info is not None and tp.partition >= len(info.partitions):
            raise KafkaError(
                errors.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {tp.topic!r} has partitions 0 to {len(info.partitions) - 1}, not {tp.partition}",
            )

    def _timed_out(self, what: str) -> KafkaError:
        failure = self._network.failure
        why = f": {failure.message}" if failure else ""
        return KafkaError(errors.REQUEST_TIMED_OUT, f"{what} could not be had in time{why}")

    def _deadline(self, timeout_ms: int | None) -> float:
        return time.monotonic() + (self._api_s if timeout_ms is None else timeout_ms / 1000)

    # -- records -------------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> list[Record]:
        """The next records, up to max_records (max_poll_records); waits for the first of them up to timeout_ms.

        Those of a partition are in their order. Raises KafkaError for what only the caller can mend, once."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        most = self._settings.max_poll_records if max_records is None else max_records
        while True:
            self._raise_first()
            found = self._take(most)
            left_s = deadline_s - time.monotonic()
            if found or left_s <= 0:
                return found
            self._bell.wait(left_s)

    def __iter__(self) -> "Consumer":
        return self

    def __next__(self) -> Record:
        """The next record, however long it takes."""
        while True:
            found = self.poll(1000, 1)
            if found:
                return found[0]

    def _raise_first(self) -> None:
        for place in self._positions.places.values():
            if place.error is not None:
                self._raise(place)

    def _raise(self, place: Place) -> None:
        if place.error is not None:
            error, place.error = place.error, None
            if place.position < 0 and place.reset_to is None:
                place.error = error  # without a position it stays as it is
            raise error

    def _take(self, most: int) -> list[Record]:
        taken: list[Record] = []
        while len(taken) < most:
            if self._open is None:
                if not self._fetcher.chunks:
                    break
                chunk = self._fetcher.chunks.popleft()
                place = chunk.place
                if chunk.stale or not self._positions.holds(place):
                    self._fetcher.taken(chunk)
                    continue
                self._open = chunk, records.records(chunk, place.position, self._settings.check_crcs)
            chunk, found = self._open
            place = chunk.place
            if chunk.stale or not self._positions.holds(place):
                self._end_chunk(chunk)
                continue
            try:
                for record in found:
                    taken.append(record)
                    place.position = record.offset + 1
                    if len(taken) == most:
                        break
                else:
                    place.position = max(place.position, chunk.next_offset)
                    self._end_chunk(chunk)
            except (core.LogError, KafkaError) as error:
                self._end_chunk(chunk)
                place.move(place.position)
                place.error = KafkaError(error.code, f"{place.tp} at offset {place.position}: {error}")
                break
        return taken

    def _end_chunk(self, chunk: Chunk) -> None:
        self._open = None
        self._fetcher.taken(chunk)

    # -- what there is -------------------------------------------------------------------------------------------------

    def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[int]:
        """The partitions of a topic. KafkaError(3) if there is no such topic."""
        deadline_s = self._deadline(timeout_ms)
        self._network.want([topic])
        while True:
            info = self._network.view.topics.get(topic)
            if info is not None and not info.error and info.partitions:
                return [p.partition for p in info.partitions]
            if info is not None:
                self._raise_unknown(TopicPartition(topic, 0))
            if time.monotonic() >= deadline_s:
                raise self._timed_out(f"the partitions of topic {topic!r}")
            time.sleep(0.005)

    def lag(self) -> dict[TopicPartition, int | None]:
        """How many offsets each assigned partition is ahead of what poll() returned, as its last fetch told."""
        committed = self._settings.isolation_level == "read_committed"
        found: dict[TopicPartition, int | None] = {}
        for tp, place in self._positions.places.items():
            end = place.last_stable_offset if committed else place.high_watermark
            found[tp] = None if end < 0 or place.position < 0 else max(0, end - place.position)
        return found

    def close(self) -> None:
        """End it. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            self._network.close()
