"""Mistakes in a pipeline that can be seen without Spark are reported before Spark is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybroker.errors import INVALID_CONFIG, KafkaError
from pybroker.spark.pipeline import Job, runner
from pybroker.spark.pipeline.parsing import ddl
from tests.rows import with_each

SCHEMA = "id bigint, kind string"
GOOD: dict[str, Any] = {"bootstrap": "127.0.0.1:1", "table": "/t", "topics": "events", "schema": SCHEMA}


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Spark unavailable, and fail if it is started."""
    monkeypatch.setattr(runner, "find_spark", lambda: None)
    monkeypatch.setattr(runner, "begin", lambda *_, **__: pytest.fail("Spark is started"))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"schema": "id bigintt"}, "column id has the unknown type bigintt: did you mean bigint?"),
        ({"schema": "id, kind string"}, "not a list of columns: column id has no type"),
        ({"schema": "id bigint kind string"}, "not a list of columns: a comma is missing before kind"),
        ({"schema": "id array<bigint"}, "not a list of columns: column id: a > is missing"),
        ({"schema": "id bigint,"}, "not a list of columns: it ends with a comma"),
        ({"schema": "id bigint, ID string"}, "the schema's column ID is a duplicate"),
        ({"schema": "kafka_offset bigint"}, "the schema's column kafka_offset is a duplicate, or reserved"),
        ({"partition_by": ("kin",)}, "the table cannot be partitioned by kin: the schema has no such column"),
        ({"format": "avro", "schema": "{"}, "the Avro schema is not JSON"),
        ({"format": "avro", "schema": '{"type": "record", "fields": [{"type": "int"}]}'}, "not a record with fields"),
        ({"format": "avro", "schema": '{"type": "record", "fields": [{"name": "a", "type": "inn"}]}'}, "no Spark type"),
        ({"topics": "a b"}, "topic 'a b': "),
        ({"topics": None, "pattern": "("}, "is not a regular expression"),
        ({"dead_letters": "a b"}, "topic 'a b': "),
        ({"starting_offsets": "earlyest"}, "startingOffsets is 'earlyest'"),
        ({"options": {"failOnDatLoss": "false"}}, "did you mean failOnDataLoss"),
        ({"conf": {"executor.memory": "1g"}}, "executor.memory is not a setting of Spark: their names"),
        ({"conf": {"spark.remote": "sc://x"}}, "names a Spark Connect server"),
        ({"conf": {"spark.submit.deployMode": "cluster"}}, "spark.submit.deployMode=cluster is for spark-submit"),
        ({"table": "/t/{x}"}, "the table cannot be at /t/{x}: Spark reads { as part of a pattern"),
        ({"table_format": "iceberg", "table": "events", "checkpoint": "/c"}, "events is not an Iceberg table: use "),
        ({"table_format": "delta", "table": "nonsense://x/y", "checkpoint": "/c"}, "cannot use a table at nonsense:"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_before_spark_starts(how: dict[str, Any], sentence: str) -> None:
    """A mistake in the options is reported without connecting to the broker, which does not exist."""
    with pytest.raises(KafkaError) as caught:
        runner.run(Job(**GOOD | how))
    assert caught.value.code == INVALID_CONFIG and sentence in caught.value.message


@with_each("table_format", ["parquet", "delta"])
def test_a_file_in_the_place_of_the_table(tmp_path: Path, table_format: str) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for how in ({"table": str(file)}, {"table": f"file:{file}/below"}, {"checkpoint": str(file)}):
        with pytest.raises(KafkaError, match=f"{file} is a file, not a directory"):
            runner.run(Job(**GOOD | {"table_format": table_format} | how))


def test_what_is_right_goes_on_to_the_broker() -> None:
    """A job without a mistake goes on to connect to the broker, which does not exist."""
    for how in ({}, {"format": "raw", "schema": None}, {"schema": "struct<id bigint>"}, {"conf": {"spark.x": "y"}}):
        with pytest.raises(KafkaError, match=r"could not reach 127\.0\.0\.1:1"):
            runner.run(Job(**GOOD | how))


@with_each(
    ("text", "names"),
    [
        ("a int", ["a"]),
        ("a: INT, `b``c` Array<map<string , struct<x:int, y decimal( 9 , 2)>>> NOT NULL COMMENT 'b''s'", ["a", "b`c"]),
        ("a varchar(3), b interval day to second, c string collate UTF8_LCASE, d struct<>", ["a", "b", "c", "d"]),
        ("comment string, to int", ["comment", "to"]),
        ("a-b int", None),
        ("a int default 5", None),
        ("struct<a int>", None),
        ("a int generated always as (b + 1)", None),
    ],
)
def test_columns_are_named_without_spark(text: str, names: list[str] | None) -> None:
    """The pipeline finds column names without Spark, or returns None if only Spark can parse the text."""
    assert ddl.column_names(text) == names
