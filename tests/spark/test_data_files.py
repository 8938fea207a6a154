"""The data files that a task attempt writes: how many, how large, with which values, and what a failure leaves."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pytest import MonkeyPatch

from pybroker.errors import KafkaError
from pybroker.spark.pipeline.tables import data_files
from pybroker.spark.pipeline.tables.data_files import WritePlan, WrittenFile, files_of, see
from pybroker.spark.pipeline.tables.rewriting import SMALLEST, Small, chosen
from pybroker.spark.pipeline.tables.storage import TableStorage

SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string())])


def plan(root: Path, **how: Any) -> WritePlan:
    told = {"partition_by": ("kind",), "values_in_files": False, "file_bytes": 1 << 20, "name": "q-0", **how}
    return WritePlan(TableStorage.of(str(root), {}), SCHEMA, **told)


def batch(first: int, count: int, kinds: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.record_batch({"id": list(ids), "kind": [f"k{n % kinds}" for n in ids]}, schema=SCHEMA)


def made(given: WritePlan, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    return [row for told in files_of(given, ((None, each) for each in batches)) for row in told.to_pylist()]


def test_a_file_for_each_value(tmp_path: Path) -> None:
    """A file has the rows of one partition value, of all batches; its entry has the row count, the size and the
    values."""
    files = made(plan(tmp_path), batch(0, 10, 2), batch(10, 10, 2), batch(20, 0, 1))
    assert [(json.loads(f["values"]), f["rows"]) for f in files] == [(["k0"], 10), (["k1"], 10)]
    for file in files:
        path = tmp_path / file["path"]
        assert path.stat().st_size == file["size"] and pq.ParquetFile(path).schema_arrow.names == ["id"]
        assert pq.read_metadata(path).num_rows == file["rows"]


def test_a_file_ends_at_its_size(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """A file ends at its size limit, and the next rows of its partition value go to another file."""
    monkeypatch.setattr(data_files, "GROUP_BYTES", 10_000)
    files = made(plan(tmp_path, partition_by=(), file_bytes=10_000), *(batch(n * 1000, 1000, 7) for n in range(10)))
    assert len(files) > 1 and sum(f["rows"] for f in files) == 10_000
    assert len({f["path"] for f in files}) == len(files)


def test_many_values_stay_within_bounds(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    """More values than open files, and more rows than may wait, all arrive once."""
    monkeypatch.setattr(data_files, "UNWRITTEN_BYTES_MAX", 2_000)
    monkeypatch.setattr(data_files, "OPEN_FILES_MAX", 3)
    opened = 0

    class Watched(data_files._Files):
        def _flush(self, values: Any) -> None:
            nonlocal opened
            super()._flush(values)
            opened = max(opened, len(self._open))

    monkeypatch.setattr(data_files, "_Files", Watched)
    files = made(plan(tmp_path), *(batch(n * 100, 100, 20) for n in range(20)))
    ids = [n for f in files for n in pq.ParquetFile(tmp_path / f["path"]).read()["id"].to_pylist()]
    assert sorted(ids) == list(range(2000)) and opened == 3


def test_an_attempt_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "GROUP_BYTES", 1)

    def broken() -> Iterator[tuple[None, pa.RecordBatch]]:
        yield None, batch(0, 10, 2)
        raise ValueError("the task fails")

    with pytest.raises(ValueError, match="the task fails"):
        list(files_of(plan(tmp_path), broken()))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A directory that cannot be written is reported with the host, as the driver may run elsewhere."""
    (tmp_path / "table").write_text("a file")
    with pytest.raises(KafkaError, match=f"{socket.gethostname()} cannot write the table at .*/table: "):
        made(plan(tmp_path / "table"), batch(0, 1, 1))


def test_files_that_the_driver_does_not_see_are_told(tmp_path: Path) -> None:
    """Data files that are missing or too short are reported with the hosts that wrote them, and with what to do."""
    (tmp_path / "short").write_bytes(b"12")
    (tmp_path / "whole").write_bytes(b"123")
    files = [WrittenFile(name, 1, 3, (), b"", host) for name, host in (("whole", "a"), ("short", "b"), ("gone", "c"))]
    see(TableStorage.of(str(tmp_path), {}), files[:1])
    with pytest.raises(KafkaError, match=r"2 of 3 files that workers on b, c wrote to .* all of them share it"):
        see(TableStorage.of(str(tmp_path), {}), files)


def test_files_of_one_size_are_merged() -> None:
    """Files of one partition are merged when there are enough; a file that is large already stays."""
    small = [Small(f"s{n}", 1000 + n, 1, ("x",)) for n in range(3)]
    larger = [Small(f"l{n}", 20 * SMALLEST, 1, ("x",)) for n in range(3)]
    full = [Small(f"f{n}", 600 << 10, 1, ("y",)) for n in range(3)]
    others = [Small(f"o{n}", 1000, 1, ("z",)) for n in range(2)]
    assert chosen([*small, *others, *full], 3, 1 << 20) == [small]
    assert chosen([*small, *larger], 3, 64 << 20) == [small, larger]
