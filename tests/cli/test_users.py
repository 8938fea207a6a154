"""`pybroker users`, and how every command logs in: as somebody types it, with the answers that they get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command, run
from tests.harness import HOST, BrokerProcess, free_port

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
REFUSED = "refused the login: Authentication failed during authentication due to invalid credentials"


class Secured(BrokerProcess):
    """A broker with a listener for us, and one where clients log in."""

    def __init__(self, data_dir: Path) -> None:
        self.sasl_port = free_port()
        port = free_port()
        super().__init__(data_dir, port, {
            "listeners": f"PLAINTEXT://{HOST}:{port},CLIENTS://{HOST}:{self.sasl_port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        })  # fmt: skip


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    made.start()
    yield made
    made.close()


def config(path: Path, text: str) -> Path:
    """A file of --command-config that is its owner's alone."""
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def alice(secured: Secured, tmp_path: Path) -> Path:
    """The file by which alice, whose password is set, logs in."""
    done = run("users", "set", "alice", "-b", secured.bootstrap, "--password-file", "-", stdin="of alice\n")
    assert done.code == 0, done.err
    return config(
        tmp_path / "alice.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={MODULE} required username="alice" password="of alice";\n',
    )


def test_passwords_are_set_listed_and_removed(target: object, pybroker_: Command) -> None:
    """Against any broker that has KIP-554."""
    name = f"user {os.getpid()}"
    done = pybroker_("users", "set", name, "--password-file", "-", stdin="secret\n")
    assert done.out == f"User {name} can log in by SCRAM-SHA-256 and SCRAM-SHA-512.\n", done.err
    more = ["-m", "SCRAM-SHA-256", "--iterations", 8192, "--password-file", "-"]
    assert pybroker_("users", "set", name, *more, stdin="x").code == 0
    (found,) = [user for user in pybroker_("users", "list", "--json").json if user["user"] == name]
    assert found["iterations"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    assert pybroker_("users", "remove", name).out == f"Deleted user {name}.\n"
    assert pybroker_("users", "remove", name).code == 1
    assert pybroker_("users", "remove", name, "--if-exists").out == f"User {name} does not exist.\n"


def test_where_a_password_comes_from(secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is no argument; where nobody says it, and nobody can be asked, nothing is set."""
    monkeypatch.delenv("PYBROKER_USER_PASSWORD", raising=False)
    done = run("users", "set", "bob", "-b", secured.bootstrap)
    assert (done.code, done.sentence) == (
        2, "no password is given: say --password-file FILE, or set PYBROKER_USER_PASSWORD"
    )  # fmt: skip
    assert run("users", "set", "bob", "-b", secured.bootstrap, "--password-file", "-", stdin="\n").code == 2
    monkeypatch.setenv("PYBROKER_USER_PASSWORD", "of bob")
    assert run("users", "set", "bob", "-b", secured.bootstrap).code == 0
    monkeypatch.setenv("PYBROKER_SASL_PASSWORD", "of bob")
    file = config(
        tmp_path / "bob.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=bob\n",
    )
    at = f"{HOST}:{secured.sasl_port}"
    assert run("topics", "list", "-b", at, "--command-config", file).code == 0
    monkeypatch.delenv("PYBROKER_SASL_PASSWORD")
    done = run("topics", "list", "-b", at, "--command-config", file)
    assert (done.code, done.sentence) == (2, "security_protocol is SASL_PLAINTEXT, and sasl_password is not given")


def test_every_command_logs_in(secured: Secured, alice: Path, topic: str) -> None:
    where = ["-b", f"{HOST}:{secured.sasl_port}", "--command-config", alice]
    assert run("topics", "create", topic, *where).code == 0
    assert run("produce", topic, *where, stdin="hello\n").code == 0
    assert run("consume", topic, "--from-beginning", "--exit-at-end", *where).out == "hello\n"
    for words in (
        ["topics", "list"], ["topics", "describe", topic], ["groups", "list"], ["offsets", topic], ["cluster"],
        ["logdirs", topic], ["configs", "describe", "-t", topic], ["users", "list"],
    ):  # fmt: skip
        done = run(*words, *where)
        assert done.code == 0, (words, done.err)


def test_a_profile_logs_in(secured: Secured, alice: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYBROKER_CONFIG", str(config(
        tmp_path / "config.toml",
        f'[profiles.p]\nbootstrap.servers = "{HOST}:{secured.sasl_port}"\nsecurity.protocol = "SASL_PLAINTEXT"\n'
        'sasl.mechanism = "SCRAM-SHA-256"\nsasl.username = "alice"\nsasl.password = "wrong"\n',
    )))  # fmt: skip
    assert REFUSED in run("topics", "list", "--profile", "p").sentence
    for order in (["--profile", "p", "--command-config", alice], ["--command-config", alice, "--profile", "p"]):
        done = run("topics", "list", *order)
        assert done.code == 0, f"the file wins: {done.err}"


@pytest.mark.parametrize("command", [["topics", "list"], ["produce", "t"], ["consume", "t"], ["groups", "list"]])
def test_who_is_refused_is_told_at_once(secured: Secured, alice: Path, command: list[str]) -> None:
    config(alice, alice.read_text().replace("of alice", "guess"))
    done = run(*command, "-b", f"{HOST}:{secured.sasl_port}", "--command-config", alice, stdin="x\n")
    assert done.code == 1 and REFUSED in done.sentence and "guess" not in done.err


def test_a_listener_of_another_kind_is_told_of(secured: Secured, alice: Path) -> None:
    done = run("topics", "list", "-b", f"{HOST}:{secured.sasl_port}")
    assert "log in (security.protocol SASL_PLAINTEXT or SASL_SSL)" in done.sentence
    done = run("topics", "list", "-b", secured.bootstrap, "--command-config", alice)
    assert "asks nobody to log in" in done.sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sasl.jaas.config=x y z;\nsecurity.protocol=SASL_PLAINTEXT\n", "of login modules there are"),
        (f"sasl.jaas.config={MODULE} required;\nsecurity.protocol=SASL_PLAINTEXT\n", "has no username and password"),
        ("security.protocol=MAGIC\n", "takes one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ("sasl.username=alice\nsasl.password=hidden\n", "but security_protocol is PLAINTEXT"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password=hidden\n", "sasl_username is not"),
        ("ssl.truststore.location=/x\n", "with it nothing is encrypted"),
    ],
)
def test_a_file_that_is_wrong_is_refused(secured: Secured, tmp_path: Path, text: str, words: str) -> None:
    done = run("topics", "list", "-b", secured.bootstrap, "--command-config", config(tmp_path / "c", text))
    assert done.code == 2 and words in done.sentence and "hidden" not in done.err


def test_a_file_with_a_secret_is_not_for_others(secured: Secured, alice: Path) -> None:
    alice.chmod(0o644)
    done = run("topics", "list", "-b", secured.bootstrap, "--command-config", alice)
    assert (done.code, "chmod 600" in done.sentence) == (2, True)
