"""Framed Avro, without Spark: each record is decoded with its writer's schema, as a row of the job's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from pybroker.avro.registry_client import RegistryClient
from pybroker.avro.resolution import NODES_MAX, Resolver
from pybroker.avro.writer_schemas import WriterSchemas
from pybroker.errors import NETWORK_EXCEPTION, KafkaError
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.parsing.formats import ERROR, _avro_reader, check_schemas, decode_avro
from tests.spark.registry import Registry, encoded, framed, record

JOB = record("order", price="long", quantity="long")
MILLIS, MICROS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
NANOS, DATE = {"type": "long", "logicalType": "timestamp-nanos"}, {"type": "int", "logicalType": "date"}
UUIDS = {"type": "string", "logicalType": "uuid"}
AT = datetime(2023, 11, 14, 22, 13, 20, 123000, UTC)
AT_MS = int(AT.timestamp() * 1000)


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with made.web:
        yield made


def of(registry: Registry, job: Any) -> Resolver:
    return Resolver(job, WriterSchemas(RegistryClient((registry.url,)), patience_s=0.0))


def read(registry: Registry, job: Any, writer: Any, row: Any, number: int = 7) -> Any:
    """The row, in the job's schema, of a record with this writer schema; the reason if there is none."""
    registry.add(number, writer)
    found, why = of(registry, job).decode(framed(number, writer, row))
    return why if found is None else found


@pytest.mark.parametrize("writer", [
    JOB,
    record("order", quantity="long", price="long"),
    record("order", quantity="int", price="int"),
    record("order", note="string", quantity="long", price="long", tax=("long", 0)),
    record("com.shop.order", quantity=["null", "long"], price="long"),
])  # fmt: skip
def test_a_record_of_another_writer(registry: Registry, writer: Any) -> None:
    """A record of another writer schema gives each value to its column: with fields reordered, narrower, more, or in
    another namespace."""
    row = {"price": 100, "quantity": 2, "note": "n", "tax": 7}
    assert read(registry, JOB, writer, row) == {"price": 100, "quantity": 2}


def test_what_the_writer_did_not_have(registry: Registry) -> None:
    """A field that the writer lacked gets the job's default, converted to the column's type."""
    inner = record("inner", b=("bytes", "\u00ff"), n=("long", 4))
    job = record("order", price="long", b=("bytes", "\u00ff"), at=(MILLIS, AT_MS), day=(DATE, 1), x=("double", 1),
                 n=(["null", "long"], None), u=(["long", "null"], 5), r=(inner, {"n": 6}),
                 a=({"type": "array", "items": "bytes"}, ["\u00fe"]))  # fmt: skip
    assert read(registry, job, record("order", price="long"), {"price": 1}) == {
        "price": 1, "b": b"\xff", "at": AT, "day": date(1970, 1, 2), "x": 1.0, "n": None, "u": 5,
        "r": {"b": b"\xff", "n": 6}, "a": [b"\xfe"],
    }  # fmt: skip


@pytest.mark.parametrize(("job", "writer", "written", "expected"), [
    (MICROS, MILLIS, AT_MS, AT),
    (MILLIS, MICROS, AT_MS * 1000, AT),
    (MICROS, NANOS, AT_MS * 1_000_000, AT),
    (MILLIS, "long", AT_MS, AT),
    (MICROS, "long", AT_MS * 1000, AT),
    (["null", MILLIS], ["long", "null"], AT_MS, AT),
    ({"type": "array", "items": MILLIS}, {"type": "array", "items": "long"}, [AT_MS], [AT]),
    ("long", MILLIS, AT_MS, AT_MS),
    ("double", MILLIS, AT_MS, float(AT_MS)),
    ("double", "int", 3, 3.0),
    (DATE, "int", 19_675, date(2023, 11, 14)),
    ("int", DATE, 19_675, 19_675),
    (UUIDS, UUIDS, str(UUID(int=5)).upper(), str(UUID(int=5))),
    ("string", UUIDS, "x", "x"),
    (UUIDS, "string", "x", "x"),
    ("bytes", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, b"\x01", b"\x01"),
    ("string", "bytes", b"text", "text"),
    ("bytes", "string", "text", b"text"),
])  # fmt: skip
def test_logical_types_of_either_side(registry: Registry, job: Any, writer: Any, written: Any, expected: Any) -> None:
    """A timestamp keeps its meaning in another unit. A plain number gets the job's unit; a timestamp is a number if the
    job's schema has one."""
    bare = json.loads(json.dumps(writer).replace('"logicalType"', '"was"'))  # written unconverted
    registry.add(7, record("order", more="int", v=writer))
    value = framed(7, record("order", more="int", v=bare), {"more": 1, "v": written})
    assert of(registry, record("order", v=job)).decode(value) == ({"v": expected}, None)


@pytest.mark.parametrize(("writer", "row", "why"), [
    (record("order", price="string", quantity="long"), {"price": "x", "quantity": 1}, "Schema mismatch: string is not"),
    (record("order", price="long"), {"price": 1}, "No default value for field quantity"),
    (record("refund", price="long", quantity="long"), {"price": 1, "quantity": 1}, "Schema mismatch"),
])  # fmt: skip
def test_a_schema_that_does_not_fit(registry: Registry, writer: Any, row: Any, why: str) -> None:
    """A schema that does not fit the job's gives a reason that is short and names the id."""
    told = read(registry, JOB, writer, row)
    assert told.startswith("a record of schema 7 does not fit the job's schema: ") and why in told and len(told) < 260


def test_a_time_that_is_a_date_for_the_job(registry: Registry) -> None:
    told = read(registry, record("e", v=MILLIS), record("e", v=DATE), {"v": date(2023, 1, 1)})
    assert told == "a record of schema 7 does not fit the job's schema: date is not timestamp-millis"


def test_references(registry: Registry) -> None:
    """Schema references are resolved: references of references, and one name that is used twice."""
    cents = record("shop.Cents", n="long")
    money = {**record("shop.Money", amount="shop.Cents"), "doc": "in cents"}
    order = record("shop.order", total="shop.Money", paid=["null", "shop.Money"], price="long")
    registry.subjects["cents", 1] = {"schema": json.dumps(cents)}
    needs = [{"name": "shop.Cents", "subject": "cents", "version": 1}]
    registry.subjects["shop%2Fmoney", 3] = {"schema": json.dumps(money), "references": needs}
    registry.add(7, order, [{"name": "shop.Money", "subject": "shop/money", "version": 3}, *needs])
    named: dict[str, Any] = {}
    whole = [fastavro.parse_schema(each, named) for each in (cents, money, order)][-1]
    row = {"total": {"amount": {"n": 4}}, "paid": {"amount": {"n": 5}}, "price": 6}
    job_money = record("Money", amount=record("Cents", n="long"))
    job = record("order", price="long", paid=["null", job_money])
    assert of(registry, job).decode(framed(7, whole, row)) == (
        {"price": 6, "paid": {"amount": {"n": 5}}}, None)  # fmt: skip
    registry.subjects.pop(("cents", 1))
    registry.schemas[8] = registry.schemas[7]
    _, why = of(registry, job).decode(framed(8, whole, row))
    assert why == "schema 8 refers to version 1 of 'cents', which does not exist"


def decimals(scale: int, **more: Any) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": scale, **more}


@pytest.mark.parametrize(("job", "writer", "expected"), [
    (decimals(2), decimals(4), Decimal("1.0000")),
    (decimals(4), decimals(2), Decimal("100.00")),
    (decimals(2), decimals(0), Decimal("10000")),
    (["null", decimals(2)], decimals(4), Decimal("1.0000")),
    (decimals(1, type="fixed", name="d", size=2, precision=4),
     decimals(3, type="fixed", name="d", size=2, precision=4), Decimal("10.000")),
])  # fmt: skip
def test_a_decimal_of_another_scale(registry: Registry, job: Any, writer: Any, expected: Decimal) -> None:
    """A decimal of another scale keeps its number: the writer's scale is used to decode it."""
    unscaled = (10_000).to_bytes(2)
    fixed = {"type": "fixed", "name": "d", "size": 2} if writer["type"] == "fixed" else "bytes"
    registry.add(7, record("order", v=writer))
    row, why = of(registry, record("order", v=job)).decode(framed(7, record("order", v=fixed), {"v": unscaled}))
    assert (row, why) == ({"v": expected}, None) and str(row["v"]) == str(expected)


NODE = record("node", next=["null", "node"])
DEEP: Any = "null"
for depth in range(15):
    DEEP = record(f"r{depth}", a=DEEP, b=f"r{depth - 1}" if depth else "null")


@pytest.mark.parametrize(("writer", "why"), [
    (record("order", x=NODE, price="long", quantity="long"), "is recursive"),
    (record("order", x={"type": "array", "items": "null"}, price="long", quantity="long"),
     "has an array whose items take no bytes"),
    (record("order", x={"type": "array", "items": record("empty")}, price="long", quantity="long"),
     "has an array whose items take no bytes"),
    (record("order", x=DEEP, price="long", quantity="long"), f"has more than {NODES_MAX} types"),
    (record("order", x={"type": "fixed", "name": "f", "size": -1}, price="long"), "has a fixed type of -1 bytes"),
    (record("order", x={"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}}, price="long"),
     "has an array whose items take no bytes"),
    ("long", "is not a record"),
    (record("order", x="no.such"), "is not an Avro schema: no.such"),
    ({"type": "record"}, "is not an Avro schema: "),
    (None, "is not an Avro schema: "),
])  # fmt: skip
def test_a_schema_that_could_do_harm(registry: Registry, writer: Any, why: str) -> None:
    """No schema or bytes of a producer make a worker loop for ever or die."""
    registry.add(7, writer)
    row, told = of(registry, JOB).decode(b"\0\0\0\0\x07" + b"\x02" * 1_000_000)
    assert row is None and told is not None and told.startswith(f"schema 7 {why}") and len(told) < 260


@pytest.mark.parametrize("schema", [JOB, record("order", quantity="long", price="long")])
def test_bytes_that_are_none_of_the_schema(registry: Registry, schema: Any) -> None:
    """Bytes that do not match the schema give a reason: cut off, with a remainder, or without a frame."""
    good = framed(7, schema, {"price": 1, "quantity": 2})
    registry.add(7, schema)
    resolver = of(registry, JOB)
    assert resolver.decode(good) == ({"price": 1, "quantity": 2}, None)
    for value in (good[:-1], good + b"!", good[:5]):
        assert resolver.decode(value) == (None, "the value is not an Avro record of its schema 7")
    for value in (good[:4], b"", b"\1" + good[1:]):
        assert resolver.decode(value) == (None, "the value does not begin with the frame of a schema registry")


def test_without_a_registry_no_id_is_passed_over() -> None:
    """Without a registry a framed record is refused, and the reason says what to set. A plain record may begin with
    0."""
    known = fastavro.parse_schema(JOB)
    assert decode_avro(known, encoded(JOB, {"price": 0, "quantity": 7})) == ({"price": 0, "quantity": 7}, None)
    assert decode_avro(known, framed(9, JOB, {"price": 1, "quantity": 2})) == (None, (
        "the value is not an Avro record of the schema; if it is framed with schema id 9, the job needs --registry or "
        "--schemas"))  # fmt: skip
    assert decode_avro(known, b"\1") == (None, "the value is not an Avro record of the schema")


def test_a_default_that_is_none(registry: Registry) -> None:
    """A default that does not fit its type is reported before Spark starts."""
    schema = record("order", day=(DATE, "today"))
    job = Job("h:1", "/t", "a", format="avro", schema=json.dumps(schema), registry=registry.url)
    with pytest.raises(KafkaError, match="the Avro schema cannot be used"):
        check_schemas(job)


def in_a_worker(registry: Registry, values: list[bytes | None]) -> list[dict[str, Any]]:
    """The rows that a Spark task returns for a batch of these values."""
    kinds = {"price": LongType(), "quantity": LongType(), "kafka_value": BinaryType(), ERROR: StringType()}
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    task = _avro_reader(JOB, schema, WriterSchemas(RegistryClient((registry.url,)), patience_s=0.0))
    given = pa.record_batch({"kafka_value": pa.array(values, "binary")})
    return [row for batch in task(iter([given])) for row in batch.to_pylist()]


def test_good_records_stand_beside_bad_ones(registry: Registry) -> None:
    """Good records arrive beside bad ones in one batch: two writers, no frame, and no value."""
    turned = record("order", quantity="long", price="long")
    registry.add(7, JOB)
    registry.add(8, turned)
    row = {"price": 100, "quantity": 2}
    values = [framed(7, JOB, row), framed(8, turned, row), framed(9, JOB, row), None, framed(8, turned, row)[:-1]]
    rows = in_a_worker(registry, values)
    assert [(each["price"], each["quantity"]) for each in rows] == [(100, 2), (100, 2), *[(None, None)] * 3]
    assert [each[ERROR] for each in rows] == [
        None, None, f"schema 9 is not known to the schema registry {registry.url}", "the record has no value",
        "the value is not an Avro record of its schema 8",
    ]  # fmt: skip
    assert [each["kafka_value"] for each in rows] == values


def test_a_registry_that_is_down_ends_the_task(registry: Registry) -> None:
    """A registry that is down fails the batch and no record becomes a dead letter; the batch succeeds when the registry
    is back."""
    registry.add(7, JOB)
    value = framed(7, JOB, {"price": 100, "quantity": 2})
    for fail in (500, None, 401, 403):
        registry.fail = [fail]
        with pytest.raises(KafkaError, match=f"the schema registry {registry.url} did not give schema 7: ") as caught:
            in_a_worker(registry, [value])
        assert caught.value.code == NETWORK_EXCEPTION
    assert [each[ERROR] for each in in_a_worker(registry, [value])] == [None]
