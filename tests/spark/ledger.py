"""A comparison of a table with the broker's log: the check of pipelines that are killed.

A place is a partition and an offset. The table must have each place of the log once, with the log's value, and no
other place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

Place = tuple[int, int]
COLUMNS = ["kafka_partition", "kafka_offset", "kafka_value"]
SHOWN_MAX = 5


class Row(NamedTuple):
    """A row of the table: the partition and offset that it names, and its value."""

    partition: int
    offset: int
    value: bytes | None


class Verdict(NamedTuple):
    """The wrong places by kind: missing from the table, in it more than once, in it with another value than the log's,
    and in it but not in the log."""

    rows: int
    lost: list[Place]
    twice: list[Place]
    wrong: list[Place]
    foreign: list[Place]

    def problems(self) -> list[str]:
        """One sentence for each kind of wrong place."""
        said = (
            (self.lost, "of the log are not in the table"),
            (self.twice, "are in the table more than once"),
            (self.wrong, "have another value in the table than in the log"),
            (self.foreign, "are in the table and not in the log"),
        )
        return [f"{len(places)} records {what}: {_named(places)}" for places, what in said if places]


def judge(log: Mapping[Place, bytes | None], table: Iterable[Row]) -> Verdict:
    seen: set[Place] = set()
    found = Verdict(0, [], [], [], [])
    rows = 0
    for row in table:
        rows += 1
        place = (row.partition, row.offset)
        if place not in log:
            found.foreign.append(place)
            continue
        if row.value != log[place]:
            found.wrong.append(place)
        if place in seen:
            found.twice.append(place)
        seen.add(place)
    return found._replace(rows=rows, lost=sorted(log.keys() - seen))


def _named(places: Iterable[Place]) -> str:
    texts = [f"{partition}@{offset}" for partition, offset in sorted(set(places))]
    return ", ".join(texts[:SHOWN_MAX]) + (", ..." if len(texts) > SHOWN_MAX else "")


# -- tables of each format ---------------------------------------------------------------------------------------------


def named(table_format: str, home: Path) -> tuple[str, dict[str, str]]:
    """The name of a table in `home`, and its options: an Iceberg catalog is a file there."""
    if table_format != "iceberg":
        return str(home / "table"), {}
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}
    return "cat.lake.events", catalog


def options(table_format: str, home: Path) -> list[str]:
    """The arguments of `pybroker pipeline` for that table."""
    name, given = named(table_format, home)
    where = ["--table", name, "--table-format", table_format, "--checkpoint", str(home / "checkpoint")]
    return where + [f"--table-option={option}={value}" for option, value in given.items()]


def read(table_format: str, home: Path, columns: list[str]) -> pa.Table:
    """The rows that a reader of the table's format finds."""
    name, given = named(table_format, home)
    if table_format == "iceberg":
        from pyiceberg.catalog import load_catalog

        catalog, _, name = name.partition(".")
        return load_catalog(catalog, **given).load_table(name).scan(selected_fields=tuple(columns)).to_arrow()
    if table_format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(name).to_pyarrow_table(columns=columns)
    return ds.dataset(name, format="parquet", partitioning="hive").to_table(columns=columns)


def data_files(table: Path) -> list[Path]:
    """The data files of a plain Parquet table that a reader sees, without those that a running pipeline stages beside
    them."""
    found = []
    for directory, below, names in os.walk(table):
        below[:] = [name for name in below if name != "_pybroker"]
        found += [Path(directory, name) for name in names if name.endswith(".parquet")]
    return sorted(found)


def rows_of(table_format: str, home: Path) -> Iterator[Row]:
    for batch in read(table_format, home, COLUMNS).to_batches():
        for row in batch.to_pylist():
            yield Row(*(row[name] for name in COLUMNS))
