"""Keys and values in Avro, with the schemas of a registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from html import escape

import confluent_kafka as ck
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.avro.framing import frame
from pybroker.avro.registry_client import RegistryClient
from pybroker.avro.writer_schemas import WriterSchemas
from pybroker.console.avro_view import AvroView
from pybroker.console.rendering import AVRO, shown_bytes
from tests.cli.conftest import run
from tests.console.conftest import Console
from tests.harness import Server
from tests.spark.registry import Registry, encoded, record

ORDER = record("order", id="long", label="string", raw="bytes")


@pytest.fixture
def registry() -> Iterator[Registry]:
    """A registry with schema 7."""
    made = Registry()
    with made.web:
        made.add(7, ORDER)
        yield made


def view(registry: Registry) -> AvroView:
    return AvroView(WriterSchemas(RegistryClient((registry.url,)), patience_s=0.0))


def test_a_framed_value_is_json(registry: Registry) -> None:
    """A framed value is shown by its writer's schema; bytes in it are hex."""
    value = frame(7) + encoded(ORDER, {"id": 5, "label": "<b>\x1b", "raw": b"\xff\x00"})
    shown = shown_bytes(value, AVRO, 10_000, view(registry))
    assert json.loads(shown.text.replace("\\x1b", "?"))["id"] == 5 and not shown.note
    assert '"raw": "ff00"' in shown.text and "\x1b" not in shown.text


def test_what_is_no_avro_is_text_with_the_reason(registry: Registry) -> None:
    """Other bytes stay text, with a note of why; an unknown id is asked for once, a registry that is down once."""
    avro = view(registry)
    assert shown_bytes(b"plain", AVRO, 100, avro) == ("plain", "no frame of a schema registry")
    for _ in range(3):
        assert "schema 8 is not known to" in shown_bytes(frame(8) + b"x", AVRO, 100, avro).note
    assert registry.paths.count("/schemas/ids/8") == 1
    assert shown_bytes(frame(7) + b"\x01", AVRO, 100, avro).note == "not an Avro record of its schema 7"
    registry.fail = [500, 500]
    for number in (9, 10):
        assert "did not give schema 9" in shown_bytes(frame(number) + b"x", AVRO, 100, avro).note
    assert registry.fail == [500]


@given(st.binary(max_size=200))
def test_any_bytes_are_shown(data: bytes) -> None:
    """No bytes behind a frame raise anything, and what is shown is bounded."""
    avro = AvroView(WriterSchemas(given=((7, json.dumps(ORDER)),)))
    shown = shown_bytes(frame(7) + data, AVRO, 300, avro)
    assert len(escape(shown.text)) <= 300


def test_a_page_shows_avro(
    registry: Registry, shared_broker: Server, start_console: Callable[..., Console], topic: str
) -> None:
    """With --registry the console has Avro among the formats of keys and of values; without it, not."""
    run("topics", "create", topic, "-b", shared_broker.bootstrap)
    producer = ck.Producer({"bootstrap.servers": shared_broker.bootstrap, "log_level": 0})
    value = frame(7) + encoded(ORDER, {"id": 5, "label": "n", "raw": b""})
    producer.produce(topic, value, key=b'{"k": 1}')
    assert producer.flush(60) == 0
    browser = start_console(shared_broker.bootstrap, "--registry", registry.url).browser()
    page = browser.get("/messages", {"name": topic, "as": "avro", "keys": "json"})
    assert '"id": 5' in page.text and '{ "k": 1 }' in page.text
    plain = start_console(shared_broker.bootstrap).browser()
    refused = plain.get("/messages", {"name": topic, "as": "avro"})
    assert refused.code == 400 and "as is one of text, json, hex" in refused.text


def test_a_registry_that_cannot_be_is_a_sentence() -> None:
    done = run("console", "-b", "localhost:1", "--registry", "ftp://x")
    assert done.code == 2 and "it must be http://HOST:PORT" in done.sentence
    done = run("console", "-b", "localhost:1", "--registry-config", "file")
    assert done.code == 2 and "needs --registry" in done.err
