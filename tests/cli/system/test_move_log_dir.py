"""`pybroker move-log-dir`, with the output that a person gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pybroker.cli.move_log_dir import _Progress
from pybroker.client.admin import LogDir, Replica
from pybroker.model import TopicPartition
from tests.cli.conftest import run
from tests.cli.members import write
from tests.harness import BrokerProcess

KEY = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    home = tmp_path_factory.mktemp("disks")
    made = BrokerProcess(home, sets={"log.dirs": f"{home / 'a'},{home / 'b'}"})
    made.start()
    assert run("topics", "create", "orders", "-p", "2", "-b", made.bootstrap).code == 0
    write(made.bootstrap, "orders", 100)
    yield made
    made.close()


def places(broker: BrokerProcess) -> dict[int, str]:
    """The log dir of each partition."""
    told = run("logdirs", "orders", "--json", "-b", broker.bootstrap).json
    return {p["partition"]: d["log_dir"] for d in told for p in d["partitions"] if p["topic"] == "orders"}


def test_replicas_move(broker: BrokerProcess) -> None:
    """The command returns when the replicas are there; what is there already stays."""
    for to in (broker.data_dir / "b", broker.data_dir / "a", broker.data_dir / "a"):
        done = run("move-log-dir", "orders", "--to", to, "-b", broker.bootstrap)
        assert done.code == 0, done.err
        assert [line.split(" on broker ")[0] for line in done.out.splitlines()] == ["Moved orders-0", "Moved orders-1"]
        assert set(places(broker).values()) == {str(to)}
    done = run("move-log-dir", "orders:1", "--to", broker.data_dir / "b", "--json", "-b", broker.bootstrap)
    [told] = done.json
    assert (told["topic"], told["partition"], told["log_dir"]) == ("orders", 1, str(broker.data_dir / "b"))
    assert run("move-log-dir", "orders", "--to", broker.data_dir / "a", "--no-wait", "-b", broker.bootstrap).code == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["orders", "--to", "/nowhere"], "no broker has the log dir /nowhere: `pybroker logdirs` shows"),
        (["none", "--to", "{a}"], "topic none does not exist"),
        (["orders:9", "--to", "{a}"], "topic orders has no partition 9"),
        (["orders", "--to", "{a}", "--broker", "77"], "77"),
    ],
)
def test_what_cannot_be_moved(broker: BrokerProcess, arguments: list[str], sentence: str) -> None:
    told = [argument.format(a=broker.data_dir / "a") for argument in arguments]
    done = run("move-log-dir", *told, "-b", broker.bootstrap)
    assert sentence in done.sentence


def looks(*states: tuple[str, int | None]) -> Callable[[], list[LogDir]]:
    """Answers of a broker: the log dir of the replica, and the bytes of its copy in /b, None if there is none."""
    answers = iter(states)

    def look() -> list[LogDir]:
        here, copied = next(answers)
        found = {path: [Replica(KEY, 100, 0, False)] if path == here else [] for path in ("/a", "/b")}
        if copied is not None:
            found["/b"].append(Replica(KEY, copied, 7, True))
        return [LogDir(1, path, 0, None, None, tuple(replicas)) for path, replicas in found.items()]

    return look


def test_the_end_of_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is gone has become the replica, or the move has failed."""
    monkeypatch.setattr("pybroker.cli.move_log_dir._EVERY_S", 0)
    assert _Progress(looks(("/a", 1), ("/a", 50), ("/b", None)), "/b").wait([KEY]) == []
    assert _Progress(looks(("/a", 1), ("/a", None)), "/b").wait([KEY]) == [KEY]
    assert _Progress(looks(("/a", 1), ("", None)), "/b").wait([KEY]) == [KEY]  # deleted, or its log dir has failed
