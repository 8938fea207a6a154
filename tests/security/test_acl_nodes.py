"""The znodes of ACLs: the data written and read, and that no data raises an exception."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.security import acl_nodes
from pybroker.security.acl_nodes import Notification, Unreadable
from pybroker.security.acls import Acl, Operation, PatternType, Permission, ResourcePattern, ResourceType
from tests.rows import with_each
from tests.security import slow_acls

ANN = Acl("User:ann", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW)
NODE = {
    "version": 1,
    "acls": [
        {"principal": "User:ann", "permissionType": "Allow", "operation": "DescribeConfigs", "host": "*"},
        {"principal": "User:bob", "permissionType": "Deny", "operation": "All", "host": "127.0.0.1"},
    ],
}
LITERAL = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "a:b ü", PatternType.LITERAL)
PREFIXED = LITERAL._replace(pattern=PatternType.PREFIXED)


def test_where_acls_are() -> None:
    """ACL nodes are named after their resources; both trees have a node for each type, parents first."""
    assert acl_nodes.path(LITERAL) == "/kafka-acl/TransactionalId/a:b ü"
    assert acl_nodes.path(PREFIXED) == "/kafka-acl-extended/prefixed/TransactionalId/a:b ü"
    made = acl_nodes.PERSISTENT
    assert len(made) == 5 + 2 * 6 and "/kafka-acl/DelegationToken" in made
    assert all(parent in ("", *made[:at]) for at, path in enumerate(made) for parent in [path.rpartition("/")[0]])
    assert acl_nodes.resource_type("DelegationToken") is ResourceType.DELEGATION_TOKEN
    assert acl_nodes.resource_type("Topic2") is None and acl_nodes.resource_type("Any") is None


def test_acls_are_written_as_kafka_writes_them() -> None:
    bob = Acl("User:bob", "127.0.0.1", Operation.ALL, Permission.DENY)
    written = acl_nodes.dump_acls([bob, ANN, bob])
    assert json.loads(written) == NODE and b" " not in written
    assert acl_nodes.load_acls(written) == frozenset([ANN, bob])


def test_what_is_written_is_read() -> None:
    rng = random.Random("nodes")
    for _ in range(500):
        acls = slow_acls.some_acls(rng, 10)
        assert acl_nodes.load_acls(acl_nodes.dump_acls(acls)) == frozenset(acls)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"version":1,"acls":[]}',
        b'{"extra":[1],"acls":[],"version":1}',
    ],
)
def test_a_node_without_acls(data: bytes) -> None:
    """An empty node has no ACLs, as in Kafka; unknown keys are ignored."""
    assert acl_nodes.load_acls(data) == frozenset()


@pytest.mark.parametrize("operation", ["DescribeConfigs", "describeconfigs", "DESCRIBECONFIGS"])
def test_capitals_do_not_matter(operation: str) -> None:
    """Operations and permissions are read in any case, as in Kafka; an ACL may have unknown keys."""
    acl = {**NODE["acls"][0], "operation": operation, "permissionType": "ALLOW", "comment": 1}  # type: ignore[index]
    assert acl_nodes.load_acls(json.dumps({"version": 1, "acls": [acl]}).encode()) == frozenset([ANN])


def broken() -> list[tuple[bytes, str]]:
    def with_acl(**changed: object) -> bytes:
        acl = {**NODE["acls"][0], **changed}  # type: ignore[index]
        return json.dumps({"version": 1, "acls": [{k: v for k, v in acl.items() if v is not None}]}).encode()

    return [
        (b"{", "Expecting property name"),
        (b"\xff{}", "utf-8"),
        (b"[]", "it is not a JSON object"),
        (b"null", "it is not a JSON object"),
        (b"{}", "it has no 'version'"),
        (b'{"version":1}', "it has no 'acls'"),
        (b'{"version":1,"acls":{}}', "it has no list of ACLs"),
        (b'{"version":1,"acls":[1]}', "not subscriptable"),
        (b'{"version":2,"acls":[]}', "its version is 2, but this broker reads only 1"),
        (b'{"version":true,"acls":[]}', "its version is True"),
        (b'{"version":"1","acls":[]}', "its version is '1'"),
        (with_acl(host=None), "it has no 'host'"),
        (with_acl(host=7), "7 is not a string"),
        (with_acl(principal="ann"), "'ann' is no principal"),
        (with_acl(principal="User:\ud800"), "surrogates not allowed"),
        (with_acl(operation="DESCRIBE_CONFIGS"), "'DESCRIBE_CONFIGS' is not one of All, Read"),
        (with_acl(operation="Any"), "'Any' is not one of"),
        (with_acl(operation="x" * 1000), "is not one of"),
        (with_acl(permissionType="Perhaps"), "'Perhaps' is not one of Deny, Allow"),
        (b'{"version":1,"acls":' + b"[" * 100_000, "recursion"),
    ]


@with_each(("data", "why"), broken(), ids=range(len(broken())))
def test_a_bad_node_is_unreadable(data: bytes, why: str) -> None:
    """A bad node is unreadable as a whole if one of its ACLs is: that ACL might be a Deny."""
    found = acl_nodes.load_acls(data)
    assert isinstance(found, Unreadable) and why in found.why


def test_notifications_are_written_as_kafka_reads_them() -> None:
    """Notifications have Kafka's enum names, as Kafka silently ignores unknown ones."""
    assert acl_nodes.dump_change(LITERAL) == Notification(
        "/kafka-acl-changes/acl_changes_", "TRANSACTIONAL_ID:a:b ü".encode()
    )
    path, data = acl_nodes.dump_change(PREFIXED)
    assert path == "/kafka-acl-extended-changes/acl_changes_"
    assert json.loads(data) == {
        "version": 1, "resourceType": "TRANSACTIONAL_ID", "name": "a:b ü", "patternType": "PREFIXED",
    }  # fmt: skip


def test_notifications_that_are_written_are_read() -> None:
    rng = random.Random("changes")
    for _ in range(200):
        resource = slow_acls.a_resource(rng)
        data = acl_nodes.dump_change(resource).data
        literal = resource.pattern is PatternType.LITERAL
        assert (acl_nodes.load_change(data) if literal else acl_nodes.load_extended_change(data)) == resource


def test_what_kafka_would_lose_is_read_all_the_same() -> None:
    """Notifications that Kafka would ignore are read: a needless reload costs little, and a missed one leaves a revoked
    ACL in force."""
    assert acl_nodes.load_change("TransactionalId:a:b ü".encode()) == LITERAL
    data = b'{"version":1,"resourceType":"Topic","name":"*","patternType":"literal","by":"hand"}'
    assert acl_nodes.load_extended_change(data) == ResourcePattern(ResourceType.TOPIC, "*", PatternType.LITERAL)


@with_each(
    "data", [b"", b"TOPIC", b"TOPIC:", b"TOPIC:a/../b", b"TOPIC:..", b"ANY:a", b"FLY:a", b":a", b"TOPIC:\xff", b"{}"]
)
def test_a_bad_notification_is_none(data: bytes) -> None:
    """A bad notification is ignored, also one with a name that leads elsewhere in the tree."""
    assert acl_nodes.load_change(data) is None


@with_each(
    ("key", "value"),
    [("version", 2), ("version", None), ("resourceType", "ANY"), ("resourceType", 2), ("name", ""), ("name", "a/b"),
     ("name", None), ("patternType", "MATCH"), ("patternType", None), (None, None)],
)  # fmt: skip
def test_a_bad_extended_notification_is_none(key: str | None, value: object) -> None:
    held = {**json.loads(acl_nodes.dump_change(PREFIXED).data), key: value}
    data = json.dumps({k: v for k, v in held.items() if v is not None}).encode() if key else b"[" * 100_000
    assert acl_nodes.load_extended_change(data) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
MANGLED = st.fixed_dictionaries(
    {},
    optional={
        "version": st.just(1) | JSON,
        "name": JSON,
        "resourceType": st.just("TOPIC") | JSON,
        "patternType": st.just("PREFIXED") | JSON,
        "acls": st.lists(st.dictionaries(st.sampled_from(list(NODE["acls"][0])), JSON)) | JSON,  # type: ignore[index]
    },
).map(lambda held: json.dumps(held).encode())


@given(st.binary(max_size=60) | MANGLED)
def test_nothing_that_a_node_holds_raises(data: bytes) -> None:
    found = acl_nodes.load_acls(data)
    assert isinstance(found, Unreadable | frozenset)
    for resource in (acl_nodes.load_change(data), acl_nodes.load_extended_change(data)):
        assert resource is None or acl_nodes.path(resource).count("/") in (3, 4)
