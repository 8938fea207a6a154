"""`pybroker reassign plan` and the file of replicas, without a move."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pybroker.cli.main import Misuse
from pybroker.cli.reassign import assignments
from pybroker.cli.reassign.measuring import volumes
from pybroker.cli.reassign.showing import duration
from pybroker.client.admin import LogDir
from pybroker.decisions.planning.snapshot import Volume
from pybroker.model import TopicPartition
from tests.cli.conftest import Command
from tests.rows import with_each

LIMIT = ("--disk-limit", 100)
"""The disk of the machine that runs the tests may be fuller than the default allows."""


def test_a_plan_of_one_broker(pybroker_: Command, topic: str) -> None:
    """One broker has nothing to spread; it can be neither drained nor given more replicas, and says why."""
    pybroker_("topics", "create", topic, "-p", 2)
    said = pybroker_("reassign", "plan", "--spread", *LIMIT)
    goals, head, row, nothing = said.out.splitlines()
    assert goals.startswith("Goals, the most important first: each partition in as many racks as it can be; no two")
    assert head.split()[:5] == ["BROKER", "RACK", "BYTES", "AFTER", "DISK"] and nothing == "Nothing is to be moved."
    broker = row.split()[0]
    drained = pybroker_("reassign", "plan", "--drain", broker)
    assert drained.code == 1
    assert drained.err == "pybroker: refused: no live broker is left that could hold replicas\n"
    more = pybroker_("reassign", "plan", "--replication-factor", 2, "--topics", f"{topic[:-2]}*", "--json", "-")
    assert more.sentence == f"refused: topic {topic} cannot have 2 replicas: 1 broker is live"


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
                ([{**PARTITION, "replicas": [-1]}], "entry 1 of the partitions has no"),
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
