"""Fetches ahead of what is read, on the loop's thread: one request under way to each broker, bounded by bytes.

What it fetched lies in `chunks`, in the order in which it came, until the consumer takes it.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from pybroker import core, errors
from pybroker.client import list_offsets
from pybroker.client.damaged import ON_DISK, DamagedRecords, sound_behind
from pybroker.client.fetch_session import FetchSession, Wanted
from pybroker.client.loop import Timer, Wake
from pybroker.client.network import STALE, Network
from pybroker.client.positions import RESETS, Asked, Bell, Place, Positions
from pybroker.client.requests import How
from pybroker.client.settings import Settings
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import TopicPartition

_log = unfailing(__name__)

LANE: Final = "fetch"
MISSING_PAUSE_S: Final = 1.0
LOOK_S: Final = 10.0
"""A broker that met damage checks the whole segment; so long a consumer waits for what that finds."""
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
    """Batches of one partition, as they were fetched. It is read as a whole, for the sake of its transactions."""

    asked: Asked
    data: memoryview
    runs: list[Run]
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of the aborted transactions in it, for read_committed."""

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the record before an offset that it has, or ends with."""
        return next((run.epoch for run in self.runs if offset <= run.next_offset), self.runs[-1].epoch)


class Fetcher:
    """Keeps `chunks` filled for the places of a consumer, and looks positions up."""

    def __init__(self, network: Network, settings: Settings, positions: Positions, bell: Bell) -> None:
        self.chunks: deque[Chunk] = deque()
        self._came = 0
        self._taken = 0
        """Bytes of all chunks so far, and at most of the answers under way; and of the chunks that were taken. Each is
        counted by one thread, the loop's and the consumer's: two that add to one number may lose what one added."""
        self._network = network
        self._settings = settings
        self._positions = positions
        self._bell = bell
        self._isolation = int(settings.isolation_level == "read_committed")
        self._sessions: dict[int, FetchSession] = {}
        self._under_way: dict[int, int] = {}
        self._retry_s: dict[int, float] = {}
        self._missing: set[TopicPartition] = set()
        """Partitions of which it was told that they are not there."""
        self.wake = Wake(network.loop, self.pump)
        """From any thread: there may be something to fetch."""
        self._timer: Timer | None = None
        network.listen(self.wake)

    def taken(self, chunk: Chunk) -> None:
        """From the consumer's thread: a chunk was used up, or is of no use."""
        self._taken += len(chunk.data)
        self.wake()

    # -- requests ------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        now_s = time.monotonic()
        places = self._positions.places  # as they are now: the consumer's thread may assign others meanwhile
        self._look_up(places, now_s)
        room = self._settings.fetch_max_bytes - (self._came - self._taken)
        asked: dict[int, dict[TopicPartition, Asked]] = {}
        wanted: dict[int, dict[TopicPartition, Wanted]] = {}
        for place in places.values():
            mark = place.asked()  # first: what moves from now on gets no answer of where it stood
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

    def _want(self, place: Place, node: int) -> Wanted:
        """A follower may have less than was read, which parts from nothing: only the leader compares."""
        view = self._network.view
        topic = view.topics[place.tp.topic]
        last_epoch = place.fetch_epoch if node == view.leader(*place.tp) else -1
        most = self._settings.max_partition_fetch_bytes
        return Wanted(topic.id, place.fetch_offset, view.leader_epoch(*place.tp), last_epoch, most)

    def _fetch(
        self, node: int, asked: Mapping[TopicPartition, Asked], partitions: Mapping[TopicPartition, Wanted], room: int
    ) -> int:
        """Ask a broker; how many bytes may come."""
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
        self._network.send(node, request, partial(self._answered, node, asked), lane=LANE, how=How(timeout_s))
        return size

    # -- answers -------------------------------------------------------------------------------------------------------

    def _answered(
        self, node: int, asked: Mapping[TopicPartition, Asked], answer: Any, error: KafkaError | None
    ) -> None:
        self._came -= self._under_way.pop(node, 0)  # it may be told twice, where the first time failed
        session = self._sessions[node]
        if error is None and answer.error_code:
            error = KafkaError(answer.error_code)
        if error is not None:
            session.reset()
            if error.code not in _SESSION_ERRORS or not answer:
                self._retry_s[node] = time.monotonic() + self._network.pauses.first_s
                self._network.refresh()
            self.wake()
            return
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
                    session.known.pop(tp, None)  # our picture of it is old: it will be told anew
                filled = filled or bool(taken)
        self.wake()
        if filled:
            self._bell.ring()

    def _learn_leaders(self, names: Mapping[bytes, str], answer: Any) -> None:
        told = {}
        for topic in answer.responses:
            name = topic.topic or names.get(bytes(topic.topic_id), "")
            for p in topic.partitions:
                told[TopicPartition(name, p.partition_index)] = p.current_leader
        self._network.learn_leaders(told, answer.node_endpoints)

    def _take_of(self, node: int, asked: Asked, answer: Any) -> bool | None:
        """_take, where the place stands as it stood when it was asked for, and does while this takes; else None."""
        place = asked.place
        with place.lock:
            if asked.stale or not self._positions.holds(place):
                return None
            try:
                return self._take(node, place, answer)
            except Exception as problem:  # a mistake of ours: who polls hears of it, and the others go on
                _log.exception("what was fetched of %s could not be used", place.tp)
                words = f"{place.tp}: {type(problem).__name__}: {problem}"
                place.error = KafkaError(errors.UNKNOWN_SERVER_ERROR, words)
                return True

    def _take(self, node: int, place: Place, answer: Any) -> bool:
        """What a broker answers of one partition; whether the consumer should look."""
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
        data = answer.records
        if not data:
            return False
        try:
            end, runs = whole_batches(data, place.fetch_offset, answer.high_watermark)
        except core.LogError as error:
            sound = sound_behind(data, place.fetch_offset)
            if sound is not None and sound[1] <= place.fetch_offset:
                answer.records = data[sound[0] :]
                return self._take(node, place, answer)
            if not place.looked_s:  # a broker may have read its high watermark before these records
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

    def _truncated(self, place: Place, parts: Any) -> bool:
        """The leader's log parts from what was fetched, behind a record of the epoch and before the offset of `parts`:
        an unclean election has cost what lay there. Go on from there, or tell who would not be moved."""
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
                place.fetch_epoch = -1  # it may be the epoch that the leader knows nothing of
                return False
            return self._out_of_range(place)
        if code in STALE or code == errors.OFFSET_NOT_AVAILABLE or errors.lookup(code).retriable:
            place.replica = -1
            self._network.refresh()
            if self._network.view.leader(*place.tp) == node:  # it did not say who else leads
                place.not_before_s = time.monotonic() + self._network.pauses.first_s
            return False
        place.error = KafkaError(code, f"{place.tp}: {errors.lookup(code).meaning}")
        return True

    def _damaged(self, place: Place, beyond: int) -> bool:
        """Raise from the next poll what the broker cannot read. To ask again helps no stored batch: it is done
        only while the broker still looks how far the damage goes, and `beyond` is the offset itself."""
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
        """First what was fetched before is read; then the broker is asked again, and answers the same."""
        if place.position == place.fetch_offset:
            return False
        place.not_before_s = time.monotonic() + self._network.pauses.first_s
        return True

    # -- positions -----------------------------------------------------------------------------------------------------

    def _look_up(self, places: Mapping[TopicPartition, Place], now_s: float) -> None:
        """Ask for the positions that are to be reset."""
        lost: dict[TopicPartition, int] = {}
        asked: dict[TopicPartition, Asked] = {}
        for place in places.values():
            mark, to = place.asked(), place.reset_to  # in this order: a reset from now on gets no answer of before
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
        """A topic that may not be read, or has no such name, will never have a leader."""
        for place in places:
            name = place.tp.topic
            topic = self._network.view.topics.get(name)
            if topic is not None and topic.error and not errors.lookup(topic.error).retriable:
                place.error = KafkaError(topic.error, f"topic {name!r}: {errors.lookup(topic.error).meaning}")
                self._bell.ring()

    def _await_missing(self, places: Iterable[Place], now_s: float) -> None:
        """A partition that is not there may be made: look again in a while, and tell once what is waited for."""
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

    def _found(self, asked: Iterable[Asked], answer: Any, error: KafkaError | None) -> None:
        found = list_offsets.answers(answer) if answer is not None else {}
        for each in asked:
            with each.place.lock:
                if not each.stale:
                    self._found_of(each.place, found.get(each.place.tp), error)
        self._bell.ring()
        self.pump()

    def _found_of(self, place: Place, told: Any, error: KafkaError | None) -> None:
        place.asking = False
        problem = error or (told.error if told else KafkaError(errors.UNKNOWN_SERVER_ERROR))
        if problem is None and told.offset >= 0:
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


def _ask(asked: Asked) -> None:
    """An answer is under way, unless the place was moved since: then none is for where it stands."""
    with asked.place.lock:
        if not asked.stale:
            asked.place.asking = True


def whole_batches(data: memoryview, offset: int, high_watermark: int) -> tuple[int, list[Run]]:
    """(bytes, runs) of the whole batches that data begins with; a cut one is left out, and what follows one that is
    none, or that leaps from `offset` beyond the high watermark: no CRC covers its base offset. Raises LogError if the
    first is such a one."""
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
