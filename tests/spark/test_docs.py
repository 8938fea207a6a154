"""docs/spark.md: its command parses, and its table has the code's options and defaults."""

from __future__ import annotations

import re
import shlex

import fastavro
import pytest

from pybroker.cli.records import pipeline
from pybroker.spark import options
from pybroker.spark.pipeline.parsing.formats import decode_avro
from tests.harness import ROOT
from tests.spark.registry import framed, record

PAGE = (ROOT / "docs/spark.md").read_text()
SOURCE = PAGE[PAGE.index("## The source") : PAGE.index("## The sink")]
PIPELINE = PAGE[PAGE.index("## The pipeline") : PAGE.index("## What it reaches")]
NAMED = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def test_the_table_has_every_option_of_the_source() -> None:
    """The table documents every option of the source, except those of security, which have their own page."""
    rows = re.findall(r"^\| (`.+?) \|", SOURCE, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    client = {f"kafka.{name}" for name in options.SOURCE_CLIENT}
    assert told - client == options.SOURCE_OPTIONS
    secured = {f"kafka.{name}" for name in options.SECURITY_CLIENT}
    assert told & client >= client - secured - {"kafka.request.timeout.ms"}


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("failOnDataLoss", options.parse_source(NAMED, streaming=False).fail_on_data_loss),
        ("includeHeaders", options.parse_source(NAMED, streaming=False).include_headers),
        ("startingOffsetsByTimestampStrategy", options.parse_source(NAMED, streaming=False).timestamp_strategy),
        ("kafka.max.partition.fetch.bytes", options.FETCH_BYTES),
        ("kafkaConsumer.pollTimeoutMs", options.POLL_TIMEOUT_MS),
    ],
)
def test_the_defaults_are_those_of_the_table(name: str, held: object) -> None:
    """The defaults in the table are the code's, where the default is a value and not a link to a chapter."""
    (told,) = re.findall(rf"^\| `{re.escape(name)}` \| (\S+) \|", SOURCE, re.MULTILINE)
    assert told == str(held).lower()


def test_how_many_framed_records_are_read_without_a_registry() -> None:
    """The page has the right number of framed records, with ids from 1 and texts of each length, that are read without
    a registry."""
    schema = fastavro.parse_schema(record("order", **dict.fromkeys("abcd", "long"), s="string"))
    rows = [{"a": 1, "b": 2, "c": 3, "d": 4, "s": "x" * size} for size in range(40)]
    values = [framed(number, schema, row) for number in range(1, 64) for row in rows]
    wrong = sum(decode_avro(schema, value)[0] is not None for value in values)
    assert f"{wrong} of {len(values):,} framed records of four longs and a string" in PIPELINE


def test_the_pipeline_s_commands_parse() -> None:
    """The pipeline's commands on the page parse, and each option in its chapter exists."""
    found = re.findall(r"^pybroker pipeline (.+?[^\\])$", PIPELINE, re.DOTALL | re.MULTILINE)
    commands = [shlex.split(command.replace("\\\n", " ")) for command in found]
    told, iceberg, registered = (pipeline.command.make_context("pipeline", command).params for command in commands)
    assert told["topics"] == "events" and told["dead_letters"] == "events-dead" and told["table"] == "/data/events"
    assert iceberg["table"] == "lake.web.events" and iceberg["checkpoint"] is not None
    assert [option.partition("=")[0] for option in iceberg["table_options"]] == ["uri", "warehouse"]
    assert registered["registry"] is not None and registered["format_"] == "avro"
    known = {option for parameter in pipeline.command.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PIPELINE)) <= known
