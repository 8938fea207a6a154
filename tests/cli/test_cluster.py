"""`pybroker cluster`, `logdirs`, `offsets` and `delete-records` against any broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybroker.cli.cluster import counted, troubled
from pybroker.client.net.metadata import PartitionInfo, TopicInfo
from tests.cli.conftest import Command, run
from tests.cli.members import write
from tests.harness import HOST, Server, free_port
from tests.rows import with_each


@pytest.fixture
def thousand(pybroker_: Command, target: Server, topic: str) -> str:
    """A topic with 1,000 records in partition 1 of 2."""
    pybroker_("topics", "create", topic, "-p", 2)
    write(target.bootstrap, topic, 1000, partition=1)
    return topic


def test_the_cluster(pybroker_: Command, target: Server) -> None:
    """cluster shows the id, the controller, the brokers' addresses and leaderships, and that no partition is in
    trouble."""
    pybroker_("topics", "create", "shown", "-p", 3)
    told = pybroker_("cluster", "--json").json
    (broker,) = told["brokers"]
    assert (broker["port"], told["controller"]) == (target.port, broker["id"]) and len(told["cluster"]) == 22
    assert told["troubled"] == [] and broker["leaders"] == broker["replicas"] == told["partitions"] >= 3
    first, head, row, partitions = pybroker_("cluster").out.splitlines()
    assert first == f"Cluster {told['cluster']}  controller {broker['id']}"
    assert head.split() == ["BROKER", "EPOCH", "HOST", "PORT", "RACK", "LEADERS", "REPLICAS"]
    led = str(told["partitions"])
    assert row.split() == [str(broker["id"]), "-", broker["host"], str(target.port), "-", led, led]
    assert partitions == f"Partitions {led}, 0 offline, 0 under min ISR, 0 under-replicated"


def test_what_a_cluster_lacks() -> None:
    """cluster names each troubled partition with its worst state, and no healthy one."""
    partition = {"error": 0, "leader_epoch": 1}
    cases = ((1, (1, 2, 3), (1, 2, 3)), (2, (2, 3), (2,)), (2, (2, 3, 1), (2, 3)), (-1, (3,), (3,)))
    partitions = tuple(
        PartitionInfo(partition=index, leader=leader, replicas=replicas, isr=isr, **partition)
        for index, (leader, replicas, isr) in enumerate(cases)
    )
    topic = TopicInfo(name="t", id=bytes(16), error=0, internal=False, partitions=partitions)
    assert [(each[1], each[2], each[-1]) for each in troubled([topic], {"t": 2})] == [
        (1, 2, "under min ISR"), (2, 2, "under-replicated"), (3, None, "offline")
    ]  # fmt: skip


def test_a_partition_counts_in_each_less_serious_state() -> None:
    """A partition without a leader is under min ISR and under-replicated, too."""
    assert counted(["offline", "under-replicated", "under min ISR", "offline"]) == {
        "offline": 2, "under min ISR": 3, "under-replicated": 4
    }  # fmt: skip
    assert set(counted([]).values()) == {0}


def test_where_partitions_lie(pybroker_: Command, target: Server, thousand: str) -> None:
    """logdirs shows log dirs with their sizes, and the partitions of named topics; topics describe has the same
    sizes."""
    (told,) = pybroker_("logdirs", thousand, "--json").json
    sizes = {p["partition"]: p["size_bytes"] for p in told["partitions"]}
    assert told["error"] is None and sizes[0] == 0 and 5_000 < sizes[1] < 90_000
    assert told["total_bytes"] > told["usable_bytes"] > 0
    head, row, blank, columns, empty, full = pybroker_("logdirs", thousand).out.splitlines()
    assert head.split() == ["BROKER", "LOG", "DIR", "STATE", "PARTITIONS", "SIZE", "DISK", "FREE"] and blank == ""
    shown = f"{sizes[1] / 1000:.1f} kB".split()
    assert row.split()[1:6] == [told["log_dir"], "online", "2", *shown]
    assert columns.split() == ["TOPIC", "PARTITION", "SIZE", "BROKER", "LOG", "DIR"]
    broker = str(told["broker"])
    assert empty.split() == [thousand, "0", "0", "B", broker, told["log_dir"]]
    assert full.split() == [thousand, "1", *shown, broker, told["log_dir"]]
    assert len(pybroker_("logdirs", "--broker", broker, "--json").json[0]["partitions"]) >= 2

    (described,) = pybroker_("topics", "describe", thousand, "--json").json
    assert {p["partition"]: p["size_bytes"] for p in described["partitions"]} == sizes
    assert pybroker_("topics", "describe", thousand).out.splitlines()[-1].split()[-2:] == shown


def test_offsets(pybroker_: Command, thousand: str) -> None:
    """offsets shows each partition's begin and end, or the offsets at a time, for a topic or some partitions."""
    lines = [line.split() for line in pybroker_("offsets", thousand).out.splitlines()]
    assert lines == [
        ["TOPIC", "PARTITION", "EARLIEST", "LATEST"], [thousand, "0", "0", "0"], [thousand, "1", "0", "1000"]
    ]  # fmt: skip
    early = pybroker_("offsets", f"{thousand}:1", "--at", "-1h", "--json").json
    assert early == [{"topic": thousand, "partition": 1, "earliest": 0, "latest": 1000, "at": 0}]
    assert pybroker_("offsets", f"{thousand}:1", "--at", "2100-01-01").out.split()[-1] == "-"
    assert [thousand, "1", "0", "1000"] in [line.split() for line in pybroker_("offsets").out.splitlines()]
    missing = pybroker_("offsets", f"{thousand}:7")
    assert missing.code == 1 and missing.sentence == f"topic {thousand} has no partition 7"


def test_records_are_deleted(pybroker_: Command, tmp_path: Path, thousand: str) -> None:
    """delete-records asks first, and deletes to an offset, by Kafka's JSON file, or everything; an offset past the end
    is refused."""

    def earliest() -> int:
        (told,) = pybroker_("offsets", f"{thousand}:1", "--json").json
        return int(told["earliest"])

    unsure = pybroker_("delete-records", f"{thousand}:1", "--before", 100, stdin="n\n")
    assert unsure.code == 1 and "nothing was deleted" in unsure.err and earliest() == 0
    done = pybroker_("delete-records", f"{thousand}:1", "--before", 100, stdin="y\n")
    assert done.code == 0 and done.out.split()[-3:] == [thousand, "1", "100"] and earliest() == 100
    plan = tmp_path / "plan.json"
    entry = {"topic": thousand, "partition": 1, "offset": 200}
    plan.write_text(json.dumps({"partitions": [entry], "version": 1}))
    done = pybroker_("delete-records", "--offset-json-file", plan, "--yes", "--json")
    assert done.json == [{"topic": thousand, "partition": 1, "earliest": 200}] and earliest() == 200
    beyond = pybroker_("delete-records", f"{thousand}:1", "--before", 1001, "--yes")
    assert beyond.code == 1 and thousand in beyond.sentence and earliest() == 200
    done = pybroker_("delete-records", thousand, "--before", "latest", "--yes", "--json")
    assert [p["earliest"] for p in done.json] == [0, 1000] and earliest() == 1000


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"partitions": []}', '{"version": 2, "partitions": []}', '{"partitions": [{"topic": "t"}]}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": -2}]}',
     '{"partitions": [{"topic": "t", "partition": true, "offset": 0}]}',
     '{"partitions": [{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t", "partition": 0, "offset": 2}]}',
     "\udcff"],
)  # fmt: skip
def test_a_file_that_says_no_offsets(tmp_path: Path, text: str) -> None:
    """An offsets file without offsets is one sentence, before a broker is asked."""
    plan = tmp_path / "plan.json"
    plan.write_bytes(text.encode(errors="surrogateescape"))
    done = run("delete-records", "--offset-json-file", plan, "--yes", "-b", f"{HOST}:{free_port()}")
    assert done.code == 1 and done.sentence.startswith(str(plan))


@with_each(
    "arguments",
    [
        ["delete-records"],
        ["delete-records", "t"],
        ["delete-records", "--before", "1"],
        ["delete-records", "t", "--before", "-5"],
        ["delete-records", "t", "--before", "earliest"],
        ["delete-records", "t", "--before", str(1 << 63)],
        ["delete-records", "t", "--before", "1", "--offset-json-file", "-"],
        ["offsets", "t", "--at", "yesterday"],
        ["logdirs", "--broker", "x"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2 and done.err.startswith(f"Usage: pybroker {arguments[0]}") and done.out == ""
