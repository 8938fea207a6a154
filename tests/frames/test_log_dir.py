"""Topics as tables, out of log directories: without a broker, beside one, of Apache Kafka's layout, and damaged."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pybroker
from pybroker.core import LogError
from pybroker.errors import OFFSET_OUT_OF_RANGE, KafkaError
from pybroker.testing import BrokerHandle
from tests.frames.conftest import Fill

START_MS = 1_700_000_000_000
ROWS = 3000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log dir of a broker that has stopped: a topic of three partitions in several segments, and another."""
    home = tmp_path_factory.mktemp("logs")
    path = home / "data"
    with BrokerHandle(data_dir=str(home), settings={"log.segment.bytes": 14_000}) as broker:
        broker.create_topic("orders", partitions=3)
        broker.create_topic("orders-x")
        with pybroker.Producer(bootstrap_servers=broker.bootstrap_servers, batch_size=2000) as producer:
            for n in range(ROWS):
                value = json.dumps({"id": n, "name": f"n{n}"})
                producer.send("orders", value, key=f"{n}", partition=n % 3, timestamp_ms=START_MS + n)
        with pybroker.Admin(broker.bootstrap_servers) as admin:
            admin.delete_records({("orders", 2): 400})
    assert len([*(path / "orders-0").glob("*.log")]) > 2
    return path


def read(logs: Any, **how: Any) -> Any:
    return pybroker.read_topic("orders", log_dir=logs, format="json", **how)


def ids(table: Any, partition: int) -> list[int]:
    return [row["id"] for row in table.to_pylist() if row["kafka_partition"] == partition]


def test_all_partitions_are_read(logs: Path) -> None:
    """All records that a broker would return: those that were deleted are not among them."""
    table = read(logs)
    assert table.column_names == ["id", "name", "kafka_partition", "kafka_offset", "kafka_timestamp"]
    assert ids(table, 0) == list(range(0, ROWS, 3)) and ids(table, 1) == list(range(1, ROWS, 3))
    assert ids(table, 2) == list(range(1202, ROWS, 3))


@pytest.mark.parametrize(
    ("how", "first", "last"),
    [
        ({"start": 500, "end": 600}, 1500, 1799),
        ({"start": -10}, ROWS - 30, ROWS - 1),
        ({"start": datetime.fromtimestamp((START_MS + 2000) / 1000, UTC)}, 2000, ROWS - 1),
        (
            {
                "start": datetime.fromtimestamp((START_MS + 1500) / 1000, UTC),
                "end": datetime.fromtimestamp((START_MS + 1600) / 1000, UTC),
            },
            1500,
            1599,
        ),
        ({"end": "earliest"}, 0, -1),
    ],
)
def test_ranges(logs: Path, how: dict[str, Any], first: int, last: int) -> None:
    """The same as of brokers."""
    found = sorted(read(str(logs), schema={"id": int}, **how)["id"].to_pylist())
    assert found == list(range(first, last + 1))


def test_records_as_they_are(logs: Path) -> None:
    """With the columns of a broker's, and their types."""
    table = pybroker.read_topic("orders", log_dir=logs, partitions=[1], n_rows=2)
    assert table.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert [(row["offset"], row["key"]) for row in table.to_pylist()] == [(0, b"1"), (1, b"4")]
    table = pybroker.read_topic("orders", log_dir=logs, columns=["topic", "headers"], n_rows=1)
    assert table.to_pylist() == [{"topic": "orders", "headers": []}]


def test_partitions_in_several_directories(logs: Path, tmp_path: Path) -> None:
    """A broker may have several log dirs; what is about to be deleted is no partition."""
    shutil.copytree(logs / "orders-0", tmp_path / "a" / "orders-0")
    shutil.copytree(logs / "orders-1", tmp_path / "b" / "orders-1")
    shutil.copytree(logs / "orders-1", tmp_path / "b" / f"orders-2.{'0' * 32}-delete")
    table = read([tmp_path / "a", tmp_path / "b"])
    assert sorted(set(table["kafka_partition"].to_pylist())) == [0, 1] and table.num_rows == ROWS * 2 // 3


def test_a_broker_that_writes(frames_broker: BrokerHandle, fill: Fill, topic: str) -> None:
    """The end is that of the moment."""
    fill(topic, [b'{"id":%d}' % n for n in range(100)])
    found = pybroker.read_topic(topic, log_dir=Path(frames_broker.data_dir) / "data", format="json")
    assert found["id"].to_pylist() == list(range(100))


def test_scans_and_errors(logs: Path) -> None:
    """scan_topic reads files too, and so does a LazyFrame."""
    found: list[Any] = []
    scan = pybroker.scan_topic("orders", log_dir=logs, format="json", schema={"name": int}, on_error=found.append)
    assert scan.read_all().num_rows == 0
    assert sum(each.num_rows for each in found) == 2600
    frame = pybroker.scan_polars("orders", log_dir=logs, format="json", partitions=[0])
    assert frame.select("id").collect()["id"].to_list() == list(range(0, ROWS, 3))


def test_damage(logs: Path, tmp_path: Path) -> None:
    """A batch whose CRC is wrong ends the pass with an exception, and does not pass for data."""
    home = tmp_path / "orders-0"
    shutil.copytree(logs / "orders-0", home)
    segment = sorted(home.glob("*.log"))[1]
    data = bytearray(segment.read_bytes())
    data[200] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(LogError, match="CRC"):
        read(tmp_path)


def test_what_is_not_there(logs: Path) -> None:
    """A topic, a directory, an offset."""
    with pytest.raises(FileNotFoundError, match="has no directory of a partition of 'order', such as order-0"):
        pybroker.read_topic("order", log_dir=logs)
    with pytest.raises(FileNotFoundError):
        read(logs / "nowhere")
    with pytest.raises(KafkaError, match="partition 2 has the offsets 400 to 999: start 399") as caught:
        read(logs, start=399)
    assert caught.value.code == OFFSET_OUT_OF_RANGE
