"""`pybroker topics` against any broker: each test runs commands and checks their output."""

import socket
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from pybroker.cli.topics import election_words
from tests.cli.conftest import Done, run, run_process
from tests.harness import Server, free_port, until
from tests.rows import with_each

Topics = Callable[..., Done]


def test_a_topic_from_its_creation_to_its_end(topics: Topics, topic: str) -> None:
    """A topic is created, listed, described, given more partitions and deleted; each command prints one sentence."""
    created = topics("create", topic, "--partitions", 3, "--replication-factor", 1, "--config", "retention.ms=3600000")
    assert created.code == 0 and created.out == f"Created topic {topic}: partitions 3, replicas 1.\n"
    listed = [line.split() for line in topics("list").out.splitlines()]
    assert [topic, "3", "1"] in listed
    described = topics("describe", topic).out
    assert "retention.ms=3600000 (topic)" in described and f"Topic {topic}  id " in described
    assert topics("alter", topic, "--partitions", 5).out == f"Topic {topic} has 5 partitions now.\n"
    assert len(topics("describe", topic, "--json").json[0]["partitions"]) == 5
    assert topics("delete", topic, "--yes").out == f"Deleted topic {topic}.\n"
    until("the deletion is seen", lambda: topic not in topics("list").out)


def test_describe_tells_leaders_offsets_and_configs(topics: Topics, topic: str, target: Server) -> None:
    """describe shows leaders, the offsets of each partition, and only configs that differ from defaults."""
    topics("create", topic, "-p", 2, "-r", 1, "-c", "segment.bytes=1048576", "-c", "cleanup.policy=compact")
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(7):
        producer.produce(topic, b"value", key=str(number), partition=1)
    assert producer.flush(20) == 0
    (described,) = topics("describe", topic, "--json").json
    assert described["name"] == topic and len(described["topic_id"]) == 22 and described["replication_factor"] == 1
    first, second = described["partitions"]
    assert (first["earliest"], first["latest"]) == (0, 0) and (second["earliest"], second["latest"]) == (0, 7)
    assert first["leader"] == second["leader"] and second["isr"] == second["replicas"] == [first["leader"]]
    of_topic = {name: config["value"] for name, config in described["configs"].items() if config["source"] == "topic"}
    assert of_topic == {"cleanup.policy": "compact", "segment.bytes": "1048576"}
    row = next(line.split() for line in topics("describe", topic).out.splitlines() if line.split()[:1] == ["1"])
    assert row[-4:-2] == ["0", "7"] and row[-1] == "B"


def test_create_says_what_the_broker_chose(topics: Topics, topic: str) -> None:
    """create without numbers uses the broker's defaults, and prints them."""
    made = topics("create", topic, "--json").json
    assert made["name"] == topic and made["created"] is True and made["replication_factor"] == 1
    assert len(topics("describe", topic, "--json").json[0]["partitions"]) == made["partitions"]


def test_a_topic_that_exists(topics: Topics, topic: str) -> None:
    """A topic that exists cannot be created again, unless --if-not-exists is given."""
    topics("create", topic, "-p", 1)
    again = topics("create", topic, "-p", 1)
    assert again.code == 1 and topic in again.sentence and "exists" in again.sentence
    fine = topics("create", topic, "-p", 1, "--if-not-exists")
    assert fine.code == 0 and fine.out == f"Topic {topic} exists.\n"
    assert topics("create", topic, "--if-not-exists", "--json").json == {"name": topic, "created": False}


def test_a_topic_that_does_not_exist(topics: Topics, topic: str) -> None:
    """A topic that does not exist is an error of each command; deletion with --if-exists succeeds."""
    for arguments in (["describe", topic], ["alter", topic, "-p", "9"], ["delete", topic, "--yes"]):
        done = topics(*arguments)
        assert done.code == 1 and done.sentence
    gone = topics("delete", topic, "--yes", "--if-exists")
    assert gone.code == 0 and gone.out == f"Topic {topic} does not exist.\n"
    assert topics("delete", topic, "--yes", "--if-exists", "--json").json == {"deleted": [], "missing": [topic]}


def test_a_deletion_is_asked_for(topics: Topics, topic: str) -> None:
    """delete asks a person without --yes, and does nothing unless the answer is yes."""
    topics("create", topic)
    for answer in ("n\n", "", "\n"):
        refused = topics("delete", topic, stdin=answer)
        assert refused.code == 1 and "nothing was deleted" in refused.err
    assert topics("describe", topic).code == 0
    assert topics("delete", topic, stdin="y\n").code == 0
    until("the deletion is seen", lambda: topics("describe", topic).code == 1)  # KRaft answers before its brokers know


def test_what_a_broker_refuses_is_one_sentence(topics: Topics, topic: str) -> None:
    """A broker's refusal of a name, config or count is one sentence: exit code 1, the reason, no traceback."""
    topics("create", topic, "-p", 3)
    for arguments in (
        ["create", "bad/name"],
        ["create", ".."],
        ["create", "x" * 250],
        ["create", "x" * 40_000],
        ["create", f"{topic}-1", "-c", "no.such.config=1"],
        ["create", f"{topic}-2", "-c", "retention.ms=soon"],
        ["create", f"{topic}-3", "-r", "3"],
        ["alter", topic, "-p", "2"],
        ["alter", topic, "-p", "3"],
    ):
        done = topics(*arguments)
        assert done.code == 1 and done.sentence, arguments


def test_internal_topics_are_hidden(topics: Topics) -> None:
    """Internal topics are listed on request only."""
    shown = {entry["name"] for entry in topics("list", "--json").json}
    everything = topics("list", "--internal", "--json").json
    assert shown == {entry["name"] for entry in everything if not entry["internal"]}


@with_each(
    "arguments",
    [
        ["create"],
        ["create", "t", "--partitions", "0"],
        ["create", "t", "--partitions", str(2**31)],
        ["create", "t", "--replication-factor", str(2**15)],
        ["create", "t", "--config", "no-equals-sign"],
        ["alter", "t"],
        ["delete"],
        ["list", "--bootstrap-server", "host:port"],
        ["list", "--timeout", "0"],
        ["no-such-command"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """Wrong usage ends with 2 and the usage text, without asking a broker."""
    done = run("topics", *arguments)
    assert done.code == 2 and "\nUsage: pybroker topics" in done.err and done.out == ""


def test_a_number_that_is_none() -> None:
    """An invalid number is described plainly, and not as click's "integer range"."""
    assert "'x' is not a valid integer\n" in run("topics", "create", "t", "--partitions", "x").err


def test_nobody_is_there() -> None:
    """An unreachable broker ends the process with one sentence with the address, and 1."""
    address = f"127.0.0.1:{free_port()}"
    done = run_process("topics", "list", "-b", address)
    assert done.code == 1 and done.sentence == f"could not reach {address}: connection refused"


def test_the_timeout_is_the_user_s() -> None:
    """The user's timeout applies: a port that accepts and never answers does not hang the command."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = run("topics", "list", "--timeout", "0.2", "-b", f"127.0.0.1:{listener.getsockname()[1]}")
    assert done.code == 1 and "in 0.2 s" in done.sentence


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBROKER_BOOTSTRAP_SERVER", "127.0.0.1:1")
    assert "127.0.0.1:1" in run("topics", "list").sentence


@with_each(
    ("elected", "needless", "failed", "unclean", "sentence"),
    [
        (1, 0, 0, False, "Elected the leader of 1 partition."),
        (3, 1, 0, False, "Elected the leaders of 3 partitions; 1 has its preferred leader already."),
        (0, 2, 1, False, "2 partitions have their preferred leaders already."),
        (0, 0, 0, False, "Each partition has its preferred leader already."),
        (1, 2, 1, True, "Elected the leader of 1 partition; 2 have leaders already."),
        (0, 1, 0, True, "1 partition has a leader already."),
        (0, 0, 2, False, ""),
    ],
)
def test_the_sentence_of_an_election(elected: int, needless: int, failed: int, unclean: bool, sentence: str) -> None:
    """The sentence has what was elected and what needed no election, and no zeros; it is empty if all failed."""
    assert election_words(elected, needless, failed, unclean=unclean) == sentence
