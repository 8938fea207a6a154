"""`pybroker pipeline` as a person runs it: a process with its own Spark, stopped, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pybroker import Producer
from pybroker.errors import KafkaError
from pybroker.spark import pipeline
from pybroker.spark.java import find_java
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.preflight import check_dead_letters
from pybroker.testing import Record
from tests.cli.conftest import run
from tests.harness import BrokerProcess, Process, until
from tests.spark.conftest import SMALL_JVM
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark in processes of their own, each of which has SLOW_S, and may need half of it on a busy machine.
pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

SLOW_S = 150.0
SMALL = (
    "--master",
    "local[1]",
    "--conf",
    "spark.driver.memory=512m",
    "--conf",
    f"spark.driver.extraJavaOptions={SMALL_JVM}",
)


@pytest.fixture
def topics(shared_broker: BrokerProcess) -> Topics:
    try:
        find_java()
    except KafkaError as error:
        pytest.skip(error.message)
    return Topics(shared_broker)


def start(topics: Topics, topic: str, table: Path, *options: str) -> Process:
    return start_at(topics.broker.bootstrap, topic, table, *options)


def start_at(bootstrap: str, topic: str, table: Path, *options: str) -> Process:
    named = ("-b", bootstrap, "-t", topic, "--table", str(table), "--schema", "id bigint")
    return Process([sys.executable, "-m", "pybroker", "pipeline", *named, "--json", *SMALL, *options])


def ids(table: Path) -> list[int]:
    """The ids in the table now: a file that disappears while it is read has its rows in another file. Both may exist
    for a moment, and their rows twice."""
    while True:
        files: list[Path] = []
        for directory, below, names in os.walk(table):
            below[:] = [name for name in below if name != "_pybroker"]
            files += [Path(directory) / name for name in names if name.endswith(".parquet")]
        try:
            return sorted(number for path in files for number in pq.ParquetFile(path).read(["id"])["id"].to_pylist())
        except FileNotFoundError:
            continue


def numbers(topics: Topics, topic: str, *span: int) -> None:
    topics.produce(topic, [Record(json.dumps({"id": number})) for number in range(*span)])


def told(process: Process) -> dict[str, Any]:
    """The JSON document at the end of a process's output."""
    text = "\n".join(process.lines)
    found: dict[str, Any] = json.loads(text[text.rindex("{") :])
    return found


@pytest.mark.long
def test_killed_at_work_and_stopped_at_the_end(topics: Topics, topic: str, tmp_path: Path) -> None:
    """kill -9 within a batch or between two loses nothing: the next run goes on, and ends on SIGTERM with every record
    in the table once."""
    table = tmp_path / "table"
    topics.create(topic)
    numbers(topics, topic, 0, 100)
    first = start(topics, topic, table, "--max-records", "10", "--every", "0")
    until("some batches are in the table", lambda: len(ids(table)) >= 20 or not first.running, SLOW_S)
    assert first.running, first.output()
    first.kill()
    numbers(topics, topic, 100, 120)
    second = start(topics, topic, table, "--every", "0", "--compact-files", "2")
    until("all of it is in the table", lambda: len(set(ids(table))) >= 120 or not second.running, SLOW_S)
    assert second.running, second.output()
    second.signal(signal.SIGTERM)
    assert second.wait(SLOW_S) == 0, second.output()
    assert ids(table) == list(range(120))
    assert told(second)["dead_letters"] == 0 and told(second)["records"] <= 120
    assert any("records/s, " in line for line in second.lines), second.output()
    begins = ["starting Spark", "Spark is started, waiting for its workers", "waiting for the first batch"]
    assert [line for line in second.lines if line in begins] == begins, second.output()


@pytest.mark.long
def test_stopped_in_a_batch(topics: Topics, topic: str, tmp_path: Path, spark: SparkSession) -> None:
    """SIGTERM within a batch cancels it without an error: none of it is in the table, and the next run has all of
    it."""
    table = tmp_path / "table"
    topics.create(topic)
    count = 400_000  # a batch of several seconds
    with Producer(bootstrap_servers=topics.broker.bootstrap) as producer:
        producer.send_columns(topic, [b'{"id": %d}' % number for number in range(count)])
    usual = ("--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC")  # the stack overflows as it does for users
    first = start(topics, topic, table, "--every", "0", *usual)
    staging = table / "_pybroker/staging"
    until("a batch is staged", lambda: not first.running or (staging.is_dir() and any(staging.iterdir())), SLOW_S)
    first.signal(signal.SIGTERM)
    assert first.wait(SLOW_S) == 0, first.output()
    assert not [line for line in first.lines if line.startswith("\tat ")], first.output()
    job = Job(topics.broker.bootstrap, str(table), topic, schema="id bigint", trigger_s=None)
    assert pipeline.run(job, spark=spark)["records"] == count
    assert ids(table) == list(range(count))


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"table": "/proc/table"}, "the table: file:/proc/table/_pybroker could not be made"),
        ({"table": "/proc/table", "checkpoint": "/proc/points"}, "the checkpoint: /proc/points could not be made"),
        ({"table": "s3://bucket/table"}, "Spark has no file system for s3://: plain Parquet and checkpoints need"),
        ({"table": "hdfs://nobody.invalid/table"}, "the host name nobody.invalid is unknown"),
        ({"table": "hdfs://127.0.0.1:1/table"}, "could not reach localhost:1: connection refused"),
    ],
)
def test_a_path_that_cannot_be(
    spark: SparkSession, topics: Topics, topic: str, where: dict[str, str], sentence: str
) -> None:
    """A path that cannot exist is reported before a record is read."""
    topics.create(topic)
    with pytest.raises(KafkaError) as caught:
        pipeline.run(Job(topics.broker.bootstrap, topics=topic, schema="id bigint", **where), spark=spark)
    assert caught.value.message.startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schema", "id bigint"], "give either topics or a pattern of topics"),
        (
            ["-t", "a", "--pattern", "b", "--schema", "id bigint"],
            "give either topics or a pattern of topics",
        ),
        (["-t", "a"], "format json needs a schema"),
        (["-t", "a", "--format", "raw", "--schema", "x int"], "format raw takes no schema"),
        (["-t", "a", "--option", "kafka.sasl.jaas.config=x"], "put sasl.jaas.config into a file for --command-config"),
        (["-t", "a", "--option", "kafka.sasl.password=x"], "or a password into PYBROKER_SASL_PASSWORD"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: list[str], sentence: str) -> None:
    """A contradiction in the options is one sentence, with exit code 2, before Spark starts."""
    done = run("pipeline", "--table", "/nowhere", *arguments)
    assert done.code == 2 and sentence in done.sentence


def test_secrets_among_the_arguments_are_told_of() -> None:
    """Secrets on the command line, for Spark, a table's store or brokers, are warned of once each, by name."""
    given = ["--conf", "spark.hadoop.fs.s3a.secret.key=sesame", "--conf", "spark.ui.enabled=false"]
    given += ["--table-option", "AWS_SECRET_ACCESS_KEY=sesame", "--table-option", "AWS_ENDPOINT_URL=http://x"]
    done = run("pipeline", "--table", "/nowhere", "-t", "a", *given)
    told = [line for line in done.err.splitlines() if "can read arguments" in line]
    assert [line.split(": put ")[1].split(" into ")[0] for line in told] == [
        "AWS_SECRET_ACCESS_KEY", "spark.hadoop.fs.s3a.secret.key",
    ]  # fmt: skip
    assert done.code == 2 and "sesame" not in done.err


def test_java_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing Java is one sentence that says what to do, and exit code 2."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("pipeline", "--table", str(tmp_path / "t"), "-t", "a", "--schema", "id bigint")
    assert done.code == 2 and "install a JDK 17 or newer" in done.sentence


def test_spark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing Spark is one sentence with the packages to install, and exit code 2."""
    from pybroker.spark import session

    monkeypatch.setattr(session.importlib.util, "find_spec", lambda _: None)
    done = run("pipeline", "--table", "/nowhere", "-t", "a", "--schema", "id bigint")
    packages = "pip install 'numpy>=1.26' 'pyarrow>=18' 'pyspark"
    assert done.code == 2 and f"PySpark is not installed: {packages}" in done.sentence


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["-t", "no-such-topic"], 1, "topic no-such-topic: "),
        (["-t", "a", "-b", "127.0.0.1:1"], 1, "could not reach 127.0.0.1:1: connection refused"),
        (["-t", "a", "--option", "startingOfsets=latest"], 2, "unknown option startingofsets: did you mean "),
        (["-t", "a", "--schema", f"@{sys.executable}"], 2, f"the schema in {sys.executable} is not UTF-8 text"),
    ],
)
def test_what_is_not_there_is_told(
    topics: Topics, options: list[str], code: int, sentence: str, tmp_path: Path
) -> None:
    """Missing input is one sentence at once, without starting Spark, which takes seconds and prints many lines."""
    given = ["-b", topics.broker.bootstrap, "--table", str(tmp_path), "--schema", "id bigint", *options]
    done = run("pipeline", *given)
    assert done.code == code and done.sentence.startswith(sentence)


def test_a_topic_for_dead_letters_that_nobody_makes(
    topics: Topics, topic: str, tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    """A dead letter topic that no broker creates is reported at the start, not at the first dead letter. It may be
    missing if brokers create topics."""
    strict = Topics(start_broker(sets={"auto.create.topics.enable": "false"}))
    strict.create(topic)
    named = ("-b", strict.broker.bootstrap, "-t", topic, "--dead-letters", "letters", "--schema", "id bigint")
    done = run("pipeline", *named, "--table", tmp_path)
    assert done.code == 1 and done.sentence == "there is no topic letters for dead letters: create it first"
    check_dead_letters(strict.broker.bootstrap, topic)
    check_dead_letters(topics.broker.bootstrap, "letters")


def test_the_broker_of_the_environment(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command uses PYBROKER_BOOTSTRAP_SERVER, as every command does."""
    monkeypatch.setenv("PYBROKER_BOOTSTRAP_SERVER", topics.broker.bootstrap)
    done = run("pipeline", "-t", "no-such-topic", "--table", tmp_path, "--schema", "id bigint")
    assert done.code == 1 and done.sentence.startswith("topic no-such-topic: ")


def test_a_port_of_the_metrics_that_is_taken(topics: Topics, tmp_path: Path) -> None:
    """A metrics port in use is reported with the port."""
    port = topics.broker.port
    done = run("pipeline", "-t", "a", "--table", tmp_path, "--schema", "id bigint", "--metrics-port", port)
    assert done.code == 2 and done.sentence == f"metrics cannot be served on port {port}: address already in use"
