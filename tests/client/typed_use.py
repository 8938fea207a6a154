"""Not run but read, by `make lint`: what a type checker lets a user of the clients write, and what it does not.

Each line with an `ignore` is an error that mypy finds; mypy --strict says so, too, should it find none there.
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


def tests(kit: BrokerHandle) -> None:
    stored = kit.produce("t", "a", b"b", RecordOfTests("c", headers=[("h", "text")]))
    print(stored[0].offset + stored[0].timestamp_ms)
    value: bytes | None = kit.records("t")[0].value
    print(value)
    kit.produce("t", 7)  # type: ignore[arg-type]
    with pybroker.testing.broker(settings={"num.io.threads": 2}) as other:
        print(other.bootstrap_servers)
    pybroker.testing.broker(setting={})  # type: ignore[call-arg]
