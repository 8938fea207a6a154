"""`pybroker brokers drain` and others like it, beside the balancer: which brokers they mark, and which they spare."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pybroker.cli.each_broker import Silent
from pybroker.cli.reassign import assignments, balancer, running, throttle
from pybroker.cli.reassign.measuring import log_dirs
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.client.net.metadata import Node
from pybroker.model import TopicPartition
from pybroker.testing import ClusterHandle
from tests.cli.conftest import Done, run

LIMIT = ("--disk-limit", 100)
"""The disk of the machine that runs the tests may be fuller than the default allows."""
SETTINGS = {"min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
SLOW = 1_000
"""A throttle, in bytes a second, below which a move does not end during a test."""


@pytest.fixture
def three() -> Iterator[ClusterHandle]:
    """Three brokers, and topic t with one replica on each."""
    with ClusterHandle(3, settings=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", replica_assignments={0: [1], 1: [2], 2: [3]})
        yield cluster


def brokers(cluster: ClusterHandle, *arguments: object, answer: str | None = None) -> Done:
    """Run `pybroker brokers` with these arguments; `answer` is typed."""
    return run("brokers", *arguments, *LIMIT, "-b", cluster.bootstrap_servers, stdin=answer)


def marked(cluster: ClusterHandle) -> set[int]:
    """The brokers to which the balancer moves nothing."""
    with Admin(cluster.bootstrap_servers) as admin:
        return balancer.excluded(admin)


def replicas(cluster: ClusterHandle) -> list[list[int]]:
    with Admin(cluster.bootstrap_servers) as admin:
        return [list(partition.replicas) for partition in admin.topics(["t"])[0].partitions]


def test_a_drain_that_moves_nothing_leaves_no_mark(three: ClusterHandle) -> None:
    """The balancer may go on filling a broker whose drain was refused or declined, or found others moving replicas; and
    a successor that was drained stays so. A drain that moves replicas marks the broker."""
    address = three.bootstrap_servers
    with Admin(address) as admin:
        balancer.exclude(admin, {3})
    assert "broker 77 is unknown" in brokers(three, "drain", 77, "--yes").sentence
    for command in (("drain", 1), ("retire", 1), ("replace", 1, 3)):
        declined = brokers(three, *command, answer="n\n")
        assert declined.code == 1 and "nothing was moved" in declined.err, declined.err
        assert marked(three) == {3}
    three.produce("t", *(bytes(900_000) for _ in range(4)), partition=2)
    moving = {TopicPartition("t", 2): (2,)}
    with Admin(address) as admin:
        throttle.set_throttle(admin, SLOW, (1, 2, 3), {key: ((3,), to) for key, to in moving.items()})
        admin.alter_partition_reassignments(moving)
        for command in (("drain", 1), ("replace", 1, 3)):
            assert "partition t-2 is being moved to 2 already" in brokers(three, *command, "--yes").err
            assert marked(three) == {3}
    assert run("reassign", "cancel", "-b", address).code == 0
    assert replicas(three) == [[1], [2], [3]]
    assert brokers(three, "replace", 1, 3, "--yes").code == 0
    assert marked(three) == {1} and replicas(three) == [[3], [2], [3]]


def test_a_drain_of_which_no_move_begins_takes_its_mark_back(
    three: ClusterHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks are those of before where the controller refuses each move, or a throttle cannot be set. A broker that
    some replicas have left is marked."""
    with Admin(three.bootstrap_servers) as admin:
        admin.create_topic("u", replica_assignments={0: [2]})
        balancer.exclude(admin, {1, 3})
        by_hand = Alteration("leader.replication.throttled.replicas", ConfigOperation.SET, "1:2")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "t"), [by_hand])
    assert "set by hand" in brokers(three, "replace", 2, 3, "--yes", "--throttle", SLOW).err
    assert marked(three) == {1, 3}
    begin = running._begin

    def refused(_: Admin, batch: assignments.Targets, __: float) -> list[str]:
        return [f"{key}: not now" for key in batch]

    def partly(admin: Admin, batch: assignments.Targets, timeout_s: float) -> list[str]:
        first, *others = sorted(batch)
        return refused(admin, {first: ()}, timeout_s) + begin(admin, {key: batch[key] for key in others}, timeout_s)

    monkeypatch.setattr(running, "_begin", refused)
    done = brokers(three, "replace", 2, 3, "--yes")
    assert done.code == 1 and "not now" in done.err and marked(three) == {1, 3}
    done = brokers(three, "drain", 1, "--yes")
    assert done.code == 1 and "not now" in done.err and marked(three) == {1, 3}, "it was marked before"
    monkeypatch.setattr(running, "_begin", partly)
    done = brokers(three, "replace", 2, 3, "--yes")
    assert done.code == 1 and "not now" in done.err and marked(three) == {1, 2}


class Raced(Admin):
    """An admin before whose next change of configs another command changes the marks."""

    def alter_configs(self, *arguments: Any, **named: Any) -> Any:
        other, self.other = self.other, lambda _: None
        with Admin(self.address) as admin:
            other(admin)
        return super().alter_configs(*arguments, **named)

    def __init__(self, address: str, other: Callable[[Admin], object]) -> None:
        super().__init__(address)
        self.address, self.other = address, other


def test_two_commands_that_mark_brokers_at_once(three: ClusterHandle) -> None:
    """Neither loses the mark of the other, nor brings one back that the other has taken away."""
    address = three.bootstrap_servers
    with Raced(address, lambda admin: balancer.exclude(admin, {2})) as admin:
        balancer.exclude(admin, {1})
    assert marked(three) == {1, 2}
    with Raced(address, lambda admin: balancer.exclude(admin, {3})) as admin:
        assert balancer.admit(admin, {1, 7}) == {1}
    assert marked(three) == {2, 3}
    with Raced(address, lambda admin: balancer.admit(admin, {2})) as admin:
        balancer.exclude(admin, {1})
    assert marked(three) == {1, 3}
    with Admin(address) as admin:
        by_hand = Alteration(balancer.EXCLUDED, ConfigOperation.SET, "1, 002,3")
        admin.alter_configs(balancer.ALL_BROKERS, [by_hand])
        assert balancer.admit(admin, {1, 2}) == {1, 2}
    assert marked(three) == {3}


def test_a_broker_that_was_drained_is_spared(three: ClusterHandle) -> None:
    """A drain or a replacement fills no broker that was drained before, unless it is named as successor; where too few
    others are left, the refusal names it. Its data on other brokers stays."""
    assert brokers(three, "drain", 1, "--yes").code == 0
    done = brokers(three, "drain", 2, "--yes")
    assert done.code == 0 and replicas(three) == [[3], [3], [3]], done.err
    assert marked(three) == {1, 2}
    refused = brokers(three, "retire", 3, "--yes").sentence
    assert "no live broker is left that could hold replicas" in refused
    assert "brokers 1, 2 are drained: pybroker brokers admit lets them get replicas" in refused
    assert marked(three) == {1, 2} and replicas(three) == [[3], [3], [3]]
    assert brokers(three, "replace", 3, 2, "--yes").code == 0
    assert replicas(three) == [[2], [2], [2]] and marked(three) == {1, 3}


def test_a_broker_that_does_not_report_its_logs(three: ClusterHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live broker that does not answer may still have logs: it may be switched off only once it reports none."""
    asked = list[object]()

    def silent(nodes: Sequence[Node], *_: object) -> object:
        asked.append(nodes)
        return ({}, {1: Silent("it is busy")}) if len(asked) < 3 else log_dirs(nodes)

    monkeypatch.setattr("pybroker.cli.reassign.brokers.log_dirs", silent)
    done = brokers(three, "retire", 1, "--yes")
    assert done.code == 0 and len(asked) == 3, done.err
    monkeypatch.setattr("pybroker.cli.reassign.brokers.log_dirs", lambda *_: ({}, {2: Silent("it is busy")}))
    done = brokers(three, "retire", 2, "--yes", "--timeout", 1)
    assert done.code == 1 and "may be switched off" not in done.out
    assert done.err.endswith("broker 2 has no replica assigned, and does not report its logs: it is busy\n")
