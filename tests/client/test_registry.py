"""Avro with a schema registry, over HTTP: the wire format, evolution, references, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

import pybroker
from pybroker import Avro, DeserializationError, RegistryError, SchemaRegistry
from pybroker.client.aio.consumer import AsyncConsumer
from pybroker.client.aio.producer import AsyncProducer
from pybroker.client.consuming.consumer import Consumer
from pybroker.client.producing.producer import Producer
from tests.client.kit import WAIT_S, create, read_all
from tests.harness import Server

ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}]}
NEWER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "-"}]}
BASKET = {
    "type": "record", "name": "Basket", "namespace": "shop",
    "fields": [{"name": "orders", "type": {"type": "array", "items": "shop.Order"}}],
}  # fmt: skip


class FakeRegistry(ThreadingHTTPServer):
    """A registry of ids and subjects in memory, with the REST API of Confluent's and Karapace's registries."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.headers: list[str | None] = []
        self.status = 0

    def id_of(self, body: dict[str, Any]) -> int | None:
        return next((n for n, known in enumerate(self.schemas, 1) if known == body), None)

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        if self.status:
            return self.status, {"error_code": self.status, "message": "out of order"}
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                if int(number) <= len(self.schemas):
                    return 200, self.schemas[int(number) - 1]
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            case ["subjects", subject, "versions", version] if method == "GET":
                ids = self.subjects.get(subject)
                if not ids:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                found = ids[-1 if version == "latest" else int(version) - 1]
                return 200, {"subject": subject, "version": len(ids), "id": found, **self.schemas[found - 1]}
            case ["subjects", subject, "versions"]:
                assert body is not None
                found = self.id_of(body)
                if found is None:
                    self.schemas.append(body)
                    found = len(self.schemas)
                ids = self.subjects.setdefault(subject, [])
                if found not in ids:
                    ids.append(found)
                return 200, {"id": found}
            case ["subjects", subject]:
                assert body is not None
                found = self.id_of(body)
                if found in self.subjects.get(subject, []):
                    return 200, {"id": found, "version": 1, "subject": subject, **body}
                return 404, {"error_code": 40403, "message": "Schema not found"}
        return 404, {}


class _Handler(BaseHTTPRequestHandler):
    server: FakeRegistry

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: dict[str, Any] | None) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.headers.append(self.headers["Authorization"])
        status, answer = self.server.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_there_and_back(shared_broker: Server, topic: str, registry: FakeRegistry) -> None:
    """A schema is registered once, under the topic's subjects; a record is byte 0, the schema's id, and the datum."""
    create(shared_broker, topic)
    with Producer(
        bootstrap_servers=shared_broker.bootstrap,
        key_serializer=Avro(registry.url, '"string"'),
        value_serializer=Avro(registry.url, ORDER),
    ) as producer:
        for n in range(20):
            producer.send(topic, {"id": n}, key=f"k{n}")
        producer.send(topic, None, key="k0")
    assert registry.asked == [f"POST /subjects/{topic}-{field}/versions" for field in ("key", "value")]
    raw = read_all(shared_broker, topic, 21)
    assert raw[1].value == b"\x00\x00\x00\x00\x02\x02" and raw[1].key == b"\x00\x00\x00\x00\x01\x04k1"
    registry.asked.clear()
    avro = Avro(registry.url)
    with Consumer(
        topic, bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest",
        key_deserializer=avro, value_deserializer=avro,
    ) as consumer:  # fmt: skip
        found = [next(consumer) for _ in range(21)]
    assert [(r.key, r.value) for r in found] == [*((f"k{n}", {"id": n}) for n in range(20)), ("k0", None)]
    assert registry.asked == ["GET /schemas/ids/1", "GET /schemas/ids/2"]


async def test_for_asyncio_a_thread_asks(shared_broker: Server, topic: str, registry: FakeRegistry) -> None:
    create(shared_broker, topic)
    settings: dict[str, Any] = {"bootstrap_servers": shared_broker.bootstrap}
    async with AsyncProducer(value_serializer=Avro(registry.url, ORDER), **settings) as producer:
        for n in range(20):
            await producer.send(topic, {"id": n})
    async with AsyncConsumer(
        topic, value_deserializer=Avro(registry.url), auto_offset_reset="earliest", **settings
    ) as consumer:
        assert [(await anext(consumer)).value for _ in range(20)] == [{"id": n} for n in range(20)]


def test_schemas_that_change(registry: FakeRegistry) -> None:
    """Schemas may change: a reader with its own schema reads older and newer writers' records, by Avro's rules."""
    old, new = Avro(registry.url, ORDER), Avro(registry.url, NEWER)
    first, second = old.serialize("t", {"id": 1}), new.serialize("t", {"id": 2, "note": "n"})
    assert [new.deserialize("t", data) for data in (first, second)] == [{"id": 1, "note": "-"}, {"id": 2, "note": "n"}]
    assert [old.deserialize("t", data) for data in (first, second)] == [{"id": 1}, {"id": 2}]
    latest = Avro(registry.url)
    assert latest.serialize("t", {"id": 3, "note": "x"})[:5] == second[:5]


def test_schemas_that_refer_to_others(registry: FakeRegistry) -> None:
    SchemaRegistry(registry.url).register("orders", pybroker.RegisteredSchema(json.dumps(ORDER)))
    baskets = Avro(registry.url, BASKET, references=(("shop.Order", "orders", 1),))
    data = baskets.serialize("t", {"orders": [{"id": 1}, {"id": 2}]})
    assert Avro(registry.url).deserialize("t", data) == {"orders": [{"id": 1}, {"id": 2}]}


@pytest.mark.parametrize(
    ("subject", "named"),
    [
        ("topic", "t-value"),
        ("record", "shop.Order"),
        ("topic-record", "t-shop.Order"),
        (lambda *of: "/".join(of), "t/value/shop.Order"),
    ],
)
def test_subjects(registry: FakeRegistry, subject: Any, named: str) -> None:
    Avro(registry.url, ORDER, subject=subject).serialize("t", {"id": 1})
    assert list(registry.subjects) == [named]


def test_refusals(registry: FakeRegistry) -> None:
    """Refusals: an unregistered schema, bytes of another format, values of another shape, a registry that fails."""
    with pytest.raises(RegistryError, match=r"refused POST .*/subjects/t-value: 404 Schema not found") as caught:
        Avro(registry.url, ORDER, auto_register=False).serialize("t", {"id": 1})
    assert (caught.value.status, caught.value.registry_code, caught.value.retriable) == (404, 40403, False)
    avro = Avro(registry.url, ORDER)
    with pytest.raises(ValueError, match="is no id of a schema registry"):
        avro.deserialize("t", b'{"id": 1}')
    with pytest.raises(RegistryError, match="Schema 77 not found"):
        avro.deserialize("t", b"\x00\x00\x00\x00\x4d\x02")
    with pytest.raises(Exception, match="id"):
        avro.serialize("t", {"name": "x"})
    registry.schemas.append({"schema": "{}", "schemaType": "JSON"})
    with pytest.raises(ValueError, match=r"schema 2 is of type 'JSON', not AVRO"):
        avro.deserialize("t", b"\x00" + len(registry.schemas).to_bytes(4, "big") + b"\x02")
    registry.status = 503
    with pytest.raises(RegistryError, match="503 out of order") as caught:
        Avro(registry.url).serialize("t", {"id": 1})
    assert caught.value.retriable


def test_hostile_data(registry: FakeRegistry) -> None:
    """A record that nests deep, or claims more items than fit in memory, raises: it neither ends the process nor fills
    its memory. Sound records of a schema that contains itself are read."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    nothing = {"type": "record", "name": "Nothing", "fields": []}
    holder = {"type": "record", "name": "Holder", "fields": [{"name": "list", "type": "Node"}]}
    registry.schemas += [
        {"schema": json.dumps(node)},
        {"schema": json.dumps({"type": "array", "items": "null"})},
        {"schema": json.dumps({"type": "array", "items": nothing})},
        {"schema": json.dumps(holder), "references": [{"name": "Node", "subject": "nodes", "version": 1}]},
        {"schema": json.dumps({"type": "array", "items": ["null", "long"]})},
    ]
    registry.subjects["nodes"] = [1]
    for avro in (Avro(registry.url), Avro(registry.url, node)):
        assert avro.deserialize("t", b"\0\0\0\0\1" + b"\2\2\0") == {"next": {"next": {"next": None}}}
        with pytest.raises(RecursionError):
            avro.deserialize("t", b"\0\0\0\0\1" + b"\2" * 1_000_000 + b"\0")
    avro = Avro(registry.url)
    assert avro.deserialize("t", b"\0\0\0\0\4" + b"\2\0") == {"list": {"next": {"next": None}}}
    with pytest.raises(RecursionError):
        avro.deserialize("t", b"\0\0\0\0\4" + b"\2" * 1_000_000 + b"\0")
    for id in (2, 3):
        with pytest.raises(ValueError, match=f"schema {id} has an array whose items take no bytes"):
            avro.deserialize("t", b"\0\0\0\0" + bytes([id]) + b"\x80\x80\x80\x80\x80\x80\x20\0")
    with pytest.raises((EOFError, IndexError)):
        avro.deserialize("t", b"\0\0\0\0\5" + b"\x80\x80\x80\x80\x80\x80\x20\0")


def test_several_addresses_and_a_login(registry: FakeRegistry) -> None:
    """With several addresses the next one is tried if one does not answer; each request has the login."""
    client = SchemaRegistry(f"http://127.0.0.1:1,{registry.url}", username="ann", password="secret")
    assert client.register("s", pybroker.RegisteredSchema('"string"')) == 1 and client.schema(1).text == '"string"'
    assert registry.headers == ["Basic YW5uOnNlY3JldA=="] and "secret" not in repr(client)
    SchemaRegistry([registry.url], token="t").latest("s")
    assert registry.headers[-1] == "Bearer t"
    with pytest.raises(RegistryError, match=r"gave no usable answer to GET http://127\.0\.0\.1:1/schemas/ids/1: "):
        SchemaRegistry("http://127.0.0.1:1").schema(1)
    with pytest.raises(ValueError, match="is 'localhost:8081'; it must be http://HOST:PORT or https://HOST:PORT"):
        SchemaRegistry("localhost:8081")
    with pytest.raises(TypeError, match="a schema registry is a URL, a SchemaRegistry or a client of confluent"):
        Avro(7, ORDER)


def test_an_unknown_schema_stops_the_partition(shared_broker: Server, topic: str, registry: FakeRegistry) -> None:
    """An unknown schema stops the partition: the consumer raises until the registry has the schema, and then returns
    the same record."""
    create(shared_broker, topic)
    with Producer(bootstrap_servers=shared_broker.bootstrap) as producer:
        producer.send(topic, b"\x00\x00\x00\x00\x01\x02").result(WAIT_S)
    with Consumer(
        topic, bootstrap_servers=shared_broker.bootstrap, auto_offset_reset="earliest",
        value_deserializer=Avro(registry.url),
    ) as consumer:  # fmt: skip
        with pytest.raises(DeserializationError, match="Schema 1 not found"):
            next(consumer)
        registry.schemas.append({"schema": json.dumps(ORDER)})
        assert next(consumer).value == {"id": 1}


class _OfConfluent:
    """A client that answers as confluent-kafka's SchemaRegistryClient."""

    def __init__(self, client: SchemaRegistry) -> None:
        self._client = client

    def get_schema(self, schema_id: int) -> Any:
        return _Schema(self._client.schema(schema_id).text)

    def register_schema(self, subject: str, schema: Any) -> int:
        return self._client.register(subject, pybroker.RegisteredSchema(schema.schema_str))


class _Schema:
    schema_type = "AVRO"
    references: tuple[()] = ()

    def __init__(self, text: str) -> None:
        self.schema_str = text


def test_a_client_of_confluent_kafka(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SchemaRegistryClient of confluent-kafka is accepted as it is."""
    from pybroker.client.serialization.registry import OfConfluent

    monkeypatch.setattr(OfConfluent, "_theirs", staticmethod(lambda schema: _Schema(schema.text)))
    avro = Avro(_OfConfluent(SchemaRegistry(registry.url)), ORDER)
    assert Avro(registry.url).deserialize("t", avro.serialize("t", {"id": 5})) == {"id": 5}
    assert avro.deserialize("t", avro.serialize("t", {"id": 6})) == {"id": 6}
