"""Log directories read without a broker: the slow truth's records, ranges, and logs in use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

import pybroker
from pybroker import core
from pybroker.client.columns.segments import WINDOW_BYTES
from pybroker.core import LogError, LogManager, Partition
from pybroker.protocol import records as slow
from pybroker.protocol.compression import compress
from tests.clients.adapters.confluent import QUIET, Confluent
from tests.clients.adapters.neutral import CODECS, Record
from tests.harness import Server, settle
from tests.java.peers import each_peer
from tests.rows import with_each

START_MS = 1_700_000_000_000


def time_of(offset: int) -> int:
    return START_MS + offset // 3 * 10 - offset % 7


def records(first: int, n: int) -> list[Any]:
    """Records with mostly rising timestamps, a key in every second, a header in every third, and different sizes."""
    return [
        (
            START_MS + (i // 3) * 10 - (i % 7),
            b"k%d" % i if i % 2 else None,
            b"v" * (i % 90),
            [("h", b"x")][: i % 3 == 0],
        )
        for i in range(first, first + n)
    ]


def append(log: Partition, first: int, n: int, codec: int = 0) -> None:
    squeeze = (lambda data: compress(codec, data)) if codec else None
    log.append(core.build_batch(records(first, n), attributes=codec, compress=squeeze), now_ms=START_MS)


@pytest.fixture
def broker() -> Iterator[LogManager]:
    made = LogManager()
    yield made
    made.close()


def write(broker: LogManager, directory: Path) -> Partition:
    """Write a log of many segments with every codec, 2,000 records, indexed every 500 bytes."""
    config = {"segment.bytes": 6000, "index.interval.bytes": 500}
    partition = broker.open(str(directory), "orders.eu", 7, topic_id=bytes(16), config=config)
    partition.become_leader(0, 0)
    for first in range(0, 2000, 10):
        append(partition, first, 10, codec=first // 10 % 5)
    assert partition.segment_count > 8
    return partition


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of such a log without a broker; tests do not change it."""
    broker = LogManager()
    partition = write(broker, tmp_path_factory.mktemp("read-log"))
    broker.close()
    return Path(partition.directory)


@pytest.fixture
def closed(log: Path, tmp_path: Path) -> Path:
    """A copy of the directory, for a test to change."""
    return shutil.copytree(log, tmp_path / "backup" / "orders.eu-7")


def segments(log: Path) -> list[Path]:
    return sorted(log.glob("*.log"))


def slow_rows(log: Path) -> list[slow.Record]:
    return [r for path in segments(log) for _, b in slow.iter_batches(path.read_bytes()) for r in b.records()]


def rows(log: Path, **how: Any) -> list[dict[str, Any]]:
    return [row for batch in pybroker.read_log(log, **how) for row in batch.to_pylist()]


def offsets(log: Path, **how: Any) -> list[int]:
    return [row["offset"] for row in rows(log, columns=["offset"], **how)]


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_directory_is_read_whole(log: Path) -> None:
    """A directory is read whole: every record of every segment and codec, with the partition from the directory's
    name."""
    found = rows(log)
    assert len(found) == 2000
    assert {(row["topic"], row["partition"], row["timestamp_type"]) for row in found} == {("orders.eu", 7, 0)}
    for row, expected in zip(found, slow_rows(log), strict=True):
        assert (row["offset"], row["key"], row["value"]) == (expected.offset, expected.key, expected.value)
        assert int(row["timestamp"].timestamp() * 1000 + 0.5) == expected.timestamp_ms
        assert [(header["key"], header["value"]) for header in row["headers"]] == expected.headers


@pytest.mark.parametrize("batch_rows", [1, 7, 999, 2000, 1 << 20])
def test_batches_have_the_rows_asked_for(log: Path, batch_rows: int) -> None:
    """Batches have the requested number of rows, except the last, wherever segments and record batches end."""
    sizes = [batch.num_rows for batch in pybroker.read_log(log, batch_rows=batch_rows)]
    assert sum(sizes) == 2000
    assert set(sizes[:-1]) <= {batch_rows}
    assert 0 < sizes[-1] <= batch_rows


def test_columns_come_in_the_order_asked_for(log: Path) -> None:
    """Columns come in the requested order, and no others."""
    for batch in pybroker.read_log(log, columns=["value", "partition", "offset"], topics="string"):
        assert batch.schema.names == ["value", "partition", "offset"]


def test_a_batch_larger_than_the_buffer_is_read(broker: LogManager, tmp_path: Path) -> None:
    """A batch larger than the buffer is read: one large record between small ones."""
    log = broker.open(str(tmp_path), "t", 0, topic_id=bytes(16), config={"max.message.bytes": 1 << 30})
    log.become_leader(0, 0)
    sizes = [10, 3 * WINDOW_BYTES, 10]
    for size in sizes:
        log.append(core.build_batch([(0, None, b"v" * size, [])]), now_ms=0)
    assert [len(row["value"]) for row in rows(Path(log.directory))] == sizes


# -- ranges -----------------------------------------------------------------------------------------------------------


@with_each(("start", "end"), [(0, 1), (1, 1999), (999, 1001), (1234, None), (None, 77), (1999, 5000)])
def test_offsets_bound_what_is_read(log: Path, start: int | None, end: int | None) -> None:
    """Offsets bound the read from start_offset to before end_offset, within segments and across them."""
    expected = list(range(start or 0, min(2000, 2000 if end is None else end)))
    assert offsets(log, start_offset=start, end_offset=end) == expected


def test_nothing_is_read_outside_of_the_log(log: Path) -> None:
    """A range past the log's end, or with its end before its start, gives no records."""
    assert offsets(log, start_offset=2000) == offsets(log, start_offset=50, end_offset=50) == []
    assert offsets(log, start_offset=9, end_offset=3) == []


@with_each("since", [None, -50, 0, 1, 3331, 6000, 6660, 9999])
@with_each("until", [None, -50, 5, 4000, 9999])
def test_times_bound_what_is_read_as_brokers_look_them_up(log: Path, since: int | None, until: int | None) -> None:
    """Timestamps bound the read as brokers look them up: from the first record at or after start_time to before the
    first at or after end_time, with time index or without."""
    times = [time_of(offset) - START_MS for offset in range(2000)]

    def look_up(time: int) -> int:
        return next((offset for offset, found in enumerate(times) if found >= time), 2000)

    expected = list(range(look_up(since) if since is not None else 0, look_up(until) if until is not None else 2000))
    how = {
        "start_time": None if since is None else START_MS + since,
        "end_time": None if until is None else START_MS + until,
    }
    assert offsets(log, **how) == expected


@pytest.mark.parametrize("damage", ["missing", "garbage", "short", "zeros"])
def test_an_index_only_ever_helps(closed: Path, damage: str) -> None:
    """An index never changes the result: a range is the same without indexes, with wrong ones, and with Kafka's
    preallocated ones."""
    for path in closed.glob("*index"):
        if damage == "missing":
            path.unlink()
        elif damage == "garbage" and path.suffix == ".index":
            path.write_bytes(bytes(range(200)) * 4)
        elif damage == "short":
            path.write_bytes(path.read_bytes()[:-3])
        elif damage == "zeros":
            path.write_bytes(path.read_bytes() + bytes(1200))
    assert offsets(closed, start_offset=1111, end_offset=1500) == list(range(1111, 1500))
    first = next(offset for offset in range(2000) if time_of(offset) >= START_MS + 4321)
    assert offsets(closed, start_time=START_MS + 4321) == list(range(first, 2000))


# -- logs in use ------------------------------------------------------------------------------------------------------


def test_a_log_is_read_while_it_is_written(broker: LogManager, tmp_path: Path) -> None:
    """A log is read while it is written: a later segment is not read, and additions to the last one may be: whole
    batches, none twice."""
    log = write(broker, tmp_path)
    batches = pybroker.read_log(log.directory, columns=["offset"], batch_rows=100)
    found = next(batches).column("offset").to_pylist()
    for first in range(2000, 3000, 10):
        append(log, first, 10)
    found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == list(range(len(found)))
    assert 2000 <= len(found) <= 3000


def test_segments_that_retention_removes_are_passed_over(closed: Path) -> None:
    """Segments that retention removes are skipped: an open one is read to its end, a deleted one is no error, and the
    rest follows."""
    batches = pybroker.read_log(closed, columns=["offset"], batch_rows=10)
    found = next(batches).column("offset").to_pylist()
    files = segments(closed)
    for path in files[:5]:
        path.unlink()
    found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == [*range(int(files[1].stem)), *range(int(files[5].stem), 2000)]


def test_segments_that_compaction_merges_are_found_where_they_went(closed: Path) -> None:
    """Segments that compaction merges are found in the new file: it replaces three, under the first one's name."""
    batches = pybroker.read_log(closed, columns=["offset"], batch_rows=10)
    found = next(batches).column("offset").to_pylist()
    files = segments(closed)
    merged = closed / "new"
    merged.write_bytes(b"".join(path.read_bytes() for path in files[:3]))
    for path in files[:3]:
        path.with_suffix(".index").unlink(missing_ok=True)
    for path in files[1:3]:
        path.unlink()
    merged.rename(files[0])
    found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == list(range(2000))


@pytest.mark.parametrize("checked", [False, True])
def test_a_file_that_is_cut_while_it_is_read_ends_nothing_but_the_reading(closed: Path, checked: bool) -> None:
    """A file that is truncated during the read, as a follower may do, ends the read with an error after its valid part,
    not with a signal."""
    [*_, last] = segments(closed)
    first = int(last.stem)
    settle(last)
    batches = pybroker.read_log(closed, columns=["offset"], start_offset=first, batch_rows=1, check_crcs=checked)
    found = next(batches).column("offset").to_pylist()
    os.truncate(last, 100)
    with pytest.raises(LogError, match="it was cut while it was read, at byte") as error:
        for batch in batches:
            found += batch.column("offset").to_pylist()
    assert found == list(range(first, first + len(found)))
    assert error.value.code == 56


def test_a_file_that_goes_on_while_it_is_read_is_read_on(closed: Path) -> None:
    """A file that grows during the read, as a broker's active segment does, is read on."""
    [*_, last] = segments(closed)
    first, data = int(last.stem), last.read_bytes()
    settle(last)
    batches = pybroker.read_log(closed, columns=["offset"], start_offset=first, batch_rows=7)
    found = next(batches).column("offset").to_pylist()
    with last.open("ab") as file:
        file.write(data[:10])
    found += [offset for batch in batches for offset in batch.column("offset").to_pylist()]
    assert found == list(range(first, 2000))


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0" * 5, b"cut", "half"])
def test_what_is_after_the_last_whole_batch_is_left(closed: Path, tail: bytes | str) -> None:
    """Bytes after the last whole batch are ignored: Kafka's preallocated zeros, and an incomplete batch."""
    [*_, last] = segments(closed)
    half = slow.build_batch(records(2000, 5), base_offset=2000)[:-3]
    with last.open("ab") as file:
        file.write(half if isinstance(tail, str) else tail)
    assert offsets(closed) == list(range(2000))


def test_a_damaged_batch_is_told_after_the_records_before_it(closed: Path) -> None:
    """A damaged batch is a LogError that names it, after every row before it."""
    path = segments(closed)[2]
    [*_, (position, batch)] = slow.iter_batches(path.read_bytes())
    with path.open("r+b") as file:
        file.seek(position + batch.size - 1)
        file.write(bytes([batch.payload[-1] ^ 1]))
    found: list[int] = []
    with pytest.raises(LogError, match=f"batch at offset {batch.base_offset}") as refused:
        for made in pybroker.read_log(closed, batch_rows=1000):
            found += made.column("offset").to_pylist()
    assert refused.value.code == 2
    assert found == list(range(batch.base_offset))


def test_a_segment_cut_short_in_the_middle_of_a_log_is_told(closed: Path) -> None:
    """A segment cut short in the middle of a log is an error: only the last segment may end within a batch."""
    os.truncate(segments(closed)[1], segments(closed)[1].stat().st_size - 1)
    with pytest.raises(LogError, match=r"\.log: the batch at byte \d+ is cut: \d+ bytes"):
        rows(closed)


# -- logs of Apache Kafka ---------------------------------------------------------------------------------------------

KEPT = {"retention.ms": "-1"}  # the records' timestamps are long past


@pytest.fixture(params=each_peer(long=["kafka391"]))  # 4.1.1 behaves the same
def kafka(request: pytest.FixtureRequest) -> Server:
    """Apache Kafka, running while its log directories are read."""
    server: Server = request.getfixturevalue(request.param)
    return server


def test_what_kafka_wrote_is_read_as_it_was_sent(kafka: Server, topic: str) -> None:
    """Kafka's files are read as sent, with every codec, and with Kafka's segments and indexes; timestamps are found
    where Kafka finds them."""
    small = {"index.interval.bytes": "500"}
    if kafka.name.endswith("3.9.1"):  # 4.x refuses segments below 1 MiB
        small["segment.bytes"] = "8192"
    client = Confluent(kafka.bootstrap)
    client.create_topic(topic, config={**KEPT, **small})
    sent = [
        Record(None if i % 50 == 7 else b"value %d " % i * 4, b"key %d" % (i % 10), (("h", b"x"),), START_MS + i, 0, i)
        for i in range(1500)
    ]
    for i, codec in enumerate(CODECS):
        client.send_all(topic, sent[300 * i : 300 * i + 300], codec=codec, batch_bytes=700)
    log = kafka.partition_dir(topic)
    assert {b.codec for path in segments(log) for _, b in slow.iter_batches(path.read_bytes())} == set(range(5))
    assert len(segments(log)) > 3 or "segment.bytes" not in small

    found = rows(log, topics="string")
    assert {(row["topic"], row["partition"], row["timestamp_type"]) for row in found} == {(topic, 0, 0)}
    assert [as_sent(row) for row in found] == sent
    assert offsets(log, start_offset=299, end_offset=901) == list(range(299, 901))
    for time_ms in (START_MS - 5, START_MS + 299, START_MS + 1000, START_MS + 1499):
        assert offsets(log, start_time=time_ms)[0] == client.offset_at(topic, 0, time_ms)
    assert offsets(log, start_time=START_MS + 1500) == []


def as_sent(row: dict[str, Any]) -> Record:
    headers = tuple((header["key"], header["value"]) for header in row["headers"])
    time_ms = int(row["timestamp"].timestamp() * 1000 + 0.5)
    return Record(row["value"], row["key"], headers, time_ms, row["partition"], row["offset"])


def test_the_time_at_which_kafka_appended_is_the_records_time(kafka: Server, topic: str) -> None:
    """LogAppendTime is the timestamp of all records of a batch, in place of the producer's."""
    client = Confluent(kafka.bootstrap)
    client.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    began = time.time() - 1
    client.send_all(topic, [Record(b"%d" % i, timestamp_ms=START_MS + i) for i in range(50)], codec="lz4")
    found = rows(kafka.partition_dir(topic), columns=["timestamp", "timestamp_type"])
    assert [row["timestamp_type"] for row in found] == [1] * 50
    assert all(began < row["timestamp"].timestamp() < time.time() + 1 for row in found)


def test_transactions_of_kafka_are_records_and_no_markers(kafka: Server, topic: str) -> None:
    """Records of Kafka's transactions, committed, aborted or open, are read; control batches take offsets and give no
    rows."""
    Confluent(kafka.bootstrap).create_topic(topic)
    producer = ck.Producer(
        {**QUIET, "bootstrap.servers": kafka.bootstrap, "transactional.id": topic, "compression.type": "zstd"}
    )
    producer.init_transactions(30)

    def begin(value: bytes) -> None:
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, value * 20)
        assert producer.flush(30) == 0

    begin(b"committed ")
    producer.commit_transaction(30)
    begin(b"aborted ")
    producer.abort_transaction(30)
    begin(b"open ")
    found = [(row["offset"], row["value"]) for row in rows(kafka.partition_dir(topic))]
    producer.abort_transaction(30)
    firsts = {0: b"committed ", 4: b"aborted ", 8: b"open "}
    assert found == [(first + i, value * 20) for first, value in firsts.items() for i in range(3)]


# -- misuse and indexes -----------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_told_at_once(log: Path, tmp_path: Path) -> None:
    """A missing directory, segment or column is an error before the first batch is requested."""
    with pytest.raises(FileNotFoundError):
        pybroker.read_log(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no segments: a partition's directory has files like 0000"):
        pybroker.read_log(tmp_path)
    with pytest.raises(ValueError, match="has no column 'values', it has topic, partition, offset"):
        pybroker.read_log(log, columns=["values"])
    with pytest.raises(ValueError, match="batch_rows is 0"):
        pybroker.read_log(log, batch_rows=0)


def test_a_directory_of_another_name_has_no_topic(closed: Path, tmp_path: Path) -> None:
    """A directory of another name, as a backup may have, gives records without a partition."""
    backup = tmp_path / "elsewhere"
    closed.rename(backup)
    assert [*rows(backup, end_offset=1)[0]] == ["offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    with pytest.raises(ValueError, match="no column 'topic', it has offset"):
        pybroker.read_log(backup, columns=["topic"])


def test_index_files_are_numpy_arrays(closed: Path) -> None:
    """Index files are NumPy arrays of the entries, mapped, without the zeros that Kafka keeps behind them until it
    closes a file."""
    found = 0
    for path in closed.glob("*index"):
        base = int(path.stem)
        index = pybroker.read_index(path)
        if path.suffix == ".index":
            entries = [(base + offset, position) for offset, position in index.tolist()]
            assert entries == core.read_index(str(path))
        else:
            assert [(time, base + offset) for time, offset in index.tolist()] == core.read_timeindex(str(path))
        found += len(index)
        with path.open("ab") as file:
            file.write(bytes(240))
        if len(index):
            assert pybroker.read_index(path).tolist() == index.tolist()
        os.truncate(path, path.stat().st_size - 240)
    assert found > 100
    with pytest.raises(ValueError, match=r"ends with \.index or \.timeindex"):
        pybroker.read_index(closed / "x.log")


def test_without_pyarrow_it_is_said_what_to_install() -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import pybroker; pybroker.read_log"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    told = ended.stderr.splitlines()[-1]
    assert told == "ModuleNotFoundError: Arrow columns need pyarrow: pip install 'numpy>=1.26' 'pyarrow>=18'"
