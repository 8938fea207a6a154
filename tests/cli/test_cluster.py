"""`pybroker cluster`, `logdirs`, `offsets` and `delete-records` against any broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybroker.cli import waiting
from pybroker.cli.cluster.restart import _Restart, lacking, order, refusal, refusals
from pybroker.client.admin import Admin
from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
from pybroker.operations.health import BrokerReports, ClusterHealth, counted, problems, troubled
from pybroker.testing import ClusterHandle
from tests.cli.conftest import Command, run
from tests.cli.members import write
from tests.harness import HOST, Server, free_port, until
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
    assert [(each.partition, each.leader, each.state) for each in troubled([topic], {"t": 2})] == [
        (1, 2, "under min ISR"), (2, 2, "under-replicated"), (3, None, "offline")
    ]  # fmt: skip


def test_a_partition_counts_in_each_less_serious_state() -> None:
    """A partition without a leader is under min ISR and under-replicated, too."""
    assert counted(["offline", "under-replicated", "under min ISR", "offline"]) == {
        "offline": 2, "under min ISR": 3, "under-replicated": 4
    }  # fmt: skip
    assert set(counted([]).values()) == {0}


def _info(*cases: tuple[int, tuple[int, ...], tuple[int, ...]], name: str = "t") -> TopicInfo:
    """A topic whose partitions have these (leader, replicas, ISR)."""
    partitions = tuple(
        PartitionInfo(index, leader, 1, replicas, isr, 0) for index, (leader, replicas, isr) in enumerate(cases)
    )
    return TopicInfo(name, bytes(16), False, partitions, 0)


NODES = tuple(Node(number, f"b{number}", 9092, rack) for number, rack in ((1, "x"), (2, "y"), (3, "x")))
WELL = _info((1, (1, 2, 3), (1, 2, 3)))
QUIET = BrokerReports({}, {}, {})


@with_each(
    ("cluster", "reports", "expected"),
    [
        (ClusterHealth("c", 1, NODES, (WELL,), {}), QUIET, []),
        (ClusterHealth("c", None, NODES, (WELL,), {}), QUIET, ["no controller is elected"]),
        (ClusterHealth("c", 1, NODES[:2], (WELL,), {}), QUIET, ["broker 3 is not registered, and has 1 replica"]),
        (ClusterHealth("c", 1, NODES, (WELL,), {}), QUIET._replace(silent={2: "refused"}),
         ["broker 2 does not answer: refused"]),
        (ClusterHealth("c", 1, NODES, (WELL,), {}), QUIET._replace(full={3: {"/d": "no space left"}}),
         ["broker 3 takes no writes in /d: no space left"]),
        (ClusterHealth("c", 1, NODES, (_info((-1, (1, 2), (2,)), (1, (1, 2, 3), (1,)), (1, (1, 2), (1,))),), {"t": 2}),
         QUIET,
         ["1 partition is without a leader: t-0 (replicas 1,2, last in sync 2)",
          "2 partitions are under min ISR, refusing acks=all: t-1 (in sync 1 of 1,2,3, min.insync.replicas 2), t-2"]),
        (ClusterHealth("c", 1, NODES, (_info(*[(1, (1, 2, 3), (1, 2))] * 7),), {"t": 2}), QUIET,
         ["7 partitions are under-replicated: t-0 (in sync 1,2 of 1,2,3), t-1"]),
    ],
)  # fmt: skip
def test_what_is_degraded_is_a_sentence_each(
    cluster: ClusterHealth, reports: BrokerReports, expected: list[str]
) -> None:
    """A healthy cluster has no sentence; each way of being degraded is one, with topics, brokers and numbers."""
    told = problems(cluster, reports)
    assert len(told) == len(expected)
    assert all(sentence.startswith(head) for sentence, head in zip(told, expected, strict=True)), told
    assert not any("t-5" in sentence for sentence in told)


def test_a_check_is_an_exit_code(pybroker_: Command, target: Server) -> None:
    """check ends with 0 for a healthy cluster, and 2 if none answers; options of `cluster` hold for it too."""
    done = pybroker_("cluster", "check")
    assert done.code == 0 and " is healthy: 1 broker, controller " in done.out, done
    told = run("cluster", "-b", target.bootstrap, "check", "--wait", "in-sync", "--timeout", 60, "--json").json
    assert told["state"] == "healthy" and told["problems"] == [] and told["offline"] == told["under_min_isr"] == 0
    nowhere = f"{HOST}:{free_port()}"
    absent = run("cluster", "check", "-b", nowhere, "--wait", "in-sync", "--timeout", "0.2")
    assert absent.code == 2 and nowhere in absent.sentence
    absent = run("cluster", "check", "-b", nowhere, "--json")
    assert absent.code == 2 and json.loads(absent.out)["state"] == "unreachable" and nowhere in absent.err


def test_the_order_of_a_restart() -> None:
    """Brokers go rack by rack, and the controller is the last."""
    cluster = ClusterHealth("c", 1, NODES, (WELL,), {})
    assert [node.id for node in order(cluster)] == [3, 2, 1]
    assert [node.id for node in order(cluster, [1, 2])] == [2, 1]


@with_each(
    ("partition", "least", "allow_pause", "expected"),
    [
        ((1, (1, 2, 3), (1, 2, 3)), 2, False, []),
        ((1, (1, 2, 3), (2, 3)), 2, False, []),
        ((1, (1, 2, 3), (1, 3)), 2, False, ["t-0 would have 1 of 3 replicas in sync, min.insync.replicas 2"]),
        ((1, (1, 2, 3), (1, 3)), 2, True, ["t-0 would have 1 of 3 replicas in sync, min.insync.replicas 2"]),
        ((1, (1, 2), (1, 2)), 2, False, ["t-0 would have 1 of 2 replicas in sync, min.insync.replicas 2"]),
        ((1, (1, 2), (1, 2)), 2, True, []),
        ((1, (1,), (1,)), 1, False, ["t-0 would have 0 of 1 replicas in sync, min.insync.replicas 1"]),
        ((1, (1,), (1,)), 2, True, []),
    ],
)  # fmt: skip
def test_a_restart_is_refused_below_min_isr(
    partition: tuple[int, tuple[int, ...], tuple[int, ...]], least: int, allow_pause: bool, expected: list[str]
) -> None:
    """A broker is not restarted if a partition would go under min ISR; --allow-pause lets those pause that could never
    do without it."""
    cluster = ClusterHealth("c", 1, NODES, (_info(partition),), {"t": least})
    assert refusals(cluster, 1, allow_pause=allow_pause) == expected
    refused = refusal(cluster, NODES[:1], allow_pause=allow_pause)
    assert refused == (f"broker 1 is not restarted: without it {expected[0]}" if expected else "")


def test_a_broker_that_is_away_is_named() -> None:
    """A restart that a broker elsewhere holds up names that broker, when it is refused and while it waits."""
    topic = _info((1, (1, 3), (1,)), (1, (1, 3), (1,)), (2, (2, 1), (2, 1)))
    cluster = ClusterHealth("c", 1, NODES[:2], (topic,), {})
    assert refusal(cluster, NODES[:1], allow_pause=False).endswith("; broker 3 is not registered")
    cases: list[tuple[ClusterHealth, set[tuple[str, int]], str, list[int]]] = [
        (cluster, set(), "2 partitions to be in sync with broker 3, which is not registered: t-0 (in sync 1 of 1,3), "
                         "t-1 (in sync 1 of 1,3)", [3]),
        (cluster, {("t", 0), ("t", 1)}, "", []),
        (cluster._replace(nodes=NODES), {("t", 0)}, "1 partition to be in sync with broker 3: t-1 (in sync 1 of 1,3)",
         []),
        (cluster._replace(nodes=NODES[1:]), set(), "broker 1 to register", []),
        (cluster._replace(controller=None), set(), "a controller to be elected", []),
    ]  # fmt: skip
    for found, before, words, away in cases:
        assert lacking(found, 1, before) == (words, away)


def test_a_restart_says_what_it_waits_for(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it waits for a broker, a restart says for what, and again when that changes; it ends with the broker that
    holds it up."""
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    with ClusterHandle(2, settings={"min.insync.replicas": 1}) as cluster:

        def in_sync(*brokers: int) -> bool:
            with Admin(cluster.bootstrap_servers) as admin:
                known = {node.id for node in admin.describe_cluster().nodes}
                return known == set(admin.topics([topic])[0].partitions[0].isr) == set(brokers)

        def restart(*_: object) -> None:
            cluster.restart(1)
            until("it is in sync", lambda: in_sync(1, 2))
            cluster.kill(2)
            until("broker 2 is away", lambda: in_sync(1))

        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(topic, replica_assignments={0: [1, 2]})
        address = ("-b", cluster.bootstrap_servers)
        todo = ("cluster", "restart", "--yes", "--broker", 1, "--in-sync-timeout", 1, "--run")
        idle = run(*todo, "true {id}", *address)
        stands = "a connection from before still stands"
        assert f"pybroker: waiting for broker 1 to stop: {stands}\n" in idle.err
        assert f"broker 1 was not restarted: {stands}" in idle.err
        monkeypatch.setattr(_Restart, "_command", restart)
        done = run(*todo, "true {id}", *address)
        waits, end = done.err.splitlines()[-2:]
        lacks = waits.removeprefix("pybroker: waiting for ")
        assert " to be in sync with broker 2, which is not registered: " in lacks
        assert f"{topic}-0 (in sync 1 of 1,2)" in lacks
        assert end.startswith(f"pybroker: broker 1 was restarted, but after 1 s the cluster still waits for {lacks}. ")
        assert done.code == 1 and ". It was the first; to go on, mend broker 2, then: " in end


def test_a_restart_is_shown_or_refused(pybroker_: Command, target: Server) -> None:
    """Without --run the procedure is printed; a topic with one replica refuses it, and nothing is run."""
    pybroker_("topics", "create", "single", "-p", 1)
    shown = pybroker_("cluster", "restart")
    assert shown.code == 1 and "controller" in shown.out and "Not now: broker" in shown.out, shown
    refused = pybroker_("cluster", "restart", "--yes", "--run", "echo {id} >&2; exit 9")
    assert refused.code == 1 and "min.insync.replicas 1" in refused.sentence
    paused = pybroker_("cluster", "restart", "--allow-pause", "--json").json
    assert paused["refused"] is None and [each["port"] for each in paused["order"]] == [target.port]
    failed = pybroker_("cluster", "restart", "--allow-pause", "--yes", "--run", "exit $(({id} * 0 + 9))")
    assert failed.code == 1 and "ended with exit code 9" in failed.err and "to go on, mend broker" in failed.err


def test_where_partitions_lie(pybroker_: Command, target: Server, thousand: str) -> None:
    """logdirs shows log dirs with their sizes, and the partitions of named topics, or some of them; topics describe has
    the same sizes."""
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

    (one,) = pybroker_("logdirs", f"{thousand}:1", "--json").json
    assert [(p["partition"], p["size_bytes"]) for p in one["partitions"]] == [(1, sizes[1])]
    assert pybroker_("logdirs", f"{thousand}:1").out.splitlines()[3:] == [columns, full]
    assert pybroker_("logdirs", f"{thousand}:7").sentence == f"topic {thousand} has no partition 7"
    assert "is not TOPIC or TOPIC:P,P..." in pybroker_("logdirs", f"{thousand}:x").err

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
        ["cluster", "check", "--wait", "nothing"],
        ["cluster", "restart", "--in-sync-timeout", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.code == 2 and f"\nUsage: pybroker {arguments[0]}" in done.err and done.out == ""
