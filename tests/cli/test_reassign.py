"""`pybroker reassign plan` and the file of replicas, without a move."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.cli.main import Failure, Misuse
from pybroker.cli.reassign import assignments, throttle
from pybroker.cli.reassign.showing import duration, show_holdings
from pybroker.client.admin import (
    Admin,
    Alteration,
    ConfigEntry,
    ConfigOperation,
    ConfigResource,
    LogDir,
    ResourceType,
)
from pybroker.decisions.planning.measuring import volumes
from pybroker.decisions.planning.snapshot import Holding, Volume
from pybroker.errors import KafkaError
from pybroker.model import TopicPartition
from pybroker.testing import ClusterHandle
from tests.cli.conftest import Command, run, start
from tests.harness import Server, until
from tests.rows import with_each

LIMIT = ("--disk-limit", 100)
"""The disk of the machine that runs the tests may be fuller than the default allows."""


def test_a_plan_of_one_broker(pybroker_: Command, topic: str) -> None:
    """One broker has nothing to spread; it can be neither drained nor given more replicas, and says why."""
    pybroker_("topics", "create", topic, "-p", 2)
    said = pybroker_("reassign", "plan", "--spread", *LIMIT)
    goals, head, row, nothing = said.out.splitlines()
    assert goals.startswith("Goals, the most important first: each partition in as many racks as it can be; no two")
    assert head.split() == ["BROKER", "RACK", "BYTES", "DISK", "REPLICAS", "LEADERS"]
    assert nothing == "Nothing is to be moved."
    broker = row.split()[0]
    drained = pybroker_("reassign", "plan", "--drain", broker)
    assert drained.code == 1
    assert drained.err == "pybroker: refused: no live broker is left that could hold replicas\n"
    assert "Nothing" not in drained.out, "which would be the answer of a plan that is reached already"
    more = pybroker_("reassign", "plan", "--replication-factor", 2, "--topics", f"{topic[:-2]}*", "--json", "-")
    assert more.sentence == f"refused: topic {topic} cannot have 2 replicas: 1 broker is live"


def test_the_table_of_a_plan_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker is a line of a terminal of 80 columns, with what it holds, and after the plan where that differs."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", shown)
    now, then = Holding(987_600_000_000, 0.85, 12_345, 4115), Holding(123_400_000_000, 0.11, 1543, 4115)
    show_holdings({101: "eu-1a"}, {101: now}, {101: then})
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines() if line.strip(" ─")]
    row = "101 eu-1a 987.6 GB -> 123.4 GB 85 % -> 11 % 12345 -> 1543 4115"
    assert lines == ["broker rack bytes disk replicas leaders", row]


def test_a_plan_has_the_format_of_kafka(pybroker_: Command, topic: str, tmp_path: Path) -> None:
    """--json writes what kafka-reassign-partitions reads, and what `execute` reads again."""
    pybroker_("topics", "create", topic, "-p", 2)
    file = tmp_path / "plan.json"
    assert pybroker_("reassign", "plan", "--racks", "--json", file).out.endswith(f"Wrote {file}.\n")
    assert json.loads(file.read_text()) == {"version": 1, "partitions": []}
    targets = {TopicPartition("b", 1): (3, 1), TopicPartition("a", 0): (2,)}
    assignments.write_file(str(file), targets)
    assert json.loads(file.read_text())["partitions"] == [
        {"topic": "a", "partition": 0, "replicas": [2], "log_dirs": ["any"]},
        {"topic": "b", "partition": 1, "replicas": [3, 1], "log_dirs": ["any", "any"]},
    ]
    assert assignments.read_file(str(file)) == targets


@with_each(
    ("arguments", "words"),
    [
        ((), "no goal: give --drain, --add, --spread, --even-disks, --racks or --replication-factor"),
        (("--replication-factor", 2), "--replication-factor and --topics belong together"),
        (("--topics", "x*"), "--replication-factor and --topics belong together"),
        (("--topics", "nowhere-*", "--replication-factor", 2), "no topic matches 'nowhere-*'"),
        (("--drain", "two"), "'two' is not a valid integer"),
    ],
)
def test_goals_that_are_none(pybroker_: Command, arguments: tuple[str, ...], words: str) -> None:
    """A plan without a sensible goal is a misuse, and says what is missing."""
    done = pybroker_("reassign", "plan", *arguments)
    assert done.code == 2 and words in done.err, done.err


PARTITION = {"topic": "t", "partition": 0, "replicas": [1]}


@with_each(
    ("text", "words"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "is no assignment of replicas"),
        ('{"version": 2, "partitions": []}', "is no assignment of replicas"),
        ('{"version": 1}', 'has no "partitions"'),
        *(
            (json.dumps({"version": 1, "partitions": partitions}), words)
            for partitions, words in [
                ([PARTITION, PARTITION], "has partition t-0 twice"),
                (
                    [{**PARTITION, "replicas": []}],
                    "entry 1 of the partitions has no topic, partition and list of brokers",
                ),
                ([{**PARTITION, "replicas": [True]}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "replicas": [-1]}], "1: partitions and brokers have numbers from 0 to 2147483647"),
                ([{**PARTITION, "replicas": [1, 1 << 31]}], "entry 1: partitions and brokers have numbers"),
                ([{**PARTITION, "partition": -1}], "entry 1: partitions and brokers have numbers"),
                ([{**PARTITION, "partition": 1 << 31}], "entry 1: partitions and brokers have numbers"),
                ([PARTITION, {**PARTITION, "partition": 10**400}], "entry 2: partitions and brokers have numbers"),
                ([{**PARTITION, "partition": True}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "partition": 0.0}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "replicas": [1.0]}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "replicas": "12"}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "topic": ""}], "entry 1: a topic's name cannot be empty"),
                ([{**PARTITION, "topic": "\ud800"}], "entry 1: a topic's name has only letters"),
                ([{**PARTITION, "topic": "t" * 250}], "entry 1: a topic's name has at most 249 characters"),
                ([{**PARTITION, "partition": "0"}], "entry 1 of the partitions has no"),
                ([{**PARTITION, "replicas": [1, 1]}], "names a broker twice for partition t-0"),
                ([{**PARTITION, "log_dirs": ["/disk"]}], "asks for log dirs in its entry 1"),
            ]
        ),
    ],
)
def test_files_that_are_no_assignment(tmp_path: Path, text: str, words: str) -> None:
    """A file that is not an assignment of replicas is refused with its name and what is wrong in it."""
    file = tmp_path / "moves.json"
    file.write_text(text)
    with pytest.raises(Misuse) as raised:
        assignments.read_file(str(file))
    assert str(file) in raised.value.message and words in raised.value.message
    assert raised.value.message.isprintable() and len(raised.value.message) < 500


def test_log_dirs_on_one_file_system_count_once() -> None:
    """Log dirs that report the same size and space are on one file system; offline ones have none."""

    def log_dir(total: int | None, usable: int | None, error: int = 0) -> LogDir:
        return LogDir(1, "/d", error, total, usable, ())

    assert volumes([log_dir(100, 40), log_dir(100, 40), log_dir(100, 30)]) == (Volume(100, 70), Volume(100, 60))
    assert volumes([log_dir(None, None), log_dir(100, 40, error=56)]) == ()


@with_each(
    ("seconds", "words"),
    [(0.1, "1 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (7260, "2 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations_are_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.fixture(scope="module")
def two() -> Iterator[ClusterHandle]:
    """Two brokers, and topic `throttled` with a replica on each."""
    with ClusterHandle(2, settings={"min.insync.replicas": 1}) as cluster:
        cluster.create_topic("throttled")
        yield cluster


class Interrupted(Admin):
    """An admin whose changes of configs end with Ctrl-C after some."""

    changes = 0

    def alter_configs(self, *arguments: Any, **named: Any) -> Any:
        if not self.changes:
            raise KeyboardInterrupt
        self.changes -= 1
        return super().alter_configs(*arguments, **named)


def limits(admin: Admin) -> list[str]:
    """The configs of throttles on the topic, the brokers, and all brokers."""
    brokers = [ConfigResource(ResourceType.BROKER, name) for name in ("", "1", "2")]
    return [
        f"{resource.name} {entry.name}={entry.value}"
        for resource in (ConfigResource(ResourceType.TOPIC, "throttled"), *brokers)
        for entry in admin.configs(resource)
        if "throttle" in entry.name and entry.source in (1, 2, 3) and entry.value
    ]


@with_each("changes", [1, 4])
def test_a_throttle_that_is_set_again_and_interrupted_is_removed(two: ClusterHandle, changes: int) -> None:
    """Ctrl-C between two changes of another rate leaves nothing behind that the next command does not remove."""
    moves = {TopicPartition("throttled", 0): ((1, 2), (2, 1))}
    with Interrupted(two.bootstrap_servers) as admin:
        for rate, admin.changes in ((1000, 100), (2000, changes), (3000, changes)):
            with contextlib.suppress(KeyboardInterrupt):
                assert throttle.set_throttle(admin, rate, (1, 2), moves).kept == []
        assert limits(admin)
        admin.changes = 100
        assert throttle.remove_throttle(admin) is not None
        assert limits(admin) == []


def test_a_throttle_of_a_broker_that_is_away(two: ClusterHandle) -> None:
    """The commands say that it stays, and go on; status removes it once the broker is back."""
    moves = {TopicPartition("throttled", 0): ((1, 2), (2, 1))}
    with Admin(two.bootstrap_servers) as admin:
        throttle.set_throttle(admin, 1000, (1, 2), moves)
        two.kill(2)
        until("it is gone", lambda: [node.id for node in admin.describe_cluster().nodes] == [1])
        for command in ("status", "cancel"):
            done = run("reassign", command, "-b", two.bootstrap_servers)
            assert done.code == 0 and "1.0 kB/s stays on brokers that are not live: 2;" in done.err
        two.start(2)
        until("it is back", lambda: len(admin.describe_cluster().nodes) == 2)
    assert "Removed the throttle of 1.0 kB/s." in run("reassign", "status", "-b", two.bootstrap_servers).out
    with Admin(two.bootstrap_servers) as admin:
        assert limits(admin) == []


class Refused(Admin):
    """An admin whose changes of these topics and brokers are refused."""

    names: tuple[str, ...] = ()

    def alter_configs(self, resource: ConfigResource, *arguments: Any, **named: Any) -> Any:
        if resource.name in self.names:
            raise KafkaError(errors.INVALID_CONFIG, "another setting is wrong")
        return super().alter_configs(resource, *arguments, **named)


@with_each(("name", "what"), [("throttled", "topic throttled"), ("2", "broker 2")])
def test_a_throttle_that_cannot_be_removed_stays_noted(
    two: ClusterHandle, capsys: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    """A sentence says where it stays, and why; all else is removed. `status` removes the rest once that is allowed."""
    moves = {TopicPartition("throttled", 0): ((1, 2), (2, 1)), TopicPartition("gone", 0): ((1, 2), (2, 1))}
    with Refused(two.bootstrap_servers) as admin:
        admin.create_topic("gone")
        assert throttle.set_throttle(admin, 1000, (1, 2), moves).kept == []
        admin.delete_topic("gone")
        admin.names = (name,)
        assert throttle.remove_throttle(admin) is None
        said = capsys.readouterr().err
        assert said.startswith(f"pybroker: the throttle of 1.0 kB/s stays on {what}: another setting is wrong; "), said
        left = {line.split(" ")[0] for line in limits(admin) if throttle.NOTE not in line}
        assert left == {name} and throttle.noted(admin) is not None
    assert "Removed the throttle of 1.0 kB/s." in run("reassign", "status", "-b", two.bootstrap_servers).out
    with Admin(two.bootstrap_servers) as admin:
        assert limits(admin) == []


class Bare(Admin):
    """An admin for whom each topic exists, without configs."""

    def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        return {name: [] for name in names}


@with_each(
    ("partitions", "what"),
    [
        ([TopicPartition("throttled", index) for index in range(4_000)], "the list of 4,000 partitions of throttled"),
        ([TopicPartition(f"{'t' * 100}-{index}", 0) for index in range(400)], "the note of 400 topics"),
    ],
    ids=["list", "note"],
)  # fmt: skip
def test_a_throttle_that_does_not_fit_is_refused(
    two: ClusterHandle, partitions: list[TopicPartition], what: str
) -> None:
    """A sentence says what is too long, before any of it is written."""
    with Bare(two.bootstrap_servers) as admin:
        with pytest.raises(Failure) as raised:
            throttle.set_throttle(admin, 1000, (1, 2), dict.fromkeys(partitions, ((1, 2), (2, 1))))
        assert raised.value.message.startswith(f"{what} to throttle takes more than 32767 bytes: ")
        assert limits(admin) == []


def test_an_execute_outlives_connections(two: ClusterHandle, tmp_path: Path) -> None:
    """A command that runs for days goes on while brokers restart under it, and removes its throttle in the end."""
    address, key = two.bootstrap_servers, TopicPartition("slow", 0)
    with Admin(address) as admin:
        admin.create_topic("slow", replica_assignments={0: [1]})
    two.produce("slow", *(bytes(900_000) for _ in range(4)))
    assignments.write_file(str(tmp_path / "moves.json"), {key: (2,)})
    with start("reassign", "execute", tmp_path / "moves.json", "--throttle", 1000, "-b", address) as process:
        with Admin(address) as admin:
            until("it is being moved", admin.list_partition_reassignments)
        two.restart()
        with Admin(address) as admin:
            assert admin.list_partition_reassignments()
            for broker in "12":
                for role in throttle.ROLES:
                    faster = Alteration(f"{role}.replication.throttled.rate", ConfigOperation.SET, "1000000000")
                    admin.alter_configs(ConfigResource(ResourceType.BROKER, broker), [faster])
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out.startswith(b"Moved 1 partition, 3.6 MB."), err
    with Admin(address) as admin:
        for broker in "12":
            for role in throttle.ROLES:
                by_hand = Alteration(f"{role}.replication.throttled.rate", ConfigOperation.DELETE)
                admin.alter_configs(ConfigResource(ResourceType.BROKER, broker), [by_hand])
        assert limits(admin) == []


@with_each(
    "text",
    [
        "soon", "[" * 100_000,
        json.dumps({"rate": 10**400, "brokers": {"leader": [1]}, "topics": {"leader": ["throttled"]}}),
        json.dumps({"rate": 1, "brokers": {}, "topics": {"leader": ["\ud800"]}}),
        json.dumps({"rate": 1, "brokers": {"follower": [1 << 31]}, "topics": {}}),
    ],
)  # fmt: skip
def test_a_note_of_a_throttle_that_is_none(two: ClusterHandle, text: str) -> None:
    """`status` and `cancel` name the config, in a sentence, and go on; the next throttle replaces it."""
    with Admin(two.bootstrap_servers) as admin:
        change = Alteration(throttle.NOTE, ConfigOperation.SET, text[:30_000])
        admin.alter_configs(throttle.ALL_BROKERS, [change])
        for command in ("status", "cancel"):
            done = run("reassign", command, "-b", two.bootstrap_servers)
            assert done.code == 0 and "Removed the throttle" not in done.out
            assert done.err == f"pybroker: {throttle.NOTE} of all brokers is no note of a throttle: delete it\n"
        throttle.set_throttle(admin, 1000, (1, 2), {TopicPartition("throttled", 0): ((1, 2), (2, 1))})
        assert throttle.remove_throttle(admin) == 1000 and limits(admin) == []


def test_a_cancel_of_no_topic(pybroker_: Command) -> None:
    """A topic that does not exist has no moves to cancel, and is named."""
    assert pybroker_("reassign", "cancel", "nope").sentence == "topic nope does not exist"


def test_a_broker_is_marked_for_the_balancer_and_admitted_again(pybroker_: Command, target: Server) -> None:
    """A broker to which the balancer moves nothing is listed as drained; `brokers admit` takes the mark away."""
    if target.name != "pybroker":
        pytest.skip("only pybroker has the balancer: Kafka keeps its settings, and shows no value of them")
    [broker] = pybroker_("brokers", "list", "--json").json
    assert broker["drained"] is False
    mark = f"auto.balance.excluded.brokers={broker['id']}"
    assert pybroker_("configs", "alter", "--broker-default", "--set", mark).code == 0
    assert [each["drained"] for each in pybroker_("brokers", "list", "--json").json] == [True]
    said = f"Broker {broker['id']} may get replicas from the balancer"
    assert pybroker_("brokers", "admit", broker["id"]).out == f"{said} again.\n"
    assert [each["drained"] for each in pybroker_("brokers", "list", "--json").json] == [False]
    assert pybroker_("brokers", "admit", broker["id"]).out == f"{said}.\n"
    assert pybroker_("configs", "alter", "--broker-default", "--set", f"{mark},77").code == 0
    added = pybroker_("reassign", "execute", "--add", broker["id"], "--yes")
    assert added.code == 0, added.err
    [left] = pybroker_("configs", "describe", "--broker-default", "--json").json
    assert left["value"] == "77", "a broker that is to be filled is admitted, another one is not"
    assert pybroker_("configs", "alter", "--broker-default", "--delete", "auto.balance.excluded.brokers").code == 0
    refused = pybroker_("configs", "alter", "--broker-default", "--set", "auto.balance.excluded.brokers=one")
    assert refused.code == 1 and "it takes broker ids, separated by commas" in refused.err


def test_a_broker_that_was_replaced_is_done() -> None:
    """After it was replaced and switched off, the same command says again that the broker holds nothing; one that was
    never drained is unknown, as its id may be mistyped."""
    single = {"min.insync.replicas": 1, "offsets.topic.replication.factor": 1, "default.replication.factor": 1}
    with ClusterHandle(2, settings=single) as cluster, Admin(cluster.bootstrap_servers) as admin:
        admin.create_topic("t", replica_assignments={0: [2]})
        replace = ("brokers", "replace", 2, 1, "--yes", *LIMIT, "-b", cluster.bootstrap_servers)
        done = run(*replace)
        assert done.code == 0, done.err
        cluster.kill(2)
        until("it is away", lambda: [node.id for node in admin.describe_cluster().nodes] == [1])
        again = run(*replace)
        assert (again.code, again.out) == (0, "Broker 2 holds no replica: it may be switched off.\n"), again.err
        assert "broker 7 is unknown" in run("brokers", "retire", 7, *LIMIT, "-b", cluster.bootstrap_servers).err
