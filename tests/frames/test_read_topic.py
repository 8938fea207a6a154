"""Topics as tables, out of a broker: ranges, columns, errors, and what the arguments may not be."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import pybroker
from pybroker.errors import OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, KafkaError
from pybroker.frames import sources
from pybroker.testing import BrokerHandle
from tests.frames.conftest import Fill
from tests.harness import ROOT

START_MS = 1_700_000_000_000


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def orders(count: int) -> list[bytes]:
    return [json.dumps({"id": n, "name": f"n{n}", "price": n / 2}).encode() for n in range(count)]


@pytest.fixture
def read(servers: str, topic: str) -> Callable[..., Any]:
    def call(**how: Any) -> Any:
        return pybroker.read_topic(topic, bootstrap_servers=servers, **how)

    return call


def test_a_topic_of_json_is_a_table(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """Types are found, rows are ordered by partition and offset, and Kafka's columns are beside those of the values."""
    fill(topic, orders(30), partitions=3, times=range(START_MS, START_MS + 30))
    table = read(format="json")
    assert table.schema == pa.schema(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("price", pa.float64()),
            ("kafka_partition", pa.int32()),
            ("kafka_offset", pa.int64()),
            ("kafka_timestamp", pa.timestamp("ms", "UTC")),
        ]
    )
    rows = table.to_pylist()
    places = [(row["kafka_partition"], row["kafka_offset"]) for row in rows]
    assert places == [(partition, offset) for partition in range(3) for offset in range(10)]
    assert rows[11] == {
        "id": 4, "name": "n4", "price": 2.0, "kafka_partition": 1, "kafka_offset": 1,
        "kafka_timestamp": at(START_MS + 4),
    }  # fmt: skip


def test_columns_are_chosen_in_their_order(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """Fields and Kafka's columns; the others are not there, and without a format records are as they are."""
    fill(topic, orders(2), keys=[b"k", None])
    assert read(format="json", columns=["kafka_key", "price", "kafka_topic"]).to_pylist() == [
        {"kafka_key": b"k", "price": 0.0, "kafka_topic": topic},
        {"kafka_key": None, "price": 0.5, "kafka_topic": topic},
    ]
    raw = read()
    assert raw.column_names == ["partition", "offset", "timestamp", "key", "value", "headers"]
    assert raw["value"].to_pylist() == orders(2)
    assert read(columns=["value", "timestamp_type"]).to_pylist()[1] == {"value": orders(2)[1], "timestamp_type": 0}


@pytest.mark.parametrize("compression_type", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_codec(fill: Fill, topic: str, read: Callable[..., Any], compression_type: str) -> None:
    fill(topic, orders(500), compression_type=compression_type)
    assert read(format="json", columns=["id"])["id"].to_pylist() == list(range(500))


# -- ranges ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ten(frames_broker: BrokerHandle) -> str:
    """A topic with two partitions of five records, ten milliseconds between two."""
    frames_broker.create_topic("ten", partitions=2)
    with pybroker.Producer(bootstrap_servers=frames_broker.bootstrap_servers) as producer:
        for number, value in enumerate(orders(10)):
            producer.send("ten", value, partition=number % 2, timestamp_ms=START_MS + 10 * number)
    return "ten"


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        ({"start": "latest"}, [[], []]),
        ({"end": "earliest"}, [[], []]),
        ({"start": 3}, [[6, 8], [7, 9]]),
        ({"start": -1}, [[8], [9]]),
        ({"start": -100, "end": -4}, [[0], [1]]),
        ({"start": {1: 4}}, [[0, 2, 4, 6, 8], [9]]),
        ({"start": {0: "latest"}, "end": {1: 2}}, [[], [1, 3]]),
        ({"end": 10**9, "partitions": [1]}, [[], [1, 3, 5, 7, 9]]),
        ({"start": at(START_MS + 60), "end": at(START_MS + 80)}, [[6], [7]]),
        ({"start": at(START_MS + 55).replace(tzinfo=None)}, [[6, 8], [7, 9]]),
        ({"start": at(START_MS + 91)}, [[], []]),
        ({"end": at(START_MS + 1_000_000)}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        ({"start": {0: at(START_MS + 80), 1: -2}}, [[8], [7, 9]]),
        ({"end": timedelta(days=36_500)}, [[], []]),
        ({"start": timedelta(days=36_500)}, [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]),
        ({"start": 2, "end": 1}, [[], []]),
    ],
)
def test_where_it_starts_and_ends(servers: str, ten: str, how: dict[str, Any], found: list[list[int]]) -> None:
    """By offset, from the end, by time, so long ago, and each of them for a partition by itself."""
    table = pybroker.read_topic(ten, bootstrap_servers=servers, format="json", schema={"id": int}, **how)
    by_partition = [[row["id"] for row in table.to_pylist() if row["kafka_partition"] == p] for p in (0, 1)]
    assert by_partition == found


@pytest.mark.parametrize("start", [11, {0: 6}])
def test_a_start_that_is_not_there(fill: Fill, topic: str, read: Callable[..., Any], start: Any) -> None:
    """Records that are gone, or were never written, are missed loudly."""
    fill(topic, orders(5))
    with pytest.raises(KafkaError, match=r"partition 0 has the offsets 0 to 4: start \d+ is not among them") as caught:
        read(start=start)
    assert caught.value.code == OFFSET_OUT_OF_RANGE


def test_records_that_were_deleted(servers: str, fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """earliest is where the log begins now; an offset before it raises."""
    fill(topic, orders(6))
    with pybroker.Admin(servers) as admin:
        admin.delete_records({(topic, 0): 4})
    assert read(columns=["offset"])["offset"].to_pylist() == [4, 5]
    assert read(columns=["offset"], start=-100)["offset"].to_pylist() == [4, 5]
    with pytest.raises(KafkaError, match="partition 0 has the offsets 4 to 5: start 3"):
        read(start=3)


def test_an_empty_topic(frames_broker: BrokerHandle, topic: str, read: Callable[..., Any]) -> None:
    """A table without rows, with the columns that are known."""
    frames_broker.create_topic(topic, partitions=2)
    assert read().num_rows == 0
    table = read(format="json", schema={"id": int})
    assert (table.num_rows, table.column_names[0]) == (0, "id")
    assert read(format="json").column_names == ["kafka_partition", "kafka_offset", "kafka_timestamp"]
    assert read(format="json", columns=["id", "kafka_key"]).column_names == ["kafka_key"]


@pytest.mark.parametrize("n_rows", [0, 1, 7, 30, 31])
def test_the_first_rows(fill: Fill, topic: str, read: Callable[..., Any], n_rows: int) -> None:
    fill(topic, orders(30), partitions=3)
    assert read(format="json", n_rows=n_rows).num_rows == min(n_rows, 30)
    assert read(n_rows=n_rows).num_rows == min(n_rows, 30)


# -- records that do not decode ----------------------------------------------------------------------------------------

BAD = [b'{"id":1}', b"nonsense", None, b'{"id":"x"}', b"", b'{"id":2}']
WHY = ["the value is not a JSON object", "field id is not of type int64"]


def test_bad_records_raise_once_all_is_read(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """The exception has the rows and the errors; both survive a pickle."""
    fill(topic, BAD, keys=[b"k%d" % n for n in range(6)])
    with pytest.raises(pybroker.BadRecords) as caught:
        read(format="json", schema={"id": int}, columns=["id"])
    for bad in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert str(bad) == f"2 records do not decode, the first at {topic}-0, offset 1: {WHY[0]}"
        assert bad.count == 2 and bad.table["id"].to_pylist() == [1, None, None, 2]
        assert [(e["offset"], e["key"], e["value"], e["error"]) for e in bad.errors.to_pylist()] == [
            (1, b"k1", BAD[1], WHY[0]), (3, b"k3", BAD[3], WHY[1])]  # fmt: skip


def test_bad_records_in_other_ways(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """A second table, a warning, or a function."""
    fill(topic, BAD)
    ask: dict[str, Any] = {"format": "json", "schema": {"id": int}}
    table, errors = read(on_error="return", **ask)
    assert (table.num_rows, errors["error"].to_pylist()) == (4, WHY)
    with pytest.warns(pybroker.BadRecordsWarning, match="2 records do not decode, .*; they are left out"):
        assert read(on_error="warn", **ask).num_rows == 4
    found: list[Any] = []
    assert read(on_error=found.append, **ask).num_rows == 4
    assert [row["offset"] for table in found for row in table.to_pylist()] == [1, 3]
    with pytest.raises(ValueError, match="on_error is 'skip': expected is raise, warn, return or a function"):
        read(on_error="skip", **ask)


def test_errors_end_with_the_rows(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """With n_rows only those before the last row count."""
    fill(topic, [b'{"id":0}', b"x", b'{"id":1}', b"y", b'{"id":2}', b"z"])
    counts = [read(format="json", schema={"id": int}, n_rows=n, on_error="return")[1].num_rows for n in range(5)]
    assert counts == [0, 0, 1, 2, 3]


def test_fields_that_come_late(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """Types are those of the first records: a warning names fields that are lost by it, unless they were not wanted."""
    fill(topic, [b'{"id":0}', b'{"id":1}', b'{"id":2,"late":1}'])
    with pytest.warns(pybroker.BadRecordsWarning, match="fields that only later records have are left out: late;"):
        assert read(format="json", infer_rows=2).num_rows == 3
    assert read(format="json", infer_rows=2, columns=["id"]).num_rows == 3
    assert read(format="json")["late"].to_pylist() == [None, None, 1]
    assert read(format="json", schema={"id": int}).num_rows == 3


def test_fields_of_the_schema_that_no_record_has(fill: Fill, topic: str, read: Callable[..., Any]) -> None:
    """A warning names a misspelt field, unless records have no other fields: then the field may be optional."""
    fill(topic, [b'{"id":0}', b'{"id":1}'])
    with pytest.warns(pybroker.BadRecordsWarning, match="no record has a value for idd, and records have") as seen:
        assert read(format="json", schema={"idd": int})["idd"].null_count == 2
    assert seen[0].filename == __file__, "the warning names the caller's line"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(format="json", schema={"id": int, "note": str})["note"].null_count == 2
        assert read(format="json", schema={"id": int, "note": str}, columns=["note"]).num_rows == 2


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"columns": "id"}, r"columns is a list of names, such as \['id'\], and not one name"),
        ({"columns": ["value", "value"]}, "columns has a name twice"),
        ({"columns": ["id"]}, "records have no column 'id', but topic, .*; give a format to have fields"),
        ({"columns": ["nope"], "format": "json"}, "there is no column 'nope'; there are id, kafka_topic, .*"),
        ({"format": "xml"}, "format is 'xml': expected is json, avro, or None"),
        ({"schema": {"id": int}}, "give format='json' or 'avro' too"),
        ({"schema_registry": "http://h:1"}, "schema_registry is for format='avro'"),
        ({"registry_config": {"a": "b"}}, "registry_config is given without schema_registry"),
        ({"format": "avro"}, "format='avro' needs a schema or a schema_registry"),
        ({"format": "avro", "schema": {"id": int}}, "format='avro' takes an Avro record as schema"),
        ({"partitions": [3]}, "there is no partition 3; the topic has 1, from 0 on"),
        ({"start": {7: 0}}, "there is no partition 7"),
        ({"start": "soon"}, "start is 'soon': expected is earliest, latest, a datetime"),
        ({"end": 1.5}, "end is 1.5: expected is"),
        ({"n_rows": -1}, "n_rows is -1"),
        ({"infer_rows": 0}, "infer_rows is 0"),
        ({"group_id": "g"}, "group_id is a setting of groups"),
        ({"log_dir": "."}, "log_dir reads files, without a broker: bootstrap_servers would have no effect"),
    ],
)
def test_arguments_that_make_no_sense(fill: Fill, topic: str, read: Callable[..., Any], how: Any, words: str) -> None:
    fill(topic, [b'{"id":1}'])
    with pytest.raises((ValueError, TypeError), match=words):
        read(**how)


def test_a_topic_that_is_not_there(servers: str) -> None:
    """The topic is not created; without an address no broker is asked."""
    with pytest.raises(KafkaError) as caught:
        pybroker.read_topic("missing", bootstrap_servers=servers, allow_auto_create_topics=False)
    assert caught.value.code == UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ValueError, match="give bootstrap_servers, or log_dir"):
        pybroker.read_topic("missing")


def test_a_broker_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request waits some seconds for a broker, not the minute of a consumer that runs on."""
    monkeypatch.setattr(sources, "_CONTACT_MS", 50)
    with pytest.raises(KafkaError, match=r"127\.0\.0\.1:1: connection refused"):
        pybroker.read_topic("t", bootstrap_servers="127.0.0.1:1")


def test_without_pyarrow() -> None:
    """One sentence says what to install, and `import pybroker` brings none of this."""
    code = (
        "import sys, pybroker; assert not {'pyarrow', 'numpy', 'pybroker.frames'} & {*sys.modules}\n"
        "sys.modules['pyarrow'] = None\n"
        "try: pybroker.read_topic\nexcept ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.startswith("Arrow columns need pyarrow: pip install"), done.stderr
