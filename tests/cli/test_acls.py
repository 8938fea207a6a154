"""`pybroker acls` on the command line, against a broker with an authorizer and one without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pybroker.client.admin import Admin
from pybroker.security.acls import (
    Acl,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from tests.cli.conftest import Done, run, run_process
from tests.cli.system.test_users import Secured, config
from tests.harness import HOST, BrokerProcess, Server

READ = ("add", "-o", "read", "--allow")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("guarded"))
    made.sets = {
        **made.sets, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    made.start()
    yield made
    made.close()


def acls(broker: Server, *words: object, **how: Any) -> Done:
    return run("acls", *words, "-b", broker.bootstrap, **how)


def test_acls_are_added_listed_and_removed(guarded: BrokerProcess) -> None:
    done = acls(guarded, "add", "--allow", "User:ann", "--operation", "read", "-o", "Describe", "--topic", "orders")
    assert done.out == (
        "Added: Allow User:ann to Read Topic orders\nAdded: Allow User:ann to Describe Topic orders\n"
    )
    prefixed = ["--host", "10.0.0.1", "-o", "all", "-t", "ord", "-g", "g", "--prefixed"]
    done = acls(guarded, "add", "--deny", "User:*", *prefixed)
    assert done.out == (
        "Added: Deny User:* from 10.0.0.1 to All Topic ord (prefix)\n"
        "Added: Deny User:* from 10.0.0.1 to All Group g (prefix)\n"
    )
    assert acls(guarded, "add", "--allow", "User:ops", "-o", "alter", "--cluster").code == 0
    rows = [line.split() for line in acls(guarded, "list").out.splitlines()[1:]]
    assert sorted(rows) == [
        ["Cluster", "kafka-cluster", "Literal", "User:ops", "*", "Allow", "Alter"],
        ["Group", "g", "Prefixed", "User:*", "10.0.0.1", "Deny", "All"],
        ["Topic", "ord", "Prefixed", "User:*", "10.0.0.1", "Deny", "All"],
        ["Topic", "orders", "Literal", "User:ann", "*", "Allow", "Describe"],
        ["Topic", "orders", "Literal", "User:ann", "*", "Allow", "Read"],
    ]
    applies = acls(guarded, "list", "--topic", "orders", "--json").json
    assert [(each["name"], each["pattern"]) for each in applies] == [
        ("ord", "Prefixed"), ("orders", "Literal"), ("orders", "Literal")
    ]  # fmt: skip
    assert len(acls(guarded, "list", "--principal", "User:ops", "--json").json) == 1
    done = acls(guarded, "remove", "--allow", "User:ann", "-o", "read", "-t", "orders", stdin="n\n")
    assert done.code == 1 and len(acls(guarded, "list", "--json").json) == 5
    done = acls(guarded, "remove", "--allow", "User:ann", "-o", "read", "-t", "orders", stdin="y\n")
    assert "Removed: Allow User:ann to Read Topic orders\n" in done.out
    done = acls(guarded, "remove", "--allow", "User:ann", "-o", "read", "-t", "orders", "--yes")
    assert (done.code, done.out) == (0, "There is no such ACL.\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["add", "--allow", "User:ann", "-o", "read"], "name a resource: --topic"),
        (["add", "-o", "read", "-t", "t"], "name a principal: --allow"),
        (["add", "--allow", "ann", "-o", "read", "-t", "t"], "'ann' is no principal: write its type and its name"),
        (["list", "--principal", "ann"], "'ann' is no principal: write its type and its name, like User:ann"),
        (["add", "--allow", "User:ann", "-o", "all", "-o", "write", "-t", "t", "-g", "g"],
         "Write is not an operation on a Group: it takes Read, Delete, Describe or All"),
        (["add", "--allow", "User:ann", "-o", "idempotent-write", "-t", "t"], "not an operation on a Topic: it takes"),
        (["add", "--allow", "User:ann", "-t", "t"], "missing option '--operation'"),
        (["add", "--allow", "User:ann", "-o", "reed", "-t", "t"], "'reed' is not one of"),
        ([*READ, "", "-t", "t"], "'' is no principal: write its type and its name, like User:ann"),
        ([*READ, "User:", "-t", "t"], "'User:' is no principal: write its type and its name, like User:ann"),
        ([*READ, ":ann", "-t", "t"], "':ann' is no principal: write its type and its name, like User:ann"),
        ([*READ, "user:ann", "-t", "t"], "'user:ann' would match no client: write User:ann"),
        ([*READ, "User:a\nb", "-t", "t"], r"'User:a\nb' would match no client: it has characters"),
        ([*READ, "User:ann", "-t", ""], "--topic '' would match no topic: a topic's name cannot be empty"),
        ([*READ, "User:ann", "-t", "a\nb"], r"'a\nb' would match no topic: a topic's name has only letters"),
        ([*READ, "User:ann", "-t", "t" * 300], "a topic's name has at most 249 characters, this one has 300"),
        ([*READ, "User:ann", "-t", "ord*"], "all topics are * without --prefixed"),
        ([*READ, "User:ann", "-t", "*", "--prefixed"], "all topics are * without --prefixed"),
        ([*READ, "User:ann", "-t", "t", "--host", "a\nb"], r"--host 'a\nb' would match no client"),
    ],
)  # fmt: skip
def test_what_makes_no_acl_is_refused(guarded: BrokerProcess, words: list[str], sentence: str) -> None:
    done = acls(guarded, *words)
    assert done.code == 2 and sentence in done.err


@pytest.mark.parametrize(("name", "sentence"), [("a/b", "is not"), ("a\nb", "is not"), ("", "cannot be empty")])
def test_a_name_that_cannot_be_is_the_brokers_to_refuse(guarded: BrokerProcess, name: str, sentence: str) -> None:
    done = acls(guarded, *READ, "User:ann", "-g", name)
    assert done.code == 1 and sentence in done.sentence


def test_what_a_terminal_would_obey_is_written_out(guarded: Secured) -> None:
    """Control characters in an ACL's principal are printed escaped, as others may create such ACLs; the ACL can be
    removed."""
    principal, about = "User:\x1b[2J\nann", ResourcePattern(ResourceType.GROUP, "odd", PatternType.LITERAL)
    with Admin(guarded.bootstrap) as admin:
        admin.create_acls([AclBinding(about, Acl(principal, "*", Operation.READ, Permission.ALLOW))])
    assert r"User:\x1b[2J\nann" in acls(guarded, "list", "-g", "odd").out
    done = acls(guarded, "remove", "-o", "read", "--allow", principal, "-g", "odd", "--yes")
    assert done.out == "Removed: Allow User:\\x1b[2J\\nann to Read Group odd\n"


def test_a_broker_without_an_authorizer_says_so(shared_broker: BrokerProcess) -> None:
    done = acls(shared_broker, "list")
    words = "this broker has no authorizer, so everything is allowed: set authorizer.class.name to use ACLs"
    assert (done.code, done.sentence) == (1, words)


def test_a_host_is_an_address_in_the_form_that_brokers_compare(guarded: BrokerProcess) -> None:
    """A host is normalised to the form that brokers compare: ::1 becomes Java's form, or it would match no client. A
    host that is no address is refused, and can be removed."""
    short = ["-o", "read", "-t", "hosts", "--host", "::1", "--host", "::ffff:10.0.0.1"]
    done = acls(guarded, "add", "--allow", "User:ann", *short)
    assert done.out == (
        "Added: Allow User:ann from 0:0:0:0:0:0:0:1 to Read Topic hosts\n"
        "Added: Allow User:ann from 10.0.0.1 to Read Topic hosts\n"
    )
    assert acls(guarded, "remove", "--allow", "User:ann", *short, "--yes").out.count("Removed: ") == 2
    for host in ("localhost", "10.0.0.0/8", "10.0.0", "::g", "fe80::1/64"):
        done = acls(guarded, "add", "--allow", "User:ann", "-o", "read", "-t", "hosts", "--host", host)
        assert done.code == 2 and f"--host '{host}' would match no client" in done.err
    assert acls(guarded, "remove", "--allow", "User:ann", "-o", "read", "-t", "hosts", "--host", "a/b", "-y").code == 0


def test_who_may_write_to_no_topic_is_told_what_is_needed(guarded: Secured, tmp_path: Path) -> None:
    """A producer without a right to write to any topic gets one line with the missing ACL, instead of
    INIT_PRODUCER_ID's code."""
    with Admin(guarded.bootstrap) as admin:
        admin.create_topic("unwritten")
        admin.set_password("bob", "of bob")
    assert acls(guarded, "add", "--allow", "User:bob", "-o", "read", "-t", "unwritten").code == 0
    login = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=bob\nsasl.password=of bob\n"
    source = config(tmp_path / "records", "spring\n")
    done = run_process(
        "produce", "unwritten", "--file", source, "-b", f"{HOST}:{guarded.sasl_port}",
        "--command-config", config(tmp_path / "bob", login),
    )  # fmt: skip
    assert done.code == 1 and done.sentence.endswith(
        "line 1: the principal may write to no topic: it needs Write on one, or IdempotentWrite on the cluster"
    )
