"""Replicas that move between real brokers while clients write and read, and brokers that are killed meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from pybroker import Admin, PartitionReassignment
from pybroker.client.admin import Committed
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from tests.brokers.kit import Cluster
from tests.brokers.witness import Witness
from tests.cli.conftest import run
from tests.harness import until
from tests.stores import AnyStore

pytestmark = [pytest.mark.java]
Result = TypeVar("Result")
T0 = TopicPartition("t", 0)
BROKERS = 4
STEP_S_MAX = 120


class MovingCluster(Cluster):
    """A cluster whose partitions are not on all brokers."""

    def logs(self, topic: str, index: int = 0) -> set[int]:
        """The brokers that have a log of a partition, deleted ones aside."""
        return {n for n, broker in self.brokers.items() if (broker.data_dir / f"{topic}-{index}").exists()}

    def differing(self, topic: str, partitions: Iterable[int] = (0,)) -> list[str]:
        """The partitions whose replicas differ, or whose logs are also on other brokers."""
        wrong = []
        for index in partitions:
            replicas = set(self.metadata(topic).topics[topic].partitions[index].replicas)
            there = self.logs(topic, index)
            logs = {number: self.log_bytes(number, topic, index) for number in replicas}
            if there != replicas or len(set(logs.values())) > 1:
                sizes = {number: len(log) for number, log in logs.items()}
                wrong.append(f"{topic}-{index}: logs on {there}, replicas of {sizes} bytes")
        return wrong


@pytest.fixture
def cluster(tmp_path: Path, store: AnyStore) -> Iterator[MovingCluster]:
    """Four brokers; partition 0 of topic t is on the first three."""
    with MovingCluster(tmp_path, store, count=BROKERS) as running:
        running.create("t", replicas=[[1, 2, 3]])
        until("it is in sync", lambda: len(running.partition("t")[1]) == 3, timeout_s=STEP_S_MAX)
        yield running


def answered(cluster: Cluster, ask: Callable[[Admin], Result]) -> Result:
    """Ask until a controller answers: brokers that were killed refuse connections, and elections take a moment."""
    found: list[Result] = []

    def told() -> bool:
        try:
            with Admin(cluster.bootstrap, timeout_s=10) as admin:
                found.append(ask(admin))
        except (KafkaError, OSError):
            return False
        return True

    until("the controller answers", told, timeout_s=STEP_S_MAX)
    return found[-1]


def move(cluster: Cluster, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
    """Begin to move partitions, or cancel; each must be accepted. A broker that is not alive, because a fault or a busy
    machine cost it its session, has to register again first."""
    until("the moves are accepted", lambda: accepts(cluster, targets), STEP_S_MAX)


def accepts(cluster: Cluster, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> bool:
    """Begin to move partitions, or cancel; False if a broker is not alive."""
    done = answered(cluster, lambda admin: admin.alter_partition_reassignments(targets))
    assert all(problem is None or "is not alive" in str(problem) for problem in done.values()), done
    return not any(done.values())


def move_to_a_frozen(cluster: Cluster, number: int, targets: Mapping[tuple[str, int], Sequence[int]]) -> None:
    """Freeze a broker and begin to move partitions to it. Where its session ends before that, it runs again for a
    while, so that it registers."""

    def accepted() -> bool:
        cluster.signal(number, signal.SIGSTOP)
        if not accepts(cluster, targets):
            cluster.signal(number, signal.SIGCONT)
            return False
        return True

    until("the moves are accepted", accepted, STEP_S_MAX, every_s=3)


def moving(cluster: Cluster) -> dict[TopicPartition, PartitionReassignment]:
    return answered(cluster, lambda admin: admin.list_partition_reassignments())


def until_moved(cluster: MovingCluster, *replicas: int, topic: str = "t") -> None:
    """Wait until nothing moves, and partition 0 has these replicas, all in sync, and no other log."""
    until("nothing moves", lambda: not moving(cluster), timeout_s=STEP_S_MAX)

    def there() -> bool:
        found = cluster.metadata(topic).topics[topic].partitions[0]
        return list(found.replicas) == list(replicas) == sorted(found.isrs, key=replicas.index)

    until(f"the replicas are {replicas}", there, timeout_s=STEP_S_MAX)
    until("no other log is there", lambda: cluster.logs(topic) == {*replicas}, timeout_s=STEP_S_MAX)


def test_everything_moves(cluster: MovingCluster) -> None:
    """All replicas of a partition move to other brokers one after another, their number changes, and a producer with
    acks=all sees no error."""
    with Witness(cluster, "t") as witness:
        witness.until_acked()
        move(cluster, {T0: [4, 2, 3]})
        until_moved(cluster, 4, 2, 3)
        witness.until_acked()
        move(cluster, {T0: [3, 1]})
        until_moved(cluster, 3, 1)
        assert cluster.leader("t") in (1, 3)
        witness.until_acked()
        move(cluster, {T0: [2, 4, 1, 3]})
        until_moved(cluster, 2, 4, 1, 3)
        move(cluster, {T0: [4]})
        until_moved(cluster, 4)
        assert cluster.leader("t") == 4
        move(cluster, {T0: [1, 2, 4]})  # one replica takes appends meanwhile, though min.insync.replicas is 2
        until_moved(cluster, 1, 2, 4)
        witness.until_acked()
        witness.judge()


def test_a_cancel_goes_back(cluster: MovingCluster) -> None:
    """The broker that should copy is frozen, then killed; a cancel goes back to the first replicas, and when the broker
    returns it has no log of the partition."""
    with Witness(cluster, "t") as witness:
        witness.until_acked()
        move_to_a_frozen(cluster, 4, {T0: [4, 1, 2]})
        witness.until_acked()
        assert moving(cluster) == {T0: PartitionReassignment((4, 1, 2, 3), (4,), (3,))}
        described = run("topics", "describe", "t", "-b", cluster.bootstrap)
        assert "adding 4, removing 3" in described.out
        checked = run("cluster", "check", "-b", cluster.bootstrap, "--json")
        assert (checked.code, checked.json["under_replicated"], checked.json["under_min_isr"]) == (1, 1, 0)
        assert checked.json["problems"][-1].endswith("t-0 (in sync 1,2,3 of 4,1,2,3)")
        cluster.kill(4)
        move(cluster, {T0: None})
        assert moving(cluster) == {}
        cluster.restart(4)
        until_moved(cluster, 1, 2, 3)
        witness.until_acked()
        witness.judge()


@pytest.mark.parametrize("when", ["begun", "in sync"])
@pytest.mark.parametrize("victim", ["controller", "leader", "adding", "leaving"])
def test_a_broker_is_killed(cluster: MovingCluster, victim: str, when: str) -> None:
    """The reassignment goes on under the next controller or leader, and ends once the broker is back."""
    target = [4, 1, 2]
    with Witness(cluster, "t") as witness:
        witness.until_acked()
        move(cluster, {T0: target})
        if when == "in sync":
            until("4 is in sync", lambda: 4 in cluster.partition("t")[1], timeout_s=STEP_S_MAX)
        leader = cluster.leader("t")
        number = {"controller": cluster.controller(), "leader": leader, "adding": 4, "leaving": 3}[victim]
        cluster.kill(number)
        witness.until_acked(20, timeout_s=STEP_S_MAX)
        cluster.restart(number)
        until_moved(cluster, *target)
        witness.until_acked(20, timeout_s=STEP_S_MAX)
        witness.judge()


def test_groups_move(cluster: MovingCluster) -> None:
    """The partitions of the groups' offsets move like others, and a group has its offsets where it moves."""
    topic = "__consumer_offsets"
    with Witness(cluster, "t") as witness:
        witness.until_acked()
        until("groups have a topic", lambda: topic in cluster.metadata().topics, timeout_s=STEP_S_MAX)
        group = {T0: Committed(7)}
        answered(cluster, lambda admin: admin.alter_group_offsets("g", group))
        before = {i: list(p.replicas) for i, p in cluster.metadata(topic).topics[topic].partitions.items()}
        others = {i: [n for n in range(1, BROKERS + 1) if n != held[0]] for i, held in before.items()}
        move(cluster, {(topic, index): replicas for index, replicas in others.items()})
        until_moved(cluster, *others[0], topic=topic)
        assert answered(cluster, lambda admin: admin.group_offsets(["g"]))["g"][T0].offset == 7
        witness.until_acked()
        witness.judge()
