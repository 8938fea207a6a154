"""Tables in an S3-like store, moto's server: no rename, and no shared disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs
from pyspark.errors import StreamingQueryException

from tests.harness import HOST, BrokerProcess, Process, free_port
from tests.marks import long
from tests.spark.system.test_pipeline_command import SLOW_S, SMALL
from tests.spark.tables import DAY_MS, SCHEMA, START_MS, DeltaIngest, IcebergIngest, Ingest, dying, event
from tests.spark.topics import Topics

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark")]

READY_S = 60.0
KEY, SECRET, REGION = "an-id", "a-secret", "us-east-1"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A store in a separate process: with a store in this process delta-rs waited for its answers for ever."""
    port = free_port()
    server = Process([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)])
    server.wait_line("Running on", READY_S)
    yield f"http://{HOST}:{port}"
    server.kill()


def store(endpoint: str) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=KEY, secret_key=SECRET, region=REGION, endpoint_override=endpoint, allow_bucket_creation=True
    )


def made(table_format: str, endpoint: str, topics: Topics, topic: str, home: Path) -> Ingest:
    """Create a pipeline into a table in a new bucket."""
    bucket = f"lake-{os.urandom(4).hex()}"
    store(endpoint).create_dir(bucket)
    if table_format == "delta":
        options = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION,
            "AWS_ALLOW_HTTP": "true",
        }
        where = {"checkpoint": str(home / "checkpoint"), "table_options": options}
        return DeltaIngest(topics, topic, f"s3://{bucket}/events", **where)
    options = {"s3.endpoint": endpoint, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": REGION}
    return IcebergIngest(topics, topic, home, warehouse=f"s3://{bucket}/warehouse", **options)


@pytest.fixture
def ingest(request: pytest.FixtureRequest, endpoint: str, topics: Topics, topic: str, tmp_path: Path) -> Ingest:
    return made(request.param, endpoint, topics, topic, tmp_path)


@pytest.mark.parametrize("ingest", [long("delta"), "iceberg"], indirect=True)
def test_a_table_in_a_store(ingest: Ingest) -> None:
    """A table in a store is written in two runs and read back; its small files are merged if the format's library
    can."""
    ingest.topics.produce(ingest.topic, [event(0), event(1, timestamp_ms=START_MS + DAY_MS)])
    ingest.run()
    ingest.topics.produce(ingest.topic, [event(2)])
    ingest.run(compact_files=2)
    assert ingest.ids() == [0, 1, 2]
    if isinstance(ingest, DeltaIngest):
        assert len(ingest.files()) == 2, "one of each day"


@pytest.mark.parametrize(
    ("ingest", "moment"),
    [
        ("delta", "before the commit"), long("delta", "after the commit"),
        long("iceberg", "before the commit"), long("iceberg", "after the commit"),
    ],
    indirect=["ingest"],
)  # fmt: skip
def test_a_crash_beside_the_commit_neither_loses_nor_repeats(ingest: Ingest, moment: str) -> None:
    """A crash beside the commit neither loses nor repeats: the data files are in the bucket either way, and after the
    next run the rows are in the table once."""
    ingest.topics.produce(ingest.topic, [event(n, timestamp_ms=START_MS + n * DAY_MS) for n in range(3)])

    with pytest.raises(StreamingQueryException, match="crash"):
        ingest.run(dying(moment))
    assert ingest.ids() == ([] if moment == "before the commit" else [0, 1, 2])
    ingest.topics.produce(ingest.topic, [event(3)])
    ingest.run()
    assert ingest.ids() == [0, 1, 2, 3]


DIES = """
import os, signal, sys
from pybroker.__main__ import main
from pybroker.spark.pipeline.tables.delta import DeltaLake
from pybroker.spark.pipeline.tables.iceberg import Iceberg

moment = sys.argv.pop(1)

def dies(table):
    commit = table._commit

    def dying(self, *given):
        if moment != "before":
            commit(self, *given)
        if moment != "never":
            os.kill(os.getpid(), signal.SIGKILL)

    table._commit = dying

dies(DeltaLake)
dies(Iceberg)
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_kill_9_beside_the_commit(
    table_format: str, endpoint: str, shared_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    """`kill -9` of a pipeline before the commit, and after the commit before Spark records it, neither loses nor
    repeats a record by the end of the third run."""
    ingest = made(table_format, endpoint, Topics(shared_broker), topic, tmp_path)
    ingest.topics.produce(topic, [event(n) for n in range(3)])
    job = ingest.job()
    table = ("--table", job.table, "--table-format", table_format, "--checkpoint", job.checkpoint_dir)
    options = [f"--table-option={name}={value}" for name, value in job.table_options.items()]
    named = ("-b", job.bootstrap, "-t", topic, "--schema", SCHEMA, "--once", "--json", *table, *options)
    for moment, code, there in (("before", -9, []), ("after", -9, [0, 1, 2]), ("never", 0, [0, 1, 2])):
        process = Process([sys.executable, "-c", DIES, moment, "pipeline", *named, *SMALL])
        assert process.wait(SLOW_S) == code, process.output()
        assert ingest.ids() == there, moment
    bucket = job.table.removeprefix("s3://") if table_format == "delta" else job.table_options["warehouse"][5:]
    assert len(list(data_files(endpoint, bucket))) == 2, "the file of one run is in no table"


def data_files(endpoint: str, root: str) -> Iterator[str]:
    found = store(endpoint).get_file_info(fs.FileSelector(root, recursive=True))
    yield from (info.path for info in found if info.path.endswith(".parquet"))
