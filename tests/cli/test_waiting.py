"""The lines on standard error of a command that waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.cli import waiting
from pybroker.cli.cluster import check
from pybroker.cli.reassign import balancer
from pybroker.cli.waiting import WaitReport
from pybroker.client.admin import Admin
from pybroker.testing import BrokerHandle, ClusterHandle
from tests.cli.conftest import run, run_process
from tests.harness import HOST, free_port, until
from tests.rows import with_each


def lines(err: str) -> list[str]:
    return [line.removeprefix("pybroker: waiting ") for line in err.splitlines()]


def test_a_short_wait_is_silent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is said of what ends in time."""
    monkeypatch.setattr(waiting, "QUIET_S", 3600)
    with WaitReport("for one") as wait:
        wait.on("for another")
    assert capsys.readouterr().err == ""


def test_changes_are_said_and_repeats_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is a line; a wait within another one has none."""
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    with WaitReport() as wait:
        for words in ("for one", "for one", "", "for two"):
            wait.on(words)
        with WaitReport("for three"):
            pass
    with WaitReport("for four"):
        pass
    assert lines(capsys.readouterr().err) == ["for one", "for two", "for four"]


def test_a_wait_in_a_call_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line comes although the caller is blocked."""
    monkeypatch.setattr(waiting, "QUIET_S", 0.01)
    shown = ""

    def said() -> bool:
        nonlocal shown
        shown += capsys.readouterr().err
        return shown != ""

    with WaitReport("for an answer"):
        until("the line", said)
    assert shown == "pybroker: waiting for an answer\n"


@with_each(
    ("api", "arguments"),
    [
        ("CreateTopics", ("topics", "create", "t")),
        ("DeleteTopics", ("topics", "delete", "t", "--yes")),
        ("Metadata", ("topics", "list")),
        ("ListGroups", ("groups", "list")),
    ],
)
def test_a_silent_broker_is_named(
    monkeypatch: pytest.MonkeyPatch, api: str, arguments: tuple[str, ...]
) -> None:
    """A command that waits for an answer says from where, for each request."""
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    with BrokerHandle() as broker, broker.faults.drop(api, times=None):
        done = run(*arguments, "-b", broker.bootstrap_servers, "--timeout", 0.5)
        expected = f"for the broker at {broker.bootstrap_servers} to answer {api}"
    assert done.code == 1
    if api.endswith("Topics"):
        expected = "for the cluster's controller"
    assert expected in lines(done.err), done.err


def test_a_check_says_what_it_waits_for(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster check --wait` says what lacks until then; and that no broker answers."""
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    with ClusterHandle(2, settings={"min.insync.replicas": 1}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic(topic, replica_assignments={0: [1, 2]})
            cluster.kill(2)
            until("it is away", lambda: [node.id for node in admin.describe_cluster().nodes] == [1])
        done = run("cluster", "check", "--wait", "in-sync", "-b", cluster.bootstrap_servers, "--timeout", 1)
    said = lines(done.err)[1]
    assert done.code == 1 and said.startswith("for ")
    assert " to be in sync with broker 2, which is not registered: " in said and f"{topic}-0 (in sync 1 of 1,2)" in said
    nowhere = f"{HOST}:{free_port()}"
    done = run("cluster", "check", "--wait", "in-sync", "-b", nowhere, "--timeout", "0.2")
    assert done.code == check.UNREACHABLE and lines(done.err)[1].startswith(f"for an answer: could not reach {nowhere}")


def test_the_end_of_the_balancer_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that moves replicas says so when it waits for the balancer, also if nothing is left to cancel."""
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    left = [{("t", 0)}, {("t", 0)}, set()]
    monkeypatch.setattr(balancer, "moves", lambda _: left.pop(0))
    monkeypatch.setattr(balancer, "POLL_S", 0)

    class NothingMoves:
        def list_partition_reassignments(self) -> dict[object, object]:
            return {}

    balancer.take_over(NothingMoves(), 60)  # type: ignore[arg-type]
    assert lines(capsys.readouterr().err) == ["for the balancer to end its batch and to remove its throttle"]


def test_a_command_with_zookeeper_prints_no_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """migrate-store reads log dirs and reaches ZooKeeper by a broker's own parts: what these log is not its output. The
    wait for ZooKeeper is said as others are."""
    with BrokerHandle(data_dir=str(tmp_path)) as broker:
        broker.create_topic("t")
    for path in (tmp_path / "data", tmp_path / "data" / "t-0"):
        path.chmod(0o755)
    nowhere = f"{HOST}:{free_port()}"
    file = tmp_path / "server.properties"
    file.write_text(f"zookeeper.connect={nowhere}\nzookeeper.connection.timeout.ms=1000\n")
    command = ("migrate-store", "--data-dir", tmp_path / "data", "--config", file)
    assert run_process(*command).sentence.startswith(f"no ZooKeeper answered in 1 s at {nowhere}")
    monkeypatch.setattr(waiting, "QUIET_S", 0)
    assert lines(run(*command).err)[0] == f"for ZooKeeper at {nowhere}"
