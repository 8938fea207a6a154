"""From the controller to one broker: one connection, one queue, one request at a time, until the broker is gone.

    told ──> batch: LeaderAndIsr, then UpdateMetadata, then StopReplica ──> sent, again and again until it is answered
    the connection ends ──> opened again at once ──refused──> the process is dead: the controller is told

A broker that was never reached proves nothing by refusing: Kafka's own registers before its port accepts, and does not
register anew when its node is deleted.

What is told while a batch is away goes into the next one, where later news of a partition replaces earlier. The order
of the three is Kafka's: who becomes leader knows it before clients do, and what stops has been replaced before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from pybroker import errors
from pybroker.cluster.image import LiveBroker, PartitionState
from pybroker.cluster.metadata_cache import FULL
from pybroker.cluster.rollback import Known
from pybroker.errors import KafkaError, system_words
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.wire import EncodeError
from pybroker.upkeep import keep_up

log = logging.getLogger(__name__)

LEADER_AND_ISR, UPDATE_METADATA, STOP_REPLICA = 7, 8, 4
PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
RETRY_S = 0.1
AGAIN_S = 1.0
ACCEPTS_S = 1.0
"""How long a broker may refuse connections before that is logged: it registers, and then accepts."""
OVER = (errors.STALE_CONTROLLER_EPOCH, errors.STALE_BROKER_EPOCH, errors.BROKER_NOT_AVAILABLE)
"""Who is told, or who tells it, is no more: it is not told again."""


class Asked(Protocol):
    """A connection to a broker (client/link.py)."""

    closed: asyncio.Future[str]

    async def ask(self, message: Any, version: int) -> Any:
        """The answer to a request. Raises ConnectionError, TimeoutError."""

    def close(self) -> None: ...


OpenLink = Callable[[LiveBroker], Awaitable[Asked]]
"""Connects to a broker's inter-broker listener. Raises OSError; ConnectionRefusedError where nobody listens."""


class Told(NamedTuple):
    """What is told of a partition, and the id of its topic; `offline`: replicas whose logs live brokers cannot use."""

    topic_id: bytes
    state: PartitionState
    is_new: bool = False
    offline: tuple[int, ...] = ()


class Stop(NamedTuple):
    """A replica is to stop fetching, or to be deleted."""

    leader_epoch: int
    delete: bool


@dataclass(slots=True)
class Batch:
    """What goes out together; `live` is given with each UpdateMetadata."""

    leaders: dict[TopicPartition, Told] = field(default_factory=dict)
    metadata: dict[TopicPartition, Told] = field(default_factory=dict)
    stops: dict[TopicPartition, Stop] = field(default_factory=dict)
    live: Mapping[int, LiveBroker] | None = None
    full: bool = False
    """`metadata` is of all partitions that there are: a topic that it does not name was deleted."""

    def drop_next(self) -> None:
        """Leave out the next request, which cannot be written, and never could be: what else there is to be told goes
        on."""
        if self.leaders:
            self.leaders = {}
        elif self.live is not None:
            self.live = None
        else:
            self.stops = {}


class Reports(Protocol):
    """Whoever hears what came of it: the controller."""

    def answered(self, broker: int, code: int) -> None:
        """A request as a whole was answered with a code that is not 0."""

    def led(self, broker: int, partition: TopicPartition, code: int) -> None:
        """A broker became what it was told to be of a partition, or could not."""

    def knows(self, broker: int, known: Mapping[TopicPartition, Known]) -> None:
        """A broker knows later states of these partitions than those it was sent."""

    def stopped(self, broker: int, partition: TopicPartition, deleted: bool, code: int) -> None:
        """A replica has stopped."""

    def refused(self, broker: int, epoch: int) -> None:
        """Nobody listens any more at the address of the broker that was registered under this epoch."""


class _Failed(Exception):
    """A broker did nothing of a request, because of itself."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class BrokerChannel:
    """The queue of one broker in its present registration: `epoch` is the czxid of its node."""

    def __init__(
        self, controller_id: int, controller_epoch: int, broker: LiveBroker, epoch: int, open_link: OpenLink,
        reports: Reports,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.epoch = epoch
        self._head = {"controller_id": controller_id, "controller_epoch": controller_epoch, "broker_epoch": epoch}
        self._open_link = open_link
        self._reports = reports
        self._batches: list[Batch] = []
        self._news = asyncio.Event()
        self._link: Asked | None = None
        self._reached = False
        """Did a connection stand in this registration, at this address?"""
        self._sending: Batch | None = None
        self._refused: int = errors.NONE
        """What the last request was refused with, as it was said."""
        work = keep_up(self._work, f"what broker {broker.id} is told")
        self._task = asyncio.get_running_loop().create_task(work)

    # -- what is to be told ------------------------------------------------------------------------------------------

    def lead_and_follow(self, told: Mapping[TopicPartition, Told]) -> None:
        """LeaderAndIsr of these partitions."""
        batch = self._batch()
        if batch.stops.keys() & told.keys():  # what stopped comes again: behind it
            batch = self._append()
        batch.leaders.update(told)
        self._news.set()

    def update_metadata(
        self, told: Mapping[TopicPartition, Told], live: Mapping[int, LiveBroker], *, first: bool = False,
        full: bool = False,
    ) -> None:  # fmt: skip
        """UpdateMetadata of these partitions, and of who is alive; `first`, or of no partition, it goes before what
        comes later, for who follows has to know where leaders are. `full`: there are no others."""
        batch = self._batch()
        if first or not told:
            self._append()
        batch.metadata.update(told)
        batch.live = live
        batch.full |= full
        self._news.set()

    def stop_replicas(self, stops: Mapping[TopicPartition, Stop]) -> None:
        """StopReplica of these partitions."""
        batch = self._batch()
        if batch.stops.keys() & stops.keys():  # first to stop, then to be deleted
            batch = self._append()
        batch.stops.update(stops)
        self._news.set()

    def close(self) -> None:
        self._task.cancel()

    def moved(self, broker: LiveBroker) -> None:
        """It is reached elsewhere, in the same registration: what it is to be told goes there."""
        self.broker, self._reached = broker, False
        if self._link is not None:
            self._link.close()

    def _batch(self) -> Batch:
        return self._batches[-1] if self._batches else self._append()

    def _append(self) -> Batch:
        self._batches.append(Batch())
        return self._batches[-1]

    async def ask(self, topics: Mapping[TopicPartition, bytes]) -> tuple[dict[TopicPartition, Known], int]:
        """Ask the broker what it knows of partitions of topics with these ids, and for the latest broker epoch that it
        has had. Uses a connection of its own, ahead of the queue. Kafka's broker answers nothing and -1. Raises
        OSError, KafkaError."""
        kind = m.LeaderAndIsrRequest
        by_topic: dict[tuple[str, bytes], list[int]] = {}
        for (name, index), topic_id in topics.items():
            by_topic.setdefault((name, topic_id), []).append(index)
        asked = [
            kind.AskedAbout(topic_id=topic_id, topic_name=name, partition_indexes=indexes)
            for (name, topic_id), indexes in by_topic.items()
        ]
        request = kind(type=0, topic_states=[], live_leaders=[], asked_about=asked, **self._head)
        link = await self._open_link(self.broker)
        try:
            answer = await link.ask(request, LEADER_AND_ISR)
        finally:
            link.close()
        if answer.error_code:
            raise KafkaError(answer.error_code, f"broker {self.broker.id} does not say what it knows")
        return _known(answer), answer.latest_broker_epoch

    # -- telling it --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while True:
                if self._link is None or self._link.closed.done():
                    self._link = await self._connect()
                if self._sending is None:
                    self._sending = await self._next(self._link)
                if self._sending is not None and await self._send(self._link, self._sending):
                    self._sending = None
        finally:
            if self._link is not None:
                self._link.close()

    async def _connect(self) -> Asked:
        said, clock = "", asyncio.get_running_loop().time
        began_s = clock()
        while True:
            broker = self.broker
            try:
                link = await self._open_link(broker)
                if broker is self.broker:
                    self._reached = True
                    return link
                link.close()  # it is reached elsewhere meanwhile
                continue
            except OSError as problem:
                proof = isinstance(problem, ConnectionRefusedError) and self._reached
                if proof:
                    self._reports.refused(self.broker.id, self.epoch)
                elif clock() - began_s >= ACCEPTS_S and (why := _why(problem)) != said:
                    # Logged again if the reason changes, or after it was reached.
                    at = ",".join(f"{at.host}:{at.port}" for at in broker.endpoints.values())
                    reason = system_words(problem)
                    event(log, logging.WARNING, "broker not reached", broker=broker.id, at=at, reason=reason)
                    said = why
            await asyncio.sleep(RETRY_S)

    async def _next(self, link: Asked) -> Batch | None:
        """The next batch; None where the connection ended first."""
        self._news.clear()
        if not self._batches:
            waiting = asyncio.get_running_loop().create_task(self._news.wait())
            ends: list[asyncio.Future[Any]] = [waiting, link.closed]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        return None if link.closed.done() or not self._batches else self._batches.pop(0)

    async def _send(self, link: Asked, batch: Batch) -> bool:
        """Send a batch, and report what came of it; False where it is to be sent again, as the connection ended, or the
        broker failed with it. What is sent twice is harmless: the epochs say so."""
        try:
            if batch.leaders:
                self._led(batch, await link.ask(self._leader_and_isr(batch), LEADER_AND_ISR))
                batch.leaders = {}
            if batch.live is not None:
                self._whole((await link.ask(self._update_metadata(batch), UPDATE_METADATA)).error_code)
                batch.live = None
            if batch.stops:
                self._stopped(batch, await link.ask(self._stop_replica(batch), STOP_REPLICA))
        except (ConnectionError, TimeoutError) as problem:
            event(log, logging.WARNING, "broker not told", broker=self.broker.id, reason=problem)
            link.close()
            return False
        except EncodeError as problem:
            event(log, logging.ERROR, "broker cannot be told", broker=self.broker.id, reason=problem)
            batch.drop_next()
            return False
        except _Failed as problem:
            if problem.code != self._refused:
                reason = f"it answered {errors.lookup(problem.code).name}"
                event(log, logging.WARNING, "broker not told", broker=self.broker.id, reason=reason)
            self._refused = problem.code
            await asyncio.sleep(AGAIN_S)
            return False
        self._refused = errors.NONE
        return True

    def _leader_and_isr(self, batch: Batch) -> Any:
        kind = m.LeaderAndIsrRequest
        states = kind.TopicStates.PartitionStates
        topics = [
            kind.TopicStates(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    states(
                        partition_index=index,
                        replicas=list(told.state.replicas),
                        partition_epoch=told.state.partition_epoch,
                        adding_replicas=[],
                        removing_replicas=[],
                        is_new=told.is_new,
                        leader_recovery_state=0,
                        **_decided(told.state),
                    )
                    for index, told in partitions
                ],
            )
            for name, topic_id, partitions in _by_topic(batch.leaders)
        ]
        name = None
        leaders = []
        live = batch.live or {}
        for broker_id in {told.state.leader for told in batch.leaders.values()}:
            broker = live.get(broker_id)
            if broker is not None:
                name = name or next(iter(broker.endpoints))
                at = broker.endpoints[name]
                leaders.append(kind.LiveLeaders(broker_id=broker_id, host_name=at.host, port=at.port))
        return kind(type=0, topic_states=topics, live_leaders=leaders, **self._head)

    def _update_metadata(self, batch: Batch) -> Any:
        kind = m.UpdateMetadataRequest
        states = kind.TopicStates.PartitionStates
        live = batch.live or {}
        topics = [
            kind.TopicStates(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[
                    states(
                        partition_index=index,
                        replicas=list(told.state.replicas),
                        zk_version=told.state.partition_epoch,
                        offline_replicas=[b for b in told.state.replicas if b not in live or b in told.offline],
                        **_decided(told.state),
                    )
                    for index, told in partitions
                ],
            )
            for name, topic_id, partitions in _by_topic(batch.metadata)
        ]
        brokers = [
            kind.LiveBrokers(
                id=broker.id,
                rack=broker.rack,
                endpoints=[
                    kind.LiveBrokers.Endpoints(
                        host=at.host, port=at.port, listener=name, security_protocol=PROTOCOLS[broker.protocols[name]]
                    )
                    for name, at in broker.endpoints.items()
                ],
            )
            for broker in live.values()
        ]
        return kind(topic_states=topics, live_brokers=brokers, type=FULL if batch.full else 0, **self._head)

    def _stop_replica(self, batch: Batch) -> Any:
        kind = m.StopReplicaRequest
        states = kind.TopicStates.PartitionStates
        topics: dict[str, list[Any]] = {}
        for (name, index), stop in batch.stops.items():
            topics.setdefault(name, []).append(
                states(partition_index=index, leader_epoch=stop.leader_epoch, delete_partition=stop.delete)
            )
        named = [kind.TopicStates(topic_name=name, partition_states=found) for name, found in topics.items()]
        return kind(topic_states=named, **self._head)

    # -- what came of it ---------------------------------------------------------------------------------------------

    def _whole(self, code: int) -> None:
        """Raises _Failed for a code that says nothing of who is told what: it may be another one the next time."""
        if code in OVER:
            self._reports.answered(self.broker.id, code)
        elif code:
            raise _Failed(code)

    def _led(self, batch: Batch, answer: Any) -> None:
        self._whole(answer.error_code)
        if answer.error_code:
            return  # the answer has no partitions
        if answer.known:
            self._reports.knows(self.broker.id, _known(answer))
        names = {told.topic_id: key.topic for key, told in batch.leaders.items()}
        for topic in answer.topics:
            for p in topic.partition_errors:
                if topic.topic_id in names:
                    key = TopicPartition(names[topic.topic_id], p.partition_index)
                    self._reports.led(self.broker.id, key, p.error_code)

    def _stopped(self, batch: Batch, answer: Any) -> None:
        self._whole(answer.error_code)
        failed = {TopicPartition(p.topic_name, p.partition_index): p.error_code for p in answer.partition_errors}
        for key, stop in batch.stops.items():
            code = answer.error_code or failed.get(key, errors.NONE)
            self._reports.stopped(self.broker.id, key, stop.delete, code)


def _why(problem: OSError) -> str:
    """The kind of a failure to connect, in the same words each time it occurs."""
    return f"{type(problem).__name__} {problem.errno}"


def _known(answer: Any) -> dict[TopicPartition, Known]:
    """The broker's knowledge of its partitions, from its answer."""
    return {
        TopicPartition(p.topic_name, p.partition_index): Known(
            p.leader_epoch, p.partition_epoch, p.leader, tuple(p.isr), p.log_epoch, p.log_end
        )
        for p in answer.known
    }


def _decided(state: PartitionState) -> dict[str, Any]:
    """What LeaderAndIsr and UpdateMetadata both say of a partition."""
    return {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }


def _by_topic(told: Mapping[TopicPartition, Told]) -> Iterable[tuple[str, bytes, list[tuple[int, Told]]]]:
    """(name, id, its partitions in their order) of each topic."""
    topics: dict[tuple[str, bytes], list[tuple[int, Told]]] = {}
    for (name, index), each in sorted(told.items()):
        topics.setdefault((name, each.topic_id), []).append((index, each))
    return [(name, topic_id, found) for (name, topic_id), found in topics.items()]
