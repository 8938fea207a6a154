"""Topics as streams: the size of a trigger's batch, where a query resumes, and lost records."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.spark import offsets
from pybroker.spark.reading.input_partitions import KafkaInputPartition
from pybroker.spark.reading.offset_reader import OffsetReader
from pybroker.spark.reading.progress_group import START_MARK
from tests.harness import until
from tests.marks import long
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

PATIENCE_S = 60.0


class Run:
    """A streaming query that keeps the values of each batch; a checkpoint makes the next run resume."""

    def __init__(self, frame: Any, checkpoint: str, **trigger: Any) -> None:
        self.batches: list[list[str]] = []
        writer = frame.selectExpr("partition", "offset", "string(value) as v").writeStream
        self.query = writer.foreachBatch(self._keep).option("checkpointLocation", checkpoint).trigger(**trigger).start()

    def _keep(self, frame: Any, _: int) -> None:
        self.batches.append([row.v for row in frame.sort("partition", "offset").collect()])

    @property
    def values(self) -> list[str]:
        return [value for batch in self.batches for value in batch]

    def wait(self, what: str, probe: Callable[[], object]) -> None:
        """Return when `probe` is true; if the query fails meanwhile, fail the test with its error."""
        until(what, lambda: probe() or self.query.exception(), PATIENCE_S)
        assert self.query.exception() is None, str(self.query.exception())

    def finish(self) -> list[list[str]]:
        """The batches, once the query has ended on its own."""
        assert self.query.awaitTermination(PATIENCE_S), "the query goes on"
        return self.batches

    def failure(self) -> str:
        """The error that a failing query shows to a person."""
        with pytest.raises(Exception) as caught:
            self.finish()
        found = re.search(r"KafkaError: (.*)", str(caught.value))
        assert found, str(caught.value)
        return found[1]


@contextmanager
def running(frame: Any, checkpoint: str) -> Iterator[Run]:
    run = Run(frame, checkpoint, processingTime="0 seconds")
    try:
        yield run
    finally:
        run.query.stop()


@pytest.fixture
def available(topics: Topics, topic: str, checkpoint: str) -> Callable[..., Run]:
    """Run a query over all of the topic's present records, from its checkpoint on."""
    return lambda **options: Run(topics.stream(topic, **options), checkpoint, availableNow=True)


@pytest.fixture
def admin(topics: Topics) -> Iterator[Admin]:
    with Admin(topics.broker.bootstrap) as made:
        yield made


def delete_records(admin: Admin, topic: str, offset: int) -> None:
    kind = m.DeleteRecordsRequest.Topics
    asked = kind(name=topic, partitions=[kind.Partitions(partition_index=0, offset=offset)])
    admin.cluster.any().request(m.DeleteRecordsRequest(topics=[asked], timeout_ms=10_000))


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def test_all_that_is_there_in_limited_batches(topics: Topics, topic: str, available: Callable[..., Run]) -> None:
    """AvailableNow reads the records present at its start, at most maxOffsetsPerTrigger at once, shared by backlog; the
    next run reads only newer records."""
    topics.create(topic, 2)
    topics.produce(topic, range(6))
    topics.produce(topic, range(100, 103), partition=1)
    assert available(maxOffsetsPerTrigger=3).finish() == [
        texts(0, 1, 100),
        texts(2, 3, 101),
        texts(4, 5, 102),
    ]
    topics.produce(topic, [7])
    assert available().finish() == [["7"]]
    assert available().finish() == []


def test_a_running_query_takes_what_comes(topics: Topics, topic: str, checkpoint: str, admin: Admin) -> None:
    """A running query reads records as they are produced, and those of new partitions from the first one."""
    topics.create(topic)
    topics.produce(topic, [1])
    with running(topics.stream(topic), checkpoint) as run:
        run.wait("the first record is read", lambda: run.values == ["1"])
        topics.produce(topic, [2])
        run.wait("the second record is read", lambda: run.values == ["1", "2"])
        admin.create_partitions(topic, 2)
        topics.produce(topic, [3], partition=1)
        run.wait("the new partition is read", lambda: run.values == ["1", "2", "3"])


def test_a_trigger_waits_for_enough_records(topics: Topics, topic: str, checkpoint: str) -> None:
    """A trigger waits for minOffsetsPerTrigger records; the query's first trigger takes what there is."""
    topics.create(topic)
    topics.produce(topic, [0])
    with running(topics.stream(topic, minOffsetsPerTrigger=3, maxTriggerDelay="1h"), checkpoint) as run:
        run.wait("the first record is read", lambda: run.values == ["0"])
        topics.produce(topic, [1, 2])
        asked = len(run.query.recentProgress)
        run.wait("the query has looked again", lambda: len(run.query.recentProgress) > asked or idle(run))
        assert run.values == ["0"]
        topics.produce(topic, [3])
        run.wait("three records are read", lambda: run.batches == [["0"], ["1", "2", "3"]])


def idle(run: Run) -> bool:
    return not run.query.status["isDataAvailable"] and not run.query.status["isTriggerActive"]


def test_a_trigger_waits_no_longer_than_it_may(topics: Topics, topic: str, checkpoint: str) -> None:
    """A trigger waits no longer than maxTriggerDelay, even if there are fewer records than minOffsetsPerTrigger."""
    topics.create(topic)
    topics.produce(topic, [0])
    with running(topics.stream(topic, minOffsetsPerTrigger=1000, maxTriggerDelay="300ms"), checkpoint) as run:
        run.wait("the first record is read", lambda: run.values == ["0"])
        topics.produce(topic, [1])
        run.wait("the second record is read", lambda: run.values == ["0", "1"])


def test_a_stream_from_the_end_needs_a_name(topics: Topics, topic: str, checkpoint: str) -> None:
    """A stream from the end needs a name, or a crash in its first batch would move its start: the error gives the
    reason and what to do."""
    topics.create(topic)
    run = Run(topics.stream(topic, startingOffsets="latest"), checkpoint, availableNow=True)
    assert "kafka.group.id or queryName, or startingOffsets=earliest" in run.failure()


def test_a_restart_in_the_first_batch_does_not_move_the_start(topics: Topics, topic: str, admin: Admin) -> None:
    """A restart in the first batch does not move the start: Spark asks a query for its start again until a batch is
    done. From then on the commits are the query's progress."""
    from pybroker.spark import options, schema
    from pybroker.spark.reading.stream_reader import KafkaStreamReader

    topics.create(topic)
    topics.produce(topic, ["before"])
    group = f"{topic}-group"

    def reader() -> KafkaStreamReader:
        """A reader as Spark's driver makes one to plan a query."""
        given = topics.options(topic, startingOffsets="latest", **{"kafka.group.id": group})
        return KafkaStreamReader(options.parse_source(given, streaming=True), schema.full(include_headers=False))

    @contextmanager
    def stopping(reader: KafkaStreamReader) -> Iterator[KafkaStreamReader]:
        yield reader
        reader.stop()

    def committed() -> Any:
        return admin.group_offsets([group])[group][TopicPartition(topic, 0)]

    with stopping(reader()) as first:
        started = first.initialOffset()
    assert started[topic] == {"0": 1}
    assert (committed().offset, committed().metadata) == (1, START_MARK)
    topics.produce(topic, ["while it was down"])
    with stopping(reader()) as second:
        assert second.initialOffset() == started
        second.commit({topic: {"0": 2}})
    assert (committed().offset, committed().metadata) == (2, "")
    topics.produce(topic, ["later"])
    with stopping(reader()) as third:  # with another checkpoint: the same query no longer asks
        assert third.initialOffset()[topic] == {"0": 3}


def test_the_group_of_two_streams(topics: Topics, topic: str, admin: Admin) -> None:
    """The group of two streams without a name moves neither's start: commits of one do not count for the other."""
    from pybroker.spark import options, schema
    from pybroker.spark.reading.stream_reader import KafkaStreamReader

    group = f"{topic}-group"

    def begin(name: str, done: int | None = None) -> Any:
        given = topics.options(name, startingOffsets="latest", **{"kafka.group.id": group})
        reader = KafkaStreamReader(options.parse_source(given, streaming=True), schema.full(include_headers=False))
        started = reader.initialOffset()[name]
        if done is not None:
            reader.commit({name: {"0": done}})
        reader.stop()
        return started

    one, other = (topics.create(f"{topic}-{each}") for each in ("one", "other"))
    assert begin(one) == begin(other) == {"0": 0}
    topics.produce(other, ["while it was down"])
    assert begin(one, done=0) == begin(other) == {"0": 0}


def test_a_first_batch_that_fails_is_run_again(topics: Topics, topic: str, checkpoint: str) -> None:
    """A first batch that fails is run again: the restarted query from "latest" reads every record since its first
    start."""
    topics.create(topic)
    topics.produce(topic, ["before"])
    stream = topics.stream(topic, startingOffsets="latest", queryName=topic)

    def refuse(_: Any, number: int) -> None:
        raise RuntimeError(f"batch {number} fails")

    failing = stream.writeStream.foreachBatch(refuse).option("checkpointLocation", checkpoint).start()
    with pytest.raises(Exception, match="batch 0 fails"):
        failing.awaitTermination(PATIENCE_S)
    topics.produce(topic, ["while it was down"])
    with running(stream, checkpoint) as run:
        run.wait("the record is read", lambda: run.values == ["while it was down"])


@pytest.mark.long
def test_retention_overtakes_a_stopped_job(
    topics: Topics, topic: str, available: Callable[..., Run], admin: Admin
) -> None:
    """Retention that overtakes a stopped job is an error with the lost offsets, or skipped with
    failOnDataLoss=false."""
    topics.create(topic)
    topics.produce(topic, range(4))
    assert available().finish() == [texts(0, 1, 2, 3)]
    topics.produce(topic, range(4, 10))
    delete_records(admin, topic, 7)
    assert f"{topic}-0 was to be read from offset 4 to 10, but begins at 7 now" in available().failure()
    assert available(failOnDataLoss=False).finish() == [texts(7, 8, 9)]


@pytest.mark.long
def test_retention_overtakes_a_first_batch_that_failed(
    topics: Topics, topic: str, checkpoint: str, available: Callable[..., Run], admin: Admin
) -> None:
    """Retention that overtakes a failed first batch is an error: the restart does not silently skip the deleted
    records."""
    topics.create(topic)
    topics.produce(topic, range(6))

    def refuse(_: Any, number: int) -> None:
        raise RuntimeError(f"batch {number} fails")

    failing = topics.stream(topic).writeStream.foreachBatch(refuse).option("checkpointLocation", checkpoint).start()
    with pytest.raises(Exception, match="batch 0 fails"):
        failing.awaitTermination(PATIENCE_S)
    delete_records(admin, topic, 4)
    for _ in range(2):
        assert f"{topic}-0 was to be read from offset 0 to 6, but begins at 4 now" in available().failure()
    assert available(failOnDataLoss=False).finish() == [texts(4, 5)]
    assert available().finish() == []
    topics.produce(topic, [6])
    assert available().finish() == [["6"]]


def test_a_topic_is_deleted_while_it_is_read(topics: Topics, topic: str, checkpoint: str, admin: Admin) -> None:
    """A topic that is deleted while it is read ends the query with an error that names it."""
    topics.create(topic)
    topics.produce(topic, [1])
    run = Run(topics.stream(topic, **{"fetchOffset.retryIntervalMs": 10}), checkpoint, processingTime="0 seconds")
    run.wait("the record is read", lambda: run.values == ["1"])
    admin.delete_topic(topic)
    assert topic in run.failure()


@pytest.mark.parametrize("count", [1, long(4), long(9)], ids=["shorter", "as long", "longer"])
def test_a_topic_is_made_anew(
    topics: Topics, topic: str, available: Callable[..., Run], admin: Admin, count: int
) -> None:
    """A topic that is created again has another id, so the old one's data is lost, however many records the new one
    has. With failOnDataLoss=false the query reads the new topic from its start."""
    topics.create(topic)
    topics.produce(topic, range(4))
    assert available().finish() == [texts(0, 1, 2, 3)]
    admin.delete_topic(topic)
    topics.create(topic)
    topics.produce(topic, range(100, 100 + count))
    told = available().failure()
    assert f"{topic}-0 was read up to offset 4, but belongs to a topic that was deleted and created again" in told
    assert available(failOnDataLoss=False).finish() == [texts(*range(100, 100 + count))]
    topics.produce(topic, ["newer"])
    assert available().finish() == [["newer"]]


@pytest.mark.long
def test_a_topic_is_made_anew_before_its_batch_is_read(
    topics: Topics, topic: str, checkpoint: str, admin: Admin
) -> None:
    """A topic that is created again before its planned batch is read fails the batch: Spark repeats it with the
    checkpoint's offsets."""
    topics.create(topic)
    topics.produce(topic, range(4))

    def refuse(_: Any, number: int) -> None:
        raise RuntimeError(f"batch {number} fails")

    failing = topics.stream(topic).writeStream.foreachBatch(refuse).option("checkpointLocation", checkpoint).start()
    with pytest.raises(Exception, match="batch 0 fails"):
        failing.awaitTermination(PATIENCE_S)
    admin.delete_topic(topic)
    topics.create(topic)
    topics.produce(topic, range(100, 106))
    run = Run(topics.stream(topic), checkpoint, availableNow=True)
    assert f"{topic}-0 was to be read up to offset 4, but belongs to a topic that was deleted" in run.failure()
    run = Run(topics.stream(topic, failOnDataLoss=False), checkpoint, availableNow=True)
    assert [batch for batch in run.finish() if batch] == [texts(*range(100, 106))]


def test_a_topic_is_made_anew_while_a_task_reads(topics: Topics, topic: str, admin: Admin) -> None:
    """A topic that is created again while a task reads gives that task no records: it was planned for the deleted
    topic."""
    from pybroker.spark import options
    from pybroker.spark.reading.input_partitions import input_partitions
    from pybroker.spark.reading.reader import read_range

    def read(**more: str) -> list[int]:
        given = options.parse_source(topics.options(topic, **more), streaming=True)
        return [batch.num_rows for batch in read_range(given, ("value",), task)]

    topics.create(topic)
    topics.produce(topic, range(4))
    given = options.parse_source(topics.options(topic, startingOffsets="earliest"), streaming=True)
    asker = OffsetReader(given)
    (tp,) = asker.partitions()
    (task,) = input_partitions(given, asker, {tp: 0}, {tp: 4})
    asker.close()
    assert isinstance(task, KafkaInputPartition)
    assert read(startingOffsets="earliest") == [4]
    admin.delete_topic(topic)
    topics.create(topic)
    topics.produce(topic, range(100, 106))
    with pytest.raises(KafkaError, match=f"{topic}-0 was to be read from offset 0, but belongs to a topic that was de"):
        read(startingOffsets="earliest")
    assert read(startingOffsets="earliest", failOnDataLoss="false") == []


@pytest.mark.long
def test_a_checkpoint_without_topic_ids_goes_on(
    topics: Topics, topic: str, checkpoint: str, available: Callable[..., Run]
) -> None:
    """A checkpoint without topic ids, of Spark's connector or an earlier version, is used; its next batch adds the
    ids."""
    topics.create(topic)
    topics.produce(topic, range(2))
    assert available().finish() == [texts(0, 1)]
    (planned,) = Path(checkpoint, "offsets").glob("[0-9]*")
    *head, told = planned.read_text().splitlines()
    document = json.loads(told)
    assert list(document.pop(offsets.TOPIC_IDS)) == [topic]
    planned.write_text("\n".join([*head, json.dumps(document)]))
    for summed in Path(checkpoint, "offsets").glob(".*.crc"):
        summed.unlink()
    topics.produce(topic, [2])
    assert available().finish() == [["2"]]
    assert offsets.TOPIC_IDS in Path(checkpoint, "offsets", "1").read_text()


def test_the_broker_is_away_for_a_moment(own_topics: Topics, topic: str, checkpoint: str) -> None:
    """A broker that is killed with -9 and comes back does not end a query."""
    topics = own_topics
    topics.create(topic)
    topics.produce(topic, [1])
    with running(topics.stream(topic, **{"fetchOffset.retryIntervalMs": 100}), checkpoint) as run:
        run.wait("the first record is read", lambda: run.values == ["1"])
        topics.broker.kill()
        time.sleep(0.5)  # long enough for the query to meet the closed port, which this test needs
        topics.broker.restart()
        topics.produce(topic, [2])
        run.wait("the second record is read", lambda: run.values == ["1", "2"])
