"""Topics of Apache Kafka as tables: transactions, compaction, and its log directory."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import pybroker
from pybroker.client.admin import Admin
from tests.harness import Server

pytestmark = pytest.mark.java


@pytest.fixture
def kafka(kafka391: Server, topic: str) -> Server:
    with Admin(kafka391.bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    return kafka391


def test_transactions(kafka: Server, topic: str) -> None:
    """With read_committed the records of aborted transactions are left out; markers are no rows, and end no read."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(60)
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for number, end in enumerate((commit, abort, commit)):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, json.dumps({"id": number}), partition=partition)
        producer.flush()  # an abort drops what has not left yet
        end(60)
    ask: dict[str, Any] = {"bootstrap_servers": kafka.bootstrap, "format": "json", "schema": {"id": int}}
    committed = pybroker.read_topic(topic, isolation_level="read_committed", **ask)
    assert committed["id"].to_pylist() == [0, 2, 0, 2] and committed["kafka_offset"].to_pylist() == [0, 4, 0, 4]
    assert pybroker.read_topic(topic, **ask)["id"].to_pylist() == [0, 1, 2, 0, 1, 2]
    assert pybroker.read_topic(topic, start=5, **ask).num_rows == 0


def test_there_and_back(kafka: Server, topic: str) -> None:
    """A table that was written is read as it was, from the broker and from its files."""
    table = pa.table({"id": list(range(2000)), "name": [f"n{n}" for n in range(2000)]})
    pybroker.write_topic(topic, table, key="id", compression_type="lz4", bootstrap_servers=kafka.bootstrap)
    ask: dict[str, Any] = {"format": "json", "schema": table.schema, "columns": table.schema.names}
    found = pybroker.read_topic(topic, bootstrap_servers=kafka.bootstrap, **ask)
    assert found.sort_by("id").equals(table)
    assert pybroker.read_topic(topic, log_dir=kafka.partition_dir(topic).parent, **ask).equals(found)
    reader = pybroker.scan_topic(topic, bootstrap_servers=kafka.bootstrap, start=-1, **ask)
    assert reader.read_all().num_rows == 2
