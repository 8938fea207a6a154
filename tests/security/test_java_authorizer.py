"""Our authorizer against Kafka's own AclAuthorizer: the same verdicts, from the same bytes, in one ZooKeeper."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from pybroker.config.security_settings import super_users
from pybroker.security import acl_nodes
from pybroker.security.acls import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
    is_node_name,
)
from pybroker.security.authorizer import AclRules
from pybroker.security.operations import OPERATIONS
from pybroker.security.principals import host_text
from tests.harness import HOST, until
from tests.java import peers
from tests.security import slow_acls
from tests.security.judge import VERSION, Authorizer, Judge, Question, binding
from tests.security.slow_acls import CALLERS, NAMES, PEERS, TYPES
from tests.security.test_authorizer import EVERY_ACL

pytestmark = [
    pytest.mark.java,
    pytest.mark.zookeeper("Kafka's authorizer reads no other store"),
    pytest.mark.xdist_group("judge of acls"),
]

RULE_SETS = 300
"""The number for each of four settings; a rule set gets a hundred questions, each for thirteen operations."""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    try:
        peers.jars(VERSION)
    except peers.MissingJava as missing:
        pytest.skip(str(missing))
    made = Judge(tmp_path_factory.mktemp("judge") / "zookeeper")
    yield made
    made.close()


def questions(kinds: list[ResourceType]) -> list[Question]:
    every = itertools.product(CALLERS, PEERS, kinds, [None, *NAMES])
    return [(who, host, kind, name) for who, host, kind, name in every]


def answers(rules: AclRules, asked: list[Question]) -> list[int]:
    """Our answers in the judge's form."""
    found = []
    for who, host, kind, name in asked:
        bits = 0
        for operation in slow_acls.OPERATIONS:
            question = (who, host_text(host), operation, kind)
            allowed = rules.authorize_any(*question) if name is None else rules.authorize(*question, name)
            bits |= allowed << operation
        found.append(bits)
    return found


def some_filters(rng: random.Random) -> list[AclFilter]:
    patterns = [PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED]
    return [
        AclFilter(
            rng.choice([ResourceType.ANY, *TYPES]),
            rng.choice([None, *NAMES]),
            rng.choice(patterns),
            rng.choice([None, None, *slow_acls.PRINCIPALS]),
            rng.choice([None, None, *slow_acls.HOSTS]),
            rng.choice([Operation.ANY, Operation.ANY, *slow_acls.OPERATIONS]),
            rng.choice([Permission.ANY, *slow_acls.PERMISSIONS]),
        )
        for _ in range(20)
    ]


@pytest.mark.parametrize("supers", ["", " User:ann;Group:ann;"])
@pytest.mark.parametrize("everyone", [False, True])
def test_kafka_gives_the_same_verdicts(judge: Judge, supers: str, everyone: bool) -> None:
    """Kafka gives the same verdicts to every caller, for every operation on every name and on any resource; its filters
    find the same."""
    kafka = Authorizer(judge, "", supers, everyone)
    rng = random.Random(f"{supers} {everyone}")
    for _ in range(RULE_SETS):
        known = slow_acls.a_rule_set(rng)
        ours = AclRules(super_users(supers), everyone).replaced(known)
        kinds = sorted({resource.type for resource in known}) or [ResourceType.TOPIC]
        asked, filters = rng.sample(questions(kinds), 100), some_filters(rng)
        verdicts, found = kafka.judge(known, asked, filters)
        differ = [each for each in zip(asked, verdicts, answers(ours, asked), strict=True) if each[1] != each[2]]
        assert not differ, (differ[:3], known)
        assert [set(each) for each in found] == [set(ours.acls(each)) for each in filters], known


def test_kafka_supports_the_same_operations(judge: Judge) -> None:
    assert {kind: judge.call("supported", type=kind) for kind in TYPES} == OPERATIONS


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::", "2001:DB8::1", "2001:db8:a0::f0", "::ffff:10.1.2.3",
                                     "::10.1.2.3", "64:ff9b::10.1.2.3", "fe80::1%1"])  # fmt: skip
def test_java_prints_the_same_host(judge: Judge, address: str) -> None:
    assert judge.call("host", address=address) == host_text(address)


def test_zookeeper_takes_the_same_names(judge: Judge) -> None:
    edges = [
        0,
        1,
        0x1F,
        0x20,
        0x2E,
        0x7E,
        0x7F,
        0x9F,
        0xA0,
        0xD7FF,
        0xE000,
        0xF8FE,
        0xF900,
        0xFFEF,
        0xFFF0,
        0xFFFD,
        0x10000,
    ]
    names = [".", "..", "...", "a.", *(f"a{chr(edge)}b" for edge in edges)]
    assert {name: judge.call("node", name=name) for name in names} == {name: is_node_name(name) for name in names}


@pytest.mark.parametrize(
    "text", ["User:ann", "User:ann;;", ";", "User:ann;;User:bob", ";User:ann", "ann", "User:ann; "]
)
def test_kafka_starts_with_the_same_super_users(judge: Judge, text: str) -> None:
    try:
        super_users(text)
        starts = True
    except ValueError:
        starts = False
    assert Authorizer(judge, "", text).starts() is starts


def mangled(rng: random.Random, data: bytes) -> bytes:
    """Data with a word replaced, or a byte added, removed or changed."""
    words = (
        b'User:ann User: Allow DENY Read Any Unknown TOPIC literal * principal host version name x 1 2 null true {} "1"'
    )
    if rng.random() < 0.7:
        at = rng.choice(list(re.finditer(rb'"[^"]*"|[0-9]+|[\w*]+', data)))
        word = rng.choice([b"", *words.split()])
        return data[: at.start()] + (b'"%b"' % word if rng.random() < 0.7 else word) + data[at.end() :]
    byte = rng.randrange(len(data))
    return data[:byte] + rng.choice([b"", b"{", b"\xff", b'"', b" "]) + data[byte + rng.choice([0, 1]) :]


def test_we_read_no_node_otherwise_than_kafka(judge: Judge) -> None:
    """We read no node differently from Kafka: some mangled nodes are unreadable to us only; each that we read, Kafka
    reads the same."""
    rng = random.Random("mangled")
    both = 0
    for _ in range(3_000):
        data = mangled(rng, acl_nodes.dump_acls(slow_acls.some_acls(rng, 2)))
        ours, kafkas = acl_nodes.load_acls(data), judge.read("acls", data)
        if not isinstance(ours, acl_nodes.Unreadable):
            assert kafkas is not None and {binding(acl).acl for acl in kafkas} == ours, data
            both += 1
    assert both > 300


def test_we_read_no_notification_otherwise_than_kafka(judge: Judge) -> None:
    """We read no notification differently from Kafka: one that only Kafka reads makes us reload everything."""
    rng = random.Random("notifications")
    both = 0
    for _ in range(3_000):
        resource = slow_acls.a_resource(rng)
        literal = resource.pattern is PatternType.LITERAL
        data = mangled(rng, acl_nodes.dump_change(resource).data)
        ours = (acl_nodes.load_change if literal else acl_nodes.load_extended_change)(data)
        kafkas = judge.read("change" if literal else "extended", data)
        if kafkas and kafkas[0] > ResourceType.ANY and kafkas[2] > PatternType.MATCH and is_node_name(kafkas[1]):
            assert ours in (None, tuple(kafkas)), data
            both += ours is not None
    assert both > 300


# -- one ZooKeeper for both -------------------------------------------------------------------------------------------


@pytest.fixture
def zookeeper(judge: Judge) -> Iterator[KazooClient]:
    client = KazooClient(f"{HOST}:{judge.port}")
    client.start()
    client.ensure_path("/shared")
    client.chroot = "/shared"
    yield client
    client.stop()
    client.close()


def put(client: KazooClient, resource: ResourcePattern, acls: list[Acl]) -> None:
    """Write as our broker does: the node, or delete it if there are no ACLs; then the notification."""
    path, data = acl_nodes.path(resource), acl_nodes.dump_acls(acls)
    if not acls:
        client.delete(path)
    elif client.exists(path):
        client.set(path, data)
    else:
        client.create(path, data)
    client.create(*acl_nodes.dump_change(resource), sequence=True)


def tree(client: KazooClient) -> dict[ResourcePattern, frozenset[Acl] | acl_nodes.Unreadable]:
    """All ACLs, as our broker loads them."""
    found = {}
    for pattern, root in acl_nodes.ROOTS.items():
        for name in client.get_children(root):
            kind = acl_nodes.resource_type(name)
            assert kind is not None, name
            for each in client.get_children(f"{root}/{name}"):
                resource = ResourcePattern(kind, each, pattern)
                found[resource] = acl_nodes.load_acls(client.get(acl_nodes.path(resource))[0])
    return found


def told(client: KazooClient) -> set[ResourcePattern | None]:
    """The resources of the notifications, which are deleted."""
    found = set()
    for root, load in ((acl_nodes.CHANGES, acl_nodes.load_change),
                       (acl_nodes.EXTENDED_CHANGES, acl_nodes.load_extended_change)):  # fmt: skip
        for name in client.get_children(root):
            found.add(load(client.get(f"{root}/{name}")[0]))
            client.delete(f"{root}/{name}")
    return found


def test_brokers_of_both_kinds_share_a_zookeeper(judge: Judge, zookeeper: KazooClient) -> None:
    """Brokers of both kinds share a ZooKeeper: Kafka loads our ACLs, follows our notifications, and makes changes that
    we can read."""
    rng = random.Random("shared")
    for path in acl_nodes.PERSISTENT:
        zookeeper.create(path)
    known = slow_acls.a_rule_set(rng)
    for _ in range(15):
        known |= slow_acls.a_rule_set(rng)
    for resource, acls in known.items():
        zookeeper.create(acl_nodes.path(resource), acl_nodes.dump_acls(acls))

    kafka = Authorizer(judge, "/shared")
    asked = rng.sample(questions(TYPES), 1000)
    assert set(kafka.acls(EVERY_ACL)) == slow_acls.bindings(known)
    assert kafka.ask(asked) == answers(AclRules().replaced(known), asked)

    for resource in rng.sample(sorted(known), 10):
        known[resource] = []
        put(zookeeper, resource, [])
    for _ in range(5):
        for resource, acls in slow_acls.a_rule_set(rng).items():
            known[resource] = acls
            put(zookeeper, resource, acls)
    ours = AclRules().replaced(known)
    until("Kafka has taken up what we wrote", lambda: set(kafka.acls(EVERY_ACL)) == slow_acls.bindings(known))
    assert kafka.ask(asked) == answers(ours, asked)

    told(zookeeper)
    before = set(ours.acls(EVERY_ACL))
    new = slow_acls.bindings(slow_acls.a_rule_set(rng) | slow_acls.a_rule_set(rng)) - before
    assert not any(kafka.create(new))
    filters = [EVERY_ACL._replace(type=ResourceType.GROUP), EVERY_ACL._replace(name="a", pattern=PatternType.MATCH)]
    assert all(kafka.delete(filters))
    loaded = tree(zookeeper)
    after = AclRules().replaced(loaded)
    left = {each for each in before | new if not any(wanted.matches(each) for wanted in filters)}
    assert set(after.acls(EVERY_ACL)) == left == set(kafka.acls(EVERY_ACL)) and not after.unreadable
    assert kafka.ask(asked) == answers(after, asked)
    assert told(zookeeper) == {resource for resource, _ in new | (before - left)}
