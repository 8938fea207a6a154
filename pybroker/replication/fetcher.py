"""Follows a leader broker: fetches records of its partitions, and appends them.

    assigned ──fetch──> appended, high watermark raised ──> fetch again, at once
       │ the logs diverge ──> truncate to where they agree (KIP-101, 279), fetch on;
       │ below the leader's start, or beyond its end after an unclean election ──> go on where the leader has records;
       │ another leader, another epoch ──> wait for the controller's next request;
       └ the connection ends ──> connect again

One connection and one request at a time for each leader. Core checks each append: length, CRC, offsets, epoch. If a
partition was given to another fetcher meanwhile, its leader epoch has changed, and core refuses the append.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from pybroker import core, errors
from pybroker.clock import monotonic_ms, wall_ms
from pybroker.config import BrokerConfig
from pybroker.decisions.metadata_cache import Suspects
from pybroker.errors import KafkaError, system_words
from pybroker.interbroker.link import Link
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.message import plain
from pybroker.replication.disks.disk_space import LACKS
from pybroker.replication.replica import Replica
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

FETCH, LIST_OFFSETS = 17, 9
RETRY_S = 0.1
WAIT_S = 0.02
"""Pause of a partition whose leader does not lead it yet, or no longer: the controller notifies both brokers."""
LATEST, EARLIEST = -1, -2
WAIT = (
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UNKNOWN_TOPIC_ID,
)
"""Errors that the controller's next request resolves."""


COMPLAINT_S = 60.0
"""The interval at which a reason is logged, for all partitions: without descriptors, all fail for the same reason."""


class Complaints:
    """Logs why partitions of one leader are not copied, each reason at most once per COMPLAINT_S."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._logged_s: dict[str, float] = {}
        self._since: dict[str, set[TopicPartition]] = {}

    def log(self, level: int, key: TopicPartition, reason: str) -> None:
        """Log a line, or count the partition until the next line with this reason, which has the count."""
        now_s = asyncio.get_running_loop().time()
        met = self._since.setdefault(reason, set())
        met.add(key)
        if now_s - self._logged_s.get(reason, -COMPLAINT_S) < COMPLAINT_S:
            return
        for old in [each for each, logged_s in self._logged_s.items() if now_s - logged_s >= 2 * COMPLAINT_S]:
            del self._logged_s[old]
            self._since.pop(old, None)
        partitions = len(met) if len(met) > 1 else None
        self._logged_s[reason], self._since[reason] = now_s, set()
        event(
            log, level, "partition not copied", partition=key, leader=self._leader, reason=reason, partitions=partitions
        )


@dataclass(slots=True, eq=False)
class Followed:
    """A partition, from one `follow` call to the next. Findings about an earlier instance are void: the log may have
    been truncated and extended since then, even in the same leader epoch."""

    replica: Replica
    leader_epoch: int
    asked_end: int = -1
    """The log's end at the last request."""
    leader_end: int = -1
    """The leader's high watermark in its last answer."""
    wrong: str = ""
    """The last impossible divergence that the leader reported, as it was logged."""

    @property
    def is_held_back(self) -> bool:
        """True if the replica is throttled and behind its leader."""
        log = self.replica.partition()
        return log.follower_throttled and self.leader_end > log.log_end_offset


@dataclass(frozen=True, slots=True)
class FetcherContext:
    """The settings and services that a fetcher uses."""

    broker_id: int
    leader: int
    config: BrokerConfig
    epoch: Callable[[], int]
    """Returns the epoch of this broker's present registration."""
    connect: Callable[[int], Awaitable[Link]]
    """Opens a link to a broker by its id. Raises OSError."""
    truncate: Callable[[Replica, int, int], Awaitable[object]]
    """Truncates a replica's log to an offset, in a leader epoch, while no client is served from it."""
    suspects: Suspects
    """The leaders whose connection ended, until they are reached again."""
    throttle: core.QuotaBucket
    """Counts the bytes copied for throttled partitions."""


class Fetcher:
    """Copies partitions from one leader. Call `start` once after construction."""

    def __init__(self, context: FetcherContext) -> None:
        self._throttle = context.throttle
        self._suspects = context.suspects
        self._broker_id = context.broker_id
        self._leader = context.leader
        self._complaints = Complaints(context.leader)
        self._config = context.config
        self._epoch = context.epoch
        self._connect = context.connect
        self._truncate = context.truncate
        self._followed: dict[TopicPartition, Followed] = {}
        self._held_back: dict[TopicPartition, float] = {}  # until when, by the loop's clock
        self._busy: dict[TopicPartition, asyncio.Task[None]] = {}  # with a task running; not fetched meanwhile
        self._begins: dict[TopicPartition, int] = {}  # next offset of logs whose next records the leader has deleted
        self._changed = asyncio.Event()
        self._link: Link | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to copy the followed partitions."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        """Fetch a partition from its log's end on, in this leader epoch."""
        self._followed[replica.key] = Followed(replica, leader_epoch)
        self._held_back.pop(replica.key, None)
        self._changed.set()

    def leave(self, key: TopicPartition) -> None:
        """Stop fetching a partition. Core checks the leader epoch of an append that is still running."""
        self._followed.pop(key, None)
        self._begins.pop(key, None)

    def look(self) -> None:
        """Suspect the leader at once if its end of the connection is closed."""
        if self._link is not None and self._link.hung_up:
            self._suspects.add(self._leader)

    def registered(self) -> None:
        """Note that this broker has another epoch; each request takes the present one."""

    async def close(self) -> None:
        if self._task is not None:
            await cancel_and_wait(self._task)
        await cancel_and_wait(*self._busy.values())

    # -- the round ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        link: Link | None = None
        told = False
        try:
            while True:
                self._link = link
                if not self._followed:
                    self._changed.clear()
                    await self._changed.wait()
                try:
                    if link is None or link.closed.done():
                        link = await self._connect(self._leader)
                        told = False
                        self._suspects.discard(self._leader)
                        self._link = link
                    await self._round(link)
                except OSError as problem:
                    if link is not None:
                        self._suspects.add(self._leader)
                        link.close()
                        link = None
                    if not told:
                        why = system_words(problem)
                        event(log, logging.WARNING, "leader not reached", leader=self._leader, reason=why)
                    told = True
                    await asyncio.sleep(RETRY_S)
                except Exception as problem:  # a malformed answer must not end this task
                    event(log, logging.ERROR, "fetch failed", leader=self._leader, reason=problem, exc_info=problem)
                    await asyncio.sleep(self._config["replica.fetch.backoff.ms"] / 1000)
        finally:
            if link is not None:
                link.close()

    async def _round(self, link: Link) -> None:
        """Send one request, and process its answer."""
        loop = asyncio.get_running_loop()
        self._held_back = {key: until for key, until in self._held_back.items() if until > loop.time()}
        left_out = self._held_back.keys() | self._busy.keys()
        asked = {key: each for key, each in self._followed.items() if key not in left_out}
        for key in [key for key, each in asked.items() if each.replica.offline or each.replica.gone]:
            del asked[key]
            self._followed.pop(key, None)
        for key in [key for key, each in asked.items() if each.replica.flush_due]:
            self._begin(asked.pop(key), self._flush)  # a fetch offset confirms to the leader that we have the records
        if self._throttle.wait(monotonic_ms()):
            asked = {key: each for key, each in asked.items() if not each.is_held_back}
        if not asked:
            await asyncio.sleep(WAIT_S)
            return
        request, by_id = self._request(asked)
        answer = await link.ask(request, FETCH)
        if answer.error_code:
            name = errors.lookup(answer.error_code).name
            raise ConnectionError(f"the leader answered {name}")
        for topic in answer.responses:
            for p in topic.partitions:
                key = TopicPartition(by_id.get(topic.topic_id, ""), p.partition_index)
                if key in asked and self._followed.get(key) is asked[key]:
                    await self._take(link, asked[key], p)

    def _begin(self, followed: Followed, work: Callable[[Followed], Awaitable[object]]) -> None:
        """Start a task for one partition, which is left out of the requests until the task ends."""
        self._busy[followed.replica.key] = asyncio.get_running_loop().create_task(self._alone(followed, work))

    async def _alone(self, followed: Followed, work: Callable[[Followed], Awaitable[object]]) -> None:
        key = followed.replica.key
        try:
            await work(followed)
        except OSError:  # of the link, which the next request finds closed, or of the disk, which was logged
            self._hold_back(followed.replica, followed.leader_epoch, errors.NONE)
        except Exception as problem:  # of one partition
            event(log, logging.ERROR, "partition not followed", partition=key, reason=problem, exc_info=problem)
            self._hold_back(followed.replica, followed.leader_epoch, errors.NONE)
        finally:
            self._busy.pop(key, None)

    async def _flush(self, followed: Followed) -> None:
        with self._complains(followed):
            await followed.replica.at_disk(followed.replica.flush_if_due)

    def _request(self, asked: dict[TopicPartition, Followed]) -> tuple[m.FetchRequest, dict[bytes, str]]:
        kind = m.FetchRequest.Topics
        by_id: dict[bytes, str] = {}
        topics: dict[bytes, list[m.FetchRequest.Topics.Partitions]] = {}
        for key, each in asked.items():
            replica, partition = each.replica, each.replica.partition()
            end = max(partition.log_end_offset, self._begins.get(key, 0))
            if end == partition.log_end_offset:
                self._begins.pop(key, None)
            each.asked_end = partition.log_end_offset
            epochs = partition.epochs()
            by_id[replica.topic_id] = key.topic
            topics.setdefault(replica.topic_id, []).append(
                kind.Partitions(
                    partition=key.partition,
                    current_leader_epoch=each.leader_epoch,
                    fetch_offset=end,
                    last_fetched_epoch=-1 if key in self._begins else last_epoch(epochs, end),
                    log_start_offset=partition.log_start_offset,
                    partition_max_bytes=self._config["replica.fetch.max.bytes"],
                )
            )
        request = m.FetchRequest(
            replica_state=m.FetchRequest.ReplicaState(replica_id=self._broker_id, replica_epoch=self._epoch()),
            max_wait_ms=self._config["replica.fetch.wait.max.ms"],
            min_bytes=self._config["replica.fetch.min.bytes"],
            max_bytes=self._config["replica.fetch.response.max.bytes"],
            session_epoch=-1,
            topics=[kind(topic_id=topic_id, partitions=found) for topic_id, found in topics.items()],
            forgotten_topics_data=[],
            rack_id="",
        )
        return request, by_id

    async def _take(self, link: Link, followed: Followed, answer: m.FetchResponse.Responses.Partitions) -> None:
        """Process the leader's answer for one partition: append, truncate, or hold it back."""
        replica, leader_epoch = followed.replica, followed.leader_epoch
        with self._complains(followed):
            if answer.error_code == errors.OFFSET_OUT_OF_RANGE:
                await self._begin_again(link, followed)
            elif answer.error_code:
                self._hold_back(replica, leader_epoch, answer.error_code)
            elif answer.diverging_epoch is not None and answer.diverging_epoch.epoch >= 0:
                diverging = answer.diverging_epoch
                await self._cut(followed, diverging.epoch, diverging.end_offset)
            else:
                await self._append(followed, answer)

    @contextlib.contextmanager
    def _complains(self, followed: Followed) -> Iterator[None]:
        """Log an error of one partition, and hold it back. Raises ConnectionError and TimeoutError of the link."""
        try:
            yield
        except (ConnectionError, TimeoutError):
            raise
        except (core.LogError, KafkaError, OSError) as problem:
            known = problem.errno in LACKS if isinstance(problem, OSError) else problem.code in WAIT
            if not known:  # a lack of space is logged once, for the log dir
                self._complaints.log(logging.ERROR, followed.replica.key, str(problem))
            self._hold_back(followed.replica, followed.leader_epoch, errors.NONE)

    async def _append(self, followed: Followed, answer: m.FetchResponse.Responses.Partitions) -> None:
        replica, leader_epoch = followed.replica, followed.leader_epoch
        partition = replica.partition()
        records = plain(answer.records)
        followed.leader_end = answer.high_watermark
        if records and partition.follower_throttled and followed.asked_end < answer.high_watermark:
            self._throttle.record(len(records), monotonic_ms())
        if records:
            try:
                await replica.at_disk(
                    replica.append_copied, bytes(records), leader_epoch, answer.high_watermark, wall_ms(),
                    followed.asked_end,
                )  # fmt: skip
            except OSError:  # the disk may be full, and deleting up to the leader's log start may make room
                await self._raise_log_start(replica, answer.log_start_offset)
                raise
        elif answer.high_watermark > partition.high_watermark:
            partition.append_replica(b"", leader_epoch=leader_epoch, high_watermark=answer.high_watermark)
        await self._raise_log_start(replica, answer.log_start_offset)
        replica.tell()

    async def _raise_log_start(self, replica: Replica, offset: int) -> None:
        """Raise the log start to the leader's, but not above the high watermark here."""
        partition = replica.partition()
        start = min(offset, partition.high_watermark)
        if start > partition.log_start_offset:
            await replica.at_disk(partition.set_log_start, start)

    def _hold_back(self, replica: Replica, leader_epoch: int, code: int) -> None:
        """Leave a partition out of the requests for a while after an error."""
        seconds = self._config["replica.fetch.backoff.ms"] / 1000
        if code in WAIT:
            seconds = min(seconds, WAIT_S)
        elif code:
            name = errors.lookup(code).name
            self._complaints.log(logging.WARNING, replica.key, name)
        self._held_back[replica.key] = asyncio.get_running_loop().time() + seconds

    # -- truncation --------------------------------------------------------------------------------------------------

    async def _cut(self, followed: Followed, epoch: int, end: int) -> None:
        """Truncate the log to where it agrees with the leader's, whose epoch `epoch` ends at `end`. If we do not have
        that epoch, truncate to the end of our largest one below it, and ask again. If we have none below it, truncate
        to `end`, as Kafka's follower does.

        A leader that reports a divergence without an end, or with one that truncates nothing, is wrong: the log stays,
        and the follower asks again later."""
        partition = followed.replica.partition()
        ours, our_end = partition.end_offset_for_epoch(epoch)
        to = min(end, our_end) if ours == epoch else our_end if ours >= 0 else end
        why = f"epoch {epoch} ends at {end} at the leader"
        if end < 0 or to >= partition.log_end_offset:
            if followed.wrong != why:
                event(
                    log, logging.WARNING, "log not truncated", partition=followed.replica.key, leader=self._leader,
                    end=partition.log_end_offset, cause=why,
                )  # fmt: skip
            followed.wrong = why
            self._hold_back(followed.replica, followed.leader_epoch, errors.NONE)
            return
        await self._cut_to(followed, to, why)

    async def _cut_to(self, followed: Followed, offset: int, why: str) -> None:
        """Truncate the log to `offset`, unless `follow` was called again for the partition since."""
        replica, partition = followed.replica, followed.replica.partition()
        if self._followed.get(replica.key) is not followed:
            return
        committed = offset < partition.high_watermark
        event(
            log, logging.ERROR if committed else logging.INFO,
            "log truncated below its high watermark" if committed else "log truncated", partition=replica.key,
            offset=offset, end=partition.log_end_offset, high_watermark=partition.high_watermark, cause=why,
        )  # fmt: skip
        # Core refuses if the replica leads, or has another leader epoch by now.
        await self._truncate(replica, offset, followed.leader_epoch)

    async def _begin_again(self, link: Link, followed: Followed) -> None:
        """Handle OFFSET_OUT_OF_RANGE: the leader's log ends before ours does, or begins after our end."""
        replica, partition = followed.replica, followed.replica.partition()
        latest = await self._offset(link, replica.key, followed.leader_epoch, LATEST)
        if latest < partition.log_end_offset:
            await self._cut_to(followed, latest, f"the leader's log ends at {latest}")
            return
        earliest = await self._offset(link, replica.key, followed.leader_epoch, EARLIEST)
        if earliest > partition.log_end_offset:
            why = f"the leader's log begins at {earliest}"
            await self._cut_to(followed, partition.log_start_offset, why)
            self._begins[replica.key] = earliest  # the next records are appended after the gap

    async def _offset(self, link: Link, key: TopicPartition, leader_epoch: int, timestamp: int) -> int:
        kind = m.ListOffsetsRequest.Topics
        asked = kind(
            name=key.topic,
            partitions=[
                kind.Partitions(partition_index=key.partition, current_leader_epoch=leader_epoch, timestamp=timestamp)
            ],
        )
        request = m.ListOffsetsRequest(replica_id=self._broker_id, isolation_level=0, topics=[asked])
        answer = await link.ask(request, LIST_OFFSETS)
        told = [(p.error_code, p.offset) for topic in answer.topics for p in topic.partitions]
        code, offset = told[0] if len(told) == 1 else (errors.NONE, -1)
        if code or offset < 0:
            raise KafkaError(code or errors.UNKNOWN_SERVER_ERROR, f"the leader of {key} did not return its offsets")
        return int(offset)


def last_epoch(epochs: list[tuple[int, int]], end: int) -> int:
    """The leader epoch of the last record below `end`; -1 for an empty log."""
    return max((epoch for epoch, start in epochs if start < end), default=-1)
