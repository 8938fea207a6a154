"""The repr and HTML of clients, deliveries, columns, topics and groups, at a prompt and in a notebook."""

from __future__ import annotations

from typing import Any

import pybroker.testing
from pybroker import GroupDescription, Member, Node, PartitionInfo, TopicInfo, TopicPartition
from pybroker.client.admin import Admin
from pybroker.client.aio.admin import AsyncAdmin
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from tests.client.kit import WAIT_S, consumer_of, create
from tests.harness import Server

NOBODY: Any = {"bootstrap_servers": "127.0.0.1:1"}


def test_a_producer_and_its_deliveries(shared_broker: Server, topic: str) -> None:
    create(shared_broker, topic)
    where = shared_broker.bootstrap
    with Producer(bootstrap_servers=where, linger_ms=3_600_000, max_request_size=1000) as producer:
        assert repr(producer) == f"<Producer to {where}: acks=all, 0 records without an acknowledgement>"
        waiting = [producer.send(topic, b"x") for _ in range(3)]
        assert repr(producer) == f"<Producer to {where}: acks=all, 3 records without an acknowledgement>"
        assert repr(waiting[0]) == f"<Delivery to {topic}-0: not acknowledged yet>"
        producer.flush(WAIT_S)
        assert [repr(each) for each in waiting[:2]] == [f"<Delivery to {topic}-0: offset {n}>" for n in (0, 1)]
        assert "not acknowledged" not in repr(waiting)
        for name, ours in (("get", r"result(timeout_s)"), ("add_callback", "add_done_callback(call)")):
            assert not hasattr(waiting[0], name)
            try:
                getattr(waiting[0], name)
            except AttributeError as error:
                assert ours in str(error)
    assert repr(producer) == f"<Producer to {where}: acks=all, closed>"


def test_a_refused_delivery() -> None:
    with Producer(**NOBODY) as producer:
        producer._accumulator.know("t", 1)
        producer._accumulator.choose("t", [0])
        delivery = producer.send("t", b"x")
        producer.close(0)
        assert repr(delivery).startswith("<Delivery to t-0: refused, NETWORK_EXCEPTION: the producer was closed before")


def test_a_consumer(shared_broker: Server, topic: str) -> None:
    create(shared_broker, topic, partitions=6)
    where = shared_broker.bootstrap
    with Producer(bootstrap_servers=where) as producer:
        producer.send(topic, b"x", partition=0)
    with consumer_of(shared_broker, topic) as consumer:
        next(consumer)
        consumer.pause((topic, 0))
        assert repr(consumer) == f"<Consumer of {where}: {topic}-0 at 1 (paused)>"
        consumer.assign([(topic, p) for p in range(6)])
        assert repr(consumer).endswith("at an unknown offset, 2 more>")
    assert repr(consumer) == f"<Consumer of {where}: closed>"
    with Consumer("a", "b", **NOBODY, group_id="g") as consumer:
        shown = repr(consumer)
    assert shown == "<Consumer of 127.0.0.1:1 in group 'g': nothing to read>" or "subscribed to a, b" in shown


async def test_the_twins() -> None:
    async with AsyncConsumer(**NOBODY) as consumer, AsyncProducer(**NOBODY) as producer, AsyncAdmin("h:1") as admin:
        assert repr(consumer) == "<AsyncConsumer of 127.0.0.1:1: nothing to read>"
        assert repr(producer).startswith("<AsyncProducer to 127.0.0.1:1: acks=all")
        assert repr(admin) == "<AsyncAdmin of h:1: timeout_s=30>"
    assert repr(Admin(["h:1", "i:2"], timeout_s=0.5)) == "<Admin of h:1,i:2: timeout_s=0.5>"


def test_columns(shared_broker: Server, topic: str) -> None:
    """Columns show rows as text at a prompt and as a table in a notebook, where no record's bytes become markup."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for n in range(30):
            producer.send(topic, f"<b>{n}".encode() if n else bytes(range(200)), key=None if n else b"\xff")
    with consumer_of(shared_broker, topic) as consumer:
        arrays = consumer.poll_numpy(10_000)
    assert arrays.value is not None and arrays.key is not None
    assert repr(arrays) == (
        f"<RecordArrays of 30 rows (30 of {topic}-0): offset, timestamp, timestamp_type, key, value, headers>"
    )
    shown = repr(arrays.value)
    assert shown.startswith("<ByteArray of 30 rows, 336 bytes: [b'\\x00\\x01") and shown.endswith("b'<b>3', ...]>")
    assert repr(arrays.key) == "<ByteArray of 30 rows, 29 null, 1 bytes: [b'\\xff', None, None, None, ...]>"
    table = arrays._repr_html_()
    assert table.count("<tr>") == 21 and "<td>&lt;b&gt;1</td>" in table and "<b>1" not in table
    assert "<td>ff</td>" in table and "<td>null</td>" in table and "and 10 more" in table


def test_a_broker_of_a_test() -> None:
    broker = pybroker.testing.broker()
    with broker:
        assert repr(broker) == (
            f"<BrokerHandle {broker.bootstrap_servers}: running, inprocess, data in {broker.data_dir}>"
        )
    assert ": not running, inprocess, " in repr(broker)


def test_topics_and_groups() -> None:
    partitions = tuple(PartitionInfo(n, 1, 0, (1, 2), (1,), 0) for n in range(2))
    topic = TopicInfo("<orders>", bytes(16), False, partitions, 0)._repr_html_()
    assert "topic &lt;orders&gt;" in topic and "<td>1, 2</td>" in topic and topic.count("<tr>") == 3
    member = Member("m", None, "reader", "/h", (TopicPartition("orders", 0), TopicPartition("orders", 1)))
    group = GroupDescription("g", "Stable", "classic", "consumer", "range", Node(3, "h", 1, None), (member,))
    shown = group._repr_html_()
    assert "group g: Stable, range, by broker 3" in shown and "<td>orders-0, orders-1</td>" in shown
