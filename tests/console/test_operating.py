"""Moves, changes with their causes, and the reason why a user is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker import errors
from pybroker.client.admin import Admin, ClusterDescription, ConfigEntry
from pybroker.client.net.metadata import Node, PartitionInfo, TopicInfo
from pybroker.errors import KafkaError
from pybroker.operations import health
from pybroker.operations.acl_reasons import WantedAccess, reason_of
from pybroker.security.acls import (
    Acl,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from pybroker.security.authorizer import AclRules
from pybroker.testing import ClusterHandle
from tests.brokers.kit import Cluster
from tests.cli.conftest import run
from tests.cli.members import write
from tests.cli.system.test_users import Secured
from tests.console.conftest import Browser, Console
from tests.harness import HOST, Server, free_port, until
from tests.stores import AnyStore

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
TOPIC, READ = ResourceType.TOPIC, Operation.READ


def binding(
    name: str,
    pattern: PatternType,
    principal: str,
    permission: Permission,
    operation: Operation = READ,
    host: str = "*",
) -> AclBinding:
    return AclBinding(ResourcePattern(TOPIC, name, pattern), Acl(principal, host, operation, permission))


def reads(acls: list[AclBinding], host: str = "-") -> tuple[bool | None, str]:
    """Why alice may read orders, or not."""
    found = reason_of(WantedAccess("User:alice", host, READ, TOPIC, "orders"), acls)
    return found.allowed, found.sentence


def test_an_acl_is_the_reason() -> None:
    """The answer names the ACL that decides: a Deny before each Allow, an Allow, or the lack of one."""
    allowed = binding("orders", LITERAL, "User:alice", ALLOW)
    denied = binding("ord", PREFIXED, "User:*", DENY, Operation.ALL)
    assert reads([allowed]) == (True, "User:alice may Read Topic orders: Allow User:alice to Read Topic orders.")
    answer, words = reads([allowed, denied])
    assert answer is False and "may not Read Topic orders: Deny User:* to All Topic ord (prefix)." in words
    answer, words = reads([binding("orders", LITERAL, "User:bob", ALLOW), binding("*", LITERAL, "User:bob", ALLOW)])
    assert answer is False and "2 ACLs apply to it, and none allows Read to this principal" in words
    answer, words = reads([binding("other", LITERAL, "User:alice", ALLOW)])
    assert answer is None and "No ACL applies to Topic orders" in words and "allow.everyone.if.no.acl.found" in words
    here = binding("orders", LITERAL, "User:alice", ALLOW, host="10.0.0.1")
    assert (reads([here])[0], reads([here], "10.0.0.1")[0]) == (False, True)


ACLS = st.lists(
    st.builds(
        binding,
        st.sampled_from(["orders", "ord", "*", "o", "other"]),
        st.sampled_from([LITERAL, PREFIXED]),
        st.sampled_from(["User:alice", "User:*", "User:bob"]),
        st.sampled_from([ALLOW, DENY]),
        st.sampled_from([each for each in Operation if each.concrete]),
        st.sampled_from(["*", "10.0.0.1"]),
    ),
    max_size=8,
)


@given(ACLS, st.sampled_from([READ, Operation.DESCRIBE, Operation.WRITE]), st.sampled_from(["10.0.0.1", "10.0.0.2"]))
def test_the_reason_is_what_the_authorizer_says(acls: list[AclBinding], operation: Operation, host: str) -> None:
    """The explanation and the authorizer agree on any ACLs; without one that applies the setting decides."""
    access = WantedAccess("User:alice", host, operation, TOPIC, "orders")
    by_resource: dict[ResourcePattern, list[Acl]] = {}
    for each in acls:
        by_resource.setdefault(each.resource, []).append(each.acl)
    strict, open_ = (AclRules(allow_everyone=everyone).replaced(by_resource) for everyone in (False, True))
    found = reason_of(access, acls)
    if found.allowed is None:
        assert not strict.authorize(*access) and open_.authorize(*access)
    else:
        assert strict.authorize(*access) is open_.authorize(*access) is found.allowed


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with ACLs, users and quotas."""
    made = Secured(tmp_path_factory.mktemp("guarded"))
    made.sets = {
        **made.sets, "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": "User:ANONYMOUS",
    }  # fmt: skip
    made.start()
    where = ("-b", made.bootstrap)
    assert run("users", "set", "alice", *where, "--password-file", "-", stdin="of alice\n").code == 0
    assert run("acls", "add", "--allow", "User:alice", "-o", "read", "-t", "orders", *where).code == 0
    assert run("acls", "add", "--deny", "User:*", "-o", "all", "-t", "sec", "--prefixed", *where).code == 0
    with Admin(made.bootstrap) as admin:
        admin.alter_quotas((("user", "alice"),), {"producer_byte_rate": 1048576.0})
    yield made
    made.close()


def test_why_alice_is_refused(guarded: Secured, start_console: Callable[..., Console]) -> None:
    """The page has users, ACLs and quotas, no secret of them, and the reason why a user may do something or not."""
    browser = start_console(guarded.bootstrap).browser()
    page = browser.get("/security")
    assert "alice SCRAM-SHA-256 (4,096), SCRAM-SHA-512 (4,096)" in page.text
    assert "Allow User:alice to Read Topic orders" in page.text and "user alice producer_byte_rate 1048576" in page.text
    assert "of alice" not in page.page
    asked = {"user": "alice", "operation": "Read", "type": "Topic"}
    assert "User:alice may Read Topic orders" in browser.get("/security", {**asked, "name": "orders"}).text
    denied = browser.get("/security", {**asked, "name": "secrets"}).text
    assert "may not Read Topic secrets: Deny User:* to All Topic sec (prefix)" in denied
    odd = browser.get("/security", {**asked, "user": "<i>x</i>", "name": "<b>y</b>"})
    assert "<i>x</i> may not" in odd.text and "<b>y" not in odd.page
    for wrong in ({"operation": "Fly", "name": "x"}, {"type": "Group", "operation": "Write", "name": "x"}, {}):
        assert browser.get("/security", {**asked, **wrong}).code == 400


def test_a_cluster_without_an_authorizer_says_so(browser: Browser, target: Server) -> None:
    """The page of a cluster without ACLs says why there are none, and has the rest."""
    page = browser.get("/security", {"user": "alice", "name": "orders"})
    assert page.code == 200 and "The ACLs cannot be read" in page.text and "Quotas" in page.text


def test_moves_under_way(start_console: Callable[..., Console]) -> None:
    """The moves of replicas are shown with brokers that come and leave, and how much is copied."""
    settings = {"min.insync.replicas": 1, "offsets.topic.replication.factor": 1}
    with ClusterHandle(2, settings=settings) as cluster:
        browser = start_console(cluster.bootstrap_servers).browser()
        assert "No replica is moving" in browser.get("/moves").text
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("t", replica_assignments={0: [1]})
            write(cluster.bootstrap_servers, "t", 1000)
            cluster.cut_off(2, 1)
            admin.alter_partition_reassignments({("t", 0): [2]})
            assert "t-0 1, 2 2 1" in browser.get("/moves").text.replace("2, 1", "1, 2")
            cluster.heal()
            until("the replica has moved", lambda: "No replica is moving" in browser.get("/moves").text)


@pytest.mark.java
def test_changes_have_their_cause(
    tmp_path: Path, store: AnyStore, start_console: Callable[..., Console], topic: str
) -> None:
    """A topic's changes have the cause that a broker recorded; a broker that is away is named."""
    ports = {1: free_port(), 2: free_port()}
    with Cluster(tmp_path, store, count=2, metrics_listener=lambda number: f"{HOST}:{ports[number]}") as cluster:
        run("topics", "create", topic, "--replica-assignment", "1:2", "-b", cluster.bootstrap)
        browser = start_console(f"{HOST}:{cluster.brokers[1].port}").browser()
        assert browser.get("/changes", {"name": topic}).code == 200
        cluster.brokers[2].stop()
        until("it is recorded", lambda: "1 1 " in browser.get("/changes", {"name": topic}).text)
        where = ("-b", f"{HOST}:{cluster.brokers[1].port}", "--json")
        (described,) = run("topics", "describe", topic, "--changes", *where).json
        changes = described["partitions"][0]["changes"]
        page = browser.get("/changes", {"name": topic})
        assert changes and all(each["time"] in page.text and each["cause"] in page.text for each in changes)
        assert f"{topic}-0 under min ISR 1 1, 2 1" in browser.get("/").text


def test_a_cluster_that_keeps_no_changes_says_so(browser: Browser, target: Server, topic: str) -> None:
    run("topics", "create", topic, "-b", target.bootstrap)
    page = browser.get("/changes", {"name": topic})
    assert page.code == 200 and "does not report changes: it has no metrics.listener" in page.text
    assert browser.get("/moves").code == 200


class Degraded:
    """An admin client of a user without the right to settings of topics, in a cluster that lacks a replica."""

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, (Node(1, "one", 9092, None),))

    def topics(self) -> list[TopicInfo]:
        partition = PartitionInfo(0, 1, 0, (1, 2), (1,), 0)
        return [TopicInfo("t", bytes(16), False, (partition,), 0)]

    def topic_configs(self, names: Iterable[str]) -> dict[str, list[ConfigEntry]]:
        raise KafkaError(errors.TOPIC_AUTHORIZATION_FAILED, f"not authorized: {names}")


def test_a_viewer_without_the_right_to_settings_sees_the_trouble() -> None:
    """A partition in trouble is shown without the right to see min.insync.replicas; a command still fails."""
    admin = cast("Admin", Degraded())
    (lacks,) = health.read(admin, settings_optional=True).troubled()
    assert (lacks.name, lacks.state) == ("t-0", health.UNDER_REPLICATED)
    with pytest.raises(KafkaError, match="not authorized"):
        health.read(admin)
