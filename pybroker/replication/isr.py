"""The ISR of the partitions that are led here: who fell behind goes, who caught up comes, as the controller agrees.

    settled ──a follower lags, or has caught up──> asked for: the maximal ISR is the union ──AlterPartition──> settled
       ^                                                │
       └── a LeaderAndIsr, or an answer that refuses ────┘

One change at a time is under way for a partition. Until it is settled the high watermark waits for both the old members
and the new; and only the ISR that the controller knows counts for min.insync.replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pybroker import core, errors
from pybroker.cluster.changes import EXPANDED, SHRUNK, Changes
from pybroker.cluster.isr import FollowerState, laggards, may_join
from pybroker.cluster.metadata_cache import MetadataCache
from pybroker.config import BrokerConfig
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.replication.controller_link import ControllerLink
from pybroker.replication.replica import Replica
from pybroker.tasks import cancel_and_wait
from pybroker.upkeep import keep_up

log = logging.getLogger(__name__)

ALTER_PARTITION = 3
RETRY_S = 0.05
REFUSED_MS = 500
"""How long a partition whose change was refused asks for none: a broker that leaves fetches on for a while."""
FENCED_MS = 10_000
"""The same where the leader epoch is over: the change of leaders is on its way, and of each partition comes alone."""
OFFLINE_MS = 2_000
"""Ms until a partition is checked again whose caught-up follower takes no appends, and so cannot join the ISR."""
NOT_DONE = (
    errors.INELIGIBLE_REPLICA,
    errors.INVALID_REQUEST,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UNKNOWN_TOPIC_ID,
)
"""Refusals of a controller that knows the present ISR: it stays."""
AGAIN = (errors.NOT_CONTROLLER, errors.STALE_BROKER_EPOCH)


class Wanted(NamedTuple):
    """An ISR to ask for."""

    isr: tuple[int, ...]
    epochs: Mapping[int, int]
    """Of the followers, the broker epoch that each fetched with when it was judged. However often the controller is
    asked, a later life, which may have lost what that one had, is not vouched for (KIP-903)."""
    why: str


@dataclass(slots=True)
class Led:
    """A partition that is led here, in one leader epoch."""

    replica: Replica
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    since_ms: int
    epoch_start: int
    asked: tuple[int, ...] | None = None
    """The ISR that the controller was asked for."""
    doubtful: set[int] = field(default_factory=set)
    """Those who may be members, by a change whose outcome nobody told."""
    not_before_ms: int = 0
    """When it may be asked again, after it refused."""


class IsrKeeper:
    """Of one broker; `epoch` gives its broker epoch, `now_ms` is monotonic."""

    def __init__(
        self,
        broker_id: int,
        config: BrokerConfig,
        metadata: MetadataCache,
        link: ControllerLink,
        epoch: Callable[[], int],
        now_ms: Callable[[], int],
        lapsed: Callable[[], bool],
        changes: Changes,
    ) -> None:
        """`lapsed`: may others lead what is led here? Then no change is asked for."""
        self._lapsed = lapsed
        self._changes = changes
        self.broker_id = broker_id
        self._config = config
        self._metadata = metadata
        self._link = link
        self._epoch = epoch
        self._now_ms = now_ms
        self._led: dict[TopicPartition, Led] = {}
        self._wanted: dict[TopicPartition, Wanted] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        works = {"lag of followers": self._look_now_and_then, "ISR changes": self._ask_on}
        self._tasks = [loop.create_task(keep_up(work, what)) for what, work in works.items()]

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)

    # -- what is led here --------------------------------------------------------------------------------------------

    def lead(self, replica: Replica, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]) -> None:
        """A partition is led here in this epoch, with this ISR."""
        known = self._led.get(replica.key)
        # As core has it: one that leads again after a restart, in the same epoch, does not know how much is committed.
        since_ms, start = self._now_ms(), replica.partition().log_end_offset
        if known is not None and known.leader_epoch == leader_epoch:
            since_ms, start = known.since_ms, known.epoch_start
        led = self._led[replica.key] = Led(replica, leader_epoch, partition_epoch, isr, since_ms, start)
        self._wanted.pop(replica.key, None)
        self._watch(led)

    def resign(self, key: TopicPartition) -> None:
        """It is not led here any more."""
        self._led.pop(key, None)
        self._wanted.pop(key, None)

    @property
    def led(self) -> list[TopicPartition]:
        """What is led here, and can be."""
        return [key for key, led in self._led.items() if not led.replica.offline]

    def of(self, key: TopicPartition) -> Led | None:
        """The record of a partition that this broker leads; None if it does not lead it."""
        return self._led.get(key)

    def partitions(self) -> list[Led]:
        """All that is led here, for metrics; on any thread."""
        return list(self._led.values())

    def fetched(self, replica: Replica, broker: int) -> None:
        """A follower has fetched: has it caught up?"""
        led = self._led.get(replica.key)
        if led is not None and broker not in led.isr:
            self._grow(led)

    def caught_up(self, replica: Replica) -> None:
        """The plane saw a follower outside the ISR catch up."""
        led = self._led.get(replica.key)
        if led is None or led.asked is not None:
            return
        self._grow(led)
        if led.asked is None:  # it may not join yet
            self._watch_later(led, OFFLINE_MS if self._offline(led) else 0)

    def _offline(self, led: Led) -> Collection[int]:
        """The brokers whose replicas are offline or full, as the controller says: they cannot join the ISR."""
        told = self._metadata.image.partition(*led.replica.key)
        return () if told is None else told.offline

    def _watch_later(self, led: Led, least_ms: int = 0) -> None:
        wait_ms = max(REFUSED_MS // 10, least_ms, led.not_before_ms - self._now_ms())
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._watch, led)

    def _watch(self, led: Led) -> None:
        """Hear of those outside the ISR who catch up, and see whether one has."""
        if self._led.get(led.replica.key) is not led or led.replica.offline:
            return
        if len(led.isr) <= len(led.replica.partition().followers):
            led.replica.watch_joining()
            self._grow(led)

    def _followers(self, led: Led) -> list[FollowerState]:
        return [
            FollowerState(f.broker, f.log_end_offset, f.caught_up_ms, f.broker_epoch)
            for f in led.replica.partition().followers
        ]

    def _is_over(self, led: Led) -> bool:
        """True if a later leader epoch than this is known, by metadata that came before the LeaderAndIsr."""
        told = self._metadata.image.partition(*led.replica.key)
        return told is not None and told.leader_epoch > led.leader_epoch

    def _may_ask(self, led: Led) -> bool:
        return led.asked is None and self._now_ms() >= led.not_before_ms and not self._is_over(led)

    def _grow(self, led: Led) -> None:
        if not self._may_ask(led) or self._lapsed():
            return
        partition, alive, followers = led.replica.partition(), self._metadata.image.brokers, self._followers(led)
        offline = self._offline(led)
        joining = [
            follower.broker
            for follower in followers
            if follower.broker not in (*led.isr, *offline)
            and may_join(
                follower, partition.high_watermark, led.epoch_start, -1 if follower.broker in alive else None
            )
        ]
        lag_ms: int = self._config["replica.lag.time.max.ms"]
        late = laggards(followers, joining, partition.log_end_offset, -1, self._now_ms(), lag_ms)
        joining = [broker for broker in joining if broker not in late]  # silent at a high watermark that waits
        if joining:
            why = f"brokers caught up: {','.join(map(str, joining))}"
            self._want(led, (*led.isr, *joining), followers, why)

    async def _look_now_and_then(self) -> None:
        while True:
            lag_ms: int = self._config["replica.lag.time.max.ms"]
            await asyncio.sleep(lag_ms / 2000)
            if not self._lapsed():
                self._look(lag_ms)

    def _look(self, lag_ms: int) -> None:
        for led in list(self._led.values()):
            if self._may_ask(led) and not led.replica.offline:
                try:
                    self._shrink(led, lag_ms)
                except (core.LogError, KafkaError) as problem:  # its log failed a moment ago: the others go on
                    event(log, logging.WARNING, "ISR not looked at", partition=led.replica.key, reason=problem)

    def _shrink(self, led: Led, lag_ms: int) -> None:
        end = led.replica.partition().log_end_offset
        followers = self._followers(led)
        out = laggards(followers, led.isr, end, led.since_ms, self._now_ms(), lag_ms)
        if out:
            why = f"brokers that lag for more than {lag_ms} ms: {','.join(map(str, sorted(out)))}"
            self._want(led, tuple(broker for broker in led.isr if broker not in out), followers, why)
        else:
            self._watch(led)

    # -- asking the controller ---------------------------------------------------------------------------------------

    def _want(self, led: Led, isr: tuple[int, ...], followers: Iterable[FollowerState], why: str) -> None:
        """Have the high watermark wait for old and new members from now on, and ask."""
        self._await(led, Wanted(isr, {follower.broker: follower.broker_epoch for follower in followers}, why))

    def _await(self, led: Led, wanted: Wanted) -> None:
        maximal = set(led.isr) | set(wanted.isr) | led.doubtful
        try:
            led.replica.partition().set_isr(
                maximal, led.leader_epoch, led.partition_epoch, in_sync=len(led.isr)
            )
        except (core.LogError, KafkaError):
            return  # another role by now
        led.asked = wanted.isr
        self._wanted[led.replica.key] = wanted
        self._news.set()

    async def _ask_on(self) -> None:
        said = ""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._wanted:
                if self._lapsed():
                    await asyncio.sleep(RETRY_S)
                    continue
                wanted, self._wanted = self._wanted, {}
                try:
                    await self._ask({key: asked for key, asked in wanted.items() if self._asks(key)})
                except Exception as problem:  # of an answer to something else, too: they are asked for again
                    if str(problem) != said:
                        mistake = None if isinstance(problem, (KafkaError, core.LogError, LookupError)) else problem
                        event(
                            log, logging.WARNING, "ISR not changed", partitions=len(wanted), reason=problem,
                            exc_info=mistake,
                        )  # fmt: skip
                    said = str(problem)
                    for key, isr in wanted.items():
                        if self._asks(key) and self._led[key].asked is not None:
                            self._wanted.setdefault(key, isr)
                    await asyncio.sleep(RETRY_S)

    def _asks(self, key: TopicPartition) -> bool:
        """Is it led here still, and can be?"""
        return key in self._led and not self._led[key].replica.offline

    async def _ask(self, wanted: dict[TopicPartition, Wanted]) -> None:
        """Ask for all of them in one request, and go by the answer. Raises KafkaError."""
        asked = {key: self._led[key] for key in wanted}
        by_topic: dict[bytes, list[TopicPartition]] = {}
        for key, led in asked.items():
            by_topic.setdefault(led.replica.topic_id, []).append(key)
        kind = m.AlterPartitionRequest.Topics
        topics = [
            kind(topic_id=topic_id, partitions=[self._asked_of(key, asked[key], wanted[key]) for key in keys])
            for topic_id, keys in by_topic.items()
        ]
        request = m.AlterPartitionRequest(broker_id=self.broker_id, broker_epoch=self._epoch(), topics=topics)
        answer = await self._link.ask(request, ALTER_PARTITION)
        if answer.error_code:
            raise KafkaError(answer.error_code, f"the controller answered {errors.lookup(answer.error_code).name}")
        names = {led.replica.topic_id: key.topic for key, led in asked.items()}
        refused: dict[tuple[int, str], list[TopicPartition]] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                key = TopicPartition(names[topic.topic_id], p.partition_index)
                if self._settle(asked.pop(key), p, wanted[key]):
                    refused.setdefault((p.error_code, _names(sorted(wanted[key].isr))), []).append(key)
        for (code, isr), keys in refused.items():
            error = errors.lookup(code).name
            event(log, logging.INFO, "ISR not changed", partitions=len(keys), first=keys[0], error=error, asked=isr)
        if asked:  # they are asked for again
            words = f"the controller's answer says nothing of {next(iter(asked))}"
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, words)

    def _asked_of(self, key: TopicPartition, led: Led, wanted: Wanted) -> Any:
        kind = m.AlterPartitionRequest.Topics.Partitions
        epochs = {**wanted.epochs, self.broker_id: self._epoch()}
        return kind(
            partition_index=key.partition,
            leader_epoch=led.leader_epoch,
            new_isr_with_epochs=[
                kind.NewIsrWithEpochs(broker_id=broker, broker_epoch=epochs.get(broker, -1))
                for broker in wanted.isr
            ],
            leader_recovery_state=0,
            partition_epoch=led.partition_epoch,
        )

    def _known(self, led: Led) -> tuple[tuple[int, ...], int]:
        """The ISR and the partition epoch that we were told last, by the controller's own change perhaps."""
        told = self._metadata.image.partition(*led.replica.key)
        newer = told is not None and told.partition_epoch > led.partition_epoch
        if told is not None and newer and told.leader_epoch == led.leader_epoch:
            led.isr, led.partition_epoch = told.isr, told.partition_epoch
        return led.isr, led.partition_epoch

    def _settle(self, led: Led, answer: Any, wanted: Wanted) -> bool:
        """Go by what the controller answered for one partition, unless it has another role by now. True if refused."""
        if self._led.get(led.replica.key) is not led:
            return False
        key = led.replica.key
        led.asked = None
        if answer.error_code in AGAIN:
            self._await(led, wanted)
            return False
        if answer.error_code:
            fenced = answer.error_code == errors.FENCED_LEADER_EPOCH
            led.not_before_ms = self._now_ms() + (FENCED_MS if fenced else REFUSED_MS)
            known = led.partition_epoch
            isr, epoch = self._known(led)
            if answer.error_code not in NOT_DONE and epoch == known:
                # An earlier answer may have been lost, of a change that was made: who may be a member, is waited for.
                led.doubtful |= set(wanted.isr)
                self._watch_later(led)
                return True
        else:
            isr, epoch = tuple(answer.isr), answer.partition_epoch
        led.doubtful = set()
        try:
            led.replica.partition().set_isr(isr, led.leader_epoch, epoch)
        except (core.LogError, KafkaError):
            return bool(answer.error_code)
        if not answer.error_code:
            shrunk = len(isr) < len(led.isr)
            what, cause = SHRUNK if shrunk else EXPANDED, wanted.why
            event(
                log, logging.INFO, what, partition=key, isr=_names(isr), isr_before=_names(led.isr),
                partition_epoch=epoch, cause=cause,
            )  # fmt: skip
            self._changes.isr_shrinks += shrunk
            self._changes.isr_expands += not shrunk
            self._changes.note(
                key, what, cause, leader=self.broker_id, leader_epoch=led.leader_epoch, partition_epoch=epoch, isr=isr
            )
            led.isr, led.partition_epoch = isr, epoch
        led.replica.tell()
        self._watch(led)
        return bool(answer.error_code)


def _names(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))
