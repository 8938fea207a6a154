"""The pipeline from topics to a table: its rows, its dead letters, and what a crash leaves of both."""

from __future__ import annotations

import io
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from pyspark.sql.streaming.query import StreamingQuery

from pybroker.errors import KafkaError
from pybroker.spark.pipeline import Job, runner
from pybroker.spark.pipeline.executor_watch import Watch
from pybroker.spark.pipeline.parsing.formats import table_schema
from pybroker.spark.pipeline.progress import PipelineProgress, lag_of
from pybroker.spark.pipeline.runner import Pipeline
from pybroker.spark.pipeline.tables.parquet import DONE_KEPT, ParquetTable
from pybroker.spark.pipeline.tables.table import MicroBatch
from pybroker.testing import Record
from tests.harness import until
from tests.marks import long
from tests.spark.tables import (
    DAY_MS,
    PATIENCE_S,
    SCHEMA,
    START_MS,
    ParquetIngest,
    a_hole_is_told,
    a_restored_checkpoint_is_told,
    committed,
    event,
    times_that_no_calendar_has,
)
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]


@pytest.fixture
def ingest(topics: Topics, topic: str, tmp_path: Path) -> ParquetIngest:
    return ParquetIngest(topics, topic, tmp_path / "table")


def test_json_becomes_a_table_by_date(ingest: ParquetIngest) -> None:
    """JSON becomes a table by day, with the schema's columns and each record's offset; a second run adds new
    records."""
    ingest.topics.produce(ingest.topic, [event(0), event(1, timestamp_ms=START_MS + DAY_MS)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [event(2)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2]
    row = ingest.rows()[0]
    assert (row["kind"], row["kafka_topic"], row["kafka_offset"]) == ("k", ingest.topic, 0)
    assert {path.parent.name for path in ingest.files()} == {"date=2023-11-14", "date=2023-11-15"}
    assert ingest.topics.spark.read.parquet(str(ingest.table)).count() == 3
    assert (ingest.progress.rows, ingest.progress.dead_letters) == (3, 0)


def test_what_does_not_parse_goes_to_the_dead_letters(ingest: ParquetIngest) -> None:
    """Records that do not parse become dead letters, with their key, value, offset and the reason in headers."""
    dead = ingest.topics.create(f"{ingest.topic}-dead")
    broken = [Record("{", b"key", timestamp_ms=START_MS), Record(None), Record('{"id": "x"}'), Record("[]")]
    broken.append(Record(b'{"id": 5, "kind": "\xff"}'))  # Spark would replace this letter
    ingest.topics.produce(ingest.topic, [event(0), *broken, event(6)])
    ingest.run(dead_letters=dead)
    assert ingest.ids() == [0, 6]
    letters = sorted(ingest.topics.held(dead), key=lambda r: dict(r.headers)["pybroker.offset"] or b"")
    assert [r.value for r in letters] == [b"{", None, b'{"id": "x"}', b"[]", broken[-1].value]
    assert [r.key for r in letters] == [b"key", *[None] * 4]
    told = dict(letters[0].headers)
    assert told["pybroker.topic"] == ingest.topic.encode() and told["pybroker.offset"] == b"1"
    assert told["pybroker.error"] == b"the value is not a JSON object of the schema"
    assert ingest.progress.dead_letters == 5


def test_a_dead_letter_is_larger_than_its_record(ingest: ParquetIngest) -> None:
    """A dead letter's headers make it larger than its record: only the max.message.bytes of its topic limits it."""
    dead = ingest.topics.create(f"{ingest.topic}-dead", max_message_bytes=2 << 20)
    ingest.topics.produce(ingest.topic, [Record("x" * 1_048_450)])
    ingest.run(dead_letters=dead)
    assert [len(letter.value or b"") for letter in ingest.topics.held(dead)] == [1_048_450]


def test_raw_keeps_keys_and_values(ingest: ParquetIngest) -> None:
    """The raw format keeps keys and values as bytes, without a schema, in one directory."""
    ingest.topics.produce(ingest.topic, [Record(b"\xff", b"k"), Record(None)])
    ingest.run(format="raw", schema=None, partition_by=())
    assert [(r["kafka_key"], r["kafka_value"]) for r in ingest.rows()] == [(b"k", b"\xff"), (None, None)]


def test_avro_is_read_with_fastavro(ingest: ParquetIngest) -> None:
    """Plain Avro is decoded with fastavro; records that do not match the schema, or that have a registry's frame, are
    counted: see test_frames."""
    schema = {
        "type": "record",
        "name": "event",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
        ],
    }
    plain = io.BytesIO()
    fastavro.schemaless_writer(plain, schema, {"id": 7, "at": START_MS, "tags": ["a", "b"]})
    values = [plain.getvalue(), b"\x00\x00\x00\x00\x05" + plain.getvalue(), b"\x01\x02", plain.getvalue() + b"!"]
    ingest.topics.produce(ingest.topic, [Record(value) for value in values])
    ingest.run(format="avro", schema=json.dumps(schema))
    rows = ingest.rows()
    assert [(r["id"], r["tags"]) for r in rows] == [(7, ["a", "b"])]
    assert rows[0]["at"].timestamp() == START_MS / 1000 and ingest.progress.dead_letters == 3


def test_avro_values_that_no_column_has(ingest: ParquetIngest) -> None:
    """An Avro whole number of up to 64 bits that is no int becomes a dead letter, and the pipeline goes on. A uuid
    becomes its text."""
    uuid = {"type": "string", "logicalType": "uuid"}
    values = []
    for number in (7, 5_000_000_000):
        value = io.BytesIO()
        fields = [{"name": "id", "type": "long"}, {"name": "u", "type": uuid}, {"name": "n", "type": "long"}]
        written = {"type": "record", "name": "event", "fields": fields}
        row = {"id": number, "u": UUID(int=number), "n": number}
        fastavro.schemaless_writer(value, written, row)
        values.append(value.getvalue())
    read = {**written, "fields": [*fields[:2], {"name": "n", "type": "int"}]}
    ingest.topics.produce(ingest.topic, [Record(value, timestamp_ms=START_MS) for value in values])
    ingest.run(format="avro", schema=json.dumps(read))
    assert [(r["id"], r["u"], r["n"]) for r in ingest.rows()] == [(7, str(UUID(int=7)), 7)]
    assert ingest.progress.dead_letters == 1


@pytest.mark.parametrize(
    "moment",
    [long("before it is written down"), long("before the files move"), "between two files", long("before it is done")],
)
def test_a_crash_at_any_moment_neither_loses_nor_repeats(ingest: ParquetIngest, moment: str) -> None:
    """A crash at any moment neither loses nor repeats: after the next run each record is in the table once."""
    ingest.topics.produce(ingest.topic, [event(n, timestamp_ms=START_MS + n * DAY_MS) for n in range(3)])

    def break_(pipeline: Pipeline) -> None:
        assert isinstance(pipeline.table, ParquetTable)
        files, moves = pipeline.table.files, 0
        write, move = files.write, files.move

        def dying_write(name: str, text: str) -> None:
            if moment == "before it is written down":
                raise OSError("crash")
            write(name, text)

        def dying_move(source: str, target: str) -> None:
            nonlocal moves
            if target.endswith(".parquet"):
                moves += 1
                if (moment, moves) in (("before the files move", 1), ("between two files", 2)):
                    raise OSError("crash")
            if "/done/" in target and moment == "before it is done":
                raise OSError("crash")
            move(source, target)

        files.write, files.move = dying_write, dying_move  # type: ignore[method-assign]

    with pytest.raises(Exception, match="crash"):
        ingest.run(break_)
    ingest.topics.produce(ingest.topic, [event(3)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2, 3]
    assert not list((ingest.table / "_pybroker").glob("staging/*")) + list(
        (ingest.table / "_pybroker/changes").glob("*")
    )


@pytest.mark.long
def test_a_checkpoint_that_was_restored(ingest: ParquetIngest, tmp_path: Path) -> None:
    a_restored_checkpoint_is_told(ingest, tmp_path / "checkpoint")


@pytest.mark.long
def test_a_checkpoint_with_another_table(ingest: ParquetIngest, tmp_path: Path) -> None:
    a_hole_is_told(ingest, tmp_path / "checkpoint", str(tmp_path / "another"))


def test_times_that_no_calendar_has(ingest: ParquetIngest) -> None:
    times_that_no_calendar_has(ingest)


@pytest.mark.long
def test_a_table_that_is_copied_after_a_crash(ingest: ParquetIngest, tmp_path: Path) -> None:
    """A table that is copied after a crash takes its unfinished change along: table and copy each finish their own."""
    ingest.topics.produce(ingest.topic, [event(0)])

    def break_(pipeline: Pipeline) -> None:
        table: Any = pipeline.table

        def die(*_: Any) -> None:
            raise OSError("crash")

        table._carry_out = die

    with pytest.raises(Exception, match="crash"):
        ingest.run(break_)
    original, copy = ingest.table, tmp_path / "copy"
    shutil.copytree(original, copy)
    ingest.run(table=str(copy))
    assert ingest.files() == []
    ingest.run()
    assert ingest.ids() == [0]
    ingest.table = copy
    assert ingest.ids() == [0]


def test_what_is_damaged_is_told(ingest: ParquetIngest) -> None:
    """A damaged file, as a host may leave empty when it loses power, is reported by name; nothing is skipped."""
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run()
    for name in ("changes/aaaaaaaa-000000000.json", "schemas/000000002.json"):
        damaged = ingest.table / "_pybroker" / name
        damaged.parent.mkdir(exist_ok=True)
        damaged.write_text("")
        with pytest.raises(KafkaError, match=f"{name} is damaged"):
            ingest.run()
        damaged.unlink()


@pytest.mark.long
def test_a_new_checkpoint_is_another_run(ingest: ParquetIngest, tmp_path: Path) -> None:
    """A new checkpoint is another query: its batch numbers begin at 0, and do not count as committed."""
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run(checkpoint=str(tmp_path / "one"))
    ingest.run(checkpoint=str(tmp_path / "two"))
    assert ingest.ids() == [0, 0]


@pytest.mark.long
def test_what_is_done_is_known_beside_an_older_checkpoint(ingest: ParquetIngest, tmp_path: Path) -> None:
    """Committed batches are known beside an older checkpoint, even if its name sorts behind the new one's."""
    done = ingest.table / "_pybroker/done"
    done.mkdir(parents=True)
    for number in range(DONE_KEPT):
        (done / f"zzzzzzzz-{number:09}.json").write_text("{}")
    ingest.topics.produce(ingest.topic, [event(0)])
    ingest.run(checkpoint=str(tmp_path / "one"))
    shutil.rmtree(tmp_path / "one/commits")  # Spark died before it recorded that batch 0 is done, and repeats it
    ingest.run(checkpoint=str(tmp_path / "one"))
    assert ingest.ids() == [0]


@pytest.mark.long
def test_small_files_become_one(ingest: ParquetIngest) -> None:
    """Small files of a directory become one after the set number of batches, with the same records."""
    for number in range(3):
        ingest.topics.produce(ingest.topic, [event(number)])
        ingest.run(compact_files=0)
    assert len(ingest.files()) == 3
    ingest.topics.produce(ingest.topic, [event(3)])
    ingest.run(compact_files=4)
    assert len(ingest.files()) == 1 and ingest.ids() == [0, 1, 2, 3]
    assert ParquetTable(ingest.topics.spark, ingest.job(compact_files=2)).compact(MicroBatch("again", 0)) == 0


@pytest.mark.long
def test_rows_that_the_driver_does_not_see(ingest: ParquetIngest, tmp_path: Path) -> None:
    """Rows that an executor wrote to a local disk stop the pipeline with both counts, the path and the hosts. No rows
    or dead letters are committed; with the right path the batch is whole."""
    dead = ingest.topics.create(f"{ingest.topic}-dead")
    ingest.topics.produce(ingest.topic, [event(0), event(1, timestamp_ms=START_MS + DAY_MS), Record("{")])

    def break_(pipeline: Pipeline) -> None:
        assert isinstance(pipeline.table, ParquetTable)
        walk = pipeline.table.files.walk
        pipeline.table.files.walk = lambda name: [f for f in walk(name) if "2023-11-15" not in f[0]]  # type: ignore

    sentence = f"2 rows were read, but the driver sees 1 of them in {ingest.table}; executors ran on 127.0.0.1"
    with pytest.raises(Exception, match=sentence):
        ingest.run(break_, dead_letters=dead)
    assert ingest.files() == [] and ingest.topics.held(dead) == []
    ingest.run(dead_letters=dead)
    assert ingest.ids() == [0, 1] and len(ingest.topics.held(dead)) == 1


def test_a_schema_that_changes(ingest: ParquetIngest) -> None:
    """A schema may change between runs, with compaction over both. A change that the table cannot take is refused at
    the start, and the next run reads the waiting records."""
    ingest.topics.produce(ingest.topic, [event(1)])
    ingest.run(schema="id int")
    ingest.topics.produce(ingest.topic, [event(5_000_000_000)])
    with pytest.raises(KafkaError, match="column id is int in the table and string in the job"):
        ingest.run(schema="id string, kind string")
    ingest.run(schema="id bigint, kind string", compact_files=2)
    assert len(ingest.files()) == 1
    assert [(row["id"], row["kind"]) for row in ingest.rows()] == [(1, None), (5_000_000_000, "k")]


def test_the_columns_of_a_table() -> None:
    """The table's columns are the schema's, Kafka's, and those that partition it."""
    job = Job("h:1", "/t", "t", schema="id bigint, hour string", partition_by=("date", "hour"))
    assert table_schema(job).simpleString() == (
        "struct<id:bigint,hour:string,kafka_topic:string,kafka_partition:int,kafka_offset:bigint,"
        "kafka_timestamp:timestamp,date:date>"
    )


@pytest.mark.long
def test_a_stop_between_two_jobs_of_a_batch(ingest: ParquetIngest) -> None:
    """A stop between two jobs of a batch cancels the jobs that have not started; the next run repeats the batch."""
    ingest.topics.produce(ingest.topic, [event(0)])
    spark, asked = ingest.topics.spark, threading.Event()
    pipeline = Pipeline(spark, ingest.job(), ingest.progress)
    add = pipeline.table.add

    def late(*given: Any) -> None:
        (query,) = spark.streams.active
        asked.set()
        until("the query is stopped", lambda: not query.isActive, PATIENCE_S)
        time.sleep(1)  # a job that began before Spark checks would be found
        add(*given)

    pipeline.table.add = late  # type: ignore[method-assign]
    runner._work(pipeline, asked, Watch(spark))
    assert ingest.ids() == []
    ingest.run()
    assert ingest.ids() == [0]


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"topics": None}, "either topics or a pattern"),
        ({"format": "xml"}, "it can be json, avro, raw"),
        ({"schema": None}, "format json needs a schema"),
        ({"format": "raw"}, "takes no schema"),
        ({"trigger_s": -1}, "0 or more"),
    ],
)
def test_a_job_that_makes_no_sense_is_told(how: dict[str, Any], sentence: str) -> None:
    """A contradiction in the job's options is reported before Spark starts."""
    given = {"bootstrap": "h:1", "table": "/t", "topics": "t", "schema": SCHEMA, **how}
    with pytest.raises(KafkaError, match=sentence):
        Job(**given)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"schema": "id bigint default x.y"}, "the schema is not a list of columns: "),
        ({"schema": "id bigint, ID string"}, "the schema's column ID is a duplicate"),
        ({"schema": "kafka_offset bigint"}, "the schema's column kafka_offset is a duplicate, or reserved"),
        ({"partition_by": ("colour",)}, "cannot be partitioned by colour"),
        ({"partition_by": ("KIND",)}, "by KIND, which the schema spells kind"),
        ({"schema": "Date string", "partition_by": ("date",)}, "by date, which the schema spells Date"),
        ({"partition_by": ("date", "date")}, "one of them is repeated"),
        ({"schema": "`.x` string", "partition_by": (".x",)}, "readers skip directories"),
        ({"format": "avro", "schema": "{"}, "is not JSON"),
        ({"format": "avro", "schema": '{"type": "long"}'}, "not a record with fields"),
        (
            {"format": "avro", "schema": '{"type":"record","fields":[{"name":"a","type":["int","string"]}]}'},
            "has no Spark type",
        ),
    ],
)
def test_a_job_that_does_not_fit_is_told(ingest: ParquetIngest, how: dict[str, Any], sentence: str) -> None:
    """A job that does not fit its table is reported before a record is read."""
    with pytest.raises(KafkaError, match=sentence):
        ingest.run(**how)


def test_lag_is_what_waits(capsys: pytest.CaptureFixture[str]) -> None:
    """Lag is the distance from the last batch's end to the latest offsets, new partitions included; there is none
    before Spark has reported both."""
    source = {"endOffset": '{"t":{"0":5,"1":7}}', "latestOffset": '{"t":{"0":9,"1":7,"2":3}}'}
    assert lag_of(source) == 7
    assert lag_of({"endOffset": None, "latestOffset": source["latestOffset"]}) is None
    progress = PipelineProgress()
    progress.see(None)
    progress.see({"batchId": 0, "sources": [{"endOffset": None}]})
    progress.say()
    progress.see({"batchId": 0, "sources": [source]})
    progress.say()
    before, after = capsys.readouterr().err.splitlines()
    assert before.endswith(" records/s") and after.endswith(" records/s, 7 behind")


def test_the_group_is_at_the_end(ingest: ParquetIngest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's offsets are at the end, whether or not Spark has reported the last batch, and also without new
    records."""
    ingest.topics.produce(ingest.topic, [event(0), event(1)])
    monkeypatch.setattr(StreamingQuery, "lastProgress", None)
    job = ingest.job(name=ingest.topic)
    runner.run(job, spark=ingest.topics.spark)
    assert committed(ingest.topics, ingest.topic) == {0: 2}
    monkeypatch.undo()
    runner.run(job, spark=ingest.topics.spark)
    assert ingest.ids() == [0, 1] and committed(ingest.topics, ingest.topic) == {0: 2}


def test_no_lag_that_is_gone() -> None:
    """A record that later batches have read is no lag: Spark reports a batch's lag only some time after it is done."""
    progress = PipelineProgress()
    report = {"batchId": 4, "sources": [{"endOffset": '{"t":{"0":0}}', "latestOffset": '{"t":{"0":100}}'}]}
    seen = []
    progress.batch(4, 10, 0, 1.0)
    for number, rows in ((5, 30), (6, 50), (7, 40)):
        progress.see(report)
        seen.append(progress.lag)
        progress.batch(number, rows - 1, 1, 1.0)
    progress.see(report)
    seen.append(progress.lag)
    progress.see(report | {"batchId": 6})
    seen.append(progress.lag)
    assert seen == [100, 70, 20, 0, 60]


@pytest.mark.long
def test_partition_values_that_no_directory_can_have(ingest: ParquetIngest) -> None:
    """A partition value that no directory name can hold makes its record a dead letter, as any producer may send one;
    other records become rows."""
    kinds = ["x" * 250, "/" * 83, "a/b", "..", "\n", "_x", "é" * 125]
    unfit = ["x" * 251, "/" * 84, "a\0b", "é" * 126]
    values = [json.dumps({"id": at, "kind": kind}) for at, kind in enumerate([*kinds, *unfit])]
    ingest.topics.produce(ingest.topic, values, timestamp_ms=START_MS)
    ingest.run(partition_by=("kind",))
    assert ingest.ids() == list(range(len(kinds))) and ingest.progress.dead_letters == len(unfit)
