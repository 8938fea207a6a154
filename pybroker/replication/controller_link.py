"""The link from a broker to its cluster's controller: one connection, to the broker that the metadata names.

A former controller answers NOT_CONTROLLER, or nothing: the request is repeated to the next one that the metadata names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from pybroker import errors
from pybroker.decisions.image import Image, LiveBroker
from pybroker.decisions.metadata_cache import MetadataCache
from pybroker.decisions.orders import AlteredIsr, AlteredTopic, AskedIsr, AskedTopic, IsrState
from pybroker.errors import KafkaError
from pybroker.protocol import messages as m
from pybroker.protocol.message import Message, Request

Answer = TypeVar(
    "Answer", bound="m.AlterPartitionResponse | m.ControlledShutdownResponse | m.AllocateProducerIdsResponse"
)
A = TypeVar("A", bound=Message)
ALTER_PARTITION = 3
RETRY_S = 0.05
TIMEOUT_S = 30.0


class Line(Protocol):
    """A connection to the controller's broker (interbroker/link.py, server/cluster/loopback.py)."""

    closed: asyncio.Future[str]

    async def ask(self, message: Request[A], version: int, *, timeout_s: float = TIMEOUT_S) -> A:
        """Send a request and return its answer. Raises OSError."""

    def close(self) -> None:
        """End the connection."""


class ControllerLink:
    """The controller link of one broker; `connect` opens a link to another broker's inter-broker listener."""

    def __init__(self, metadata: MetadataCache, connect: Callable[[LiveBroker], Awaitable[Line]]) -> None:
        self._metadata = metadata
        self._connect = connect
        self._link: Line | None = None
        self._to: LiveBroker | None = None
        self._one = asyncio.Lock()
        self._ended = False
        metadata.watch(self._look)

    async def ask(self, message: Request[Answer], version: int, timeout_s: float = TIMEOUT_S) -> Answer:
        """Send a request to the current controller, and return its answer. Raises KafkaError: REQUEST_TIMED_OUT, and
        BROKER_NOT_AVAILABLE once this broker stops."""
        refused = ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self._ended:
                        raise KafkaError(errors.BROKER_NOT_AVAILABLE, "this broker is stopping")
                    try:
                        answer, refused = await self._ask(message, version), ""
                    except PermissionError as problem:
                        answer, refused = None, f": {problem}"
                    if answer is not None and answer.error_code != errors.NOT_CONTROLLER:
                        return answer
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            words = f"no controller answered in {timeout_s:g} s{refused}"
            raise KafkaError(errors.REQUEST_TIMED_OUT, words) from None

    async def _ask(self, message: Request[Answer], version: int) -> Answer | None:
        """Send a request once; None if no controller is known, or the connection failed. Raises PermissionError if it
        refuses the login."""
        try:
            link = await self._reach()
            return None if link is None else await link.ask(message, version, timeout_s=TIMEOUT_S)
        except PermissionError:
            raise
        except OSError:
            return None

    async def _reach(self) -> Line | None:
        async with self._one:
            image = self._metadata.image
            to = image.brokers.get(image.controller_id)
            if self._link is not None and (to != self._to or self._link.closed.done()):
                self.close()
            if self._link is None and to is not None:
                self._link, self._to = await self._connect(to), to
            return self._link

    def _look(self, image: Image) -> None:
        """Close the link if the controller changed: its unanswered requests are then repeated to the new one."""
        if self._link is not None and image.brokers.get(image.controller_id) != self._to:
            self.close()

    def end(self) -> None:
        """Close the link for good: waiting callers get BROKER_NOT_AVAILABLE."""
        self._ended = True
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._link is not None:
                self._link.close()
        self._link = None


async def alter_partition(
    link: ControllerLink, broker: int, broker_epoch: int, asked: Sequence[AskedTopic]
) -> list[AlteredTopic]:
    """Ask the controller to change ISRs, by AlterPartition with topic ids. Raises KafkaError, and LookupError if the
    answer names an unknown topic."""
    kind = m.AlterPartitionRequest.Topics
    topics = [kind(topic_id=t.id or b"", partitions=[_partition(each) for each in t.partitions]) for t in asked]
    request = m.AlterPartitionRequest(broker_id=broker, broker_epoch=broker_epoch, topics=topics)
    answer = await link.ask(request, ALTER_PARTITION)
    if answer.error_code:
        raise KafkaError(answer.error_code, f"the controller answered {errors.lookup(answer.error_code).name}")
    names = {topic.id: topic.name for topic in asked}
    return [AlteredTopic(names[topic.topic_id], [_outcome(p) for p in topic.partitions]) for topic in answer.topics]


def _partition(asked: AskedIsr) -> m.AlterPartitionRequest.Topics.Partitions:
    kind, epochs = m.AlterPartitionRequest.Topics.Partitions, asked.epochs or {}
    return kind(
        partition_index=asked.partition,
        leader_epoch=asked.leader_epoch,
        new_isr_with_epochs=[
            kind.NewIsrWithEpochs(broker_id=broker, broker_epoch=epochs.get(broker, -1)) for broker in asked.isr
        ],
        leader_recovery_state=int(asked.recovering),
        partition_epoch=asked.partition_epoch,
    )


def _outcome(p: m.AlterPartitionResponse.Topics.Partitions) -> AlteredIsr:
    now = None if p.error_code else IsrState(p.leader_id, p.leader_epoch, tuple(p.isr), p.partition_epoch)
    return AlteredIsr(p.partition_index, p.error_code, now)
