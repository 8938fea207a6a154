"""Keys and values as objects: callables and formats, as blocking and asyncio clients call them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import pybroker
from pybroker import DeserializationError
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from pybroker.client.serialization.json_format import Json
from tests.client.kit import WAIT_S, create, read_all
from tests.harness import Server, until

ORDERS = [{"id": n, "name": "Zoë"} for n in range(50)]


class Numbered:
    """A serializer with kafka-python's interface, which gets the topic."""

    def serialize(self, topic: str, value: int) -> bytes:
        return f"{topic}:{value}".encode()

    def deserialize(self, topic: str, data: bytes) -> int:
        name, _, number = data.decode().partition(":")
        assert name == topic
        return int(number)


def reading(server: Server, topic: str, **settings: Any) -> Consumer[Any, Any]:
    return Consumer(topic, bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", **settings)


def test_objects_there_and_back(target: Server, topic: str) -> None:
    """Objects are sent and read back, by callables that return text, and by objects with kafka-python's methods; None
    stays null."""
    create(target, topic)
    with Producer(
        bootstrap_servers=target.bootstrap, key_serializer=Numbered(), value_serializer=json.dumps
    ) as producer:
        for order in ORDERS:
            producer.send(topic, order, key=order["id"])
        producer.send(topic, None, key=None)
    raw = read_all(target, topic, 51)
    assert raw[0].value == json.dumps(ORDERS[0]).encode() and raw[0].key == f"{topic}:0".encode()
    assert raw[50].value is None and raw[50].key is None
    with reading(target, topic, key_deserializer=Numbered(), value_deserializer=json.loads) as consumer:
        found = list(itertools.islice(consumer, 30))
        while len(found) < 51:
            found += consumer.poll(10_000)
    assert [(r.key, r.value) for r in found] == [*((o["id"], o) for o in ORDERS), (None, None)]
    assert [r.offset for r in found] == list(range(51))


async def test_the_same_for_asyncio(target: Server, topic: str) -> None:
    create(target, topic)
    async with AsyncProducer(bootstrap_servers=target.bootstrap, value_serializer=Json()) as producer:
        for order in ORDERS:
            await producer.send(topic, order)
        assert (await producer.send_and_wait(topic, None)).offset == 50
    settings: dict[str, Any] = {"bootstrap_servers": target.bootstrap, "auto_offset_reset": "earliest"}
    async with AsyncConsumer(topic, value_deserializer=Json(), **settings) as consumer:
        found = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == 40:
                break
        while len(found) < 51:
            found += [record.value for record in await consumer.poll(10_000)]
    assert found == [*ORDERS, None]


def test_send_and_wait_does_not_linger(shared_broker: Server, topic: str) -> None:
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, linger_ms=3_600_000) as producer:
        assert [producer.send_and_wait(topic, b"").offset for _ in range(3)] == [0, 1, 2]
        with pytest.raises(pybroker.KafkaError, match="max_request_size"):
            producer.send_and_wait(topic, b"x" * (1 << 21))


def test_waiting_in_a_callback_is_refused(shared_broker: Server, topic: str) -> None:
    """send_and_wait() and flush() in a callback raise: they would wait for the thread that makes the callback."""
    create(shared_broker, topic)
    problems: list[str] = []
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:

        def call(_: pybroker.Delivery) -> None:
            for wait in (lambda: producer.send_and_wait(topic, b"more"), producer.flush):
                try:
                    wait()
                except RuntimeError as error:
                    problems.append(str(error))

        producer.send(topic, b"", on_delivery=call)
        producer.flush(WAIT_S)
    until("the callback has ended", lambda: len(problems) == 2)
    assert problems[0] == "send_and_wait() in a callback of a delivery would wait for ever: use send()"


@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_a_value_that_is_none(shared_broker: Server, topic: str, way: str) -> None:
    """A value that cannot be decoded: the records before it come first; the error has the record and the next offset,
    and repeats until a seek."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for n in range(20):
            producer.send(topic, b"%d" % n if n != 12 else b"twelve", key=b"k")
    with reading(shared_broker, topic, value_deserializer=int) as consumer:
        found: list[int] = []

        def more() -> None:
            if way == "poll":
                found.extend(r.value for r in consumer.poll(10_000))
            else:
                found.append(next(iter(consumer)).value if not found else next(loop).value)

        loop = iter(consumer)
        for _ in range(2):
            with pytest.raises(DeserializationError, match="the value of offset 12 cannot be deserialized: ") as caught:
                while len(found) < 20:
                    more()
            loop = iter(consumer)
            assert found == list(range(12)) and consumer.position((topic, 0)) == 12
        error = caught.value
        assert (error.partition, error.offset, error.next_offset, error.field) == ((topic, 0), 12, 13, "value")
        assert (error.record.key, error.record.value) == (b"k", b"twelve")
        assert isinstance(error.__cause__, ValueError) and "seek to offset 13" in str(error)
        consumer.seek(error.partition, error.next_offset)
        while len(found) < 19:
            more()
        assert found == [n for n in range(20) if n != 12]


async def test_a_value_that_is_none_for_asyncio(shared_broker: Server, topic: str) -> None:
    create(shared_broker, topic)
    async with AsyncProducer(bootstrap_servers=shared_broker.bootstrap) as producer:
        for n in range(20):
            await producer.send(topic, b"%d" % n if n != 12 else b"twelve")
    settings: dict[str, Any] = {"bootstrap_servers": shared_broker.bootstrap, "auto_offset_reset": "earliest"}
    async with AsyncConsumer(topic, value_deserializer=int, **settings) as consumer:
        found = []
        with pytest.raises(DeserializationError) as caught:
            async for record in consumer:
                found.append(record.value)
        assert found == list(range(12)) and await consumer.position((topic, 0)) == 12
        await consumer.seek(caught.value.partition, caught.value.next_offset)
        assert (await anext(consumer)).value == 13


def test_what_a_serializer_raises_is_raised_by_send(shared_broker: Server, topic: str) -> None:
    """A serializer's exception is raised by send(), and nothing is sent; a result that is not bytes is refused."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap, value_serializer=Json()) as producer:
        with pytest.raises(TypeError, match="not JSON serializable"):
            producer.send(topic, {1, 2})
        assert producer.send(topic, {"a": 1}).result(WAIT_S).offset == 0
    with (
        Producer(bootstrap_servers=shared_broker.bootstrap, value_serializer=lambda value: 7) as producer,  # type: ignore[arg-type,return-value]
        pytest.raises(TypeError, match="value is bytes, str or None, not int"),
    ):
        producer.send(topic, b"x")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"value_serializer": 7}, r"value_serializer is a callable, or an object with a method serialize\("),
        ({"value_serializer": Json}, r"value_serializer is a callable or an object: Json\(\), not the class"),
        ({"partitioner": 7}, "a partitioner is a name or a callable, not 7"),
    ],
)
def test_what_can_serialize_nothing(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        Producer(bootstrap_servers="127.0.0.1:1", **settings)


def test_json_by_another_library() -> None:
    """JSON may use another library's dumps and loads, such as orjson's."""
    other = Json(dumps=lambda value: b"<%d>" % len(json.dumps(value)), loads=lambda data: data[1:-1])
    assert other.serialize("t", [1, 2]) == b"<6>" and other.deserialize("t", b"<6>") == b"6"
    assert Json().serialize("t", {"a": ["ä", 1]}) == '{"a":["ä",1]}'
