"""`pybroker configs` against any broker: each test runs commands and checks their output."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command, Done, run
from tests.harness import Server
from tests.rows import with_each


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[1:]]


def test_a_topic_s_configs(pybroker_: Command, topic: str) -> None:
    """A topic's configs are set, appended to, subtracted from and deleted, each visible at once; other configs stay."""
    pybroker_("topics", "create", topic, "-p", 1, "-c", "segment.bytes=2097152")
    done = pybroker_(
        "configs", "alter", "-t", topic, "--set", "retention.ms=60000", "--append", "cleanup.policy=compact"
    )
    assert done.out == f"Configs of topic {topic} altered: retention.ms, cleanup.policy.\n"
    own = [row for row in rows(pybroker_("configs", "describe", "--topic", topic).out) if row[-1] == "topic"]
    assert own == [
        ["cleanup.policy", "delete,compact", "topic"],
        ["retention.ms", "60000", "topic"],
        ["segment.bytes", "2097152", "topic"],
    ]
    pybroker_("configs", "alter", "-t", topic, "--delete", "retention.ms", "--subtract", "cleanup.policy=delete")
    (policy, retention) = pybroker_("configs", "describe", "cleanup.policy", "retention.ms", "-t", topic, "--json").json
    assert (policy["value"], policy["source"]) == ("compact", "topic")
    assert (retention["value"], retention["source"], retention["read_only"]) == ("604800000", "default", False)


def test_a_value_may_hold_anything(pybroker_: Command, topic: str) -> None:
    """A config value may contain commas and equals signs."""
    pybroker_("topics", "create", topic, "-p", 1)
    done = pybroker_("configs", "alter", "-t", topic, "--set", "leader.replication.throttled.replicas=0:1,0:2")
    assert done.code == 0, done.err
    (shown,) = pybroker_("configs", "describe", "leader.replication.throttled.replicas", "-t", topic, "--json").json
    assert shown["value"] == "0:1,0:2"


def test_configs_of_a_file(pybroker_: Command, topic: str, tmp_path: Path) -> None:
    """Configs of a file are hidden from other users of the machine, as a password must be; other options may be
    added."""
    pybroker_("topics", "create", topic, "-p", 1)
    file = tmp_path / "topic.properties"
    file.write_text("# a comment\nretention.ms = 7000\n")
    done = pybroker_("configs", "alter", "-t", topic, "--set", "segment.ms=9000", "--set-file", file)
    assert done.out == f"Configs of topic {topic} altered: segment.ms, retention.ms.\n"
    (shown,) = pybroker_("configs", "describe", "retention.ms", "-t", topic, "--json").json
    assert shown["value"] == "7000"
    file.write_text("# nothing\n")
    done = pybroker_("configs", "alter", "-t", topic, "--set-file", file)
    assert (done.code, done.sentence) == (2, f"{file} sets nothing: it has no line NAME=VALUE")


def test_a_password_among_the_arguments_is_warned_of(pybroker_: Command, tmp_path: Path) -> None:
    """A password among the arguments is warned of, for any answer of the broker; a password in a file is not."""
    broker, name = broker_id(pybroker_), "listener.name.clients.ssl.keystore.password"
    told = pybroker_("configs", "alter", "--broker", broker, "--set", f"{name}=hunter2", "--dry-run").err
    words = f"every user of this machine can read arguments: put {name} into a file for --set-file"
    assert f"pybroker: warning: {words}\n" in told and "hunter2" not in told
    file = tmp_path / "broker.properties"
    file.write_text(f"{name}=hunter2\n")
    assert "argument" not in pybroker_("configs", "alter", "--broker", broker, "--set-file", file, "--dry-run").err


def test_brokers_and_their_default(pybroker_: Command) -> None:
    """A broker's own value wins over the brokers' default; a deleted one falls back to the next level."""
    broker = broker_id(pybroker_)
    where = (["--broker-default"], ["--broker", broker])

    def now(resource: list[object]) -> list[str]:
        found = pybroker_("configs", "describe", "log.retention.ms", *resource, "--json").json
        return [found[0]["value"], found[0]["source"]] if found else []

    for resource, value in zip(where, ("7000000", "8000000"), strict=True):
        done = pybroker_("configs", "alter", *resource, "--set", f"log.retention.ms={value}", "--json").json
        assert done["configs"] == ["log.retention.ms"] and done["resource"] == "broker"
    assert now(where[0]) == ["7000000", "dynamic_default_broker"]
    assert now(where[1]) == ["8000000", "dynamic_broker"]
    pybroker_("configs", "alter", "--broker", broker, "--delete", "log.retention.ms")
    assert now(where[1]) == ["7000000", "dynamic_default_broker"]
    pybroker_("configs", "alter", "--broker-default", "--delete", "log.retention.ms")
    assert now(where[1])[1:] == ["default"]
    everything = {entry["name"] for entry in pybroker_("configs", "describe", *where[1], "--all", "--json").json}
    shown = {entry["name"] for entry in pybroker_("configs", "describe", *where[1], "--json").json}
    assert shown < everything and "log.retention.ms" in everything - shown


def broker_id(pybroker_: Command) -> int:
    """The id of the only broker, from a partition's leader."""
    (topic, *_) = pybroker_("topics", "list", "--internal", "--json").json or [None]
    if topic is None:
        pybroker_("topics", "create", "anything", "-p", 1)
        topic = {"name": "anything"}
    leader: int = pybroker_("topics", "describe", topic["name"], "--json").json[0]["partitions"][0]["leader"]
    return leader


def test_a_dry_run_changes_nothing(pybroker_: Command, topic: str) -> None:
    """A dry run is validated by the broker and changes nothing."""
    pybroker_("topics", "create", topic, "-p", 1)
    done = pybroker_("configs", "alter", "-t", topic, "--set", "retention.ms=5", "--dry-run")
    assert done.out == f"Configs of topic {topic} would be altered: retention.ms.\n"
    (shown,) = pybroker_("configs", "describe", "retention.ms", "-t", topic, "--json").json
    assert shown["source"] == "default"
    assert pybroker_("configs", "alter", "-t", topic, "--set", "retention.ms=x", "--dry-run").code == 1


def test_what_a_broker_refuses_is_one_sentence(pybroker_: Command, topic: str) -> None:
    """A broker's refusal is one sentence with exit code 1: unknown names, invalid values, missing resources."""
    pybroker_("topics", "create", topic, "-p", 1)
    for arguments in (
        ["alter", "-t", topic, "--set", "no.such.config=1"],
        ["alter", "-t", topic, "--set", "retention.ms=soon"],
        ["alter", "-t", topic, "--append", "retention.ms=1"],
        ["alter", "-t", topic, "--set", "retention.ms=1", "--delete", "retention.ms"],
        ["alter", "-t", f"{topic}-2", "--set", "retention.ms=1"],
        ["describe", "-t", f"{topic}-2"],
        ["describe", "--broker", "77"],
        ["alter", "--broker", "77", "--set", "log.retention.ms=1"],
        ["alter", "--broker-default", "--set", "log.dirs=elsewhere"],
    ):
        done = pybroker_("configs", *arguments)
        assert done.code == 1 and done.sentence, arguments


@with_each(
    "arguments",
    [
        ["describe"],
        ["describe", "--topic", "t", "--broker", "1"],
        ["describe", "--broker", "one"],
        ["alter", "--topic", "t"],
        ["alter", "--topic", "t", "--set", "retention.ms"],
        ["alter", "--set", "retention.ms=1"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    """Wrong usage ends with 2 and the usage text, without asking a broker."""
    done = run("configs", *arguments)
    assert done.code == 2 and "\nUsage: pybroker configs" in done.err and done.out == ""


def test_the_levels_of_a_broker_s_loggers(shared_broker: Server) -> None:
    """A broker's log levels are shown and altered as its configs are; the broker refuses an invalid level, and append
    and subtract."""

    def pybroker_(*arguments: object) -> Done:
        return run(*arguments, "-b", shared_broker.bootstrap)

    loggers, name = ("--broker-logger", broker_id(pybroker_)), "pybroker.metadata.configs"
    done = pybroker_("configs", "alter", *loggers, "--set", f"{name}=DEBUG")
    assert (done.code, done.out) == (0, f"Configs of the loggers of broker {loggers[1]} altered: {name}.\n")
    [shown] = pybroker_("configs", "describe", name, *loggers, "--json").json
    assert (shown["value"], shown["source"]) == ("DEBUG", "dynamic_broker_logger")
    for wrong, said in (("--set", "it takes FATAL, ERROR"), ("--append", "APPEND operation is not allowed")):
        done = pybroker_("configs", "alter", *loggers, wrong, f"{name}=LOUD")
        assert done.code == 1 and said in done.sentence
    assert pybroker_("configs", "alter", *loggers, "--delete", name).code == 0
    [shown] = pybroker_("configs", "describe", name, *loggers, "--json").json
    [root] = pybroker_("configs", "describe", "root", *loggers, "--json").json
    assert shown["value"] == root["value"]
