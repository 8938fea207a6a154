"""Sends the controller's requests to one broker: one connection, one queue, one request at a time.

    decisions ──> batch: LeaderAndIsr, then UpdateMetadata, then StopReplica ──> sent again until answered
    the connection ends ──> reopened at once ──refused──> the process is dead: reported to the controller

A refused connection proves this only if the broker was reached before. Kafka's broker registers before its port
accepts, and does not register again if its node is deleted.

Decisions made while a batch is in flight go into the next one, where the latest state of a partition replaces earlier
ones. The order of the three requests is Kafka's: a leader knows its role before clients do, and a replica stops after
it was replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pybroker import errors
from pybroker.controller.metadata_update import VERSION, Head, Merged, MetadataUpdate, Told, by_topic, decided
from pybroker.decisions.image import LiveBroker
from pybroker.decisions.rollback import Known
from pybroker.errors import KafkaError, system_words
from pybroker.logs import event
from pybroker.model import TopicPartition
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.message import R, Request
from pybroker.protocol.wire import EncodeError
from pybroker.retries import keep_up
from pybroker.tasks import wait_for_either

log = logging.getLogger(__name__)

LEADER_AND_ISR, STOP_REPLICA = 7, 4
RETRY_S = 0.1
AGAIN_S = 1.0
ACCEPTS_S = 1.0
"""Seconds that a broker may refuse connections before this is logged: it registers first, then accepts."""
OVER = (errors.STALE_CONTROLLER_EPOCH, errors.STALE_BROKER_EPOCH, errors.BROKER_NOT_AVAILABLE)
"""Errors after which a request is not sent again: the controller's term or the broker's registration is over."""


class Asked(Protocol):
    """A connection to a broker (interbroker/link.py)."""

    closed: asyncio.Future[str]

    async def ask(
        self, message: Request[R], version: int, *, tail: Callable[[], codec.Tail] | None = None
    ) -> R:
        """Send a request and return its response. `tail` returns the encoded end of the request, if other requests
        share it. Raises ConnectionError, TimeoutError."""

    def close(self) -> None: ...


OpenLink = Callable[[LiveBroker], Awaitable[Asked]]
"""Connects to a broker's inter-broker listener. Raises OSError; ConnectionRefusedError if the port is closed."""


class Stop(NamedTuple):
    """A replica to stop, or with `delete` to delete."""

    leader_epoch: int
    delete: bool


@dataclass(slots=True)
class PendingRequests:
    """One batch of up to three requests."""

    leaders: dict[TopicPartition, Told] = field(default_factory=dict)
    metadata: list[MetadataUpdate] = field(default_factory=list)
    """What one UpdateMetadata says: the latest state of each partition, and the last one's live brokers."""
    stops: dict[TopicPartition, Stop] = field(default_factory=dict)

    def drop_next(self) -> None:
        """Drop the next request, which can never be encoded; the others are sent."""
        if self.leaders:
            self.leaders = {}
        elif self.metadata:
            self.metadata = []
        else:
            self.stops = {}


class Reports(Protocol):
    """The controller, which handles the brokers' responses."""

    def answered(self, broker: int, code: int) -> None:
        """Handle a whole request that a broker refused with one of OVER."""

    def led(self, broker: int, partition: TopicPartition, code: int) -> None:
        """Handle a broker's LeaderAndIsr result for one partition."""

    def knows(self, broker: int, known: Mapping[TopicPartition, Known]) -> None:
        """Handle states of partitions that a broker knows and that are later than those it was sent."""

    def stopped(self, broker: int, partition: TopicPartition, deleted: bool, code: int) -> None:
        """Handle a broker's StopReplica result for one partition."""

    def refused(self, broker: int, epoch: int) -> None:
        """Handle a broker, registered with this epoch, whose address was reached before and now refuses connections."""


class _Failed(Exception):
    """A broker refused a whole request with an error of its own."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class BrokerChannel:
    """The queue of one broker in its current registration: `epoch` is the czxid of its node."""

    def __init__(
        self, controller_id: int, controller_epoch: int, broker: LiveBroker, epoch: int, open_link: OpenLink,
        reports: Reports, merged: Merged,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.epoch = epoch
        self._head = Head(controller_id=controller_id, controller_epoch=controller_epoch, broker_epoch=epoch)
        self._open_link = open_link
        self._reports = reports
        self._merged = merged
        self._batches: list[PendingRequests] = []
        self._news = asyncio.Event()
        self._link: Asked | None = None
        self._reached = False
        """True once a connection has succeeded in this registration, at this address."""
        self._sending: PendingRequests | None = None
        self._refused: int = errors.NONE
        """The error that refused the last request, and that was logged."""
        work = keep_up(self._work, f"requests to broker {broker.id}")
        self._task = asyncio.get_running_loop().create_task(work)

    # -- queueing ----------------------------------------------------------------------------------------------------

    def lead_and_follow(self, told: Mapping[TopicPartition, Told]) -> None:
        """Queue a LeaderAndIsr of these partitions."""
        batch = self._batch()
        if batch.stops.keys() & told.keys():  # a stopped replica starts again: send this after the stop
            batch = self._append()
        batch.leaders.update(told)
        self._news.set()

    def update_metadata(self, update: MetadataUpdate, *, first: bool = False) -> None:
        """Queue an UpdateMetadata. With `first`, or without partitions, it is sent before later LeaderAndIsr requests:
        followers need the addresses."""
        batch = self._batch()
        if first or not update.told:
            self._append()
        batch.metadata.append(update)
        self._news.set()

    def stop_replicas(self, stops: Mapping[TopicPartition, Stop]) -> None:
        """Queue a StopReplica of these partitions."""
        batch = self._batch()
        if batch.stops.keys() & stops.keys():  # stop first, then delete
            batch = self._append()
        batch.stops.update(stops)
        self._news.set()

    def close(self) -> None:
        self._task.cancel()

    def moved(self, broker: LiveBroker) -> None:
        """Send further requests to the broker's new address, in the same registration."""
        self.broker, self._reached = broker, False
        if self._link is not None:
            self._link.close()

    def _batch(self) -> PendingRequests:
        return self._batches[-1] if self._batches else self._append()

    def _append(self) -> PendingRequests:
        self._batches.append(PendingRequests())
        return self._batches[-1]

    async def ask(self, topics: Mapping[TopicPartition, bytes]) -> tuple[dict[TopicPartition, Known], int]:
        """Query the broker's states of partitions of topics with these ids, and its latest broker epoch. Uses a
        connection of its own, ahead of the queue. Kafka's broker returns no states and -1. Raises OSError, KafkaError.
        """
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
            raise KafkaError(answer.error_code, f"broker {self.broker.id} does not report its partition states")
        return _known(answer), answer.latest_broker_epoch

    # -- sending -----------------------------------------------------------------------------------------------------

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
                link.close()  # the broker's address changed meanwhile
                continue
            except OSError as problem:
                proof = isinstance(problem, ConnectionRefusedError) and self._reached
                if proof:
                    self._reports.refused(self.broker.id, self.epoch)
                elif clock() - began_s >= ACCEPTS_S and (why := _why(problem)) != said:
                    # Logged again if the reason changes, or after the broker was reached.
                    at = ",".join(f"{at.host}:{at.port}" for at in broker.endpoints.values())
                    reason = system_words(problem)
                    event(log, logging.WARNING, "broker not reached", broker=broker.id, at=at, reason=reason)
                    said = why
            await asyncio.sleep(RETRY_S)

    async def _next(self, link: Asked) -> PendingRequests | None:
        """Wait for the next batch; None if the connection ends first."""
        self._news.clear()
        if not self._batches:
            await wait_for_either(self._news, link.closed)
        return None if link.closed.done() or not self._batches else self._batches.pop(0)

    async def _send(self, link: Asked, batch: PendingRequests) -> bool:
        """Send a batch and report the results. False if it must be sent again, because the connection ended or the
        broker failed. Sending a request twice is harmless: the epochs fence it."""
        try:
            if batch.leaders:
                self._led(batch, await link.ask(self._leader_and_isr(batch), LEADER_AND_ISR))
                batch.leaders = {}
            if batch.metadata:
                update = self._merged.of(batch.metadata)
                self._whole((await link.ask(update.request(self._head), VERSION, tail=update.tail)).error_code)
                batch.metadata = []
            if batch.stops:
                self._stopped(batch, await link.ask(self._stop_replica(batch), STOP_REPLICA))
        except (ConnectionError, TimeoutError) as problem:
            event(log, logging.WARNING, "broker request failed", broker=self.broker.id, reason=problem)
            link.close()
            return False
        except EncodeError as problem:
            event(log, logging.ERROR, "broker request not encodable", broker=self.broker.id, reason=problem)
            batch.drop_next()
            return False
        except _Failed as problem:
            if problem.code != self._refused:
                reason = f"it answered {errors.lookup(problem.code).name}"
                event(log, logging.WARNING, "broker request failed", broker=self.broker.id, reason=reason)
            self._refused = problem.code
            await asyncio.sleep(AGAIN_S)
            return False
        self._refused = errors.NONE
        return True

    def _leader_and_isr(self, batch: PendingRequests) -> m.LeaderAndIsrRequest:
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
                        adding_replicas=list(told.state.adding),
                        removing_replicas=list(told.state.removing),
                        is_new=told.is_new,
                        leader_recovery_state=0,
                        **decided(told.state),
                    )
                    for index, told in partitions
                ],
            )
            for name, topic_id, partitions in by_topic(batch.leaders)
        ]
        name = None
        leaders = []
        live = batch.metadata[-1].live if batch.metadata else {}
        for broker_id in {told.state.leader for told in batch.leaders.values()}:
            broker = live.get(broker_id)
            if broker is not None:
                name = name or next(iter(broker.endpoints))
                at = broker.endpoints[name]
                leaders.append(kind.LiveLeaders(broker_id=broker_id, host_name=at.host, port=at.port))
        return kind(type=0, topic_states=topics, live_leaders=leaders, **self._head)

    def _stop_replica(self, batch: PendingRequests) -> m.StopReplicaRequest:
        kind = m.StopReplicaRequest
        states = kind.TopicStates.PartitionStates
        topics: dict[str, list[m.StopReplicaRequest.TopicStates.PartitionStates]] = {}
        for (name, index), stop in batch.stops.items():
            topics.setdefault(name, []).append(
                states(partition_index=index, leader_epoch=stop.leader_epoch, delete_partition=stop.delete)
            )
        named = [kind.TopicStates(topic_name=name, partition_states=found) for name, found in topics.items()]
        return kind(topic_states=named, **self._head)

    # -- results -----------------------------------------------------------------------------------------------------

    def _whole(self, code: int) -> None:
        """Report an error in OVER. Raise _Failed for any other: the request is sent again."""
        if code in OVER:
            self._reports.answered(self.broker.id, code)
        elif code:
            raise _Failed(code)

    def _led(self, batch: PendingRequests, answer: m.LeaderAndIsrResponse) -> None:
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

    def _stopped(self, batch: PendingRequests, answer: m.StopReplicaResponse) -> None:
        self._whole(answer.error_code)
        failed = {TopicPartition(p.topic_name, p.partition_index): p.error_code for p in answer.partition_errors}
        for key, stop in batch.stops.items():
            code = answer.error_code or failed.get(key, errors.NONE)
            self._reports.stopped(self.broker.id, key, stop.delete, code)


def _why(problem: OSError) -> str:
    """The kind of a connection failure, as text that is equal each time it occurs."""
    return f"{type(problem).__name__} {problem.errno}"


def _known(answer: m.LeaderAndIsrResponse) -> dict[TopicPartition, Known]:
    """The broker's states of its partitions, from its response."""
    return {
        TopicPartition(p.topic_name, p.partition_index): Known(
            p.leader_epoch, p.partition_epoch, p.leader, tuple(p.isr), p.log_epoch, p.log_end, p.power_lost
        )
        for p in answer.known
    }
