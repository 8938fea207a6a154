"""Checked by `make lint` and not run: the uses of the clients that a type checker allows, and those that it refuses.

Each line with an `ignore` is an error that mypy must find; mypy --strict reports an `ignore` without an error.
"""

from __future__ import annotations

import pybroker
import pybroker.testing
from pybroker import ConsumerSettings, Delivery, ProducerSettings, Record, RecordMetadata, TopicPartition
from pybroker.testing import BrokerHandle
from pybroker.testing import Record as RecordOfTests

WHERE = "localhost:9092"


def producers() -> None:
    settings: ProducerSettings = {"bootstrap_servers": [WHERE], "acks": "all", "compression_type": "lz4"}
    with pybroker.Producer(**settings) as producer:
        delivery: Delivery = producer.send("t", "value", key=b"key", headers=[("h", b"")])
        made: RecordMetadata = delivery.result(10)
        print(made.offset + 1)
        producer.send("t", 7)  # type: ignore[arg-type]
        producer.send("t", timestamp_ms=0.5)  # type: ignore[arg-type]
    pybroker.Producer(bootstrap_servers=WHERE, linger=0)  # type: ignore[call-arg]
    pybroker.Producer(bootstrap_servers=WHERE, linger_ms="5")  # type: ignore[arg-type]
    pybroker.Producer(bootstrap_servers=WHERE, compression_type="lzma")  # type: ignore[arg-type]
    pybroker.Producer(bootstrap_servers=WHERE, group_id="g")  # type: ignore[call-arg]
    pybroker.Producer()  # type: ignore[call-arg]


class Order:
    def __init__(self, text: bytes) -> None: ...


def encoded(order: Order) -> bytes:
    return b""


def objects() -> None:
    with pybroker.Producer(bootstrap_servers=WHERE, value_serializer=encoded) as producer:
        producer.send("t", Order(b""), key="key", headers={"h": "text"})
        producer.send("t", b"")  # type: ignore[arg-type]
        print(producer.send_and_wait("t", None).offset + 1)
    with pybroker.Consumer("t", bootstrap_servers=WHERE, key_deserializer=int, value_deserializer=Order) as consumer:
        for record in consumer:
            key: int | None = record.key
            order: Order | None = record.value
            wrong: bytes | None = record.value  # type: ignore[assignment]
            print(key, order, wrong)
    plain: pybroker.Consumer = pybroker.Consumer("t", bootstrap_servers=WHERE)
    for plain_record in plain:
        value: bytes | None = plain_record.value
        print(value)
    pybroker.Producer(bootstrap_servers=WHERE, value_serializer=pybroker.Json(), partitioner="random").send("t", [1])
    pybroker.Producer(bootstrap_servers=WHERE, partitioner="murmur3")  # type: ignore[arg-type]
    pybroker.Producer({"bootstrap.servers": WHERE})  # type: ignore[arg-type,call-arg]
    pybroker.Consumer(bootstrap_servers=WHERE).consume(10)  # type: ignore[attr-defined]


class Listener(pybroker.RebalanceListener):
    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None: ...


def consumers() -> None:
    settings: ConsumerSettings = {"bootstrap_servers": WHERE, "group_id": "g", "auto_offset_reset": "earliest"}
    with pybroker.Consumer(**settings) as consumer:
        consumer.subscribe(["t"], listener=Listener())
        records: list[Record] = consumer.poll(1000)
        print([record.value for record in records])
        consumer.poll(0.5)  # type: ignore[arg-type]
        consumer.subscribe(["t"], listener=Listener)  # type: ignore[arg-type]
    pybroker.Consumer(bootstrap_servers=WHERE, auto_offset_reset="newest")  # type: ignore[arg-type]
    pybroker.Consumer(bootstrap_servers=WHERE, linger_ms=0)  # type: ignore[call-arg]


async def twins() -> None:
    async with pybroker.AsyncProducer(bootstrap_servers=WHERE) as producer:
        print((await (await producer.send("t", b""))).offset)
        await producer.send("t", b"", on_delivery=print)  # type: ignore[call-arg]
    async with pybroker.AsyncConsumer(bootstrap_servers=WHERE) as consumer:
        await consumer.poll(timeout_s=1)  # type: ignore[call-arg]
        print((await consumer.position(("t", 0), timeout_ms=1)) + 1)
    pybroker.AsyncConsumer(bootstrap_servers=WHERE, linger_ms=0)  # type: ignore[call-arg]
    async with pybroker.AsyncConsumer("t", bootstrap_servers=WHERE, value_deserializer=Order) as typed:
        async for record in typed:
            order: Order | None = record.value
            print(order)
    async with pybroker.AsyncAdmin(WHERE) as admin:
        print([topic.name for topic in await admin.topics()])


def tests(kit: BrokerHandle) -> None:
    stored = kit.produce("t", "a", b"b", RecordOfTests("c", headers=[("h", "text")]))
    print(stored[0].offset + stored[0].timestamp_ms)
    value: bytes | None = kit.records("t")[0].value
    print(value)
    kit.produce("t", 7)  # type: ignore[arg-type]
    with pybroker.testing.broker(settings={"num.io.threads": 2}) as other:
        print(other.bootstrap_servers)
    pybroker.testing.broker(setting={})  # type: ignore[call-arg]


def tables() -> None:
    pybroker.read_topic("t", bootstrap_servers=WHERE, format="json", schema={"id": int}, start=-10, on_error="warn")
    pybroker.read_topic("t", log_dir=["a", "b"], start={0: "latest"}, columns=["offset"], n_rows=1)
    pybroker.scan_topic("t", bootstrap_servers=[WHERE], isolation_level="read_committed", on_error=print)
    pybroker.scan_polars("t", bootstrap_servers=WHERE, format="avro", schema_registry="http://localhost:8081")
    print(pybroker.write_topic("t", None, key="id", value=["id"], bootstrap_servers=WHERE, acks=1) + 1)
    pybroker.read_topic("t", bootstrap_servers=WHERE, format="xml")  # type: ignore[arg-type]
    pybroker.read_topic("t", bootstrap_servers=WHERE, start=0.5)  # type: ignore[arg-type]
    pybroker.read_topic("t", bootstrap_servers=WHERE, group_id="g")  # type: ignore[call-arg]
    pybroker.write_topic("t", None)  # type: ignore[call-arg]
