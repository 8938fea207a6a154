"""An acknowledged record after `kill -9` of a broker is read back once, at its offset; groups and producers go on."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future

import confluent_kafka as ck
import pytest

from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import Acks, Record
from tests.harness import BrokerProcess, until
from tests.wire import batch

COUNT = 2_000


def numbered(start: int, end: int) -> list[Record]:
    return [Record(b"%d" % number) for number in range(start, end)]


@pytest.mark.parametrize("acks", [1, "all"])
def test_records_are_read_back_once_at_their_offsets(broker: BrokerProcess, topic: str, acks: Acks) -> None:
    """The broker is killed while a producer writes. Each acknowledged record is there after the start."""
    client = Confluent(broker.bootstrap)
    client.create_topic(topic)
    with client.producer(acks=acks, linger_ms=0, batch_bytes=2048) as producer:
        sent = [producer.send(topic, record) for record in numbered(0, COUNT)]
        until("a quarter is acknowledged", sent[COUNT // 4].done)
        broker.kill()
    acked = {number: future.result() for number, future in enumerate(sent) if future.done() and not future.exception()}
    assert len(acked) > COUNT // 4
    broker.restart()
    _, end = client.offsets(topic)
    found = client.read(topic, end)
    assert [record.offset for record in found] == list(range(end))
    assert all(found[offset].value == b"%d" % number for number, offset in acked.items())
    assert set(Counter(record.value for record in found).values()) == {1}


def test_an_idempotent_producer_goes_on(broker: BrokerProcess, topic: str) -> None:
    """The broker recognises the producer after a kill: each record is in the log once, in the order of the sends."""
    client = Confluent(broker.bootstrap)
    client.create_topic(topic)
    sent: list[Future[int]] = []
    with client.producer(idempotent=True, batch_bytes=2048) as producer:
        sent += [producer.send(topic, record) for record in numbered(0, 600)]
        until("some records are acknowledged", sent[100].done)
        broker.kill()
        sent += [producer.send(topic, record) for record in numbered(600, 900)]
        broker.restart()
        producer.flush(60)
    assert [future.result(0) for future in sent] == list(range(900))
    assert [record.value for record in client.read(topic, 900)] == [b"%d" % number for number in range(900)]


def test_a_group_goes_on_where_it_committed(broker: BrokerProcess, topic: str) -> None:
    """An acknowledged commit survives the kill, too."""
    Confluent(broker.bootstrap).send_all(topic, numbered(0, 20))
    config = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False}
    reader = ck.Consumer(config)
    reader.commit(offsets=[ck.TopicPartition(topic, 0, 7)], asynchronous=False)
    reader.close()
    broker.kill()
    broker.restart()
    reader = ck.Consumer(config)
    reader.subscribe([topic])
    found: list[int] = []

    def read() -> bool:
        found.extend(message.offset() for message in reader.consume(20, 0.2) if message.error() is None)
        return len(found) >= 13

    until("the rest is read", read)
    reader.close()
    assert found == list(range(7, 20))


def test_a_torn_end_is_cut_and_an_index_rebuilt(broker: BrokerProcess, topic: str) -> None:
    """A start cuts half a batch off the end of the log and rebuilds a damaged index; the rest is as it was."""
    client = Confluent(broker.bootstrap)
    client.create_topic(topic, config={"index.interval.bytes": "100"})
    client.send_all(topic, numbered(0, 300), batch_bytes=700)
    broker.kill()
    log = broker.partition_dir(topic) / f"{0:020}.log"
    index = log.with_suffix(".index")
    whole = log.read_bytes()
    log.write_bytes(whole + batch([b"torn"])[:-3])
    index.write_bytes(b"\xff" * 80)
    broker.restart()
    assert [record.value for record in client.read(topic, 300)] == [b"%d" % number for number in range(300)]
    assert client.read(topic, 3, 297) == client.read(topic, 300)[297:]
    assert client.send_all(topic, [Record(b"next")]) == [300]
    broker.stop()
    assert log.read_bytes().startswith(whole) and b"\xff" * 80 not in index.read_bytes()
