"""docs/spark.md: its command parses, and its table has the code's options and defaults."""

from __future__ import annotations

import re
import shlex

import pytest

from pybroker.cli import pipeline
from pybroker.spark import options
from tests.harness import ROOT

PAGE = (ROOT / "docs/spark.md").read_text()
SOURCE = PAGE[PAGE.index("## The source") : PAGE.index("## The sink")]
PIPELINE = PAGE[PAGE.index("## The pipeline") : PAGE.index("## What it reaches")]
NAMED = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def test_the_table_has_every_option_of_the_source() -> None:
    """Each that is there exists; each that exists is there, but for those of security: they have their own page."""
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
    """Of those that are a value, and not a chapter."""
    (told,) = re.findall(rf"^\| `{re.escape(name)}` \| (\S+) \|", SOURCE, re.MULTILINE)
    assert told == str(held).lower()


def test_the_pipeline_s_commands_parse() -> None:
    """Each option that its chapter names is one of the command's."""
    found = re.findall(r"^    pybroker pipeline (.+?[^\\])$", PIPELINE, re.DOTALL | re.MULTILINE)
    commands = [shlex.split(command.replace("\\\n", " ")) for command in found]
    told, iceberg, framed = (pipeline.command.make_context("pipeline", command).params for command in commands)
    assert told["topics"] == "events" and told["dead_letters"] == "events-dead" and told["table"] == "/data/events"
    assert iceberg["table"] == "lake.web.events" and iceberg["checkpoint"] is not None
    assert [option.partition("=")[0] for option in iceberg["table_options"]] == ["uri", "warehouse"]
    assert framed["registry"] is not None and framed["format_"] == "avro"
    known = {option for parameter in pipeline.command.params for option in parameter.opts}
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", PIPELINE)) <= known
