"""Fill topics for Spark's benchmarks."""

from __future__ import annotations

from pybroker import core
from pybroker.client.net.connection import BrokerConnection
from pybroker.protocol import messages as m
from pybroker.testing import records
from tests.harness import HOST, BrokerProcess

RECORDS_A_BATCH = 8_000
TIMESTAMP_MS = 1_700_000_000_000


def fill(broker: BrokerProcess, topic: str, partitions: int, rows: int, key: bytes, value: bytes) -> None:
    """Create the topic, and write this many records to it, in whole batches to each partition."""
    batch = core.build_batch([(TIMESTAMP_MS, key, value, ())] * RECORDS_A_BATCH)
    with BrokerConnection(HOST, broker.port) as connection:
        records.create_topic(connection, topic, partitions, {"segment.bytes": str(64 << 20), "retention.ms": "-1"})
        for partition in range(partitions):
            for _ in range(rows // partitions // RECORDS_A_BATCH):
                append(connection, topic, partition, batch)


def append(connection: BrokerConnection, topic: str, partition: int, batch: bytes) -> None:
    kind = m.ProduceRequest.TopicData
    (found,) = connection.request(m.MetadataRequest(topics=[m.MetadataRequest.Topics(name=topic)])).topics
    data = [
        kind(name=topic, topic_id=found.topic_id, partition_data=[kind.PartitionData(index=partition, records=batch)])
    ]
    (answer,) = connection.request(m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=data)).responses
    assert answer.partition_responses[0].error_code == 0
