"""Records in and out of a test's broker, by the client code of pybroker itself: nothing else need be installed."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pybroker.client.connection import Connection

CLIENT_ID: Final = "pybroker-testing"
TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.005
FETCH_BYTES: Final = 16 << 20

Headers = tuple[tuple[str, bytes | None], ...]
Content = bytes | str | None


class Record(NamedTuple):
    """A record to produce, or one that was read, which has all of the fields.

    Text is written as UTF-8, and read as the bytes that it became. To produce, `timestamp_ms` None is now, and the
    offset is given by the broker."""

    value: Content
    key: Content = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int = 0
    offset: int = -1


def create_topic(connection: "Connection", name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic that can be written to when this returns. KafkaError if it is there already."""
    from pybroker.protocol import messages as m

    kind = m.CreateTopicsRequest.Topics
    configs = [kind.Configs(name=key, value=value) for key, value in config.items()]
    topic = kind(name=name, num_partitions=partitions, replication_factor=-1, configs=configs)
    timeout_ms = int(TIMEOUT_S * 1000)
    answer = connection.request(m.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms))
    for result in answer.topics:
        _check(result.error_code, result.error_message)


def produce(connection: "Connection", topic: str, records: Iterable[Record]) -> list[Record]:
    """Append records, acks=all, those of a partition as one batch; the records as they are stored, in their order.

    A topic that is not there is created by the broker, as for any client. Raises KafkaError."""
    from pybroker.protocol import messages as m

    now_ms = time.time_ns() // 1_000_000
    stored = [_stored(record, topic, now_ms) for record in records]
    if not stored:
        return []
    kind = m.ProduceRequest.TopicData
    by_partition: dict[int, list[int]] = {}
    for at, record in enumerate(stored):
        by_partition.setdefault(record.partition, []).append(at)
    data = [
        kind.PartitionData(index=partition, records=_batch([stored[at] for at in held], now_ms))
        for partition, held in by_partition.items()
    ]
    topic_id = _describe(connection, topic).topic_id
    request = m.ProduceRequest(
        acks=-1, timeout_ms=int(TIMEOUT_S * 1000), topic_data=[kind(name=topic, topic_id=topic_id, partition_data=data)]
    )
    for answer in connection.request(request).responses[0].partition_responses:
        _check(answer.error_code, answer.error_message)
        for delta, at in enumerate(by_partition[answer.index]):
            stored[at] = stored[at]._replace(offset=answer.base_offset + delta)
    return stored


def _batch(records: Sequence[Record], now_ms: int) -> bytes:
    from pybroker import core

    def timestamp_ms(record: Record) -> int:
        return now_ms if record.timestamp_ms is None else record.timestamp_ms

    return core.build_batch([(timestamp_ms(r), _bytes(r.key), _bytes(r.value), r.headers) for r in records])


def read(connection: "Connection", topic: str, partition: int | None) -> list[Record]:
    """What a topic, or one partition of it, holds now: by partition, then offset. KafkaError if it is not there."""
    described = _describe(connection, topic, create=False)
    indexes = sorted(p.partition_index for p in described.partitions)
    if partition is not None:
        indexes = [partition]
    return [record for index in indexes for record in _read_partition(connection, topic, described.topic_id, index)]


def _read_partition(connection: "Connection", topic: str, topic_id: bytes, index: int) -> Iterator[Record]:
    from pybroker.protocol.records import CONTROL, iter_batches

    offset = _log_start(connection, topic, index)
    while True:
        answer = _fetch(connection, topic, topic_id, index, offset)
        for _, batch in iter_batches(answer.records or b"", check_crc=False):
            for r in () if batch.attributes & CONTROL else batch.records():
                if r.offset >= offset:
                    yield Record(r.value, r.key, tuple(r.headers), r.timestamp_ms, topic, index, r.offset)
            offset = batch.last_offset + 1
        if offset >= answer.high_watermark:
            return


def _fetch(connection: "Connection", topic: str, topic_id: bytes, index: int, offset: int) -> Any:
    from pybroker.protocol import messages as m

    kind = m.FetchRequest.Topics
    partition = kind.Partitions(partition=index, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = m.FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        max_bytes=FETCH_BYTES,
        topics=[kind(topic=topic, topic_id=topic_id, partitions=[partition])],
    )
    response = connection.request(request)
    _check(response.error_code)
    answer = response.responses[0].partitions[0]
    _check(answer.error_code)
    return answer


def _log_start(connection: "Connection", topic: str, index: int) -> int:
    from pybroker.client import list_offsets
    from pybroker.model import TopicPartition

    tp = TopicPartition(topic, index)
    told = list_offsets.answers(connection.request(list_offsets.request({tp: list_offsets.EARLIEST})))[tp]
    if told.error is not None:
        raise told.error
    return told.offset


def _describe(connection: "Connection", topic: str, *, create: bool = True) -> Any:
    """A topic's metadata, as soon as it has leaders."""
    from pybroker import errors
    from pybroker.protocol import messages as m

    deadline = time.monotonic() + TIMEOUT_S
    asked = m.MetadataRequest.Topics(name=topic)
    while True:
        (found,) = connection.request(m.MetadataRequest(topics=[asked], allow_auto_topic_creation=create)).topics
        codes = {found.error_code, *(p.error_code for p in found.partitions)} - {errors.NONE}
        if not codes:
            return found
        if codes != {errors.LEADER_NOT_AVAILABLE} or time.monotonic() > deadline:
            _check(codes.pop(), f"topic {topic}")
        time.sleep(POLL_S)


def _stored(record: Record, topic: str, now_ms: int) -> Record:
    timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
    key, value = _bytes(record.key), _bytes(record.value)
    return Record(value, key, tuple(record.headers), timestamp_ms, topic, record.partition)


def _bytes(content: Content) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _check(code: int, message: str | None = None) -> None:
    """KafkaError for a code that is not 0."""
    from pybroker import errors

    if code != errors.NONE:
        raise errors.KafkaError(code, message or errors.lookup(code).meaning)
