"""Produce to and read from a test's broker with pybroker's own client code; no other client need be installed."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from pybroker.clock import wall_ms
from pybroker.testing.lifecycle import HOST

if TYPE_CHECKING:
    from pybroker.client.net.connection import BrokerConnection
    from pybroker.protocol import messages as m

CLIENT_ID: Final = "pybroker-testing"
TIMEOUT_S: Final = 30.0
POLL_S: Final = 0.005
FETCH_BYTES: Final = 16 << 20

Headers = Sequence[tuple[str, bytes | str | None]]
Content = bytes | bytearray | memoryview | str | None
SHOWN_MAX: Final = 10
"""Records named in an error when there should be more."""
SHOWN_CHARACTERS_MAX: Final = 60


class Record(NamedTuple):
    """A record to produce. Text is written as UTF-8; `timestamp_ms` None is now; the broker assigns the offset."""

    value: Content
    key: Content = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int = 0
    offset: int = -1


class StoredRecord(Record):
    """A record as the broker holds it: text encoded to bytes, with a time and an offset."""

    __slots__ = ()
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def connect(port: int) -> "BrokerConnection":
    """Return a connection of the kit's own to a broker, which faults never catch. Raises KafkaError."""
    from pybroker.client.net.connection import BrokerConnection

    return BrokerConnection(HOST, port, timeout_s=TIMEOUT_S, client_id=CLIENT_ID)


def shown(found: Sequence[StoredRecord]) -> str:
    """Describe the last of these records, for the end of an error sentence."""
    named = [f"{r.partition}@{r.offset} key={_cut(r.key)} value={_cut(r.value)}" for r in found[-SHOWN_MAX:]]
    more = f"... {len(found) - SHOWN_MAX} before, " if len(found) > SHOWN_MAX else ""
    return more + ", ".join(named)


def _cut(content: bytes | None) -> str:
    text = repr(content)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."


def topics(connection: "BrokerConnection") -> str:
    """Describe the broker's topics, for the error of a test that waits for another one."""
    from pybroker.protocol import messages as m

    return named(topic.name or "" for topic in connection.request(m.MetadataRequest(topics=None)).topics)


def named(topics: Iterable[str]) -> str:
    """Describe these topics, for the end of an error sentence."""
    names = sorted(topics)
    return f"the broker has the topics {', '.join(names)}" if names else "the broker has no topic"


def create_topic(connection: "BrokerConnection", name: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic; return once it can be written to. KafkaError if the topic exists."""
    from pybroker.protocol import messages as m

    kind = m.CreateTopicsRequest.Topics
    configs = [kind.Configs(name=key, value=value) for key, value in config.items()]
    topic = kind(name=name, num_partitions=partitions, replication_factor=-1, configs=configs)
    timeout_ms = int(TIMEOUT_S * 1000)
    answer = connection.request(m.CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms))
    for result in answer.topics:
        _check(result.error_code, result.error_message)


def produce(connection: "BrokerConnection", topic: str, records: Iterable[Record]) -> list[StoredRecord]:
    """Append records, acks=all, one batch a partition; return them as stored, in their order.

    The broker creates a missing topic, as for any client. Raises KafkaError."""
    from pybroker.protocol import messages as m

    now_ms = wall_ms()
    made = [stored(record, topic, now_ms) for record in records]
    if not made:
        return []
    kind = m.ProduceRequest.TopicData
    by_partition: dict[int, list[int]] = {}
    for at, record in enumerate(made):
        by_partition.setdefault(record.partition, []).append(at)
    data = [
        kind.PartitionData(index=partition, records=_batch([made[at] for at in held]))
        for partition, held in by_partition.items()
    ]
    topic_id = _describe(connection, topic).topic_id
    request = m.ProduceRequest(
        acks=-1, timeout_ms=int(TIMEOUT_S * 1000), topic_data=[kind(name=topic, topic_id=topic_id, partition_data=data)]
    )
    for answer in connection.request(request).responses[0].partition_responses:
        _check(answer.error_code, answer.error_message)
        for delta, at in enumerate(by_partition[answer.index]):
            made[at] = made[at]._replace(offset=answer.base_offset + delta)
    return made


def _batch(records: Sequence[StoredRecord]) -> bytes:
    from pybroker import core

    return core.build_batch([(r.timestamp_ms, r.key, r.value, r.headers) for r in records])


def read(connection: "BrokerConnection", topic: str, partition: int | None) -> list[StoredRecord]:
    """Return the records of a topic, or of one partition, by partition and offset. KafkaError if it does not exist."""
    described = _describe(connection, topic, create=False)
    indexes = sorted(p.partition_index for p in described.partitions)
    if partition is not None:
        indexes = [partition]
    return [record for index in indexes for record in _read_partition(connection, topic, described.topic_id, index)]


def _read_partition(connection: "BrokerConnection", topic: str, topic_id: bytes, index: int) -> Iterator[StoredRecord]:
    from pybroker.protocol.message import plain
    from pybroker.protocol.records import CONTROL, iter_batches

    offset = _log_start(connection, topic, index)
    while True:
        answer = _fetch(connection, topic, topic_id, index, offset)
        for _, batch in iter_batches(plain(answer.records), check_crc=False):
            for r in () if batch.attributes & CONTROL else batch.records():
                if r.offset >= offset:
                    yield StoredRecord(r.value, r.key, tuple(r.headers), r.timestamp_ms, topic, index, r.offset)
            offset = batch.last_offset + 1
        if offset >= answer.high_watermark:
            return


def _fetch(
    connection: "BrokerConnection", topic: str, topic_id: bytes, index: int, offset: int
) -> "m.FetchResponse.Responses.Partitions":
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


def _log_start(connection: "BrokerConnection", topic: str, index: int) -> int:
    from pybroker.client.net import list_offsets
    from pybroker.model import TopicPartition

    tp = TopicPartition(topic, index)
    told = list_offsets.answers(connection.request(list_offsets.request({tp: list_offsets.EARLIEST})))[tp]
    if told.error is not None:
        raise told.error
    return told.offset


def _describe(connection: "BrokerConnection", topic: str, *, create: bool = True) -> "m.MetadataResponse.Topics":
    """Return a topic's metadata as soon as every partition has a leader."""
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
            code = codes.pop()
            _check(code, f"topic {topic}: {errors.lookup(code).meaning}")
        time.sleep(POLL_S)


def stored(record: Record, topic: str, now_ms: int) -> StoredRecord:
    """Return a record as it will be stored. TypeError and ValueError where Producer.send raises them."""
    from pybroker.client import arguments

    time_ms = now_ms if record.timestamp_ms is None else arguments.whole(record.timestamp_ms, "a record's timestamp_ms")
    headers = []
    for pair in record.headers:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"a record's header is a pair of a key and a value, not {pair!r}")
        headers.append((arguments.name(pair[0], "a header's key"), _bytes(pair[1], "header")))
    partition = arguments.whole(record.partition, "a record's partition")
    key, value = _bytes(record.key, "key"), _bytes(record.value, "value")
    return StoredRecord(value, key, tuple(headers), time_ms, topic, partition)


def _bytes(content: Content, what: str) -> bytes | None:
    if content is None or type(content) is bytes:
        return content
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"a record's {what} is bytes, str or None, not {type(content).__name__}")


def _check(code: int, message: str | None = None) -> None:
    """Raise KafkaError unless the code is NONE."""
    from pybroker import errors

    if code != errors.NONE:
        raise errors.KafkaError(code, message or errors.lookup(code).meaning)
