"""Our producer's records are read by every other client, and our consumer reads theirs, with every codec."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pybroker.client.producing.producer import Producer
from tests.client.kit import create, read_all
from tests.clients.adapters.aio import Aiokafka
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.java import JavaClient
from tests.clients.adapters.kafka_python import KafkaPython
from tests.clients.adapters.neutral import CODECS, Client, Record
from tests.harness import Server
from tests.java.driver import Driver
from tests.java.peers import MissingJava

RECORDS = [
    Record(b"value", b"key", (("h", b"1"), ("h", b"2")), 1_700_000_000_000),
    Record(None, b"tombstone", (), 1_700_000_000_001),
    Record(b"", b"", (), 1_700_000_000_002),
    *(Record(b"%d" % n * 50, None, (), 1_700_000_000_003 + n) for n in range(60)),
]


@pytest.fixture(
    scope="module", params=["confluent", "kafka-python", "aiokafka", pytest.param("java", marks=pytest.mark.java)]
)
def theirs(request: pytest.FixtureRequest, shared_broker: Server) -> Iterator[Client]:
    """Another library's client of the same broker."""
    if request.param != "java":
        kinds = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}
        client: Client = kinds[request.param](shared_broker.bootstrap)
        yield client
        client.close()
        return
    try:
        driver = Driver("4.1.1")
    except MissingJava as missing:
        pytest.skip(str(missing))
    client = JavaClient(shared_broker.bootstrap, driver)
    yield client
    client.close()
    driver.close()


@pytest.mark.parametrize("codec", CODECS)
def test_theirs_reads_ours(shared_broker: Server, topic: str, theirs: Client, codec: str) -> None:
    """Theirs reads ours, by record and by column: keys, values, headers, tombstones and timestamps arrive unchanged."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, compression_type=codec) as producer:
        for r in RECORDS:
            producer.send(topic, r.value, key=r.key, headers=r.headers, timestamp_ms=r.timestamp_ms)
        producer.flush()
        producer.send_columns(
            topic,
            [r.value for r in RECORDS],
            [r.key for r in RECORDS],
            headers=[list(r.headers) for r in RECORDS],
            timestamps_ms=[r.timestamp_ms for r in RECORDS],
        )
    found = theirs.read(topic, 2 * len(RECORDS))
    assert [r.content for r in found] == [r.content for r in RECORDS] * 2
    assert [r.timestamp_ms for r in found] == [r.timestamp_ms for r in RECORDS] * 2


@pytest.mark.parametrize("codec", CODECS)
def test_ours_reads_theirs(shared_broker: Server, topic: str, theirs: Client, codec: str) -> None:
    create(shared_broker, topic)
    theirs.send_all(topic, RECORDS, codec=codec)
    found = read_all(shared_broker, topic, len(RECORDS))
    assert [(r.value, r.key, tuple(r.headers)) for r in found] == [r.content for r in RECORDS]
    assert [r.timestamp_ms for r in found] == [r.timestamp_ms for r in RECORDS]


def test_keys_go_where_theirs_go(shared_broker: Server, topic: str) -> None:
    """Keys go to the same partitions as with kafka-python, whose partitioner is Java's."""
    import kafka

    create(shared_broker, topic, partitions=7)
    keys = [b"key-%d" % n * (n % 5 + 1) for n in range(40)]
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        ours = [producer.send(topic, b"", key=key) for key in keys]
    other = kafka.KafkaProducer(bootstrap_servers=shared_broker.bootstrap)
    try:
        found = [other.send(topic, b"", key) for key in keys]
        other.flush(30)
        assert [d.result(0).partition for d in ours] == [future.get(30).partition for future in found]
    finally:
        other.close()
