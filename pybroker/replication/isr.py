"""The ISR of partitions that this broker leads: laggards are removed, caught-up followers added, by AlterPartition.

    settled ──a follower lags, or has caught up──> asked for: the maximal ISR is the union ──AlterPartition──> settled
       ^                                                │
       └── a LeaderAndIsr, or an answer that refuses ────┘

A partition has at most one change in flight. Until it is settled, the high watermark waits for the old and the new
members; and only the ISR that the controller knows counts for min.insync.replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from pybroker import core, errors
from pybroker.config import BrokerConfig
from pybroker.decisions.changes import EXPANDED, SHRUNK, Changes
from pybroker.decisions.isr import FollowerState, laggards, may_join
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.orders import AlteredIsr, AskedIsr, AskedTopic
from pybroker.errors import KafkaError
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.replication.controller_link import ControllerLink, alter_partition
from pybroker.replication.replica import Replica
from pybroker.retries import keep_up
from pybroker.tasks import cancel_and_wait

log = logging.getLogger(__name__)

RETRY_S = 0.05
REFUSED_MS = 500
"""Pause before a partition asks again after a refusal: a broker that is shutting down still fetches for a while."""
FENCED_MS = 10_000
"""Pause after FENCED_LEADER_EPOCH: the LeaderAndIsr with the new leader is on its way."""
ASKED_AT_ONCE = 5_000
"""Partitions in one AlterPartition. An answer waits for the store, and the elements of a request are bounded (wire.py):
one for each partition and for each member of its ISR, which 65,536 partitions with three replicas exceed."""
OFFLINE_MS = 2_000
"""Ms until a partition is checked again whose caught-up follower takes no appends, and so cannot join the ISR."""
NOT_DONE = (
    errors.INELIGIBLE_REPLICA,
    errors.INVALID_REQUEST,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UNKNOWN_TOPIC_ID,
)
"""Refusals of a controller that knows the present ISR: the change was not made."""
AGAIN = (errors.NOT_CONTROLLER, errors.STALE_BROKER_EPOCH)


class WantedIsr(NamedTuple):
    """An ISR to request from the controller."""

    isr: tuple[int, ...]
    epochs: Mapping[int, int]
    """The broker epoch that each follower fetched with when it was found in sync. Repeated requests keep it: a follower
    that restarted since may have lost records (KIP-903)."""
    why: str


@dataclass(slots=True)
class LedPartition:
    """A partition that this broker leads, in one leader epoch."""

    replica: Replica
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    since_ms: int
    asked: tuple[int, ...] | None = None
    """The ISR that the controller was asked for."""
    doubtful: set[int] = field(default_factory=set)
    """Brokers that may be members, by an earlier change whose outcome is unknown."""
    not_before_ms: int = 0
    """The earliest time of the next request, after a refusal."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def replicas(self) -> int:
        """The number of replicas; those that are being added do not count until they are in sync."""
        return 1 + len(self.replica.partition().followers) - len(set(self.adding) - set(self.isr))


class IsrKeeper:
    """Keeps the ISRs of one broker's partitions. `epoch` returns its broker epoch, `now_ms` is monotonic."""

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
        """`lapsed`: True while other brokers may lead this broker's partitions; then no change is requested."""
        self._lapsed = lapsed
        self._changes = changes
        self.broker_id = broker_id
        self._config = config
        self._metadata = metadata
        self._link = link
        self._epoch = epoch
        self._now_ms = now_ms
        self._led: dict[TopicPartition, LedPartition] = {}
        self._wanted: dict[TopicPartition, WantedIsr] = {}
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        works = {"lag of followers": self._look_now_and_then, "ISR changes": self._ask_on}
        self._tasks = [loop.create_task(keep_up(work, what)) for what, work in works.items()]

    async def stop(self) -> None:
        await cancel_and_wait(*self._tasks)

    # -- led partitions ----------------------------------------------------------------------------------------------

    def lead(
        self, replica: Replica, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...], *,
        adding: tuple[int, ...] = (), removing: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Note that this broker leads a partition in this epoch, with this ISR; some replicas may be being moved."""
        known = self._led.get(replica.key)
        leads_on = known is not None and known.leader_epoch == leader_epoch
        since_ms = known.since_ms if known is not None and leads_on else self._now_ms()
        led = self._led[replica.key] = LedPartition(
            replica, leader_epoch, partition_epoch, isr, since_ms, adding=adding, removing=removing
        )
        self._wanted.pop(replica.key, None)
        self._watch(led)

    def resign(self, key: TopicPartition) -> None:
        """Note that this broker no longer leads the partition."""
        self._led.pop(key, None)
        self._wanted.pop(key, None)

    @property
    def led(self) -> list[TopicPartition]:
        """The partitions that this broker leads and whose replica is online."""
        return [key for key, led in self._led.items() if not led.replica.offline]

    def of(self, key: TopicPartition) -> LedPartition | None:
        """The record of a partition that this broker leads; None if it does not lead it."""
        return self._led.get(key)

    def partitions(self) -> list[LedPartition]:
        """The records of all led partitions, for metrics; on any thread."""
        return list(self._led.values())

    def fetched(self, replica: Replica, broker: int) -> None:
        """Add a follower to the ISR if its fetch shows that it has caught up."""
        led = self._led.get(replica.key)
        if led is not None and broker not in led.isr:
            self._grow(led)

    def caught_up(self, replica: Replica) -> None:
        """Handle the plane's notice that a follower outside the ISR has caught up."""
        led = self._led.get(replica.key)
        if led is None or led.asked is not None:
            return
        self._grow(led)
        if led.asked is None:  # it may not join yet
            self._watch_later(led, OFFLINE_MS if self._offline(led) else 0)

    def _offline(self, led: LedPartition) -> Collection[int]:
        """The brokers whose replicas are offline or full, as the controller says: they cannot join the ISR."""
        told = self._metadata.image.partition(*led.replica.key)
        return () if told is None else told.offline

    def _watch_later(self, led: LedPartition, least_ms: int = 0) -> None:
        wait_ms = max(REFUSED_MS // 10, least_ms, led.not_before_ms - self._now_ms())
        asyncio.get_running_loop().call_later(wait_ms / 1000, self._watch, led)

    def _watch(self, led: LedPartition) -> None:
        """Watch for followers outside the ISR that catch up, and add those that have."""
        if self._led.get(led.replica.key) is not led or led.replica.offline:
            return
        if len(led.isr) <= len(led.replica.partition().followers):
            led.replica.watch_joining()
            self._grow(led)

    def _followers(self, led: LedPartition) -> list[FollowerState]:
        return [
            FollowerState(f.broker, f.log_end_offset, f.caught_up_ms, f.broker_epoch)
            for f in led.replica.partition().followers
        ]

    def _is_over(self, led: LedPartition) -> bool:
        """True if UpdateMetadata has announced a later leader epoch, before its LeaderAndIsr came."""
        told = self._metadata.image.partition(*led.replica.key)
        return told is not None and told.leader_epoch > led.leader_epoch

    def _may_ask(self, led: LedPartition) -> bool:
        return led.asked is None and self._now_ms() >= led.not_before_ms and not self._is_over(led)

    def _grow(self, led: LedPartition) -> None:
        if not self._may_ask(led) or self._lapsed():
            return
        partition, alive, followers = led.replica.partition(), self._metadata.image.brokers, self._followers(led)
        offline = self._offline(led)
        joining = [
            follower.broker
            for follower in followers
            if follower.broker not in (*led.isr, *offline)
            and may_join(
                follower, partition.high_watermark, partition.epoch_start, -1 if follower.broker in alive else None
            )
        ]
        lag_ms: int = self._config["replica.lag.time.max.ms"]
        late = laggards(followers, joining, partition.log_end_offset, -1, self._now_ms(), lag_ms)
        joining = [broker for broker in joining if broker not in late]  # at the high watermark, but no longer fetching
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
                    event(log, logging.WARNING, "ISR check failed", partition=led.replica.key, reason=problem)

    def _shrink(self, led: LedPartition, lag_ms: int) -> None:
        end = led.replica.partition().log_end_offset
        followers = self._followers(led)
        out = laggards(followers, led.isr, end, led.since_ms, self._now_ms(), lag_ms)
        if out:
            why = f"brokers lagged for more than {lag_ms} ms: {','.join(map(str, sorted(out)))}"
            self._want(led, tuple(broker for broker in led.isr if broker not in out), followers, why)
        else:
            self._watch(led)

    # -- requests to the controller ----------------------------------------------------------------------------------

    def _want(self, led: LedPartition, isr: tuple[int, ...], followers: Iterable[FollowerState], why: str) -> None:
        """Make the high watermark wait for old and new members from now on, and request the change."""
        self._await(led, WantedIsr(isr, {follower.broker: follower.broker_epoch for follower in followers}, why))

    def _await(self, led: LedPartition, wanted: WantedIsr) -> None:
        maximal = set(led.isr) | set(wanted.isr) | led.doubtful
        try:
            led.replica.partition().set_isr(
                maximal, led.leader_epoch, led.partition_epoch, in_sync=len(led.isr)
            )
        except (core.LogError, KafkaError):
            return  # the replica has another role by now
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
                wanted = {key: self._wanted.pop(key) for key in list(islice(self._wanted, ASKED_AT_ONCE))}
                try:
                    await self._ask({key: asked for key, asked in wanted.items() if self._asks(key)})
                except Exception as problem:  # also an answer that does not fit the request: it is repeated
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
        """True if this broker still leads the partition, and its replica is online."""
        return key in self._led and not self._led[key].replica.offline

    async def _ask(self, wanted: dict[TopicPartition, WantedIsr]) -> None:
        """Request changes with one AlterPartition, and apply the answer. Raises KafkaError."""
        asked = {key: self._led[key] for key in wanted}
        by_topic: dict[bytes, list[TopicPartition]] = {}
        for key, led in asked.items():
            by_topic.setdefault(led.replica.topic_id, []).append(key)
        topics = [
            AskedTopic(topic_id, keys[-1].topic, [self._asked_of(key, asked[key], wanted[key]) for key in keys])
            for topic_id, keys in by_topic.items()
        ]
        answer = await alter_partition(self._link, self.broker_id, self._epoch(), topics)
        refused: dict[tuple[int, str], list[TopicPartition]] = {}
        for topic in answer:
            for p in topic.partitions:
                key = TopicPartition(topic.name, p.partition)
                if self._settle(asked.pop(key), p, wanted[key]):
                    refused.setdefault((p.error_code, _names(sorted(wanted[key].isr))), []).append(key)
        for (code, isr), keys in refused.items():
            error = errors.lookup(code).name
            event(log, logging.INFO, "ISR not changed", partitions=len(keys), first=keys[0], error=error, asked=isr)
        if asked:  # these are requested again
            words = f"the controller's answer lacks {next(iter(asked))}"
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, words)

    def _asked_of(self, key: TopicPartition, led: LedPartition, wanted: WantedIsr) -> AskedIsr:
        epochs = {**wanted.epochs, self.broker_id: self._epoch()}
        return AskedIsr(key.partition, led.leader_epoch, led.partition_epoch, wanted.isr, epochs)

    def _known(self, led: LedPartition) -> tuple[tuple[int, ...], int]:
        """The latest known ISR and partition epoch, perhaps by a change of the controller's own."""
        told = self._metadata.image.partition(*led.replica.key)
        newer = told is not None and told.partition_epoch > led.partition_epoch
        if told is not None and newer and told.leader_epoch == led.leader_epoch:
            led.isr, led.partition_epoch = told.isr, told.partition_epoch
        return led.isr, led.partition_epoch

    def _settle(self, led: LedPartition, answer: AlteredIsr, wanted: WantedIsr) -> bool:
        """Apply the controller's answer for one partition, unless it has another role by now. True if refused."""
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
                # The answer to an earlier request may be lost, and that change made: wait for possible members, too.
                led.doubtful |= set(wanted.isr)
                self._watch_later(led)
                return True
        else:
            assert answer.now is not None
            isr, epoch = answer.now.isr, answer.now.partition_epoch
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
