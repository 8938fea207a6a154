"""Sends batches to one partition, several requests at a time, each stored exactly once.

Requests carry the sequences of an idempotent producer (KIP-98): after a failure all that are not acknowledged are sent
again in their order, and the broker answers those that it has already with their offsets.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

from pybroker import errors
from pybroker.backup.rewriting import Producible
from pybroker.client.net.network import ANY, STALE, NetworkClient
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m

IN_FLIGHT_MAX: Final = 5
"""The batches of a producer that a broker recognizes when they come again."""
_RETRY_S: Final = 0.1
_LOOK_S: Final = 0.005
_GRACE_S: Final = 1.0

Acknowledged = Callable[[Producible, int], object]
"""(batch, the offset of its first record)"""


@dataclass(slots=True)
class _Sent:
    batch: Producible
    data: bytes
    answer: "Future[m.ProduceResponse]"


def producer_id(network: NetworkClient, timeout_s: float) -> tuple[int, int]:
    """Return (producer id, epoch) of a new idempotent producer. KafkaError."""
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF)
    what = "no broker gave a producer id"
    answer = network.retried(lambda: network.call(ANY, request), what, time.monotonic() + timeout_s)
    if answer.error_code:
        raise KafkaError(answer.error_code)
    return answer.producer_id, answer.producer_epoch


class PartitionSender:
    """Sends the batches of one partition. For one thread; all methods raise KafkaError if the partition fails."""

    def __init__(
        self, network: NetworkClient, tp: TopicPartition, producer: tuple[int, int], acknowledged: Acknowledged,
        timeout_s: float,
    ) -> None:
        self._network = network
        self._tp = tp
        self._producer = producer
        self._acknowledged = acknowledged
        self._timeout_s = timeout_s
        self._sequence = 0
        self._end = 0
        self._known = False
        self._sent: deque[_Sent] = deque()
        network.want([tp.topic])

    def send(self, batch: Producible) -> None:
        """Send a batch; waits while IN_FLIGHT_MAX are not acknowledged.

        The first batch goes alone: a broker takes any sequence from a producer that it does not know yet, so that the
        second one would be stored although the first was refused."""
        while len(self._sent) >= (IN_FLIGHT_MAX if self._known else 1):
            self._settle()
        data = batch.stamped(*self._producer, self._sequence)
        self._sequence += batch.size
        self._sent.append(_Sent(batch, data, self._request(data)))

    def finish(self) -> None:
        """Wait until all batches are acknowledged."""
        while self._sent:
            self._settle()

    def _settle(self) -> None:
        """Wait for the first answer, and send all batches again while it is a failure that may pass."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            first = self._sent[0]
            try:
                offset = self._offset(first, self._network.outcome(first.answer, deadline_s + _GRACE_S))
                break
            except TimeoutError:
                raise self._network.timed_out(f"records of {self._tp} were not acknowledged", [self._tp]) from None
            except KafkaError as error:
                passing = error.retriable or error.code in STALE
                if not passing or time.monotonic() > deadline_s:
                    raise
            self._send_again(deadline_s)
        self._sent.popleft()
        self._known = True
        self._end = offset + first.batch.size
        self._acknowledged(first.batch, offset)

    def _offset(self, sent: _Sent, answer: m.ProduceResponse) -> int:
        found = next((p for topic in answer.responses for p in topic.partition_responses), None)
        if found is None:
            raise KafkaError(errors.UNKNOWN_SERVER_ERROR, f"{self._tp}: the answer to a Produce misses it")
        if found.error_code == errors.DUPLICATE_SEQUENCE_NUMBER:
            return self._end
        if found.error_code:
            words = found.error_message or errors.lookup(found.error_code).meaning
            first = sent.batch.offsets[0]
            raise KafkaError(found.error_code, f"{self._tp}: the batch of offset {first} was refused: {words}")
        return found.base_offset

    def _send_again(self, deadline_s: float) -> None:
        """Send all batches again, in their order, once no earlier request is under way."""
        for each in self._sent:
            try:
                self._network.outcome(each.answer, deadline_s + _GRACE_S)
            except (KafkaError, TimeoutError):
                continue
        self._network.refresh_soon()
        time.sleep(_RETRY_S)
        for each in self._sent:
            each.answer = self._request(each.data)

    def _request(self, data: bytes) -> "Future[m.ProduceResponse]":
        leader = self._leader()
        kind = m.ProduceRequest.TopicData
        part = kind.PartitionData(index=self._tp.partition, records=data)
        topic = kind(name=self._tp.topic, topic_id=self._network.view.topics[self._tp.topic].id, partition_data=[part])
        timeout_ms = int(self._timeout_s * 1000)
        request = m.ProduceRequest(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=[topic])
        return self._network.call(leader, request)

    def _leader(self) -> int:
        """The leader, once there is one."""
        deadline_s = time.monotonic() + self._timeout_s
        while (leader := self._network.view.leader(*self._tp)) < 0:
            self._network.check_login()
            if time.monotonic() > deadline_s:
                raise self._network.timed_out(f"{self._tp} could not be written", [self._tp])
            time.sleep(_LOOK_S)
        return leader
