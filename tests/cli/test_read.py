"""`pybroker read`: a topic into files, and its first rows as a table."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import pybroker
from pybroker.testing import BrokerHandle
from tests.cli.conftest import Done, run

ROWS = 30
START_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerHandle]:
    """A broker with a topic of JSON, and a topic with two more records that are not JSON."""
    with BrokerHandle() as handle:
        for topic in ("orders", "mixed"):
            handle.create_topic(topic, partitions=2)
            with pybroker.Producer(bootstrap_servers=handle.bootstrap_servers) as producer:
                for n in range(ROWS):
                    value = json.dumps({"id": n, "name": f"n{n}", "tags": ["a", n]})
                    producer.send(topic, value, key=f"k{n}", partition=n % 2, timestamp_ms=START_MS + n)
                if topic == "mixed":
                    producer.send(topic, b"nonsense \xff", key="bad", partition=0)
                    producer.send(topic, b"[]", partition=1)
        yield handle


def read(broker: BrokerHandle, *arguments: object) -> Done:
    return run("read", *arguments, "--bootstrap-server", broker.bootstrap_servers)


def test_the_first_rows(broker: BrokerHandle) -> None:
    """read without --to shows ten rows, of records unchanged or decoded."""
    shown = read(broker, "orders").out.splitlines()
    assert shown[0].split() == ["PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE", "HEADERS"] and len(shown) == 11
    decoded = read(broker, "orders", "--format", "json", "-p", 1, "-n", 2, "--columns", "id,tags,kafka_key")
    assert [line.split() for line in decoded.out.splitlines()] == [
        ["ID", "TAGS", "KAFKA_KEY"], ["1", '["a","1"]', "k1"], ["3", '["a","3"]', "k3"]]  # fmt: skip


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".json"])
def test_each_kind_of_file(broker: BrokerHandle, tmp_path: Path, suffix: str) -> None:
    """Each file format gets all rows, with types if the format has them; CSV has nested values as JSON."""
    file = tmp_path / f"orders{suffix}"
    done = read(broker, "orders", "--format", "json", "--to", file)
    assert (done.code, done.out, done.err) == (0, "", "")
    rows: list[dict[str, Any]]
    if suffix == ".parquet":
        rows = parquet.read_table(file).to_pylist()
    elif suffix == ".arrow":
        rows = pa.ipc.open_file(file).read_all().to_pylist()
    elif suffix == ".csv":
        lines = csv.DictReader(file.read_text().splitlines())
        rows = [{**row, "id": int(row["id"]), "tags": json.loads(row["tags"])} for row in lines]
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(ROWS))
    assert next(row for row in rows if row["id"] == 4)["tags"] == ["a", "4"]
    assert [*rows[0]] == ["id", "name", "tags", "kafka_partition", "kafka_offset", "kafka_timestamp"]
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_ranges_and_types(broker: BrokerHandle, tmp_path: Path) -> None:
    """--start and --end take offsets, distances from the end, or times; --schema gives the types."""
    file = tmp_path / "orders.parquet"

    def ids(*arguments: object) -> list[int]:
        done = read(broker, "orders", "-f", "json", "--to", file, "--schema", "id:int32,tags:string", *arguments)
        assert done.code == 0, done.err
        table = parquet.read_table(file)
        assert table.schema.field("id").type == pa.int32()
        return sorted(table["id"].to_pylist())

    assert ids("--start", "-2") == [26, 27, 28, 29]
    assert ids("--start", 3, "--end", 4) == [6, 7]
    assert ids("--start", "2023-11-14T22:13:20.025Z") == [25, 26, 27, 28, 29]
    assert ids("--end", "2023-11-14T22:13:20.003Z") == [0, 1, 2]
    assert ids("--start", "latest") == []
    assert ids("--start", "-1m") == []


def test_records_that_do_not_decode(broker: BrokerHandle, tmp_path: Path) -> None:
    """Records that do not decode fail the command after the others are written; --errors writes them to a file with
    their bytes."""
    file, bad = tmp_path / "mixed.parquet", tmp_path / "bad.json"
    done = read(broker, "mixed", "-f", "json", "--to", file)
    assert done.code == 1 and "2 records do not decode, the first at mixed-" in done.err and "--errors FILE" in done.err
    assert parquet.read_table(file).num_rows == ROWS
    assert read(broker, "mixed", "-f", "json", "--to", file, "--errors", bad).code == 0
    found = {row["partition"]: row for row in map(json.loads, bad.read_text().splitlines())}
    assert found[0]["value"] == {"base64": "bm9uc2Vuc2Ug/w=="} and found[0]["key"] == "bad"
    assert found[1]["value"] == "[]" and found[1]["error"] == "the value is not a JSON object"


def test_a_log_directory(broker: BrokerHandle, tmp_path: Path) -> None:
    """A log directory is read without a broker."""
    file = tmp_path / "orders.json"
    done = run("read", "orders", "--log-dir", f"{broker.data_dir}/data", "-f", "json", "--columns", "id", "--to", file)
    assert (done.code, done.err) == (0, "") and len(file.read_text().splitlines()) == ROWS


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["orders", "--to", "x.txt"], 2, "the name of a file ends with .parquet, .arrow"),
        (["orders", "--errors", "x.csv"], 2, "bytes are kept in .parquet, .arrow and .json files"),
        (["orders", "--columns", "id"], 2, "records have no column 'id'"),
        (["orders", "-f", "json", "--schema", "id"], 2, "expected is NAME:TYPE,NAME:TYPE"),
        (["orders", "-f", "json", "--schema", "id:quick"], 2, "the type of 'id' is 'quick'"),
        (["orders", "-f", "avro"], 2, "format='avro' needs a schema or a schema_registry"),
        (["orders", "--start", "soon"], 2, "is not a time"),
        (["orders", "--start", "99"], 1, "start 99 is not among them"),
        (["missing"], 1, "this broker knows no such topic"),
        (["orders", "-X", "group.id=g"], 2, "group"),
    ],
)
def test_what_cannot_be(broker: BrokerHandle, tmp_path: Path, arguments: list[str], code: int, words: str,
                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """An impossible request is one sentence, and leaves no file."""
    monkeypatch.chdir(tmp_path)
    done = read(broker, *arguments)
    assert done.code == code and words in done.err, done.err
    assert not [*tmp_path.iterdir()]


def test_a_file_that_was_there_stays_until_the_new_one_is_whole(broker: BrokerHandle, tmp_path: Path) -> None:
    """A failed run leaves an existing file as it was."""
    file = tmp_path / "mixed.csv"
    file.write_text("old")
    done = read(broker, "mixed", "--to", file)
    assert done.code == 2 and "column 'value' has bytes that are not UTF-8: write a .parquet" in done.err
    assert file.read_text() == "old" and [*tmp_path.iterdir()] == [file]
