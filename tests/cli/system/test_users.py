"""`pybroker users`, and how every command logs in, with the output that a person gets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.development.etcd_server import Etcd
from tests.cli.conftest import Command, run
from tests.harness import HOST, BrokerProcess, free_port
from tests.stores import AnyStore, option_of, place_of, setting_of

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
REFUSED = "refused the login: Authentication failed during authentication due to invalid credentials"


class Secured(BrokerProcess):
    """A broker with a listener for the tests, and one that requires a login."""

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
    """Write a --command-config file that only its owner can read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def alice(secured: Secured, tmp_path: Path) -> Path:
    """The file with which alice, whose password is set, logs in."""
    done = run("users", "set", "alice", "-b", secured.bootstrap, "--password-file", "-", stdin="of alice\n")
    assert done.code == 0, done.err
    return config(
        tmp_path / "alice.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={MODULE} required username="alice" password="of alice";\n',
    )


def test_passwords_are_set_listed_and_removed(target: object, pybroker_: Command) -> None:
    """Passwords are set, listed and removed on any broker that has KIP-554."""
    name = f"user {os.getpid()}"
    done = pybroker_("users", "set", name, "--password-file", "-", stdin="secret\n")
    assert done.out == f"User {name} can log in by SCRAM-SHA-256 and SCRAM-SHA-512.\n", done.err
    more = ["-m", "SCRAM-SHA-256", "--iterations", 8192, "--password-file", "-"]
    assert pybroker_("users", "set", name, *more, stdin="x").code == 0
    (found,) = [user for user in pybroker_("users", "list", "--json").json if user["user"] == name]
    assert found["iterations"] == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    removed = pybroker_("users", "remove", name)
    assert removed.out == f"Deleted user {name}.\n" and "connections that are open go on" in removed.err
    assert pybroker_("users", "remove", name).code == 1
    assert pybroker_("users", "remove", name, "--if-exists").out == f"User {name} does not exist.\n"


def _where(store: AnyStore, chroot: str, home: Path) -> list[str]:
    """The options of a command that changes users in the store itself: of a broker's file, for etcd."""
    if not isinstance(store, Etcd):
        return list(option_of(store, chroot))
    ((name, place),) = setting_of(store, chroot).items()
    return ["--config", str(config(home / "store.properties", f"{name}={place}\n"))]


@pytest.mark.java
def test_users_are_given_before_the_first_broker_starts(store: AnyStore, tmp_path: Path) -> None:
    """Users can be created in the store before the first broker starts: brokers find them there (test_security_page.py)
    and notice changes (tests/brokers)."""
    chroot = f"/{uuid.uuid4().hex}"
    place, where = place_of(store, chroot), _where(store, chroot, tmp_path)
    if isinstance(store, Etcd):
        no_cluster = f"there is no cluster in the etcd at {place}"
    else:
        no_cluster = f"there is no cluster at {chroot} of the ZooKeeper at {store.connect}"
    for command in (["list"], ["remove", "ann b"], ["remove", "ann b", "--if-exists"]):
        refused = run("users", *command, *where)
        assert refused.sentence == no_cluster
    for mechanism in ("SCRAM-SHA-512", "SCRAM-SHA-256"):
        done = run("users", "set", "ann b", *where, "-m", mechanism, "--password-file", "-", stdin="secret\n")
        assert done.out == f"User ann b can log in by {mechanism}.\n", done.err
        assert f"{no_cluster} yet: user ann b" in done.err
    (found,) = run("users", "list", *where, "--json").json
    assert found == {"user": "ann b", "iterations": {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}}
    assert run("users", "remove", "ann b", *where).out == "Deleted user ann b.\n"
    assert run("users", "remove", "ann b", *where).sentence == "the user 'ann b' has no SCRAM credential"
    refused = run("users", "set", "..", *where, "--password-file", "-", stdin="secret\n")
    assert refused.sentence == "ZooKeeper does not allow '..' as a user name"


@pytest.mark.java
def test_a_broker_whose_own_user_is_missing_says_so(store: AnyStore, tmp_path: Path) -> None:
    """A broker whose own user is missing says so, and serves as soon as the user exists."""
    port, chroot = free_port(), f"/{uuid.uuid4().hex}"
    broker = BrokerProcess(tmp_path / "data", port, {
        "listeners": f"SASL_PLAINTEXT://{HOST}:{port}", "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config":
            f'{MODULE} required username="admin" password="secret";',
        **setting_of(store, chroot),
    })  # fmt: skip
    broker.begin()
    assert broker.process is not None
    broker.process.wait_line("brokers cannot log in user=admin", 90)
    given = run("users", "set", "admin", *_where(store, chroot, tmp_path), "--password-file", "-", stdin="secret\n")
    assert (given.code, given.err) == (0, "")
    broker.wait_ready()
    admin = config(tmp_path / "admin.properties", "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
                   "sasl.username=admin\nsasl.password=secret\n")  # fmt: skip
    made = run("topics", "create", "t", "-b", broker.bootstrap, "--command-config", admin)
    assert made.code == 0, made.err
    broker.close()


def test_users_are_asked_for_in_one_place(tmp_path: Path) -> None:
    """Users are listed from ZooKeeper or from a broker, not both, and the error names an address that does not
    answer."""
    both = run("users", "list", "--zookeeper", HOST, "-b", HOST)
    assert both.code == 2 and "leave one of them out" in both.sentence
    nowhere = config(tmp_path / "broker.properties", f"zookeeper.connect={HOST}:{free_port()}\n"
                     "zookeeper.connection.timeout.ms=100\n")  # fmt: skip
    refused = run("users", "list", "--config", nowhere)
    assert refused.code == 1 and "connection refused" in refused.sentence
    refused = run("users", "list", "--zookeeper", f"{HOST}:{free_port()}", "--timeout", "0.2")
    assert refused.code == 1 and "no ZooKeeper answered in 0.2 s" in refused.sentence


def test_where_a_password_comes_from(secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A password comes from a file or a prompt, not from an argument; without either, none is set."""
    monkeypatch.delenv("PYBROKER_USER_PASSWORD", raising=False)
    done = run("users", "set", "bob", "-b", secured.bootstrap)
    assert (done.code, done.sentence) == (
        2, "no password is given: use --password-file FILE, or set PYBROKER_USER_PASSWORD"
    )  # fmt: skip
    done = run("users", "set", "bob", "-b", secured.bootstrap, "--password-file", "-", stdin="\n")
    assert (done.code, done.sentence) == (2, "the password from the first line of --password-file is empty")
    done = run("users", "set", "bob", "-b", secured.bootstrap, "--password-file", "-", stdin=b"b\xe9b\n")
    assert (done.code, done.sentence) == (2, "the password of --password-file is not UTF-8")
    monkeypatch.setenv("PYBROKER_USER_PASSWORD", "of bob")
    assert run("users", "set", "bob", "-b", secured.bootstrap).err == ""
    words = "users are named without 'User:': this one logs in as User:bob, and is User:User:bob in ACLs"
    assert run("users", "set", "User:bob", "-b", secured.bootstrap).err == f"pybroker: warning: {words}\n"
    monkeypatch.setenv("PYBROKER_SASL_PASSWORD", "of bob")
    file = config(
        tmp_path / "bob.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=bob\n",
    )
    at = f"{HOST}:{secured.sasl_port}"
    assert run("topics", "list", "-b", at, "--command-config", file).code == 0
    monkeypatch.setenv("PYBROKER_SASL_PASSWORD", "")
    done = run("topics", "list", "-b", at, "--command-config", file)
    words = "the password of PYBROKER_SASL_PASSWORD is empty: set it, or unset the variable"
    assert (done.code, done.sentence) == (2, words)
    monkeypatch.delenv("PYBROKER_SASL_PASSWORD")
    done = run("topics", "list", "-b", at, "--command-config", file)
    assert (done.code, done.sentence) == (2, "security.protocol is SASL_PLAINTEXT, and sasl.password is not given")


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
    done = run("tokens", "create", *where)
    assert (done.code, "need delegation.token.secret.key at the brokers" in done.sentence) == (1, True)


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
    assert "has no login: its listener" in done.sentence


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sasl.jaas.config=x y z;\nsecurity.protocol=SASL_PLAINTEXT\n", "the login module must be one of"),
        (f"sasl.jaas.config={MODULE} required;\nsecurity.protocol=SASL_PLAINTEXT\n", "has no username and password"),
        ("security.protocol=MAGIC\n", "takes one of PLAINTEXT, SSL, SASL_PLAINTEXT"),
        ("sasl.username=alice\nsasl.password=hidden\n", "sasl.username is given, but security.protocol is PLAINTEXT"),
        ("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.password=hidden\n", "sasl.username is not"),
        ("ssl.truststore.location=/x\n", "ssl.truststore.location is given, but security.protocol is PLAIN"),
        ("sasl.mechanisms=PLAIN\n", "use sasl.mechanism"),
        ("security.protocol=SSL\nssl.cafile=/nowhere\n", "ssl.cafile = /nowhere cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused(secured: Secured, tmp_path: Path, text: str, words: str) -> None:
    done = run("topics", "list", "-b", secured.bootstrap, "--command-config", config(tmp_path / "c", text))
    assert done.code == 2 and words in done.sentence and "hidden" not in done.err


def test_a_file_with_a_secret_is_not_for_others(secured: Secured, alice: Path) -> None:
    alice.chmod(0o644)
    done = run("topics", "list", "-b", secured.bootstrap, "--command-config", alice)
    assert (done.code, "chmod 600" in done.sentence) == (2, True)
