"""Fetches ahead of what is read, on the loop's thread: one request under way to each broker, bounded by bytes.

What it fetched lies in `chunks`, in the order in which it came, until the consumer takes it.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from pybroker import core, errors
from pybroker.client.consuming.damaged_records import ON_DISK, DamagedRecords, sound_behind
from pybroker.client.consuming.fetch_session import FetchSession, PartitionFetch
from pybroker.client.consuming.positions import RESETS, Bell, Place, PlaceSnapshot, Positions
from pybroker.client.net import list_offsets
from pybroker.client.net.loop import Timer, Wake
from pybroker.client.net.network import STALE, NetworkClient
from pybroker.client.net.requests import RequestOptions
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.message import plain

_log = unfailing(__name__)

LANE: Final = "fetch"
MISSING_PAUSE_S: Final = 1.0
LOOK_S: Final = 10.0
"""Seconds that a consumer waits while a broker checks a damaged segment."""
LOOK_PAUSE_S: Final = 0.1
_SESSION_ERRORS: Final = frozenset(
    {
        errors.FETCH_SESSION_ID_NOT_FOUND,
        errors.INVALID_FETCH_SESSION_EPOCH,
        errors.FETCH_SESSION_TOPIC_ID_ERROR,
        errors.UNKNOWN_TOPIC_ID,
        errors.INCONSISTENT_TOPIC_ID,
    }
)


class Run(NamedTuple):
    """Batches of one leader epoch, up to an offset."""

    next_offset: int
    epoch: int


class Chunk(NamedTuple):
    """Batches of one partition, as fetched. A chunk is read as a whole, as its aborted transactions are listed once."""

    asked: PlaceSnapshot
    data: memoryview
    runs: list[Run]
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of the aborted transactions in it, for read_committed."""

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset in this chunk, or at its end."""
        return next((run.epoch for run in self.runs if offset <= run.next_offset), self.runs[-1].epoch)


class ConsumerFetcher:
    """Keeps `chunks` filled for the places of a consumer, and looks positions up."""

    def __init__(self, network: NetworkClient, settings: Settings, positions: Positions, bell: Bell) -> None:
        self.chunks: deque[Chunk] = deque()
        self._came = 0
        self._taken = 0
        """Bytes of all chunks and answers under way so far, counted by the loop's thread; and of chunks taken, counted
        by the consumer's: two threads that add to one number may lose an addition."""
        self._network = network
        self._settings = settings
        self._positions = positions
        self._bell = bell
        self._isolation = int(settings.isolation_level == "read_committed")
        self._sessions: dict[int, FetchSession] = {}
        self._under_way: dict[int, int] = {}
        self._retry_s: dict[int, float] = {}
        self._missing: set[TopicPartition] = set()
        """Missing partitions that were logged."""
        self.wake = Wake(network.loop, self.pump)
        """From any thread: there may be something to fetch."""
        self._timer: Timer | None = None
        network.listen(self.wake)

    def taken(self, chunk: Chunk) -> None:
        """Count a chunk that was read, or is no longer wanted. For the consumer's thread."""
        self._taken += len(chunk.data)
        self.wake()

    # -- requests ------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        now_s = time.monotonic()
        places = self._positions.places  # as they are now: the consumer's thread may assign others meanwhile
        self._look_up(places, now_s)
        room = self._settings.fetch_max_bytes - (self._came - self._taken)
        asked: dict[int, dict[TopicPartition, PlaceSnapshot]] = {}
        wanted: dict[int, dict[TopicPartition, PartitionFetch]] = {}
        for place in places.values():
            mark = place.asked()  # first: a place that moves from now on ignores the answer
            if not place.fetchable:
                continue
            if place.not_before_s > now_s:
                self._pump_at(place.not_before_s)
                continue
            node = self._node(place, now_s)
            if node < 0:
                self._network.want([place.tp.topic])
                self._await_missing([place], now_s)
            elif node not in self._under_way:
                asked.setdefault(node, {})[place.tp] = mark
                wanted.setdefault(node, {})[place.tp] = self._want(place, node)
        for node, partitions in wanted.items():
            if room <= 0:
                return
            if self._retry_s.get(node, 0.0) > now_s:
                self._pump_at(self._retry_s[node])
                continue
            room -= self._fetch(node, asked[node], partitions, room)

    def _node(self, place: Place, now_s: float) -> int:
        view = self._network.view
        near = place.replica >= 0 and now_s < place.replica_until_s and place.replica in view.nodes
        if near and place.tp.topic in view.topics:
            return place.replica
        return view.leader(*place.tp)

    def _want(self, place: Place, node: int) -> PartitionFetch:
        """The fetch of a place. Only the leader gets the last epoch: a follower may be behind what was read."""
        view = self._network.view
        topic = view.topics[place.tp.topic]
        last_epoch = place.fetch_epoch if node == view.leader(*place.tp) else -1
        most = self._settings.max_partition_fetch_bytes
        return PartitionFetch(topic.id, place.fetch_offset, view.leader_epoch(*place.tp), last_epoch, most)

    def _fetch(
        self,
        node: int,
        asked: Mapping[TopicPartition, PlaceSnapshot],
        partitions: Mapping[TopicPartition, PartitionFetch],
        room: int,
    ) -> int:
        """Send a fetch; return how many bytes its answer may have."""
        settings = self._settings
        session = self._sessions.setdefault(node, FetchSession())
        size: int = min(room, settings.fetch_max_bytes, settings.max_partition_fetch_bytes * len(partitions))
        request = session.request(
            partitions,
            replica_id=-1,
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=self._isolation,
            rack_id=settings.client_rack,
        )
        self._under_way[node] = size
        self._came += size
        timeout_s = settings.request_timeout_ms / 1000 + settings.fetch_max_wait_ms / 1000
        self._network.send(
            node, request, partial(self._answered, node, asked), lane=LANE, how=RequestOptions(timeout_s)
        )
        return size

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answered(
        self, node: int, asked: Mapping[TopicPartition, PlaceSnapshot], answer: m.FetchResponse | None,
        error: KafkaError | None,
    ) -> None:
        self._came -= self._under_way.pop(node, 0)  # 0 at a second call, after the first one raised
        session = self._sessions[node]
        if error is None and answer is not None and answer.error_code:
            error = KafkaError(answer.error_code)
        if error is not None:
            session.reset()
            if error.code not in _SESSION_ERRORS or not answer:
                self._retry_s[node] = time.monotonic() + self._network.pauses.first_s
                self._network.refresh()
            self.wake()
            return
        assert answer is not None
        session.answered(answer.session_id)
        names = self._network.view.names
        if answer.node_endpoints:
            self._learn_leaders(names, answer)
        filled = False
        for topic in answer.responses:
            name = topic.topic or names.get(bytes(topic.topic_id), "")
            for p in topic.partitions:
                tp = TopicPartition(name, p.partition_index)
                wanted = asked.get(tp)
                taken = None if wanted is None else self._take_of(node, wanted, p)
                if taken is None:
                    session.known.pop(tp, None)  # outdated: the next request names it again
                filled = filled or bool(taken)
        self.wake()
        if filled:
            self._bell.ring()

    def _learn_leaders(self, names: Mapping[bytes, str], answer: m.FetchResponse) -> None:
        told = {}
        for topic in answer.responses:
            name = topic.topic or names.get(bytes(topic.topic_id), "")
            for p in topic.partitions:
                told[TopicPartition(name, p.partition_index)] = p.current_leader
        self._network.learn_leaders(told, answer.node_endpoints)

    def _take_of(self, node: int, asked: PlaceSnapshot, answer: m.FetchResponse.Responses.Partitions) -> bool | None:
        """`_take` under the place's lock; None if the place has moved since the request."""
        place = asked.place
        with place.lock:
            if asked.stale or not self._positions.holds(place):
                return None
            try:
                return self._take(node, place, answer)
            except Exception as problem:  # a bug of ours: poll() raises it, other partitions continue
                _log.exception("what was fetched of %s could not be used", place.tp)
                words = f"{place.tp}: {type(problem).__name__}: {problem}"
                place.error = KafkaError(errors.UNKNOWN_SERVER_ERROR, words)
                return True

    def _take(self, node: int, place: Place, answer: m.FetchResponse.Responses.Partitions) -> bool:
        """Take the answer for one partition; True if the consumer has something to read or to raise."""
        if answer.error_code:
            if answer.error_code == errors.CORRUPT_MESSAGE:
                return self._damaged(place, answer.readable_from)
            return self._refused(node, place, answer.error_code)
        place.high_watermark = answer.high_watermark
        place.last_stable_offset = answer.last_stable_offset
        if answer.preferred_read_replica >= 0 and answer.preferred_read_replica != node:
            place.replica = answer.preferred_read_replica
            place.replica_until_s = time.monotonic() + self._settings.metadata_max_age_ms / 1000
            return False
        if answer.diverging_epoch is not None and answer.diverging_epoch.end_offset >= 0:
            return self._truncated(place, answer.diverging_epoch)
        data = memoryview(plain(answer.records))
        if not data:
            return False
        try:
            end, runs = whole_batches(data, place.fetch_offset, answer.high_watermark)
        except core.LogError as error:
            sound = sound_behind(data, place.fetch_offset)
            if sound is not None and sound[1] <= place.fetch_offset:
                answer.records = data[sound[0] :]
                return self._take(node, place, answer)
            if not place.looked_s:  # the broker may have read its high watermark before these records
                place.looked_s = time.monotonic()
                place.not_before_s = place.looked_s + LOOK_PAUSE_S
                return False
            beyond = None if sound is None else sound[1]
            place.error = DamagedRecords(error.code, place.tp, place.fetch_offset, beyond, str(error))
            return True
        if not end:
            size = 12 + int.from_bytes(data[8:12], "big", signed=True)
            why = f"its batch says it has {size} bytes, and {len(data)} came"  # a broker sends the first one whole
            place.error = DamagedRecords(errors.CORRUPT_MESSAGE, place.tp, place.fetch_offset, None, why)
            return True
        aborted = (
            [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()] if self._isolation else []
        )
        next_offset, epoch = runs[-1]
        self.chunks.append(Chunk(place.asked(), data[:end], runs, aborted))
        self._came += end
        if next_offset > place.fetch_offset:
            place.fetch_offset, place.fetch_epoch = next_offset, epoch
        return True

    def _truncated(self, place: Place, parts: m.FetchResponse.Responses.Partitions.DivergingEpoch) -> bool:
        """Move back to where the leader's log diverges from what was fetched: an unclean election has lost records.
        With auto_offset_reset=none the next poll raises OFFSET_OUT_OF_RANGE instead."""
        if self._is_behind(place):
            return True
        at, read = min(parts.end_offset, place.position), place.position
        if at < read:
            words = f"{place.tp}: the log was truncated: offsets {at} to {read - 1} are not what was read there"
            if RESETS[self._settings.auto_offset_reset] is None:
                place.error = KafkaError(errors.OFFSET_OUT_OF_RANGE, words)
                return True
            _log.warning("%s; the consumer goes on from offset %d", words, at)
        place.move(at, parts.epoch)
        return False

    def _refused(self, node: int, place: Place, code: int) -> bool:
        if code == errors.OFFSET_OUT_OF_RANGE:
            if place.replica == node:
                place.replica = -1  # the leader may still have it
                return False
            if place.fetch_epoch >= 0:
                place.fetch_epoch = -1  # the leader may not know that epoch
                return False
            return self._out_of_range(place)
        if code in STALE or code == errors.OFFSET_NOT_AVAILABLE or errors.lookup(code).retriable:
            place.replica = -1
            self._network.refresh()
            if self._network.view.leader(*place.tp) == node:  # the answer named no other leader
                place.not_before_s = time.monotonic() + self._network.pauses.first_s
            return False
        place.error = KafkaError(code, f"{place.tp}: {errors.lookup(code).meaning}")
        return True

    def _damaged(self, place: Place, beyond: int) -> bool:
        """Raise DamagedRecords from the next poll. A retry mends no stored batch: it is made only while the broker
        still checks how far the damage goes, and answers `beyond` with the offset itself."""
        now_s = time.monotonic()
        if beyond == place.fetch_offset:
            place.looked_s = place.looked_s or now_s
            if now_s - place.looked_s < LOOK_S:
                place.not_before_s = now_s + LOOK_PAUSE_S
                return False
        after = beyond if beyond > place.fetch_offset else None
        place.error = DamagedRecords(errors.CORRUPT_MESSAGE, place.tp, place.fetch_offset, after, ON_DISK)
        return True

    def _out_of_range(self, place: Place) -> bool:
        if self._is_behind(place):
            return True
        if RESETS[self._settings.auto_offset_reset] is None:
            words = f"{place.tp}: offset {place.fetch_offset} is outside what the broker has"
            place.error = KafkaError(errors.OFFSET_OUT_OF_RANGE, words)
            return True
        self._positions.begin(place)
        return False

    def _is_behind(self, place: Place) -> bool:
        """True if records fetched before are still unread: they come first, then the broker is asked again."""
        if place.position == place.fetch_offset:
            return False
        place.not_before_s = time.monotonic() + self._network.pauses.first_s
        return True

    # -- positions -----------------------------------------------------------------------------------------------------

    def _look_up(self, places: Mapping[TopicPartition, Place], now_s: float) -> None:
        """Look up the positions of places that wait for a reset."""
        lost: dict[TopicPartition, int] = {}
        asked: dict[TopicPartition, PlaceSnapshot] = {}
        for place in places.values():
            mark, to = place.asked(), place.reset_to  # in this order: a later reset ignores an earlier answer
            if to is None or place.asking or place.error is not None:
                continue
            if place.not_before_s > now_s:
                self._pump_at(place.not_before_s)
            else:
                lost[place.tp], asked[place.tp] = to, mark
        view = self._network.view
        for leader, times in list_offsets.by_leader(view, lost).items():
            if leader < 0:
                looked_up = [places[tp] for tp in times]
                self._network.want({tp.topic for tp in times})
                self._fail_unknown(looked_up)
                self._await_missing(looked_up, now_s)
                continue
            for tp in times:
                _ask(asked[tp])
            request = list_offsets.request(
                times, view=view, isolation_level=self._isolation, timeout_ms=self._settings.request_timeout_ms
            )
            self._network.send(leader, request, partial(self._found, [asked[tp] for tp in times]))

    def _fail_unknown(self, places: Iterable[Place]) -> None:
        """Set the error of places whose topic is forbidden or invalid: it will never have a leader."""
        for place in places:
            name = place.tp.topic
            topic = self._network.view.topics.get(name)
            if topic is not None and topic.error and not errors.lookup(topic.error).retriable:
                place.error = KafkaError(topic.error, f"topic {name!r}: {errors.lookup(topic.error).meaning}")
                self._bell.ring()

    def _await_missing(self, places: Iterable[Place], now_s: float) -> None:
        """Look again in a while for partitions that do not exist yet, and log each once."""
        for place in places:
            tp = place.tp
            topic = self._network.view.topics.get(tp.topic)
            there = 0 if topic is None or topic.error else len(topic.partitions)
            if not there or 0 <= tp.partition < there:
                continue
            if tp not in self._missing:
                self._missing.add(tp)
                words = "topic %r has partitions 0 to %d: the consumer waits for partition %d"
                _log.warning(words, tp.topic, there - 1, tp.partition)
            place.not_before_s = now_s + MISSING_PAUSE_S
            self._pump_at(place.not_before_s)
            self._network.refresh_soon()

    def _found(
        self, asked: Iterable[PlaceSnapshot], answer: m.ListOffsetsResponse | None, error: KafkaError | None
    ) -> None:
        found = list_offsets.answers(answer) if answer is not None else {}
        for each in asked:
            with each.place.lock:
                if not each.stale:
                    self._found_of(each.place, found.get(each.place.tp), error)
        self._bell.ring()
        self.pump()

    def _found_of(self, place: Place, told: list_offsets.OffsetAnswer | None, error: KafkaError | None) -> None:
        place.asking = False
        problem = error or (told.error if told else KafkaError(errors.UNKNOWN_SERVER_ERROR))
        if problem is None and told is not None and told.offset >= 0:
            place.move(told.offset)
        elif problem is None:
            place.reset(list_offsets.LATEST)  # no record is that late
        elif problem.retriable or problem.code in STALE:
            place.not_before_s = time.monotonic() + self._network.pauses.first_s
            self._network.refresh()
        else:
            place.error = problem

    def _pump_at(self, when_s: float) -> None:
        self._timer = self._network.loop.call_by(self._timer, when_s, self._pump_late)

    def _pump_late(self) -> None:
        self._timer = None
        self.pump()


def _ask(asked: PlaceSnapshot) -> None:
    """Note that an answer is under way, unless the place has moved since."""
    with asked.place.lock:
        if not asked.stale:
            asked.place.asking = True


def whole_batches(data: memoryview, offset: int, high_watermark: int) -> tuple[int, list[Run]]:
    """(bytes, runs) of the whole batches at the start of `data`, up to a cut or an invalid one. A batch that leaps from
    `offset` beyond the high watermark is invalid: no CRC covers its base offset. LogError if the first is invalid."""
    runs: list[Run] = []
    end, next_offset, epoch = 0, -1, -1
    try:
        for position, header in core.iter_batches(data, check_crc=False):
            if header.base_offset > max(offset, next_offset) and header.last_offset >= high_watermark >= 0:
                raise core.LogError(errors.CORRUPT_MESSAGE, f"a batch says it begins at offset {header.base_offset}")
            if end and header.partition_leader_epoch != epoch:
                runs.append(Run(next_offset, epoch))
            end, next_offset, epoch = position + header.size, header.last_offset + 1, header.partition_leader_epoch
    except core.LogError:
        if not end:
            raise
    if end:
        runs.append(Run(next_offset, epoch))
    return end, runs
