"""`pybroker tokens`, and logins with its tokens: our clients', and Kafka's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pybroker
from pybroker.client.admin import Admin
from pybroker.errors import KafkaError
from tests.cli.conftest import run
from tests.cli.system.test_users import MODULE, Secured, config
from tests.clients.adapters.java import Handle
from tests.java.driver import Driver
from tests.java.peers import MissingJava

SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    made.sets = {**made.sets, "delegation.token.secret.key": "the key of all tokens"}
    made.start()
    with Admin(made.bootstrap) as admin:
        for user in ("alice", "bob"):
            admin.set_password(user, f"of {user}")
    yield made
    made.close()


@pytest.fixture
def at(secured: Secured, tmp_path: Path) -> Callable[[str], list[Any]]:
    """The options with which a user logs in."""

    def options(user: str) -> list[Any]:
        text = f"{SASL}sasl.username={user}\nsasl.password=of {user}\n"
        return ["-b", f"127.0.0.1:{secured.sasl_port}", "--command-config", config(tmp_path / user, text)]

    return options


def test_a_token_from_its_begin_to_its_end(at: Callable[[str], list[Any]], tmp_path: Path, topic: str) -> None:
    made = run("tokens", "create", "--renewer", "User:bob", "--max-lifetime", 2, "--json", *at("alice")).json
    assert (made["owner"], made["renewers"]) == ("User:alice", ["User:bob"])
    assert made["max_ms"] - made["issue_ms"] == 2 * 3_600_000
    jaas = f'{MODULE} required username="{made["id"]}" password="{made["secret"]}" tokenauth="true";'
    file = config(tmp_path / "token", f"{SASL}sasl.jaas.config={jaas}\n")
    where = [*at("alice")[:2], "--command-config", file]
    assert run("topics", "create", topic, *where).code == 0
    done = run("tokens", "create", *where)
    assert done.code == 1 and "need a login that does not itself use a token" in done.sentence
    for user in ("alice", "bob"):
        (told,) = run("tokens", "list", "--owner", "User:alice", "--json", *at(user)).json
        assert told == {key: value for key, value in made.items() if key != "secret"}
    assert made["id"] in run("tokens", "list", *at("bob")).out
    done = run("tokens", "renew", made["id"], "--for", 1, *at("bob"))
    assert done.out.startswith(f"Token {made['id']} ends 2"), done.err
    assert run("tokens", "expire", made["id"], *at("alice")).out == f"Deleted token {made['id']}.\n"
    assert "there is no token" in run("tokens", "expire", made["id"], *at("alice")).sentence
    assert "refused the login" in run("topics", "list", *where).sentence


def test_what_is_no_principal(at: Callable[[str], list[Any]]) -> None:
    assert "is no principal like User:ann" in run("tokens", "create", "--owner", "alice", *at("alice")).sentence
    done = run("tokens", "create", "--renewer", "Group:x", *at("alice"))
    assert done.code == 1 and "principal" in done.sentence


def test_in_python(secured: Secured, topic: str) -> None:
    login: dict[str, Any] = {"bootstrap_servers": f"127.0.0.1:{secured.sasl_port}",
                             "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"}  # fmt: skip
    with Admin(**login, sasl_username="alice", sasl_password="of alice") as admin:
        token = admin.create_token()
        assert token in admin.tokens() and token.secret not in repr(token)
    with pybroker.Producer(
        **login, sasl_username=token.id, sasl_password=token.secret, sasl_tokenauth=True
    ) as producer:
        assert producer.send(topic, b"x").result(20).offset == 0
    with pytest.raises(KafkaError, match="no such delegation token"), Admin(
        **login, sasl_username="alice", sasl_password="of alice"
    ) as admin:
        admin.renew_token("no secret")


@pytest.mark.java
def test_kafkas_client(secured: Secured, at: Callable[[str], list[Any]], topic: str) -> None:
    made = run("tokens", "create", "--json", *at("alice")).json
    try:
        driver = Driver("3.9.1")
    except MissingJava as missing:
        pytest.skip(str(missing))
    login = f'{MODULE} required username="{made["id"]}" password="{made["secret"]}" tokenauth="true";'
    producer = Handle(driver, "open_producer", config={
        "bootstrap.servers": f"127.0.0.1:{secured.sasl_port}", "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login, "max.block.ms": 20_000,
    })  # fmt: skip
    record = {"partition": 0, "timestamp_ms": None, "key": None, "value": None, "headers": []}
    assert producer.ask("send", topic=topic, **record) is not None
    producer.close()
    driver.close()
