"""The view of an operator: metrics of replication, and the last changes of a partition with their cause."""

from __future__ import annotations

import json
import logging
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

import pybroker.testing
from pybroker import errors
from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from pybroker.metadata import slow_changes as late_changes
from pybroker.protocol import messages as m
from pybroker.testing import ClusterHandle
from tests.asking import ask
from tests.brokers.editor import editor_of
from tests.brokers.kit import Cluster
from tests.cli.conftest import run
from tests.harness import HOST, free_port, until
from tests.metrics_page import row, rows
from tests.stores import AnyStore

LAGS_MS = 1000
ANSWER_S_MAX = 9.0
"""The most seconds of a command that asks brokers while one is frozen: it may wait for it twice."""


@pytest.fixture
def cluster() -> Iterator[ClusterHandle]:
    """Three brokers with metrics listeners."""
    settings = {"metrics.listener": f"{HOST}:0", "replica.lag.time.max.ms": LAGS_MS}
    with pybroker.testing.cluster(settings=settings) as made:
        yield made


def get(cluster: ClusterHandle, number: int, path: str) -> str:
    port = cluster._members.lives[number]._injector.broker.metrics_port
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def metric(cluster: ClusterHandle, number: int, name: str, **labels: str) -> float:
    """A sample of one broker; 0 if there is none."""
    samples = (s for family in parse(get(cluster, number, "/metrics")) for s in family.samples)
    return next((s.value for s in samples if s.name == f"pybroker_{name}" and s.labels == labels), 0)


INTERNAL = 1
"""The number of partitions of __consumer_offsets, which exists from the start."""


def whole(cluster: ClusterHandle, name: str, **labels: str) -> float:
    """The sum over all running brokers, as in dashboards."""
    return sum(metric(cluster, number, name, **labels) for number in cluster.running)


def changes(cluster: ClusterHandle, number: int, partition: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in get(cluster, number, f"/changes?partition={partition}").splitlines()]


def test_a_broker_dies_and_comes_back(cluster: ClusterHandle) -> None:
    """A dead broker's partitions are under-replicated until it is back, as others' metrics and changes show."""
    topic = cluster.create_topic("t", partitions=3, min_insync_replicas=3)
    cluster.wait_in_sync(topic)
    assert whole(cluster, "active_controller_count") == 1
    assert whole(cluster, "leader_count") == 3 + INTERNAL
    assert whole(cluster, "under_replicated_partitions") == whole(cluster, "under_min_isr_partition_count") == 0
    assert whole(cluster, "at_min_isr_partition_count") == 3
    before = whole(cluster, "leader_elections_total")
    controller = next(n for n in cluster.running if metric(cluster, n, "active_controller_count"))
    index, dead = next((i, b) for i in range(3) if (b := cluster.leader(topic, i)) != controller)
    cluster.produce(topic, *(b"%d" % n for n in range(10)))
    led = 1 + (cluster.leader("__consumer_offsets") == dead)
    cluster.kill(dead)
    until("all is led again", lambda: whole(cluster, "leader_count") == 3 + INTERNAL)
    until("it is missed", lambda: whole(cluster, "under_replicated_partitions") == 3 + INTERNAL)
    assert whole(cluster, "under_min_isr_partition_count") == 3
    assert whole(cluster, "active_controller_count") == 1
    assert whole(cluster, "offline_partitions_count") == whole(cluster, "unclean_leader_elections_total") == 0
    assert whole(cluster, "leader_elections_total") == before + led
    cluster.start()
    cluster.wait_in_sync(topic)
    until("nothing is missed", lambda: whole(cluster, "under_replicated_partitions") == 0)
    assert whole(cluster, "isr_expands_total") >= 3
    leader = cluster.leader(topic, index)
    seen = changes(cluster, controller, f"{topic}-{index}")
    (elected,) = [each for each in seen if each["what"] == "leader elected"]
    assert (elected["leader"], elected["cause"]) == (leader, f"brokers gone: {dead}")
    assert dead not in elected["isr"]
    its = changes(cluster, leader, f"{topic}-{index}")
    assert ("this broker leads", elected["leader_epoch"]) in [(each["what"], each["leader_epoch"]) for each in its]
    grown = [each for each in its if each["what"] == "ISR expanded"][-1]
    assert (grown["isr"][-1], grown["cause"]) == (dead, f"brokers caught up: {dead}")
    assert changes(cluster, leader, "nothing-0") == []


def test_the_last_replica_dies(cluster: ClusterHandle) -> None:
    """The controller counts the partition as offline until a member of its ISR is back."""
    topic = cluster.create_topic("t")
    cluster.wait_in_sync(topic)
    survivor = next(n for n in cluster.brokers if n != cluster.leader(topic))
    for number in [n for n in cluster.brokers if n != survivor]:
        cluster.kill(number)
    until("one controls", lambda: metric(cluster, survivor, "active_controller_count") == 1)
    until("all is led here", lambda: metric(cluster, survivor, "leader_count") == 1 + INTERNAL)
    cluster.kill()
    first = next(n for n in cluster.brokers if n != survivor)
    cluster.start(first)
    until("it controls", lambda: metric(cluster, first, "active_controller_count") == 1)
    until("nobody leads", lambda: metric(cluster, first, "offline_partitions_count") == 1 + INTERNAL)
    cluster.start()
    cluster.wait_in_sync(topic)
    assert whole(cluster, "offline_partitions_count") == 0


def test_a_controller_of_the_past_is_fenced(cluster: ClusterHandle, caplog: pytest.LogCaptureFixture) -> None:
    """A stale controller's request is refused, and the log has the controller and the cause."""
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    late = {"controller_id": 9, "controller_epoch": 0, "broker_epoch": -1, "topic_states": [], "live_brokers": []}
    with caplog.at_level(logging.WARNING, "pybroker"):
        assert ask(port, "UpdateMetadata", 8, **late).error_code == errors.STALE_CONTROLLER_EPOCH
    (said,) = [record.getMessage() for record in caplog.records if "request fenced" in record.getMessage()]
    assert said.startswith("request fenced request=UpdateMetadata controller=9 cause=") and "of epoch 0" in said


def test_bytes_of_replication(cluster: ClusterHandle) -> None:
    """Bytes copied by followers are counted apart from bytes of clients."""
    topic = cluster.create_topic("t")
    cluster.wait_in_sync(topic)
    leader = cluster.leader(topic)
    cluster.produce(topic, *(b"%d" % n for n in range(10)))
    followers = [number for number in cluster.brokers if number != leader]
    written = metric(cluster, leader, "topic_bytes_in_total", topic=topic)
    assert written > 10
    assert [metric(cluster, n, "replication_bytes_in_total") for n in followers] == [written, written]
    assert metric(cluster, leader, "replication_bytes_out_total") == 2 * written
    assert metric(cluster, leader, "topic_bytes_out_total", topic=topic) == 0
    assert [metric(cluster, n, "topic_bytes_in_total", topic=topic) for n in followers] == [0, 0]


def test_the_lag_of_followers(cluster: ClusterHandle) -> None:
    """A dead follower's lag grows with each write; docs/metrics.md has the metric."""
    topic = cluster.create_topic("t", min_insync_replicas=1)
    cluster.wait_in_sync(topic)
    leader = cluster.leader(topic)
    dead, alive = [number for number in cluster.brokers if number != leader]
    cluster.kill(dead)
    cluster.produce(topic, *(b"%d" % n for n in range(10)))
    for number, behind in ((dead, 10), (alive, 0)):
        until(f"{number} is {behind} behind", lambda n=number, count=behind: metric(  # type: ignore[misc]
            cluster, leader, "follower_lag", topic=topic, partition="0", broker=str(n)
        ) == count)  # fmt: skip
    (lag,) = [f for f in parse(get(cluster, leader, "/metrics")) if f.name == "pybroker_follower_lag"]
    assert row(lag)[1] == rows()[lag.name]


def test_the_store_is_away(cluster: ClusterHandle) -> None:
    """Metrics show the lost store. The broker is ready, as brokers go on serving when the store is down for all."""
    number = cluster.brokers[0]
    of_a_cluster = ("pybroker_zookeeper", "pybroker_registered")
    told = dict(row(f) for f in parse(get(cluster, number, "/metrics")) if f.name.startswith(of_a_cluster))
    assert told == {name: says for name, says in rows().items() if name.startswith(of_a_cluster)}
    assert metric(cluster, number, "registered") == 1
    assert metric(cluster, number, "zookeeper_request_seconds_count") > 0
    assert ready(cluster, number) == (200, "ok\n")
    assert metric(cluster, number, "zookeeper_connected") == 1
    cluster.cut_off(number, "store")
    until("it knows", lambda: metric(cluster, number, "zookeeper_connected") == 0)
    assert ready(cluster, number) == (200, "ok\n")
    cluster.heal()
    until("it is known again", lambda: metric(cluster, number, "zookeeper_connected") == 1)
    until("it is ready", lambda: ready(cluster, number) == (200, "ok\n"))


def test_a_broker_waits_to_be_registered(tmp_path: Path, store: AnyStore) -> None:
    """A broker is not ready while another session has its id."""
    port = free_port()
    with Cluster(tmp_path, store, count=1, metrics_listener=f"{HOST}:{port}") as processes:
        processes.brokers[1].stop()
        with closing(editor_of(store, processes.chroot)) as client:
            client.start(10)
            client.create("/brokers/ids/1", b"{}", ephemeral=True)
            processes.brokers[1].begin()
            until("it says so", lambda: told(port)[1].startswith("it is not registered in "))
            client.stop()
        processes.brokers[1].wait_ready()
        assert told(port) == (200, "ok\n")


def test_a_change_while_the_store_is_away(cluster: ClusterHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change during an outage of the store fails with the reason and that it may still come; it comes afterwards. For
    a user that holds for each mechanism."""
    monkeypatch.setattr(late_changes, "WAIT_S", 0.1)
    for number in cluster.brokers:
        cluster.cut_off(number, "store")
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    late = m.CreateTopicsRequest.Topics(name="late", num_partitions=1, replication_factor=3)

    def told() -> str:
        return str(ask(port, "CreateTopics", 5, topics=[late], timeout_ms=200).topics[0].error_message)

    why = "not done in time (the cluster's store does not answer); it may be done later"
    until("it is told why", lambda: why in told())
    with Admin(cluster.bootstrap_servers) as admin:
        with pytest.raises(KafkaError) as refused:
            admin.set_password("ann", "spring")
        assert refused.value.message == why
        cluster.heal()
        until("she logs in by both", lambda: [len(user.iterations) for user in admin.users()] == [2])
        until("it is made", lambda: "late" in [topic.name for topic in admin.topics()])


def ready(cluster: ClusterHandle, number: int) -> tuple[int, str]:
    return told(cluster._members.lives[number]._injector.broker.metrics_port)


def told(port: int) -> tuple[int, str]:
    """The status and body of /readyz; 0 if no process listens."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/readyz", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError as problem:
        return 0, str(problem)


def test_the_command_line_tells_why(start_cluster: Callable[..., Cluster]) -> None:
    """The command prints each leader change and its cause, if a broker reports it, or why a broker does not."""
    ports = {number: free_port() for number in (1, 2)}
    processes = start_cluster(
        metrics_listener=lambda number: f"{HOST}:{ports[number]}" if number in ports else f"{HOST}:0"
    )
    topic = processes.create("t", replicas=[[3, 1, 2], [1, 2, 3]])
    processes.until_in_sync(topic, 2)
    processes.kill(3)
    until("another leads", lambda: processes.leader(topic) in (1, 2))
    until("it was shrunk", lambda: processes.partition(topic)[1] == [1, 2])
    leader = processes.leader(topic)

    def told() -> list[dict[str, Any]]:
        (described,) = run("topics", "describe", topic, "--changes", "--json", "-b", processes.bootstrap).json
        assert [p["changes"] == [] for p in described["partitions"]] == [False, False]
        changes: list[dict[str, Any]] = described["partitions"][0]["changes"]
        return changes

    until("it leads", lambda: any((each["what"], each["broker"]) == ("this broker leads", leader) for each in told()))
    changes = told()
    assert [each["time"] for each in changes] == sorted(each["time"] for each in changes)
    elected = [each for each in changes if each["what"] == "leader elected"]
    if elected:  # a killed controller has lost its record of changes
        assert (elected[-1]["leader"], elected[-1]["cause"]) == (leader, "brokers gone: 3")
    processes.restart(3)
    processes.until_in_sync(topic, 2)
    shown = run("topics", "describe", topic, "--changes", "-b", processes.bootstrap)
    head = next(line for line in shown.out.splitlines() if line.startswith("PARTITION") and "CAUSE" in line)
    assert head.split() == ["PARTITION", "TIME", "BROKER", "CHANGE", "LEADER", "EPOCH", "ISR", "CAUSE"]
    assert "brokers caught up: 3" in shown.out
    assert shown.err == f"pybroker: broker 3 does not report changes: its metrics.listener is a free port, {HOST}:0\n"


def test_the_command_line_tells_of_epochs(start_cluster: Callable[..., Cluster]) -> None:
    """The command prints the epochs of controller and brokers as in the store, and names a frozen broker soon."""
    ports = {number: free_port() for number in (1, 2)}
    processes = start_cluster(
        metrics_listener=lambda number: f"{HOST}:{ports[number]}" if number in ports else f"{HOST}:0"
    )
    topic = processes.create("t", replicas=[[2, 1, 3]])
    processes.until_in_sync(topic)
    processes.restart(1)
    processes.until_in_sync(topic)
    told = run("cluster", "--json", "-b", processes.bootstrap).json
    with closing(editor_of(processes.store, processes.chroot)) as editor:
        editor.start(10)
        registered = {number: editor.exists(f"/brokers/ids/{number}").czxid for number in (1, 2)}
        reigns = int(editor.get("/controller_epoch")[0])
        editor.stop()
    assert {broker["id"]: broker["epoch"] for broker in told["brokers"]} == {**registered, 3: None}
    assert told["controller_epoch"] == reigns
    first, _, *rows, _ = run("cluster", "-b", processes.bootstrap).out.splitlines()
    assert first == f"Cluster {told['cluster']}  controller {told['controller']} of epoch {reigns}"
    assert [row.split()[1] for row in rows] == [str(registered[1]), str(registered[2]), "-"]
    processes.signal(2, signal.SIGSTOP)
    began = time.monotonic()
    shown = run("cluster", "-b", processes.bootstrap)
    assert time.monotonic() - began < ANSWER_S_MAX
    assert "broker 2 does not answer: " in shown.out and "broker 1 does" not in shown.out
    began = time.monotonic()
    shown = run("topics", "describe", topic, "-b", processes.bootstrap)
    assert time.monotonic() - began < ANSWER_S_MAX
    assert shown.code == 0 and shown.err.startswith("pybroker: broker 2 does not report the partitions it leads: ")
    began = time.monotonic()
    shown = run("logdirs", "-b", processes.bootstrap)
    assert time.monotonic() - began < ANSWER_S_MAX
    assert shown.code == 0 and shown.err.startswith("pybroker: broker 2 does not report its log dirs: ")
    assert [row.split()[0] for row in shown.out.splitlines()[1:]] == ["1", "3"]
    began = time.monotonic()
    shown = run("logdirs", "--timeout", "4", "-b", processes.bootstrap)
    assert time.monotonic() - began >= 4 and shown.code == 0 and "broker 2 does not report" in shown.err
    processes.signal(2, signal.SIGCONT)
