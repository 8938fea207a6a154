"""`pybroker groups` against any broker: each test runs commands and checks their output."""

from __future__ import annotations

import time

import pytest

from tests.cli.conftest import Command, run
from tests.cli.members import Reader, commit, write
from tests.conftest import new_name
from tests.harness import Server, until
from tests.rows import with_each


@pytest.fixture
def group(topic: str, target: Server, pybroker_: Command) -> str:
    """A group with the topic's name that has read 10 records of each of 2 partitions, and has no members now."""
    pybroker_("topics", "create", topic, "-p", 2)
    for partition in (0, 1):
        write(target.bootstrap, topic, 10, partition=partition)
    commit(target.bootstrap, topic, topic, {0: 10, 1: 10})
    return topic


def offsets(pybroker_: Command, group: str) -> list[int]:
    (described,) = pybroker_("groups", "describe", group, "--json").json
    return [p["committed"] for p in described["partitions"]]


def test_a_group_at_work(pybroker_: Command, target: Server, topic: str) -> None:
    """An active group shows its members, their partitions and lag and, on our broker, the reason of the last
    rebalance."""
    pybroker_("topics", "create", topic, "-p", 3)
    write(target.bootstrap, topic, 5, partition=1)
    with Reader(target.bootstrap, topic, topic, **{"client.id": "worker", "group.instance.id": "w1"}) as reader:
        until("all is read", lambda: reader.count == 5)
        listed = [line.split() for line in pybroker_("groups", "list").out.splitlines()]
        assert [topic, "Stable", "classic", "consumer"] in listed
        assert topic not in pybroker_("groups", "list", "--state", "Empty").out
        (described,) = pybroker_("groups", "describe", topic, "--json").json
        (member,) = described["members"]
        assert (described["state"], described["protocol"], described["lag"]) == ("Stable", "range", 0)
        assert (member["client"], member["instance"], member["host"]) == ("worker", "w1", "127.0.0.1")
        assert [p["partition"] for p in member["partitions"]] == [0, 1, 2]
        owners = [(p["partition"], p["committed"], p["latest"], p["lag"]) for p in described["partitions"]]
        assert owners == [(0, None, 0, None), (1, 5, 5, 0), (2, None, 0, None)]
        shown = pybroker_("groups", "describe", topic).out
        assert f"Group {topic}  Stable  consumer range" in shown and f"  w1        {topic}  0-2" in shown
        assert ("Last rebalance 20" in shown) == (target.name == "pybroker")
        if target.name == "pybroker":
            assert "joined" in described["last_rebalance"]["cause"]
            assert time.time() * 1000 - described["last_rebalance"]["at"] < 120_000


def test_a_name_is_shown_not_obeyed(pybroker_: Command, target: Server, topic: str) -> None:
    """Control characters in a group's name are escaped for people and unchanged for programs."""
    group = f"{topic}\x1b[2J\n"
    pybroker_("topics", "create", topic)
    commit(target.bootstrap, group, topic, {0: 0})
    for arguments in (("list",), ("describe", group)):
        shown = pybroker_("groups", *arguments).out
        assert f"{topic}\\x1b[2J\\n" in shown and "\x1b" not in shown
    assert group in [g["group"] for g in pybroker_("groups", "list", "--json").json]


def test_how_far_a_group_is_behind(pybroker_: Command, target: Server, group: str) -> None:
    """A group's lag grows with each unread record; without a name, every group is shown."""
    write(target.bootstrap, group, 7, partition=1)
    (described,) = [d for d in pybroker_("groups", "describe", "--json").json if d["group"] == group]
    assert described["lag"] == 7 and [p["lag"] for p in described["partitions"]] == [0, 7]
    row = pybroker_("groups", "describe", group).out.splitlines()[-1].split()
    assert row == [group, "1", "10", "17", "7", "-"]


def test_what_is_shown_of_a_group_fits_a_terminal(shared_broker: Server) -> None:
    """A group with many partitions fits into 80 columns: a member is shown as a number, and lag has commas."""
    ours = shared_broker.bootstrap
    topic, group = new_name("orders"), new_name("billing")
    assert run("topics", "create", topic, "-p", 30, "-b", ours).code == 0
    write(ours, topic, 1234)
    commit(ours, f"{group}-idle", topic, {0: 0})
    idle = run("groups", "describe", f"{group}-idle", "-b", ours).out.splitlines()
    assert "Members 0  lag 1,234  " in idle[1]
    assert idle[2] == "29 partitions have no committed offset and do not count as lag"
    assert idle[-1].split() == [topic, "0", "0", "1234", "1,234", "-"]
    how = {"partition.assignment.strategy": "roundrobin", "client.id": "billing-worker"}
    with (
        Reader(ours, group, topic, **how) as one,
        Reader(ours, group, topic, **how) as two,
    ):
        until("both have a half", lambda: len(one.assigned) == len(two.assigned) == 15)
        shown = run("groups", "describe", group, "-b", ours)
    assert shown.code == 0 and max(map(len, shown.out.splitlines())) <= 80, shown.out
    numbered = [line.split()[:2] for line in shown.out.splitlines() if "  billing-worker  " in line]
    assert numbered == [["1", "billing-worker"], ["2", "billing-worker"]]


@pytest.mark.parametrize(
    ("target_options", "expected"),
    [
        (["--to-earliest"], [0, 0]),
        (["--to-latest"], [10, 10]),
        (["--to-offset", "4"], [4, 4]),
        (["--to-offset", "99"], [10, 10]),
        (["--shift-by", "-3"], [7, 7]),
        (["--shift-by", "-300"], [0, 0]),
        (["--shift-by", "5"], [10, 10]),
        (["--to-time", "-1h"], [0, 0]),
        (["--to-time", "2100-01-01T00:00:00Z"], [10, 10]),
        (["--to-current"], [10, 10]),
    ],
)
def test_where_a_group_goes_on(
    shared_broker: Server, topic: str, target_options: list[str], expected: list[int]
) -> None:
    """reset-offsets can go to each kind of position; it shows the result first and applies it with --execute."""
    ours = shared_broker.bootstrap

    def here(*arguments: object) -> list[int]:
        done = run("groups", "reset-offsets", topic, *arguments, "--json", "-b", ours)
        assert done.code == 0, done.err
        return [p["new"] for p in done.json["partitions"]]

    run("topics", "create", topic, "-p", 2, "-b", ours)
    for partition in (0, 1):
        write(ours, topic, 10, partition=partition)
    assert here("--topic", topic, "--to-latest", "--execute") == [10, 10]
    assert here("--all-topics", *target_options) == expected
    (before,) = run("groups", "describe", topic, "--json", "-b", ours).json
    assert [p["committed"] for p in before["partitions"]] == [10, 10]
    assert here("--topic", topic, *target_options, "--execute") == expected
    (after,) = run("groups", "describe", topic, "--json", "-b", ours).json
    assert [p["committed"] for p in after["partitions"]] == expected


def test_a_reset_is_shown_before_it_is_done(pybroker_: Command, group: str) -> None:
    """reset-offsets without --execute changes nothing and says so on standard error; it can reset one partition."""
    shown = pybroker_("groups", "reset-offsets", group, "--topic", f"{group}:1", "--to-earliest")
    assert shown.code == 0 and shown.err == "Nothing was changed: add --execute to set the offsets.\n"
    assert [line.split() for line in shown.out.splitlines()] == [
        ["TOPIC", "PARTITION", "OLD", "NEW"],
        [group, "1", "10", "0"],
    ]
    assert offsets(pybroker_, group) == [10, 10]
    done = pybroker_("groups", "reset-offsets", group, "--topic", f"{group}:1", "--to-earliest", "--execute")
    assert (done.code, done.err, done.out) == (0, "", shown.out)
    assert offsets(pybroker_, group) == [10, 0]


def test_offsets_go_to_a_file_and_back(pybroker_: Command, group: str) -> None:
    """--export writes offsets that --from-file reads; an offset out of range becomes the nearest valid one, with a
    message."""
    saved = pybroker_("groups", "reset-offsets", group, "--all-topics", "--to-current", "--export").out
    assert saved == f"{group},0,10\n{group},1,10\n"
    pybroker_("groups", "reset-offsets", group, "--all-topics", "--to-earliest", "--execute")
    assert offsets(pybroker_, group) == [0, 0]
    back = pybroker_("groups", "reset-offsets", group, "--from-file", "-", "--execute", stdin=saved)
    assert back.code == 0 and offsets(pybroker_, group) == [10, 10]
    beyond = pybroker_("groups", "reset-offsets", group, "--from-file", "-", "--execute", stdin=f'"{group}",1,77\n\n')
    assert beyond.err == f"{group}-1: 77 is out of range, 10 is the nearest\n" and beyond.code == 0
    for bad in ("nonsense", f"{group},0", f"{group},0,-5", f"{group},x,5", "," * 2000):
        refused = pybroker_("groups", "reset-offsets", group, "--from-file", "-", stdin=f"{group},0,1\n{bad}\n")
        assert refused.code == 1 and refused.sentence.startswith("line 2 "), bad
    refused = pybroker_("groups", "reset-offsets", group, "--from-file", "-", stdin=b"\xff\xfe\0")
    assert refused.code == 1 and refused.sentence.startswith("the file is not UTF-8 text")


def test_nobody_s_offsets_are_moved_under_them(pybroker_: Command, target: Server, topic: str) -> None:
    """A group with members is neither reset nor deleted: one sentence, and 1."""
    pybroker_("topics", "create", topic, "-p", 1)
    write(target.bootstrap, topic, 3)
    with Reader(target.bootstrap, topic, topic) as reader:
        until("all is read", lambda: reader.count == 3)
        for how in ([], ["--execute"]):
            refused = pybroker_("groups", "reset-offsets", topic, "--all-topics", "--to-earliest", *how)
            assert refused.code == 1 and "Stable with 1 member" in refused.sentence
        kept = pybroker_("groups", "delete", topic, "--yes")
        assert kept.code == 1 and topic in kept.sentence and "members" in kept.sentence
        assert offsets(pybroker_, topic) == [3]


def test_a_group_s_end(pybroker_: Command, group: str) -> None:
    """A group is deleted after a confirmation; a missing group is an error, unless --if-exists is given."""
    unsure = pybroker_("groups", "delete", group, stdin="n\n")
    assert unsure.code == 1 and "nothing was deleted" in unsure.err and offsets(pybroker_, group) == [10, 10]
    assert pybroker_("groups", "delete", group, stdin="y\n").out == f"Deleted group {group}.\n"
    for arguments in (["describe", group], ["delete", group, "--yes"]):
        gone = pybroker_("groups", *arguments)
        assert gone.code == 1 and group in gone.sentence
    fine = pybroker_("groups", "delete", group, "--yes", "--if-exists", "--json")
    assert fine.code == 0 and fine.json == {"deleted": [], "missing": [group]}


def test_a_group_can_begin_with_its_offsets(pybroker_: Command, target: Server, topic: str) -> None:
    """A new group can be given its first offsets with a topic; without a topic there are no partitions to set."""
    pybroker_("topics", "create", topic, "-p", 1)
    write(target.bootstrap, topic, 3)
    nothing = pybroker_("groups", "reset-offsets", topic, "--all-topics", "--to-earliest")
    assert nothing.code == 1 and "--topic" in nothing.sentence
    shifted = pybroker_("groups", "reset-offsets", topic, "--topic", topic, "--shift-by", 1)
    assert shifted.code == 1 and "nothing is committed" in shifted.sentence
    assert pybroker_("groups", "reset-offsets", topic, "--topic", topic, "--to-offset", 2, "--execute").code == 0
    assert offsets(pybroker_, topic) == [2]
    for missing in (f"{topic}:7", "no-such-topic"):
        refused = pybroker_("groups", "reset-offsets", topic, "--topic", missing, "--to-latest")
        assert refused.code == 1 and refused.sentence


@with_each(
    "arguments",
    [
        ["delete"],
        ["reset-offsets"],
        ["reset-offsets", "g"],
        ["reset-offsets", "g", "--to-latest"],
        ["reset-offsets", "g", "--topic", "t"],
        ["reset-offsets", "g", "--topic", "t", "--to-latest", "--to-earliest"],
        ["reset-offsets", "g", "--topic", "t", "--all-topics", "--to-latest"],
        ["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"],
        ["reset-offsets", "g", "--topic", "t", "--to-time", "yesterday"],
        ["reset-offsets", "g", "--topic", "t", "--to-time", "1969-01-01"],
        ["reset-offsets", "g", "--topic", "t", "--to-time", "9" * 25],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """Wrong usage ends with 2 and the usage text, without asking a broker."""
    done = run("groups", *arguments)
    assert done.code == 2 and "\nUsage: pybroker groups" in done.err and done.out == ""
