"""The sender: batches into requests, answers into outcomes, on the loop's thread.

Each partition counts the sequences of its batches (KIP-98) under an epoch of its own, so that a batch which is sent
again is neither stored twice nor overtaken. A batch that may or may not have been stored when it is given up leaves a
gap in them; the queue is then *renewing*: batches with a sequence are sent until each is known to be stored or not, and
then the epoch is raised and sequences begin at 0 (as KIP-360 has it, but for one partition and not for all).

    steady --a sequenced batch fails--> renewing --none is sequenced any more--> steady, epoch + 1
"""

import time
from collections.abc import Set
from functools import partial
from typing import Final

from pybroker import errors
from pybroker.client.net.channel import ClientChannel
from pybroker.client.net.loop import Timer, Wake
from pybroker.client.net.network import ANY, STALE, NetworkClient
from pybroker.client.net.requests import Parcel, RequestOptions
from pybroker.client.producing.accumulator import Accumulator, Queue
from pybroker.client.producing.splitting import Split
from pybroker.client.producing.transactions import PRODUCE_VERSION_MAX, TRANSACTIONAL, TransactionManager
from pybroker.client.settings import Settings
from pybroker.core import PendingBatch, SealedBatch
from pybroker.errors import KafkaError
from pybroker.logs import unfailing
from pybroker.model import CODECS, TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.compression import compressor

SEQUENCE_MASK: Final = 0x7FFFFFFF
EPOCH_MAX: Final = 0x7FFF

_OUT_OF_SEQUENCE: Final = frozenset(
    {errors.OUT_OF_ORDER_SEQUENCE_NUMBER, errors.UNKNOWN_PRODUCER_ID, errors.INVALID_PRODUCER_EPOCH}
)
_NO_ID: Final = {
    errors.CLUSTER_AUTHORIZATION_FAILED: "the principal may write to no topic: it needs Write on one, or"
    " IdempotentWrite on the cluster"
}
"""Explanations of refused producer ids whose code alone misleads (KIP-679)."""
_log = unfailing(__name__)


class Sender:
    """Sends an accumulator's batches in order, and gives them their outcomes."""

    def __init__(
        self, network: NetworkClient, settings: Settings, *, acks: int, idempotent: bool, transactions: bool
    ) -> None:
        self._network = network
        self._acks = acks
        self._idempotent = idempotent
        codec = CODECS.index(settings.compression_type)
        self.attributes = codec | (TRANSACTIONAL if transactions else 0)
        """The attributes of batches."""
        self.compress = compressor(codec, settings.compression_level)
        self._retries: int = settings.retries
        self._in_flight_max: int = settings.max_in_flight_requests_per_connection
        self._request_size: int = settings.max_request_size
        self._request_timeout_ms: int = settings.request_timeout_ms
        self._delivery_timeout_s: float = settings.delivery_timeout_ms / 1000
        self._how = RequestOptions(version_max=PRODUCE_VERSION_MAX if transactions else None, answered=self._acks != 0)
        self._splits: dict[PendingBatch, Split] = {}
        """Parts of batches that were too large, each with its split."""
        self._producer_id = -1
        self._epoch = -1
        self._asking_id = False
        self._id_failures = 0
        self._timer: Timer | None = None
        self.wake = Wake(network.loop, self._pump)
        """Call from any thread when there may be something to send."""
        self.accumulator: Accumulator
        self.transactions: TransactionManager | None = None
        if transactions:
            self.transactions = TransactionManager(
                network, settings.transactional_id, settings.transaction_timeout_ms, self.wake
            )
        network.listen(self.wake)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        now_s = time.monotonic()
        requests: dict[int, list[tuple[Queue, PendingBatch]]] = {}
        due_s = now_s + 3600.0
        failed = None if self.transactions is None else self.transactions.error
        for queue in list(self.accumulator.busy):
            if failed is not None:
                self._give_up_unsent(queue, failed)
            self.accumulator.seal(queue, now_s)
            due_s = min(due_s, self._expire(queue, now_s))
            if not queue.ready:
                if queue.open is not None:
                    due_s = min(due_s, queue.open.created_s + self.accumulator.linger_s)
                else:
                    self.accumulator.rest(queue)
            elif queue.not_before_s > now_s:
                due_s = min(due_s, queue.not_before_s)
            elif self._may_send(queue):
                leader = self._leader(queue)
                if leader >= 0:
                    requests.setdefault(leader, []).append((queue, queue.ready[0]))
        for leader, candidates in requests.items():
            self._send_to(leader, candidates)
        self._pump_at(due_s)

    def _pump_at(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._network.loop.call_later(max(0.0005, due_s - time.monotonic()), self._pump)

    def _leader(self, queue: Queue) -> int:
        leader = self._network.view.leader(queue.topic, queue.partition)
        if leader < 0:
            self._network.want([queue.topic])
        return leader

    def _may_send(self, queue: Queue) -> bool:
        """True if the first batch may be sent. A retried batch goes alone, so that none overtakes it."""
        batch = queue.ready[0]
        if queue.in_flight and (batch.attempts or queue.in_flight[-1].attempts > 1):
            return False
        if not self._idempotent or batch.sequence >= 0:
            return True
        if self.transactions is not None:
            return self.transactions.may_send(queue)
        if queue.renewing:
            if queue.in_flight:
                return False
            self._renew(queue)
        if queue.producer_id < 0:
            if self._producer_id < 0:
                self._ask_producer_id()
                return False
            queue.producer_id, queue.epoch, queue.next_sequence = self._producer_id, self._epoch, 0
        return True

    def _send_to(self, leader: int, candidates: list[tuple[Queue, PendingBatch]]) -> None:
        """Send requests to a broker, up to the limit of those under way."""
        try:
            channel = self._network.channel(leader)
        except KafkaError:
            self._network.refresh()
            return
        while candidates and channel.load < self._in_flight_max:
            taken: list[tuple[Queue, PendingBatch]] = []
            size = 0
            while candidates and (not taken or size + candidates[0][1].size <= self._request_size):
                queue, batch = candidates.pop(0)
                if not queue.ready or queue.ready[0] is not batch:
                    continue  # an earlier request failed at once, and its batch is first again
                if self._sealed(queue, batch):
                    taken.append((queue, batch))
                    size += batch.size
            if taken:
                self._request(channel, taken)
            candidates += [(q, q.ready[0]) for q, _ in taken if q.ready and self._may_send(q)]

    def _sealed(self, queue: Queue, batch: PendingBatch) -> bool:
        """Encode a batch; True if done. A batch that the codec refuses (a wrong level, say) is given up."""
        try:
            batch.seal(self.attributes, self.compress)
        except Exception as error:  # codecs have exceptions of their own
            queue.ready.remove(batch)
            words = f"{queue.topic}-{queue.partition}: the batch could not be compressed: {error}"
            self._give_up(queue, batch, KafkaError(errors.UNSUPPORTED_COMPRESSION_TYPE, words))
            self.wake()
            return False
        return True

    def _request(self, channel: ClientChannel, taken: list[tuple[Queue, PendingBatch]]) -> None:
        kind = m.ProduceRequest.TopicData
        topics: dict[str, m.ProduceRequest.TopicData] = {}
        view = self._network.view
        for queue, batch in taken:
            queue.ready.popleft()
            queue.in_flight.append(batch)
            data = self._stamped(queue, batch)
            batch.attempts += 1
            if queue.topic not in topics:
                topics[queue.topic] = kind(name=queue.topic, topic_id=view.topics[queue.topic].id)
            part = kind.PartitionData(index=queue.partition, records=Parcel(data))
            topics[queue.topic].partition_data.append(part)
        request = m.ProduceRequest(
            transactional_id=None if self.transactions is None else self.transactions.transactional_id,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            topic_data=list(topics.values()),
        )
        names = {topic.topic_id: topic.name for topic in topics.values()}
        channel.send(request, partial(self._answered, taken, names), self._how)

    def _stamped(self, queue: Queue, batch: PendingBatch) -> SealedBatch:
        """The bytes of a batch, stamped with a sequence that it keeps for retries under the same epoch."""
        sealed = batch.seal(self.attributes, self.compress)
        if self._idempotent and batch.sequence < 0:
            batch.producer_id, batch.epoch, batch.sequence = queue.producer_id, queue.epoch, queue.next_sequence
            queue.next_sequence = (queue.next_sequence + batch.count) & SEQUENCE_MASK
            sealed.stamp(batch.producer_id, batch.epoch, batch.sequence)
        return sealed

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def _answered(
        self,
        taken: list[tuple[Queue, PendingBatch]],
        names: dict[bytes, str],
        answer: m.ProduceResponse | None,
        error: KafkaError | None,
    ) -> None:
        told: dict[TopicPartition, m.ProduceResponse.Responses.PartitionResponses] = {}
        moved: Set[TopicPartition] = frozenset()
        for topic in answer.responses if answer is not None else ():
            name = topic.name or names.get(bytes(topic.topic_id), "")
            told.update({TopicPartition(name, p.index): p for p in topic.partition_responses})
        if answer is not None and answer.node_endpoints:
            leaders = {tp: p.current_leader for tp, p in told.items()}
            moved = self._network.learn_leaders(leaders, answer.node_endpoints)
        for queue, batch in taken:
            if batch not in queue.in_flight:
                continue  # settled before another part of the answer failed
            queue.in_flight.remove(batch)
            tp = TopicPartition(queue.topic, queue.partition)
            try:
                self._settle(queue, batch, told.get(tp), answer is not None, error)
            except Exception as problem:  # a bug of ours: fail this batch, settle the others
                _log.exception("the answer for a batch of %s could not be used", tp)
                words = f"{tp}: {type(problem).__name__}: {problem}"
                self._give_up(queue, batch, KafkaError(errors.UNKNOWN_SERVER_ERROR, words))
            if tp in moved:  # send it to the next leader at once
                queue.not_before_s = 0.0
        self.wake()  # not _pump itself: with acks=0 this runs inside it

    def _settle(
        self,
        queue: Queue,
        batch: PendingBatch,
        found: m.ProduceResponse.Responses.PartitionResponses | None,
        answered: bool,
        error: KafkaError | None,
    ) -> None:
        """Settle one batch by its part of an answer; with acks=0 there is none."""
        if error is not None:
            self._refused(queue, batch, error)
        elif found is None and not answered:
            self._end(batch, -1, -1, None)
        elif found is None:
            self._refused(queue, batch, KafkaError(errors.UNKNOWN_SERVER_ERROR, "the answer misses the partition"))
        elif found.error_code in (errors.NONE, errors.DUPLICATE_SEQUENCE_NUMBER):
            queue.refusal = None
            self._end(batch, found.base_offset, found.log_append_time_ms, None)
        else:
            self._refused(queue, batch, _refusal(queue, found))

    def _end(self, batch: PendingBatch, base_offset: int, time_ms: int, error: KafkaError | None) -> None:
        split = self._splits.pop(batch, None)
        if split is None:
            self.accumulator.end(batch, base_offset, time_ms, error)
        elif split.end(batch, base_offset, time_ms, error):
            self.accumulator.end_split(split.whole, split.outcomes)

    def _split(self, queue: Queue, batch: PendingBatch) -> None:
        """Split a batch that is larger than the topic allows; the parts take its place and its sequences."""
        sealed = batch.sealed
        assert sealed is not None
        split = self._splits.pop(batch, None) or Split(batch)
        parts = split.cut(batch, sealed, self.attributes, self.compress)
        self._splits.update(dict.fromkeys(parts, split))
        at = self._place(queue, batch)
        for part in reversed(parts):
            queue.ready.insert(at, part)

    def _refused(self, queue: Queue, batch: PendingBatch, error: KafkaError) -> None:
        """Send a refused batch again if the error is retriable, else give it up."""
        if error.code in STALE:
            self._network.refresh()
        if batch.ended:  # expired while under way
            return
        failed = self.transactions is not None and self.transactions.error is not None
        if self._idempotent and error.code in _OUT_OF_SEQUENCE and not failed:
            self._out_of_sequence(queue, batch, error)
            return
        if error.code == errors.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(queue, batch)
            return
        if error.retriable and not failed and batch.attempts <= self._retries:  # an expired one is not sent
            queue.refusal = error
            self._again(queue, batch)
        else:
            self._give_up(queue, batch, error)

    def _again(self, queue: Queue, batch: PendingBatch) -> None:
        queue.not_before_s = time.monotonic() + self._network.pauses.after(batch.attempts)
        queue.ready.insert(self._place(queue, batch), batch)

    @staticmethod
    def _place(queue: Queue, batch: PendingBatch) -> int:
        """The index in `ready` for a batch to retry: retried batches keep their order."""
        at = 0
        for other in tuple(queue.ready):
            if not other.attempts or other.created_s >= batch.created_s:
                break
            at += 1
        return at

    def _out_of_sequence(self, queue: Queue, batch: PendingBatch, error: KafkaError) -> None:
        """Retry a batch refused for its sequence: an earlier one failed, or the broker lost this producer's state."""
        before = [b for b in (*queue.in_flight, *queue.ready) if b.sequence >= 0 and b.created_s < batch.created_s]
        if self.transactions is not None and not before:
            self._give_up(queue, batch, error)
            return
        if queue.renewing or not before:
            queue.renewing = True
            batch.sequence = -1
        self._again(queue, batch)

    def _give_up(self, queue: Queue, batch: PendingBatch, error: KafkaError) -> None:
        if self.transactions is not None:
            self.transactions.fail(error, sequenced=batch.sequence >= 0)
        elif batch.sequence >= 0:
            queue.renewing = True
        self._end(batch, -1, -1, error)

    def _give_up_unsent(self, queue: Queue, cause: KafkaError) -> None:
        """Give up what is not under way, as the transaction cannot be committed any more."""
        if queue.open is not None:
            queue.close_batch()
        while queue.ready:
            words = f"{queue.topic}-{queue.partition}: it was not sent again: {cause.message}"
            self._give_up(queue, queue.ready.popleft(), KafkaError(errors.TRANSACTION_ABORTABLE, words))

    def _expire(self, queue: Queue, now_s: float) -> float:
        """Give up batches older than delivery_timeout_ms; return when the next one expires. It stops at the first young
        one: a queue may be thousands long."""
        oldest_s = now_s - self._delivery_timeout_s
        soonest_s = now_s
        for batch in tuple(queue.in_flight):
            if batch.created_s > oldest_s:
                soonest_s = min(soonest_s, batch.created_s)
            elif not batch.ended:
                self._give_up(queue, batch, self._too_old(queue, batch))
        if not queue.ready and queue.open is not None and queue.open.created_s <= oldest_s:
            queue.close_batch()
        while queue.ready:
            batch = queue.ready[0]
            if batch.created_s > oldest_s:
                soonest_s = min(soonest_s, batch.created_s)
                break
            queue.ready.popleft()
            self._give_up(queue, batch, self._too_old(queue, batch))
        return soonest_s + self._delivery_timeout_s

    def _too_old(self, queue: Queue, batch: PendingBatch) -> KafkaError:
        why = f"{batch.count} records for {queue.topic}-{queue.partition} were not acknowledged"
        failure = self._network.failure or queue.refusal
        return KafkaError(
            errors.REQUEST_TIMED_OUT,
            f"{why} within {self._delivery_timeout_s:g} s{f': {failure}' if failure else ''}",
        )

    # -- producer ids --------------------------------------------------------------------------------------------------

    def _renew(self, queue: Queue) -> None:
        """Begin again under a higher epoch: the first batch was not stored, and none is under way.

        The batches behind it were not stored either, as their sequences follow its own. Under the old epoch the broker
        would refuse them, and batches sent for the first time would overtake them.
        """
        queue.renewing = False
        queue.next_sequence = 0
        for batch in tuple(queue.ready):
            batch.sequence = -1
        if queue.epoch == EPOCH_MAX:
            queue.producer_id, self._producer_id = -1, -1
        else:
            queue.epoch += 1

    def _ask_producer_id(self) -> None:
        if not self._asking_id:
            self._asking_id = True
            request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0x7FFFFFFF)
            self._network.send(ANY, request, self._learn_id)

    def _learn_id(self, answer: m.InitProducerIdResponse | None, error: KafkaError | None) -> None:
        if error is None and answer is not None and answer.error_code:
            error = KafkaError(answer.error_code, _NO_ID.get(answer.error_code, ""))
        if error is None:
            assert answer is not None
            self._asking_id, self._id_failures = False, 0
            self._producer_id, self._epoch = answer.producer_id, answer.producer_epoch
            self._pump()
            return
        self._id_failures += 1
        if not error.retriable:
            for queue in list(self.accumulator.busy):
                while queue.ready:
                    self._give_up(queue, queue.ready.popleft(), error)
        self._network.loop.call_later(self._network.pauses.after(self._id_failures), self._ask_again)

    def _ask_again(self) -> None:
        self._asking_id = False
        self._pump()

    def fail_all(self, error: KafkaError) -> None:
        """Fail all batches that are not acknowledged: the producer ends."""
        for queue in list(self.accumulator.busy):
            for batch in queue.batches():
                self._end(batch, -1, -1, error)


def _refusal(queue: Queue, answer: m.ProduceResponse.Responses.PartitionResponses) -> KafkaError:
    """The error of a refused batch: the broker's message, or the meaning of its code."""
    words = answer.error_message or errors.lookup(answer.error_code).meaning
    for record in answer.record_errors[:1]:
        if record.batch_index_error_message:
            words = f"{words}; record {record.batch_index} of the batch: {record.batch_index_error_message}"
    return KafkaError(answer.error_code, f"{queue.topic}-{queue.partition}: {words}")
