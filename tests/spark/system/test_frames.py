"""Records with a schema registry's frame, through the pipeline into a table."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pybroker.avro import writer_schemas
from pybroker.spark.pipeline.error_messages import account, failure
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.testing import Record
from tests.spark.registry import Registry, framed, record
from tests.spark.tables import START_MS, ParquetIngest
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

JOB = record("order", price="long", quantity="long")
TURNED = record("order", quantity="long", tax=("long", 0), price="long")
ROW = {"price": 100, "quantity": 2, "tax": 7}


@pytest.fixture
def ingest(topics: Topics, topic: str, tmp_path: Path) -> ParquetIngest:
    return ParquetIngest(topics, topic, tmp_path / "table", format="avro", schema=json.dumps(JOB))


def produce(ingest: ParquetIngest, *values: bytes) -> None:
    ingest.topics.produce(ingest.topic, [Record(value, timestamp_ms=START_MS) for value in values])


def found(ingest: ParquetIngest) -> list[tuple[int, int]]:
    return [(row["price"], row["quantity"]) for row in ingest.rows()]


def test_avro_of_several_writers(ingest: ParquetIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Avro of several writers is decoded by the schema of each record's id; an unknown id becomes a dead letter with
    its number. While the registry is down the batch fails."""
    dead = ingest.topics.create(f"{ingest.topic}-dead")
    registry = Registry()
    monkeypatch.setattr(writer_schemas.WriterSchemas.__init__, "__defaults__", (None, (), 0.0))
    how: dict[str, Any] = {"registry": registry.url, "dead_letters": dead}
    produce(ingest, framed(1, JOB, ROW), framed(2, TURNED, ROW), framed(3, JOB, ROW))
    with registry.web:
        registry.add(1, JOB)
        registry.add(2, TURNED)
        registry.fail = [500]
        with pytest.raises(Exception) as caught:
            ingest.run(**how)
        assert failure(account(caught.value)).message.startswith(f"the schema registry {registry.url} did not give ")
        assert ingest.files() == [] and ingest.topics.held(dead) == []
        ingest.run(**how)
    assert found(ingest) == [(100, 2), (100, 2)]
    (letter,) = ingest.topics.held(dead)
    assert dict(letter.headers)["pybroker.error"] == (
        f"schema 3 is not known to the schema registry {registry.url}".encode())  # fmt: skip


def test_an_id_that_becomes_known_meanwhile(ingest: ParquetIngest) -> None:
    """An id that becomes known between reading rows and dead letters fails the batch, as its record would be in
    neither. The next run has it in the table."""
    dead = ingest.topics.create(f"{ingest.topic}-dead")
    registry = Registry()
    how: dict[str, Any] = {"registry": registry.url, "dead_letters": dead}
    produce(ingest, framed(1, JOB, ROW), framed(2, TURNED, ROW))
    registry.add(1, JOB)

    def learn(pipeline: Pipeline) -> None:
        write = pipeline._write_dead_letters

        def after(rows: Any) -> None:
            registry.add(2, TURNED)
            write(rows)

        pipeline._write_dead_letters = after  # type: ignore[method-assign]

    with registry.web:
        with pytest.raises(Exception) as caught:
            ingest.run(learn, **how)
        assert failure(account(caught.value)).message.startswith("1 records of batch 0 did not parse, and later 0 did")
        assert ingest.files() == []
        ingest.run(**how)
    assert found(ingest) == [(100, 2), (100, 2)] and ingest.topics.held(dead) == []


def test_avro_by_a_map_of_ids(ingest: ParquetIngest, tmp_path: Path) -> None:
    """Avro is decoded without a registry by a map of ids to schemas."""
    file = tmp_path / "schemas.json"
    file.write_text(json.dumps({"1": JOB, "2": TURNED}))
    produce(ingest, framed(1, JOB, ROW), framed(2, TURNED, ROW), framed(3, JOB, ROW))
    ingest.run(schemas=str(file))
    assert found(ingest) == [(100, 2), (100, 2)] and ingest.progress.dead_letters == 1


def test_json_behind_a_frame(ingest: ParquetIngest) -> None:
    """JSON behind a frame is read: five bytes are skipped, and fields found by name; a framed value that is not JSON is
    a dead letter."""
    text = json.dumps({"quantity": 2, "price": 100}).encode()
    produce(ingest, text, b"\0\0\0\0\x09" + text, b"\0\0\0\0\x09", b"\0\0\0" + text, framed(1, JOB, ROW))
    ingest.run(format="json", schema="price bigint, quantity bigint")
    assert found(ingest) == [(100, 2), (100, 2)] and ingest.progress.dead_letters == 3


def test_what_a_batch_shows_is_said_once(ingest: ParquetIngest, caplog: pytest.LogCaptureFixture) -> None:
    """A batch's remarks are logged once a run: a column without any value, and one reason for unparsable records. A
    batch without a parsed row has no remark about columns."""
    how: dict[str, Any] = {"format": "json", "schema": "price bigint, `of it` string", "max_offsets": 2}
    produce(ingest, b"{", b"[]", *(json.dumps({"price": price, "of_it": "x"}).encode() for price in range(4)))
    with caplog.at_level(logging.WARNING, logger="pybroker.spark.pipeline.row_counts"):
        ingest.run(**how)
    assert [row["price"] for row in ingest.rows()] == [0, 1, 2, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "records did not parse batch=0 records=2 reason=the value is not a JSON object of the schema",
        "column without a value batch=1 column=of it rows=2: it is NULL in every row; do the records use another name?",
    ]
