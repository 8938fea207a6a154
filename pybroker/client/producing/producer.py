"""A producer: records in, acknowledgements out, and in between batches of many records a request."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, Generic, Never, Self, TypeVar, Unpack, cast

from pybroker import core, errors
from pybroker.client import arguments, foreign
from pybroker.client.foreign import OfOtherClients, no_settings_first, renamed
from pybroker.client.net.metadata import TopicInfo
from pybroker.client.net.network import NetworkClient
from pybroker.client.producing.accumulator import EXIT_S, Accumulator
from pybroker.client.producing.partitioners import Partitioner, PartitionerName, partitioner_of
from pybroker.client.producing.sender import Sender
from pybroker.client.producing.transactional_calls import TransactionalCalls, abort_after_failure
from pybroker.client.serialization.fields import Plain, RecordSerializer, Serializer
from pybroker.client.serialization.variables import GivenKey, GivenValue
from pybroker.client.settings import PRODUCER, ProducerSettings, Settings, signed
from pybroker.clock import wall_ms
from pybroker.config.settings import ConfigError
from pybroker.core import Delivery, RecordMetadata
from pybroker.errors import KafkaError
from pybroker.protocol.compression import LEVELS

__all__ = ["Delivery", "Producer", "RecordMetadata"]

Headers = Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None]

IN_FLIGHT_MAX: Final = 5
"""Requests under way of an idempotent producer: the brokers remember as many of its batches (KIP-98)."""

POLL_S: Final = 0.005
"""The pause between two looks at metadata while a caller waits for it."""

_SECONDS: Final = "timeout_s, in seconds"

Result = TypeVar("Result")
Steps = Generator[float | None, None, Result]
"""A call that may have to wait: it yields None before it looks at metadata again, or the seconds that it waits for
memory. The caller waits, by blocking or by awaiting. The return value is the result."""


@signed(PRODUCER, ProducerSettings)
class Producer(TransactionalCalls, OfOtherClients, Generic[GivenKey, GivenValue]):
    """Sends records to topics, from any number of threads.

    Settings are Kafka's, with underscores (see docs/client.md); ConfigError if one is unknown or not allowed.
    Serializers are callables that return bytes or str, or objects like `pybroker.Json()`; None is sent as null. The
    partitioner is a name, as of Java (murmur2_random) or librdkafka (consistent_random), or a callable.
    Use it in a `with`, or `close()` it. The end of the interpreter flushes open producers for at most ten seconds; the
    log names records that are not acknowledged by then. A process that is forked needs a producer of its own.
    """

    _OTHERS = foreign.PRODUCER

    def __init__(
        self,
        *misplaced: Never,
        key_serializer: Serializer[GivenKey] | None = None,
        value_serializer: Serializer[GivenValue] | None = None,
        partitioner: PartitionerName | Partitioner | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        no_settings_first("Producer", misplaced)
        self.encoder = RecordSerializer.of(key_serializer, value_serializer)
        self._partitioner = partitioner_of(partitioner)
        self._as_given = self.encoder is None and self._partitioner is None
        self._settings = s = Settings("producer", PRODUCER, settings)
        acks = {"all": -1}.get(s.acks) or int(s.acks)
        idempotent = self._idempotence(acks)
        if s.compression_level is not None and s.compression_type in LEVELS:
            low, high = LEVELS[s.compression_type]
            if not low <= s.compression_level <= high:
                has = f"compression_level of {s.compression_type} is {low} to {high}"
                raise ConfigError(f"{has}, not {s.compression_level}")
        self._block_s = s.max_block_ms / 1000
        self._network = NetworkClient("producer", s, create_topics=True)
        self._sender = Sender(
            self._network, s, acks=acks, idempotent=idempotent, transactions=s.transactional_id is not None
        )
        self._accumulator = self._sender.accumulator = Accumulator(
            batch_size=s.batch_size,
            linger_s=s.linger_ms / 1000,
            buffer_memory=s.buffer_memory,
            record_size_max=s.max_request_size,
            wake=self._sender.wake,
        )
        self._append: Callable[..., Delivery | int] = self._accumulator.appender.append
        self._transactions = self._sender.transactions
        if self._transactions is not None:
            self._append = self._append_in_transaction
        self._closed = False
        self._network.on_death(self._died)

    def _idempotence(self, acks: int) -> bool:
        """True unless other settings rule it out. ConfigError if enable_idempotence asks for it then."""
        s = self._settings
        wrong = ""
        if acks != -1:
            wrong = f"acks=all, not {s.acks}"
        elif s.retries == 0:
            wrong = "retries"
        elif s.max_in_flight_requests_per_connection > IN_FLIGHT_MAX:
            wrong = f"max_in_flight_requests_per_connection of at most {IN_FLIGHT_MAX}"
        if wrong and (s.enable_idempotence or s.transactional_id is not None):
            name = "enable_idempotence" if s.enable_idempotence else "transactional_id"
            raise ConfigError(f"{name} needs {wrong}")
        if s.transactional_id is not None and s.enable_idempotence is False:
            raise ConfigError("transactional_id needs enable_idempotence")
        return s.enable_idempotence is not False and not wrong

    def __repr__(self) -> str:
        s, waiting = self._settings, sum(batch.count for batch in self._accumulator.pending() if not batch.ended)
        state = "closed" if self._closed else f"{waiting} records without an acknowledgement"
        return f"<Producer to {s.bootstrap_servers}: acks={s.acks}, {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(None if kind is None else EXIT_S)

    # -- records -------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: GivenValue | None = None,
        *,
        key: GivenKey | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Delivery:
        """Add a record to the batch of its partition, and return a delivery, which gets its outcome.

        Text is UTF-8; a value of None is a tombstone; headers are pairs or a mapping. Without a partition the key
        decides as in Java, and without a key the partition changes from batch to batch. Waits up to max_block_ms for
        metadata and memory.

        Raises KafkaError: UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT after the wait, MESSAGE_TOO_LARGE; TypeError
        for other types; ValueError for negative numbers; and what a serializer raises."""
        if on_delivery is not None:
            _check_callback(on_delivery)
        if not self._as_given:
            return self._send_encoded(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        made = self._append(topic, value, key, headers, partition, timestamp_ms)
        if isinstance(made, int):
            deadline_s = time.monotonic() + self._block_s
            made = self._wait_through(self._see_to(deadline_s, topic, value, key, headers, partition, timestamp_ms))
        if on_delivery is not None:
            made.add_done_callback(on_delivery)
        return made

    def _send_encoded(
        self,
        topic: str,
        value: object,
        key: object,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: Callable[[Delivery], object] | None,
    ) -> Delivery:
        """`send` with serializers, or a partitioner."""
        deadline_s = time.monotonic() + self._block_s
        if self.encoder is not None:
            key, value = self.encoder.encoded(topic, key, value)
        data = cast("tuple[Plain, Plain]", (value, key))
        delivery = self._wait_through(self._placed(deadline_s, topic, *data, headers, partition, timestamp_ms))
        if on_delivery is not None:
            delivery.add_done_callback(on_delivery)
        return delivery

    def _placed(
        self,
        deadline_s: float,
        topic: str,
        value: Plain,
        key: Plain,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Steps[Delivery]:
        """The steps of a record in bytes: the partitioner, which needs metadata, and `_see_to`."""
        if partition is None and self._partitioner is not None:
            info = yield from self._find(topic, deadline_s)
            partition = self._partitioner.choose(topic, key, info)
        made = yield from self._see_to(deadline_s, topic, value, key, headers, partition, timestamp_ms)
        return made

    def send_and_wait(
        self,
        topic: str,
        value: GivenValue | None = None,
        *,
        key: GivenKey | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """`send`, without lingering, and wait for the acknowledgement: where the record lies, or its KafkaError.
        RuntimeError in a callback of a delivery, as acknowledgements come in on the thread that makes it."""
        self._check_thread("send_and_wait")
        made = self.send(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        with self._accumulator.hurry():
            return made.result()

    def _append_in_transaction(self, *record: Any) -> Delivery | int:
        """`_append` of a producer with transactional_id."""
        assert self._transactions is not None
        self._transactions.check_open()
        return self._accumulator.appender.append(*record)

    def _check_thread(self, name: str) -> None:
        """RuntimeError on the producer's own thread, which would wait for itself."""
        if self._network.loop.here:
            raise RuntimeError(f"{name}() in a callback of a delivery would wait for ever: use send()")

    def try_send(
        self,
        topic: str,
        value: Plain,
        key: Plain,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Delivery | None:
        """`send` of bytes if that needs no wait; None, and nothing sent, if it might."""
        if partition is None and self._partitioner is not None:
            info = self._network.view.topics.get(topic)
            if info is None or info.error or not info.partitions:
                return None
            partition = self._partitioner.choose(topic, key, info)
        made = self._append(topic, value, key, headers, partition, timestamp_ms)
        if made == core.NO_CHOICE:
            self._choose(topic)
            made = self._append(topic, value, key, headers, partition, timestamp_ms)
        return None if isinstance(made, int) else made

    def _choose(self, topic: str) -> None:
        known = self._network.view.topics.get(topic)
        self._accumulator.choose(topic, [p.partition for p in known.partitions if p.leader >= 0] if known else [])

    def _see_to(self, deadline_s: float, topic: str, *record: Any) -> Steps[Delivery]:
        """The steps of a record that cannot be appended at once: wait for metadata or memory, choose a partition."""
        partition: int | None = record[3]
        while True:
            made = self._append(topic, *record)
            if not isinstance(made, int):
                return made
            if made > 0:
                raise self._accumulator.too_large(made)
            if made == core.NO_TOPIC:
                info = yield from self._find(topic, deadline_s, -1 if partition is None else partition)
                self._accumulator.know(topic, len(info.partitions))
            elif made == core.NO_CHOICE:
                self._choose(topic)
            else:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise self._accumulator.no_memory(self._block_s)
                yield left_s

    def _wait_through(self, steps: Steps[Result]) -> Result:
        """Block the calling thread for each wait of `steps`, and return their result."""
        try:
            while True:
                memory_s = next(steps)
                if memory_s is None:
                    time.sleep(POLL_S)
                else:
                    self._accumulator.wait_for_memory(memory_s)
        except StopIteration as done:
            result: Result = done.value
            return result

    def send_columns(
        self,
        topic: str,
        values: object,
        keys: object = None,
        *,
        headers: object = None,
        partition: object = None,
        timestamps_ms: object = None,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> list[Delivery]:
        """Add many records at once, without an object for each; return the deliveries of the batches made of them.

        values and keys: Arrow arrays of binary or string, NumPy arrays of dtype S or V, (data, offsets), or lists;
        bytes in all of them, as serializers are not called. headers: an Arrow list of struct<key, value>, or a list of
        lists of pairs, or of dicts. partition: one for all rows, or one for each; else the keys decide as in Java, or
        by the partitioner, and rows without a key go to one partition for each batch. timestamps_ms: None is now, else
        one, or one for each row. A delivery has the offset of the first record of its batch. Waits up to max_block_ms
        for metadata, and for the memory of each batch. Raises as `send` does, and TypeError or ValueError for wrong
        columns; the batches made before that are sent."""
        _check_callback(on_delivery)
        deadline_s = time.monotonic() + self._block_s
        return self._wait_through(
            self._add_columns(deadline_s, topic, values, keys, headers, partition, timestamps_ms, on_delivery)
        )

    def _add_columns(
        self,
        deadline_s: float,
        topic: str,
        values: object,
        keys: object,
        headers: object,
        partition: object,
        timestamps_ms: object,
        on_delivery: Callable[[Delivery], object] | None = None,
    ) -> Steps[list[Delivery]]:
        """The steps of columns: the wait for metadata ends at `deadline_s`; each batch may wait as long for memory."""
        if self._transactions is not None:
            self._transactions.check_open()
        # They load NumPy, which a program that sends single records does not need.
        from pybroker.client.producing import column_batches, column_sources

        one = arguments.whole(partition, "a partition") if isinstance(partition, int) else None
        info = yield from self._find(topic, deadline_s, -1 if one is None else one)
        if partition is None and len(info.partitions) == 1:
            one = 0  # rows with a key and rows without keep their order
        elif partition is None and keys is not None and self._partitioner is not None:
            partition = [self._partitioner.choose(topic, key, info) for key in column_sources.each(keys)]
        accumulator, settings = self._accumulator, self._settings
        accumulator.know(topic, len(info.partitions))
        sent = []
        for batch in column_batches.batches(
            topic,
            values,
            keys,
            headers=headers,
            partitions=None if one is not None else partition,
            timestamps_ms=timestamps_ms,
            now_ms=wall_ms(),
            count=len(info.partitions),
            single=one is not None,
            batch_size=settings.batch_size,
            attributes=self._sender.attributes,
            compress=self._sender.compress,
        ):
            if batch.count == 1 and len(batch) > settings.max_request_size:
                raise accumulator.too_large(len(batch))
            place = batch.tag
            if place == column_batches.NO_PARTITION:
                led = [p.partition for p in info.partitions if p.leader >= 0]
                place = accumulator.choose(topic, led) if one is None else one
            delivery = yield from self._add(topic, place, batch)
            if on_delivery is not None:
                delivery.add_done_callback(on_delivery)
            sent.append(delivery)
        return sent

    def _add(self, topic: str, partition: int, batch: core.SealedBatch) -> Steps[Delivery]:
        """The steps of a complete batch, which may wait for memory."""
        deadline_s = time.monotonic() + self._block_s
        while (delivery := self._accumulator.add(topic, partition, batch)) is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._accumulator.no_memory(self._block_s)
            yield left_s
        return delivery

    def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic. Raises KafkaError as `send` does."""
        info = self._wait_through(self._find(topic, time.monotonic() + self._block_s))
        return [p.partition for p in info.partitions]

    def _find(self, topic: str, deadline_s: float, partition: int = -1) -> Steps[TopicInfo]:
        """The steps until metadata has the topic and the partition; the result is the topic."""
        self._network.check_usable()
        if not topic:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, "a topic has a name")
        network = self._network
        network.want([topic])
        seen = network.view.version
        while True:
            view = network.view
            info = view.topics.get(topic)
            error = errors.lookup(info.error if info else errors.NONE)
            if info and not error.code and info.partitions and partition < len(info.partitions):
                return info
            if error.code and not error.retriable:
                raise KafkaError(error.code, f"topic {topic!r}: {error.meaning}")
            if self._closed:
                raise KafkaError(errors.INVALID_REQUEST, "the producer is closed")
            if info and not error.code and partition >= 0 and view.version > seen:
                raise KafkaError(
                    errors.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {topic!r} has partitions 0 to {len(info.partitions) - 1}, not {partition}",
                )
            network.check_usable()
            network.check_login()
            if time.monotonic() > deadline_s:
                raise self._unknown(topic, error)
            if info and partition >= 0 and view.version == seen:
                network.refresh_soon()
            yield None

    def _overdue(self, topic: str) -> KafkaError:
        """The error for a record whose time is over while earlier ones wait for metadata, or for memory."""
        info = self._network.view.topics.get(topic)
        if info is None or info.error:
            return self._unknown(topic, errors.lookup(info.error if info else errors.NONE))
        return self._accumulator.no_memory(self._block_s)

    def _unknown(self, topic: str, error: errors.ErrorCode) -> KafkaError:
        waited = f"within max_block_ms of {self._settings.max_block_ms}"
        if self._network.failure is not None:
            failure = self._network.failure
            return KafkaError(failure.code, f"no metadata of topic {topic!r} {waited}: {failure.message}")
        if error.code:
            return KafkaError(error.code, f"topic {topic!r} did not come up {waited}: {error.meaning}")
        return KafkaError(errors.REQUEST_TIMED_OUT, f"no metadata of topic {topic!r} {waited}")

    # -- the end -------------------------------------------------------------------------------------------------------

    @renamed(timeout=_SECONDS)
    def flush(self, timeout_s: float | None = None) -> None:
        """Send all waiting records, and wait until each has its outcome. TimeoutError if that takes longer.

        It raises no error of refused records: their deliveries do."""
        self._network.check_usable()
        self._check_thread("flush")
        if not self._accumulator.flush(arguments.seconds(timeout_s)):
            raise late(timeout_s)

    @renamed(timeout=_SECONDS)
    def close(self, timeout_s: float | None = None) -> None:
        """Flush, for `timeout_s` at most, and end. Records not acknowledged then fail, and the log names them. An open
        transaction is aborted.

        Calling it again does nothing, nor does calling it in a process that was forked: the records are the parent's.
        """
        if not self._begin_close(timeout_s):
            return
        try:
            abort_after_failure(self, timeout_s)
            if timeout_s != 0:
                self._accumulator.flush(timeout_s)
        finally:
            self._end_close()

    def _begin_close(self, timeout_s: float | None) -> bool:
        """Stop taking records; False if the producer is closed already, or belongs to the parent process."""
        arguments.seconds(timeout_s)
        if self._closed or self._network.was_forked:
            return False
        self._closed = True
        self._accumulator.close()
        return True

    def _end_close(self) -> None:
        """End the thread, and give up what is not acknowledged. Blocks until the thread has ended."""
        self._network.close()
        self._accumulator.name_unacknowledged()
        self._sender.fail_all(KafkaError(errors.NETWORK_EXCEPTION, "the producer was closed before it was sent"))

    def _died(self, error: KafkaError) -> None:
        """Fail every record: the thread that would have sent it has ended."""
        self._accumulator.close()
        self._accumulator.name_unacknowledged()
        self._sender.fail_all(error)


def late(timeout_s: float | None) -> TimeoutError:
    return TimeoutError(f"not everything was acknowledged within {timeout_s or 0:g} s")


def _check_callback(call: object) -> None:
    if call is not None and not callable(call):
        raise TypeError(f"on_delivery is a callable that takes the delivery, not {type(call).__name__}")
