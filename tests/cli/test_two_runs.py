"""Two commands that move replicas of one cluster: neither takes the other's throttle away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.cli.reassign import assignments, running, throttle
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.model import TopicPartition
from pybroker.testing import ClusterHandle
from tests.cli.conftest import run
from tests.cli.test_drain import SETTINGS, SLOW

RATE = 50_000_000
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def two() -> Iterator[ClusterHandle]:
    """Two brokers; topics a, with two partitions, and b, all on broker 1."""
    with ClusterHandle(2, settings=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("a", replica_assignments={0: [1], 1: [1]})
            admin.create_topic("b", replica_assignments={0: [1]})
        cluster.produce("b", *(bytes(900_000) for _ in range(4)))
        yield cluster


def limits(admin: Admin) -> dict[str, str]:
    """The lists of throttled replicas of the topics, and the rates of the brokers."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in "ab"]
    resources += [ConfigResource(ResourceType.BROKER, name) for name in "12"]
    return {
        f"{resource.name} {entry.name.partition('.')[0]}": entry.value
        for resource in resources
        for entry in admin.configs(resource)
        if "throttled" in entry.name and entry.source in (1, 2) and entry.value
    }


def verify(cluster: ClusterHandle) -> None:
    """Remove throttles as `kafka-reassign-partitions --verify` does, which knows no note."""
    with Admin(cluster.bootstrap_servers) as admin:
        for kind, names, what in ((ResourceType.TOPIC, "a", "replicas"), (ResourceType.BROKER, "12", "rate")):
            for name in names:
                changes = [
                    Alteration(f"{role}.replication.throttled.{what}", ConfigOperation.DELETE)
                    for role in throttle.ROLES
                ]
                admin.alter_configs(ConfigResource(kind, name), changes)


def status(cluster: ClusterHandle) -> None:
    assert run("reassign", "status", "-b", cluster.bootstrap_servers).code == 0


@pytest.mark.parametrize("other", [status, verify])
def test_each_batch_has_its_throttle(
    two: ClusterHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Any
) -> None:
    """A command that looks at the cluster between two batches of a run, and finds nothing moving, removes the throttle:
    the next batch sets it again, and the run removes it."""
    not_there, begin, found = running._not_there, running._begin, list[dict[str, str]]()

    def between(*given: Any) -> Any:
        told = not_there(*given)
        other(two)
        return told

    def begun(admin: Admin, *given: Any) -> Any:
        found.append(limits(admin))
        return begin(admin, *given)

    monkeypatch.setattr(running, "_not_there", between)
    monkeypatch.setattr(running, "_begin", begun)
    file = tmp_path / "moves.json"
    assignments.write_file(str(file), {A0: (2,), A1: (2,)})
    done = run("reassign", "execute", file, "--batch", 1, "--throttle", RATE, "-b", two.bootstrap_servers)
    assert done.code == 0, done.err
    first, second = found
    rates = {f"{broker} {role}": str(RATE) for broker in "12" for role in throttle.ROLES}
    assert first == {"a leader": "0:1,1:1", "a follower": "0:2,1:2", **rates}
    assert second == {"a leader": "1:1", "a follower": "1:2", **rates}
    status(two)
    with Admin(two.bootstrap_servers) as admin:
        assert limits(admin) == {} and throttle.noted(admin) is None


def test_a_run_that_ends_leaves_the_throttle_to_another(
    two: ClusterHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins while the first is about to end. The first says that the throttle stays; the last command
    removes all of it."""
    not_there = running._not_there

    def between(*given: Any) -> Any:
        with Admin(two.bootstrap_servers) as admin:
            throttle.set_throttle(admin, SLOW, (1, 2), {B0: ((1,), (2,))})
            admin.alter_partition_reassignments({B0: (2,)})
        return not_there(*given)

    monkeypatch.setattr(running, "_not_there", between)
    file = tmp_path / "moves.json"
    assignments.write_file(str(file), {A0: (2,)})
    done = run("reassign", "execute", file, "--throttle", RATE, "-b", two.bootstrap_servers)
    assert done.code == 0 and done.out.startswith("Moved 1 partition"), done.err
    assert done.err == (
        "pybroker: the throttle of 1.0 kB/s stays while other partitions are being moved: `pybroker reassign status` "
        "removes it after them\n"
    )
    with Admin(two.bootstrap_servers) as admin:
        assert limits(admin).items() >= {"b leader": "0:1", "b follower": "0:2", "1 leader": str(SLOW)}.items()
        assert admin.list_partition_reassignments().keys() == {B0}
        assert "Removed the throttle" in run("reassign", "cancel", "-b", two.bootstrap_servers).out
        assert limits(admin) == {} and throttle.noted(admin) is None


def test_a_list_that_is_edited_while_a_run_moves(
    two: ClusterHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes out the replicas that it put in, and leaves those that others added by hand."""
    begin, name = running._begin, "leader.replication.throttled.replicas"

    def begun(admin: Admin, *given: Any) -> Any:
        change = Alteration(name, ConfigOperation.APPEND, "1:2,7:1")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "a"), [change])
        return begin(admin, *given)

    monkeypatch.setattr(running, "_begin", begun)
    file = tmp_path / "moves.json"
    assignments.write_file(str(file), {A0: (2,), A1: (2,)})
    done = run("reassign", "execute", file, "--batch", 1, "--throttle", RATE, "-b", two.bootstrap_servers)
    assert done.code == 0 and "is removed" in done.out, done.err
    with Admin(two.bootstrap_servers) as admin:
        assert limits(admin) == {"a leader": "1:2,7:1"} and throttle.noted(admin) is None


def test_two_runs_throttle_one_topic_at_once(two: ClusterHandle) -> None:
    """Neither loses the replicas that the other has put into the list; the last command removes all."""

    class Raced(Admin):
        raced = False

        def alter_configs(self, resource: ConfigResource, *arguments: Any, **named: Any) -> Any:
            if resource.name == "a" and not self.raced:
                self.raced = True
                with Admin(two.bootstrap_servers) as other:
                    throttle.set_throttle(other, RATE, (1, 2), {A1: ((1,), (2,))})
            return super().alter_configs(resource, *arguments, **named)

    with Raced(two.bootstrap_servers) as admin:
        throttle.set_throttle(admin, RATE, (1, 2), {A0: ((1,), (2,))})
        assert set(limits(admin)["a leader"].split(",")) == {"0:1", "1:1"}
        assert throttle.remove_throttle(admin) == RATE and limits(admin) == {}
