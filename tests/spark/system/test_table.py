"""The table of Parquet files: which files it takes, how its columns change, and what compaction does to both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pybroker.errors import KafkaError
from pybroker.spark.pipeline import Job
from pybroker.spark.pipeline.tables.compaction import due, level_of
from pybroker.spark.pipeline.tables.evolution import evolved
from pybroker.spark.pipeline.tables.parquet import FileChange, ParquetTable
from pybroker.spark.pipeline.tables.table import MicroBatch
from tests.spark import ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]


class Made:
    """A table without a topic: each batch is the result of a SQL query."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.root = root
        self.number = 0

    def open(self, schema: str, **how: Any) -> ParquetTable:
        """Open the table as a start of the pipeline does."""
        how.setdefault("partition_by", ())
        table = ParquetTable(self.spark, Job("h:1", str(self.root), "t", schema=schema, **how))
        table.recover()
        return table

    def add(self, table: ParquetTable, rows: str, check: Callable[[int], None] = lambda _: None) -> MicroBatch:
        batch = MicroBatch("abcdefgh", self.number)
        table.add(batch, self.spark.sql(rows), check)
        self.number += 1
        return batch

    def files(self) -> list[Path]:
        return ledger.data_files(self.root)

    def read(self, table: ParquetTable, *columns: str) -> list[tuple[Any, ...]]:
        columns_of = table.columns()
        assert columns_of is not None
        rows: DataFrame = self.spark.read.schema(columns_of.schema).parquet(str(self.root)).select(*columns)
        return sorted((tuple(row) for row in rows.collect()), key=str)


@pytest.fixture
def made(spark: SparkSession, tmp_path: Path) -> Made:
    return Made(spark, tmp_path / "table")


# -- only what the job committed -------------------------------------------------------------------------------------


def plant(directory: Path, of: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "part-00000-zombie.parquet").write_bytes(of.read_bytes())


def test_files_that_no_job_committed(made: Made, tmp_path: Path) -> None:
    """Files that no job committed stay out of the table and are deleted. A lost executor writes them before the staging
    is listed, afterwards, and after the staging is gone."""
    made.spark.sql("select -1l id").write.parquet(str(tmp_path / "zombie"))
    (zombie,) = (tmp_path / "zombie").glob("*.parquet")
    table = made.open("id bigint")
    moves = table._moves
    staged: list[Path] = []

    def attempt() -> None:
        for below in ("_temporary/0/_temporary/attempt_1/", "_temporary/0/task_1/date=2023-11-14", ".spark-staging-1"):
            plant(staged[-1] / below, zombie)

    def listing(name: str, *rest: Any) -> tuple[tuple[str, str], ...]:
        staged.append(Path(name.removeprefix("file:")))
        attempt()
        return moves(name, *rest)

    table._moves = listing  # type: ignore[method-assign]
    counted: list[int] = []

    def check(rows: int) -> None:
        counted.append(rows)
        attempt()
        plant(staged[-1], zombie)  # as if a job had committed the file, but after the listing

    made.add(table, "select 1l id", check)
    assert not staged[-1].exists()
    plant(staged[-1], zombie)
    made.add(table, "select 2l id", check)
    assert len(set(staged)) == 2 and not staged[0].exists(), "no attempt has the directory of another"
    plant(staged[0], zombie)
    table.recover()
    assert counted == [1, 1] and made.read(table, "id") == [(1,), (2,)] and not staged[0].exists()


def test_the_other_algorithm_of_commits(made: Made) -> None:
    """Commit algorithm 2, which a user may set, still leaves every file in _temporary until the job commits; this job
    died."""
    configuration = made.spark._jsc.hadoopConfiguration()
    name = "mapreduce.fileoutputcommitter.algorithm.version"
    configuration.set(name, "2")
    try:
        table = made.open("id bigint")
        with pytest.raises(Exception, match="no luck"):
            made.add(table, "select if(id = 3999, raise_error('no luck'), id) id from range(0, 4000, 1, 4)")
    finally:
        configuration.unset(name)
    assert not list((made.root / "_pybroker").rglob("part-*")) and made.files() == []


def test_two_pipelines_in_one_table(made: Made) -> None:
    """Two pipelines that share a table by mistake keep separate staging, and add a batch once."""
    one, other = made.open("id bigint"), made.open("id bigint")
    mine, theirs = MicroBatch("aaaaaaaa", 0), MicroBatch("bbbbbbbb", 0)
    commit = one._commit

    def both(name: str, change: FileChange) -> None:
        other.add(theirs, made.spark.sql("select 2l id"), lambda _: None)
        commit(name, change)

    one._commit = both  # type: ignore[method-assign]
    one.add(mine, made.spark.sql("select 1l id"), lambda _: None)
    with pytest.raises(KafkaError, match="another pipeline writes to"):
        other.add(mine, made.spark.sql("select 1l id"), lambda _: None)
    assert made.read(one, "id") == [(1,), (2,)]


# -- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "wanted", "becomes"),
    [
        ("a int", "a bigint", "a:bigint"),
        ("a tinyint, b smallint", "a smallint, b int", "a:smallint,b:int"),
        ("a float", "a double", "a:double"),
        ("a decimal(5,2)", "a decimal(12,2)", "a:decimal(12,2)"),
        ("a int", "b string, a int", "a:int,b:string"),
        ("a int, b string", "a int", "a:int,b:string"),
        ("a int, s struct<x:int>", "a int, s struct<x:bigint,y:int>", "a:int,s:struct<x:bigint,y:int>"),
        ("a array<int>", "a array<bigint>", "a:array<bigint>"),
        ("a map<string,int>", "a map<string,bigint>", "a:map<string,bigint>"),
    ],
)
def test_columns_that_change(spark: SparkSession, known: str, wanted: str, becomes: str) -> None:
    """Changed columns are added behind the others, or widened; removed ones stay."""
    from pyspark.sql.types import StructType

    assert evolved(StructType.fromDDL(known), StructType.fromDDL(wanted)).simpleString() == f"struct<{becomes}>"


@pytest.mark.parametrize(
    ("known", "wanted", "sentence"),
    [
        ("a bigint", "a int", "column a is bigint in the table and int in the job"),
        ("a int", "a string", "column a is int in the table and string in the job"),
        ("a int", "a double", "column a is int in the table and double in the job"),
        ("a decimal(5,2)", "a decimal(6,3)", r"column a is decimal\(5,2\) in the table"),
        ("a struct<x:int>", "a struct<x:string>", "column a.x is int in the table and string"),
        ("a array<int>", "a array<string>", "column a.element is int in the table"),
        ("a int", "A int", "column a of the table is A in the job"),
    ],
)
def test_columns_that_cannot_change_so(spark: SparkSession, known: str, wanted: str, sentence: str) -> None:
    """Columns that cannot change so are refused, with the column and both types."""
    from pyspark.sql.types import StructType

    with pytest.raises(KafkaError, match=sentence):
        evolved(StructType.fromDDL(known), StructType.fromDDL(wanted))


def test_a_table_takes_new_columns_and_wider_ones(made: Made) -> None:
    """A table takes new columns and wider types between starts: readers see NULL in older rows, and wide numbers in
    newer ones."""
    made.add(made.open("id int, price decimal(4,1)"), "select 1 id, 2.5bd price, named_struct('x', 1) s")
    table = made.open("id bigint, price decimal(20,1), kind string")
    made.add(table, "select 5000000000l id, cast(2.5 as decimal(20,1)) price, 'k' kind")
    table = made.open("id bigint")
    made.add(table, "select 3l id")
    assert made.read(table, "id", "kind") == [(1, None), (3, None), (5_000_000_000, "k")]


@pytest.mark.parametrize(
    ("schema", "how", "sentence"),
    [
        ("id string", {}, "column id is int in the table and string in the job"),
        ("id int", {"partition_by": ("date", "hour")}, "partitioned by date, but the job by date, hour"),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_what_does_not_fit_is_told_at_the_start(
    made: Made, schema: str, how: dict[str, Any], sentence: str, recorded: bool
) -> None:
    """A table that does not fit is refused at the start, also if it records no columns: then its footers have them."""
    made.add(made.open("id int", partition_by=("date",)), "select 1 id, date'2023-11-14' date")
    if not recorded:
        for path in (made.root / "_pybroker/schemas").iterdir():
            path.unlink()
    with pytest.raises(KafkaError, match=sentence):
        made.open(schema, **{"partition_by": ("date",), **how})


def test_files_of_a_table_that_has_nothing_recorded(made: Made) -> None:
    """Files of a table without recorded columns have their columns merged: wider types win in any file order, and other
    writers' files count."""
    made.spark.sql("select 1l id").write.parquet(str(made.root))
    made.spark.sql("select 2 id, 'k' kind").write.mode("append").parquet(str(made.root))
    pq.write_table(pq.read_table(made.files()[0]).replace_schema_metadata(None), made.root / "theirs.parquet")
    table = made.open("id bigint, kind string")
    known = table.columns()
    assert known is not None and known.schema["id"].dataType.simpleString() == "bigint"
    assert [row[0] for row in made.read(table, "id")] in ([1, 1, 2], [1, 2, 2])


# -- compaction ------------------------------------------------------------------------------------------------------


def test_compaction_keeps_columns_that_came_later(made: Made) -> None:
    """Compaction keeps columns that came later, and types that became wider, nested ones too, in any file order."""
    made.add(made.open("id int, s struct<x:int>", compact_files=3), "select 1 id, named_struct('x', 1) s")
    wide = "id bigint, s struct<x:bigint,y:string>, kind string"
    table = made.open(wide, compact_files=3)
    made.add(table, "select id, named_struct('x', id, 'y', 'y') s, 'k' kind from range(2, 12002)")
    batch = made.add(table, "select 5000000000l id, named_struct('x', 1l, 'y', 'z') s, 'z' kind")
    before = made.read(table, "id", "s", "kind")
    assert table.compact(batch) == 4
    assert len(made.files()) == 1 and made.read(table, "id", "s", "kind") == before
    assert sum(pq.read_table(path)["kind"].null_count for path in made.files()) == 1


def test_compaction_that_loses_rows_deletes_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction that loses rows deletes no file: here an executor merges on a local disk."""
    table = made.open("id bigint", compact_files=2)
    batch = [made.add(table, f"select {number}l id") for number in range(2)][-1]
    before = made.files()
    monkeypatch.setattr(table, "_moves", lambda *_: ())
    with pytest.raises(KafkaError, match="2 rows were read, but the driver sees 0 of them in"):
        table.compact(batch)
    assert made.files() == before


def test_compaction_leaves_alone_what_is_not_the_pipelines(made: Made) -> None:
    """Compaction leaves alone a file with a column that the table lacks, and a file that Spark did not write."""
    table = made.open("id bigint", compact_files=2)
    made.spark.sql("select 7l id, 'x' other").write.mode("append").parquet(str(made.root))
    pq.write_table(pq.read_table(made.files()[0]).replace_schema_metadata(None), made.root / "theirs.parquet")
    others = made.files()
    batch = [made.add(table, f"select {number}l id") for number in range(2)][-1]
    assert table.compact(batch) == 2
    assert set(others) < set(made.files()) and len(made.files()) == 3


@pytest.mark.long
def test_compaction_merges_by_levels(made: Made) -> None:
    """Compaction merges by levels: 27 batches in merges of three rewrite each row three times, and no file twice at one
    level."""
    table = made.open("id bigint", compact_files=3)
    merged = 0
    for number in range(27):
        batch = made.add(table, f"select {number}l id")
        while gone := table.compact(batch._replace(query=f"abcdefgh-{merged}")):
            merged += gone
    assert merged == 27 + 9 + 3
    assert [level_of(str(path)) for path in made.files()] == [3]
    assert made.read(table, "id") == sorted([(number,) for number in range(27)], key=str)


def test_a_path_that_looks_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    """A path with a glob's characters is refused at the start, as neither compaction nor a reader would find its
    files."""
    with pytest.raises(KafkaError, match=r"Spark reads \[ as part of a pattern"):
        Made(spark, tmp_path / "a[b]").open("id bigint")


def test_which_files_are_due() -> None:
    """Files are due when a directory has enough of one level; large ones are done."""
    small = [(f"t/date=1/part-abcdefgh-00000000{n}-00000-0badcafe.parquet", 10) for n in range(3)]
    merged = [("t/date=1/part-abcdefgh-000000002-compact-00000-0badcafe.parquet", 10)]
    large = [("t/date=1/part-abcdefgh-000000003-00000-0badcafe.parquet", 60)]
    assert [(m.level, len(m.paths), m.pieces) for m in due([*small, *merged, *large], 3, 100)] == [(0, 3, 1)]
    assert due([*small[:2], *merged, *large], 3, 100) == [] and level_of(merged[0][0]) == 1
    assert due([("t/a/x.parquet", 1), ("t/b/x.parquet", 1)], 2, 100) == []
    assert [m.pieces for m in due([(f"t/{n}.parquet", 49) for n in range(5)], 2, 100)] == [2]


def test_what_is_recorded_of_columns(made: Made) -> None:
    """A change of columns is recorded in a file; a start without a change records none."""
    made.open("id int")
    made.open("id int")
    made.open("id bigint")
    records = sorted((made.root / "_pybroker/schemas").glob("*.json"))
    assert len(records) == 2
    assert json.loads(records[-1].read_text())["schema"]["fields"][0]["type"] == "long"
