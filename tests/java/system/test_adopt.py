"""A log dir that Apache Kafka wrote opens in pybroker: the same records at the same offsets, and writes go on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import wire
from tests.clients.adapters.confluent import Confluent
from tests.clients.adapters.neutral import CODECS, Record
from tests.harness import BrokerProcess, until
from tests.java.dump import dump, files
from tests.java.peers import PEERS, ApacheKafka, MissingJava, jars
from tests.marks import long

pytestmark = pytest.mark.java

START_MS = int(time.time() * 1000) - 3_600_000
EAGER = {
    "log.cleaner.backoff.ms": 100,
    "log.initial.task.delay.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 200,
}
"""Settings that make Kafka's background tasks run at once."""


def records(start: int, end: int, partition: int = 0) -> list[Record]:
    return [
        Record(
            None if i % 50 == 7 else b"value %d" % i, b"key %d" % (i % 10), (("h", b"%d" % i),), START_MS + i, partition
        )
        for i in range(start, end)
    ]


class Written(NamedTuple):
    """The contents of the log dir, as Kafka served them: records and (start, end) of each partition."""

    log_dir: Path
    version: str
    records: dict[tuple[str, int], list[Record]]
    offsets: dict[tuple[str, int], tuple[int, int]]
    times: dict[int, int | None]
    producer_id_max: int

    @property
    def dense(self) -> list[tuple[str, int]]:
        """The partitions without gaps in their offsets."""
        return [(topic, partition) for topic, partition in self.records if topic != "compacted"]


def small_segments(kafka: ApacheKafka) -> dict[str, str]:
    """Settings for several segments from little data; 4.x allows none below 1 MiB, so it has one segment."""
    return {"segment.bytes": "8192"} if kafka.version.startswith("3") else {}


def write(kafka: ApacheKafka) -> Written:
    """Write every kind of topic that a log dir can hold without groups and transactions."""
    client = Confluent(kafka.bootstrap)
    small = small_segments(kafka)
    client.create_topic("codecs", partitions=2, config=small)
    for i, codec in enumerate(CODECS):
        for p in range(2):
            client.send_all("codecs", records(300 * i, 300 * i + 300, p), codec=codec, batch_bytes=700)
    client.create_topic("idempotent.topic", config=small)
    for n in range(3):
        client.send_all("idempotent.topic", records(300 * n, 300 * n + 300), idempotent=True, batch_bytes=700)
    client.create_topic("deleted_records", config=small)
    client.send_all("deleted_records", records(0, 600), batch_bytes=700)
    client.delete_records("deleted_records", 0, 321)
    starts = kafka.log_dir / "log-start-offset-checkpoint"
    until("the log start is on disk", lambda: "deleted_records 0 321" in starts.read_text(), every_s=0.1)
    client.create_topic("append-time", config={"message.timestamp.type": "LogAppendTime"})
    client.send_all("append-time", records(0, 50), codec="lz4")
    client.create_topic("empty-1-2")
    client.create_topic("compacted", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **small})
    client.send_all("compacted", records(0, 3000), batch_bytes=700)
    partitions = [("codecs", 0), ("codecs", 1), ("idempotent.topic", 0), ("deleted_records", 0), ("append-time", 0)]
    partitions += [("empty-1-2", 0), ("compacted", 0)]
    if small:
        until("the cleaner has compacted", lambda: compacted(kafka), timeout_s=60, every_s=0.1)
    return Written(
        kafka.log_dir,
        kafka.version,
        {(t, p): served(kafka, t, p) for t, p in partitions},
        {(t, p): client.offsets(t, p) for t, p in partitions},
        {at: client.offset_at("codecs", 0, START_MS + at) for at in (-5, 0, 400, 1499, 1500)},
        max(b.producer_id for b in wire_batches(kafka, "idempotent.topic")),
    )


def compacted(kafka: ApacheKafka) -> bool:
    """True if Kafka's cleaner has finished: it has reached the active segment, which it does not clean. Earlier, a
    further cleaning could make the served records differ from the disk."""
    told = kafka.log_dir / "cleaner-offset-checkpoint"
    active = max(int(path.stem) for path in (kafka.log_dir / "compacted-0").glob("*.log"))
    return told.exists() and f"compacted 0 {active}" in told.read_text().splitlines()


def wire_batches(server: ApacheKafka | BrokerProcess, topic: str, partition: int = 0) -> list[wire.Batch]:
    with wire.Wire(server.port) as w:
        _, _, start = w.list_offset(topic, -2, partition)
        return w.fetch_all(topic, start, partition)


def served(server: ApacheKafka | BrokerProcess, topic: str, partition: int = 0) -> list[Record]:
    """All records of a partition, however many a compaction left: read up to the broker's end offset."""
    client = Confluent(server.bootstrap)
    start, end = client.offsets(topic, partition)
    found: list[Record] = []
    if start < end:
        last = wire_batches(server, topic, partition)[-1]
        assert last.end == end
        with client.consumer(topic, {partition: start}) as consumer:
            while not found or found[-1].offset < end - 1:
                found += consumer.poll(30)
    return found


KILLED = pytest.param("kafka391-kill", marks=pytest.mark.xdist_group("kafka391-kill"))
STOPPED = [long(way, marks=[pytest.mark.xdist_group(way)]) for way in ("kafka391-stop", "kafka411-stop")]


@pytest.fixture(scope="module", params=[KILLED, *STOPPED])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    peer, end = request.param.split("-")
    try:
        jars(PEERS[peer].version)
    except MissingJava as e:
        pytest.skip(str(e))
    with PEERS[peer](tmp_path_factory.mktemp(request.param), EAGER) as kafka:
        assert isinstance(kafka, ApacheKafka)
        left = write(kafka)
        if end == "stop":
            kafka.stop()
        else:
            kafka.kill()
    yield left


@pytest.fixture
def adopted(written: Written, tmp_path: Path, start_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    """pybroker, started on a copy of Kafka's log dir."""
    data = tmp_path / "adopted"
    shutil.copytree(written.log_dir, data)
    return start_broker(data_dir=data, sets={"broker.id": 1, "log.retention.ms": -1})


def test_the_same_records_at_the_same_offsets(written: Written, adopted: BrokerProcess) -> None:
    """Records are at the same offsets after adoption and two restarts, with Kafka's keys, values, headers and
    timestamps, in every topic."""
    client = Confluent(adopted.bootstrap)
    for life in ("adopted", "restarted", "killed"):
        topics = {topic: partitions for topic, partitions in client.topics().items() if not topic.startswith("__")}
        assert topics == {t: [0, 1] if t == "codecs" else [0] for t, _ in written.records}, life
        for topic, partition in written.dense:
            assert client.offsets(topic, partition) == written.offsets[topic, partition], (life, topic)
            assert served(adopted, topic, partition) == written.records[topic, partition], (life, topic)
        assert {at: client.offset_at("codecs", 0, START_MS + at) for at in written.times} == written.times, life
        if life == "adopted":
            adopted.stop()
            adopted.restart()
        elif life == "restarted":
            adopted.kill()
            adopted.restart()


def go_on(written: Written, adopted: BrokerProcess, topic: str, partition: int) -> None:
    """Write 200 more records with a new idempotent producer, and check that they follow the old ones, and that all can
    be read."""
    _, end = written.offsets[topic, partition]
    more = [r._replace(offset=end + i) for i, r in enumerate(records(0, 200, partition))]
    offsets = Confluent(adopted.bootstrap).send_all(topic, more, idempotent=True, codec="zstd", batch_bytes=700)
    assert offsets == list(range(end, end + 200)), topic
    found = served(adopted, topic, partition)
    if topic == "append-time" and written.version.startswith("4"):  # KRaft keeps its setting in the metadata log
        assert min(record.timestamp_ms for record in found[-len(more) :]) > START_MS + 3_600_000
        found[-len(more) :] = [r._replace(timestamp_ms=m.timestamp_ms) for r, m in zip(found[-200:], more, strict=True)]
    assert found == [*written.records[topic, partition], *more], topic


def test_producing_goes_on_where_kafka_ended(written: Written, adopted: BrokerProcess) -> None:
    """Producing goes on where Kafka ended: new producer ids are above all old ones, and Kafka's tool reads the
    result."""
    for topic, partition in written.dense:
        go_on(written, adopted, topic, partition)
    ids = {b.producer_id for b in wire_batches(adopted, "codecs")} - {-1}
    assert min(ids) > written.producer_id_max
    adopted.stop()
    paths = [path for partition in written.dense for path in files(adopted.partition_dir(*partition))]
    assert dump(paths, "--deep-iteration").complaints == []


def test_a_compacted_topic_keeps_its_gaps(written: Written, adopted: BrokerProcess) -> None:
    """A compacted topic keeps the gaps in and between its segments: by cleaner-offset-checkpoint they are no missing
    segments."""
    for _ in range(2):
        client = Confluent(adopted.bootstrap)
        assert client.offsets("compacted") == written.offsets["compacted", 0]
        assert served(adopted, "compacted") == written.records["compacted", 0]
        adopted.kill()
        adopted.restart()
    go_on(written, adopted, "compacted", 0)
