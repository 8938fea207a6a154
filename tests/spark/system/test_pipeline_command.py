"""`pybroker pipeline` as a person runs it: a process with a Spark of its own, stopped, killed, and started again."""

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
    """What is in the table at one moment: where a file goes while it is looked at, another has its rows by then. For a
    moment both are there, and their rows twice."""
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
    """The JSON document at the end of what a process has said."""
    text = "\n".join(process.lines)
    found: dict[str, Any] = json.loads(text[text.rindex("{") :])
    return found


@pytest.mark.long
def test_killed_at_work_and_stopped_at_the_end(topics: Topics, topic: str, tmp_path: Path) -> None:
    """kill -9 between two batches, or in one; the next run goes on, and ends cleanly on SIGTERM with all of it in the
    table once and nothing half done."""
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


@pytest.mark.long
def test_stopped_in_a_batch(topics: Topics, topic: str, tmp_path: Path, spark: SparkSession) -> None:
    """SIGTERM gives it up without an account of how it ended; nothing of it is in the table, all of it in the next."""
    table = tmp_path / "table"
    topics.create(topic)
    count = 400_000  # a batch of some seconds
    with Producer(bootstrap_servers=topics.broker.bootstrap) as producer:
        producer.send_columns(topic, [b'{"id": %d}' % number for number in range(count)])
    usual = ("--conf", "spark.driver.extraJavaOptions=-XX:+UseSerialGC")  # a stack overflows as it does for users
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
        ({"table": "hdfs://nobody.invalid/table"}, "the name of the host nobody.invalid is not known"),
        ({"table": "hdfs://127.0.0.1:1/table"}, "could not reach localhost:1: connection refused"),
    ],
)
def test_a_path_that_cannot_be(
    spark: SparkSession, topics: Topics, topic: str, where: dict[str, str], sentence: str
) -> None:
    """That is told before anything is read."""
    topics.create(topic)
    with pytest.raises(KafkaError) as caught:
        pipeline.run(Job(topics.broker.bootstrap, topics=topic, schema="id bigint", **where), spark=spark)
    assert caught.value.message.startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--schema", "id bigint"], "topics or a pattern of topics are needed, one of them"),
        (
            ["-t", "a", "--pattern", "b", "--schema", "id bigint"],
            "topics or a pattern of topics are needed, one of them",
        ),
        (["-t", "a"], "format json needs a schema"),
        (["-t", "a", "--format", "raw", "--schema", "x int"], "format raw takes no schema"),
        (["-t", "a", "--option", "kafka.sasl.jaas.config=x"], "put sasl.jaas.config into a file for --command-config"),
        (["-t", "a", "--option", "kafka.sasl.password=x"], "or a password into PYBROKER_SASL_PASSWORD"),
    ],
)
def test_what_makes_no_sense_is_told(arguments: list[str], sentence: str) -> None:
    """In one sentence, with exit code 2, before Spark is started."""
    done = run("pipeline", "--table", "/nowhere", *arguments)
    assert done.code == 2 and sentence in done.sentence


def test_secrets_among_the_arguments_are_told_of() -> None:
    """Of Spark and of a table's store, as those of brokers are: once each, by name."""
    given = ["--conf", "spark.hadoop.fs.s3a.secret.key=sesame", "--conf", "spark.ui.enabled=false"]
    given += ["--table-option", "AWS_SECRET_ACCESS_KEY=sesame", "--table-option", "AWS_ENDPOINT_URL=http://x"]
    done = run("pipeline", "--table", "/nowhere", "-t", "a", *given)
    told = [line for line in done.err.splitlines() if "can read an argument" in line]
    assert [line.split(": put ")[1].split(" into ")[0] for line in told] == [
        "AWS_SECRET_ACCESS_KEY", "spark.hadoop.fs.s3a.secret.key",
    ]  # fmt: skip
    assert done.code == 2 and "sesame" not in done.err


def test_java_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One sentence that says what to do, and exit code 2."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = run("pipeline", "--table", str(tmp_path / "t"), "-t", "a", "--schema", "id bigint")
    assert done.code == 2 and "install a JDK 17 or newer" in done.sentence


def test_spark_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is Spark: the extra that brings it is named."""
    from pybroker.spark import session

    monkeypatch.setattr(session.importlib.util, "find_spec", lambda _: None)
    done = run("pipeline", "--table", "/nowhere", "-t", "a", "--schema", "id bigint")
    assert done.code == 2 and "pip install 'pybroker[spark]'" in done.sentence


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
    """In one sentence and at once: Spark, which takes seconds and many lines, is not started for it."""
    given = ["-b", topics.broker.bootstrap, "--table", str(tmp_path), "--schema", "id bigint", *options]
    done = run("pipeline", *given)
    assert done.code == code and done.sentence.startswith(sentence)


def test_a_topic_for_dead_letters_that_nobody_makes(
    topics: Topics, topic: str, tmp_path: Path, start_broker: Callable[..., BrokerProcess]
) -> None:
    """It is told at the start, not with the first of them. Where brokers make topics, it need not be there."""
    strict = Topics(start_broker(sets={"auto.create.topics.enable": "false"}))
    strict.create(topic)
    named = ("-b", strict.broker.bootstrap, "-t", topic, "--dead-letters", "letters", "--schema", "id bigint")
    done = run("pipeline", *named, "--table", tmp_path)
    assert done.code == 1 and done.sentence == "there is no topic letters for dead letters: create it first"
    check_dead_letters(strict.broker.bootstrap, topic)
    check_dead_letters(topics.broker.bootstrap, "letters")


def test_the_broker_of_the_environment(topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYBROKER_BOOTSTRAP_SERVER says it to this command as to every other."""
    monkeypatch.setenv("PYBROKER_BOOTSTRAP_SERVER", topics.broker.bootstrap)
    done = run("pipeline", "-t", "no-such-topic", "--table", tmp_path, "--schema", "id bigint")
    assert done.code == 1 and done.sentence.startswith("topic no-such-topic: ")


def test_a_port_of_the_metrics_that_is_taken(topics: Topics, tmp_path: Path) -> None:
    """The sentence has the port."""
    port = topics.broker.port
    done = run("pipeline", "-t", "a", "--table", tmp_path, "--schema", "id bigint", "--metrics-port", port)
    assert done.code == 2 and done.sentence == f"metrics cannot be shown at port {port}: address already in use"
