"""Replicas move between the brokers of a real cluster by the commands `reassign` and `brokers`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pybroker import Admin
from pybroker.client.admin import Alteration, ConfigOperation, ConfigResource, ResourceType
from tests.brokers.kit import QUIET, Cluster
from tests.cli.conftest import Done, run, start
from tests.harness import until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
RATE = "replication.throttled.rate"
LISTS = "replication.throttled.replicas"
RECORDS = 1200
SLOW = 1_000
"""A throttle, in bytes a second, below which a move does not end during a test."""
WAIT_S = 120
LIMIT = ("--disk-limit", 99)
"""The disk of the machine that runs the tests may be fuller than the default allows."""


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[Cluster]:
    """Four brokers, and topic t with 300 kB in each of four partitions, two replicas each."""
    sets = {"default.replication.factor": 2, "min.insync.replicas": 1, "replica.fetch.max.bytes": 20_000}
    with Cluster(tmp_path, store, count=4, **sets) as running:
        running.create("t", replicas=[[1, 2], [2, 3], [3, 1], [1, 3]], min_insync_replicas="1")
        producer = Producer({"bootstrap.servers": running.bootstrap, "batch.num.messages": 10, **QUIET})
        for number in range(RECORDS):
            producer.produce("t", bytes(1000), partition=number % 4)
        assert producer.flush(60) == 0
        yield running


def command(cluster: Cluster, *arguments: object) -> Done:
    return run(*arguments, "-b", cluster.bootstrap)


def replicas(cluster: Cluster, topic: str = "t") -> list[list[int]]:
    with Admin(cluster.bootstrap) as admin:
        return [list(p.replicas) for p in admin.topics([topic])[0].partitions]


def throttled(cluster: Cluster) -> dict[str, str]:
    """Every config of a throttle that is set on topic t, a live broker, or all brokers."""
    found = {}
    with Admin(cluster.bootstrap) as admin:
        brokers = [str(node.id) for node in admin.describe_cluster().nodes]
        resources = [ConfigResource(ResourceType.BROKER, name) for name in ("", *brokers)]
        for resource in (ConfigResource(ResourceType.TOPIC, "t"), *resources):
            for entry in admin.configs(resource):
                if (
                    entry.value
                    and ("throttled" in entry.name or "reassign" in entry.name)
                    and entry.source in (1, 2, 3)
                ):
                    found[f"{resource.name or 'all'} {entry.name}"] = entry.value
    return found


def records(cluster: Cluster) -> int:
    return len(run("consume", "t", "--from-beginning", "--exit-at-end", "-b", cluster.bootstrap).out.splitlines())


def begun(cluster: Cluster, *arguments: object) -> Any:
    """Start a command as a process, and wait until it moves a partition."""
    process = start(*arguments, "-b", cluster.bootstrap)
    with Admin(cluster.bootstrap) as admin:

        def moves() -> bool:
            assert process.poll() is None, process.communicate()
            return bool(admin.list_partition_reassignments())

        until("a partition is being moved", moves, timeout_s=WAIT_S)
    return process


def interrupted(cluster: Cluster, *arguments: object) -> str:
    """Press Ctrl-C once a command moves a partition; return what it says."""
    process = begun(cluster, *arguments)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, err
    return str(err.decode())


def test_a_broker_is_replaced_then_retired(cluster: Cluster) -> None:
    """A broker's replicas go to its successor, and then off that one; each may be switched off in the end. Clients read
    every record, throttles are gone, and a broker that is needed cannot be retired."""
    mark = "auto.balance.excluded.brokers=4"
    assert command(cluster, "configs", "alter", "--broker-default", "--set", mark).code == 0
    done = command(cluster, "brokers", "replace", 1, 4, "--throttle", 50_000_000, "--yes", *LIMIT)
    assert done.code == 0, done.err
    drained = {each["id"] for each in command(cluster, "brokers", "list", "--json").json if each["drained"]}
    assert drained == {1}, "the balancer may use the successor again"
    assert "The throttle of 50.0 MB/s is removed." in done.out
    assert done.out.endswith("Broker 1 holds no replica: it may be switched off.\n")
    assert [set(each) for each in replicas(cluster)] == [{4, 2}, {2, 3}, {3, 4}, {4, 3}]
    assert throttled(cluster) == {}
    cluster.brokers[1].stop()
    until("it is gone", lambda: len(command(cluster, "brokers", "list", "--json").json) == 3, timeout_s=WAIT_S)
    done = command(cluster, "brokers", "retire", 4, "--yes", *LIMIT)
    assert done.code == 0 and done.out.endswith("Broker 4 holds no replica: it may be switched off.\n"), done.err
    held = {each["id"]: each["replicas"] for each in command(cluster, "brokers", "list", "--json").json}
    assert held == {2: 4, 3: 4, 4: 0} and records(cluster) == RECORDS
    cluster.brokers[4].stop()
    until("it is gone", lambda: len(command(cluster, "brokers", "list", "--json").json) == 2, timeout_s=WAIT_S)
    before = replicas(cluster)
    refused = command(cluster, "brokers", "retire", 2, "--yes", *LIMIT).sentence
    assert "broker 2 cannot be drained: 4 partitions of topic t need 2 brokers, and 1 live broker would" in refused
    assert replicas(cluster) == before


def test_ctrl_c_leaves_a_move_running_and_cancel_takes_it_back(cluster: Cluster, tmp_path: Path) -> None:
    """After Ctrl-C the batch that has begun goes on, later ones do not begin. status shows it; cancel goes back to the
    replicas of before, and removes the throttle."""
    before = replicas(cluster)
    said = interrupted(cluster, "reassign", "execute", "--drain", 1, "--throttle", SLOW, "--batch", 2, "--yes", *LIMIT)
    assert "the move of 2 partitions goes on; 1 partition of later batches not begun" in said
    shown = command(cluster, "reassign", "status", "--json").json
    assert len(shown["partitions"]) == 2 and shown["throttle"] == SLOW
    assert "2 partitions being moved, at 1.0 kB/s a broker." in command(cluster, "reassign", "status").out
    assert any(name.endswith(RATE) for name in throttled(cluster))
    file, moving = tmp_path / "plan.json", shown["partitions"][0]
    target = {"topic": "t", "partition": moving["partition"], "replicas": before[moving["partition"]][::-1]}
    file.write_text(json.dumps({"version": 1, "partitions": [target]}))
    other = command(cluster, "reassign", "execute", file)
    assert other.code == 1 and "already: see pybroker reassign status" in other.err, other
    done = command(cluster, "reassign", "cancel")
    assert done.out == "Cancelled the move of 2 partitions. Removed the throttle of 1.0 kB/s.\n", done.err
    assert list(map(set, replicas(cluster))) == list(map(set, before))
    assert throttled(cluster) == {} and records(cluster) == RECORDS
    assert command(cluster, "reassign", "cancel").out == "Cancelled the move of 0 partitions.\n"


def test_a_file_is_executed_again_where_it_was_and_status_removes_the_throttle(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A plan's file can be executed again after Ctrl-C: it waits for what is being moved. status removes the throttle
    of moves that ended while nobody watched; one set by hand stays."""
    by_hand = ConfigResource(ResourceType.BROKER, "3")
    with Admin(cluster.bootstrap) as admin:
        admin.alter_configs(by_hand, [Alteration(f"leader.{RATE}", ConfigOperation.SET, "40000000")])
    hand = {f"3 leader.{RATE}": "40000000"}
    file = tmp_path / "plan.json"
    assert command(cluster, "reassign", "plan", "--drain", 1, "--json", file, *LIMIT).code == 0
    said = interrupted(cluster, "reassign", "execute", file, "--throttle", SLOW)
    assert f"broker 3 keeps leader.{RATE}=40000000, which was set by hand" in said
    assert "the move of 3 partitions goes on." in said
    again = begun(cluster, "reassign", "execute", file, "--throttle", 90_000_000)
    out, err = again.communicate(timeout=WAIT_S)
    assert again.returncode == 0 and b"The throttle of 90.0 MB/s is removed." in out, err
    assert not any(1 in each for each in replicas(cluster)) and throttled(cluster) == hand
    targets = {"version": 1, "partitions": [{"topic": "t", "partition": 1, "replicas": [1, 4]}]}
    file.write_text(json.dumps(targets))
    interrupted(cluster, "reassign", "execute", file, "--throttle", SLOW)
    with Admin(cluster.bootstrap) as admin:
        for broker in "124":
            for role in ("leader", "follower"):
                change = Alteration(f"{role}.{RATE}", ConfigOperation.SET, "80000000")
                admin.alter_configs(ConfigResource(ResourceType.BROKER, broker), [change])
        until("it has ended", lambda: not admin.list_partition_reassignments(), timeout_s=WAIT_S)
    said_at_last = command(cluster, "reassign", "status").out
    assert said_at_last == "No partition is being moved. Removed the throttle of 1.0 kB/s.\n"
    set_by_hand = {"40000000", "80000000"}
    until("each broker knows that the throttle is gone", lambda: set(throttled(cluster).values()) == set_by_hand)
    assert not any(LISTS in name for name in throttled(cluster))


def test_a_new_factor_and_a_chosen_assignment(cluster: Cluster) -> None:
    """topics create --replica-assignment places replicas; a new replication factor adds and drops them."""
    assert command(cluster, "topics", "create", "chosen", "--replica-assignment", "1:2,4:1").code == 0
    assert replicas(cluster, "chosen") == [[1, 2], [4, 1]]
    for factor in (3, 1):
        options = ("--replication-factor", factor, "--topics", "cho*", "--yes", *LIMIT)
        done = command(cluster, "reassign", "execute", *options)
        assert done.code == 0, done.err
        assert [len(each) for each in replicas(cluster, "chosen")] == [factor] * 2
    assert command(cluster, "topics", "create", "x", "--replica-assignment", "1:x").code == 2
    assert (
        "leave out the numbers" in command(cluster, "topics", "create", "x", "-p", 2, "--replica-assignment", "1").err
    )
    assert "refused" in command(cluster, "brokers", "drain", 9, "--yes").sentence
