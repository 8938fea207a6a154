"""The parts of a consumer, its assigned partitions, their positions, and blocking queries about offsets."""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pybroker import errors
from pybroker.client import arguments
from pybroker.client.arguments import IllegalStateError
from pybroker.client.consuming.broker_queries import BrokerQueries
from pybroker.client.consuming.commits import OffsetCommits
from pybroker.client.consuming.fetch_collector import FetchCollector
from pybroker.client.consuming.fetcher import ConsumerFetcher
from pybroker.client.consuming.group import GroupMembership
from pybroker.client.consuming.positions import RESETS, Bell, Place, Positions
from pybroker.client.consuming.sole_reader import SoleReader
from pybroker.client.foreign import renamed
from pybroker.client.net.find_coordinator import CoordinatorClient
from pybroker.client.net.list_offsets import EARLIEST, LATEST
from pybroker.client.net.network import NetworkClient
from pybroker.client.serialization.fields import Decoder
from pybroker.client.settings import Settings
from pybroker.config.settings import ConfigError
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition

Partition = tuple[str, int]

TIMEOUT: Final = "timeout_ms"
WAIT_S: Final = 0.1
"""Seconds that a call waits before it looks whether there is something to do."""

_REVOKE_S: Final = 5.0  # for a commit while other members wait for the partitions


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time."""

    offset: int
    timestamp_ms: int


class ConsumerBase:
    """Everything of a consumer but subscriptions, commits and records."""

    def __init__(self, settings: Settings, decoder: Decoder | None) -> None:
        self._settings = s = settings
        if s.group_id is None and s.group_instance_id is not None:
            raise ConfigError("group_instance_id needs group_id")
        self._api_s = s.default_api_timeout_ms / 1000
        self._closed = False
        self._assigned = False
        """True while partitions are assigned by assign()."""
        self._bell = Bell()
        self._positions = Positions(RESETS[s.auto_offset_reset])
        self._network = NetworkClient("consumer", s, create_topics=s.allow_auto_create_topics)
        self._fetcher = ConsumerFetcher(self._network, s, self._positions, self._bell)
        self._reader = FetchCollector(self._fetcher, self._positions, check_crcs=s.check_crcs, decoder=decoder)
        self._lookups = BrokerQueries(self._network, s)
        self._coordinator: CoordinatorClient | None = None
        self._commits: OffsetCommits | None = None
        self._group: GroupMembership | SoleReader
        self._network.listen(self._bell.ring)
        if s.group_id is not None:
            self._join_group(s)
        else:
            self._group = SoleReader(self._network, s, self._positions)

    def _join_group(self, s: Settings) -> None:
        coordinator = self._coordinator = CoordinatorClient(self._network, s.group_id)
        commits = self._commits = OffsetCommits(self._network, coordinator, s, self._positions, self._begun)
        group = self._group = GroupMembership(self._network, coordinator, s, self._positions, self._bell)
        commits.identity = group.committing_as
        commits.lost = group.expelled
        group.before_revoked = lambda partitions: commits.before_leaving(partitions, time.monotonic() + _REVOKE_S)

    def _begun(self) -> None:
        """On the loop's thread: places have positions, or errors."""
        self._fetcher.pump()
        self._bell.ring()

    @renamed(timeout="timeout_ms", autocommit="enable_auto_commit, a setting")
    def close(self, timeout_ms: int | None = None) -> None:
        """Commit if that is automatic, leave the group, and end. Calling it again does nothing, nor does calling it in
        a process that was forked."""
        if self._closed or self._network.was_forked:
            return
        died = self._network.died is not None  # without the thread no request can be sent
        deadline_s = 0.0 if died else self._deadline(timeout_ms)
        self._closed = True
        try:
            if self._commits is not None and not died:
                self._commits.before_leaving(set(self._positions.places), deadline_s)
            if not died:
                self._group.leave("the consumer was closed", deadline_s)
        finally:
            self._network.close()
            self._reader.close()

    def _check_open(self) -> None:
        """Settle what iteration returned, and raise KafkaError in a forked process, or once the client's thread has
        ended. Between close() and that end listeners may still commit."""
        self._network.check_usable()
        if not self._network.loop.running:
            raise KafkaError(errors.INVALID_REQUEST, "the consumer is closed")
        self._reader.settle()

    def _deadline(self, timeout_ms: int | None) -> float:
        self._check_open()
        return time.monotonic() + (self._api_s if timeout_ms is None else arguments.whole(timeout_ms, TIMEOUT) / 1000)

    # -- assigned partitions -------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions, and no others: from this consumer's position in them, or the group's, or else by
        auto_offset_reset. IllegalStateError while topics are subscribed."""
        wanted = [TopicPartition.of(tp) for tp in partitions]
        self._check_open()
        if self._group.active:
            raise IllegalStateError("topics are subscribed, which excludes assign(): call unsubscribe() first")
        self._assigned = bool(wanted)
        self._positions.assign(wanted)
        self._network.want({tp.topic for tp in wanted})
        self._begin()
        self._fetcher.wake()

    def _begin(self) -> None:
        """Look up a position for the places without one."""
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
        """Return no records of these until `resume`; prefetched ones are fetched again then."""
        self._check_open()
        for tp in partitions:
            place = self._positions.get(tp)
            place.paused = True
            if place.position >= 0:
                place.move(place.position, place.epoch)

    def resume(self, *partitions: Partition) -> None:
        """Continue with partitions that were paused."""
        self._check_open()
        for tp in partitions:
            self._positions.get(tp).paused = False
        self._fetcher.wake()

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
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
        """Read these, or all assigned ones, from their end: only records that are appended from now on."""
        self._seek_to(LATEST, partitions)

    def _seek_to(self, to: int, partitions: Collection[Partition]) -> None:
        self._check_open()
        for tp in partitions or self._positions.places:
            self._positions.get(tp).reset(to)
        self._fetcher.wake()

    def position(self, partition: Partition, *, timeout_ms: int | None = None) -> int:
        """The offset of the next record to be returned or yielded. KafkaError(REQUEST_TIMED_OUT) if unknown in time."""
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
            self._bell.wait(min(left_s, WAIT_S))
        return place.position

    def _raise(self, place: Place) -> None:
        """Raise the error of a place, if it has one. Without a position the error stays."""
        if place.error is not None:
            error, place.error = place.error, None
            if place.position < 0 and place.reset_to is None:
                place.error = error
            self._fetcher.wake()  # a place that is not moved is fetched again, and raises the same again
            raise error

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
        """The first record of each partition at or after its time; None without one."""
        asked = {TopicPartition.of(tp): arguments.whole(at, "a time in ms") for tp, at in times_ms.items()}
        found = self._lookups.offsets(asked, self._deadline(timeout_ms))
        return {
            tp: None if one.offset < 0 else OffsetAndTimestamp(one.offset, one.timestamp_ms)
            for tp, one in found.items()
        }

    def lag(self) -> dict[TopicPartition, int | None]:
        """The number of offsets from the position to the end of each assigned partition, as of its last fetch."""
        self._reader.settle()
        committed = self._settings.isolation_level == "read_committed"
        found: dict[TopicPartition, int | None] = {}
        for tp, place in self._positions.places.items():
            end = place.last_stable_offset if committed else place.high_watermark
            found[tp] = None if end < 0 or place.position < 0 else max(0, end - place.position)
        return found

    def partitions_for(self, topic: str, *, timeout_ms: int | None = None) -> list[int]:
        """The partitions of a topic. KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if it does not exist."""
        return self._lookups.partitions(arguments.name(topic, "a topic's name"), self._deadline(timeout_ms))
