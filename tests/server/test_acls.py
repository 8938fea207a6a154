"""ACLs in force: the answer of each API with and without rights, and changes that take effect at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.coordination.store import StoreError
from pybroker.metadata import acls
from pybroker.protocol import messages as m
from pybroker.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from pybroker.security.operations import NOT_ASKED
from pybroker.server.api import authorization
from pybroker.server.network import closed_connections
from tests.harness import eventually
from tests.server.cast import (
    CLUSTER,
    DENIED,
    DESCRIBE,
    GROUP,
    LITERAL,
    PREFIXED,
    READ,
    SETS,
    TOPIC,
    WRITE,
    Cast,
    acl_filter,
    creation,
)  # fmt: skip
from tests.server.denials import TABLE
from tests.server.denials_of_transactions import TRANSACTIONS
from tests.server.live import Live, Wire, batch, fetch_fields, produce_data, values


async def coordinator(wire: Wire) -> None:
    """Wait until the group coordinator has loaded."""

    async def found() -> bool:
        return (await wire.call("FindCoordinator", 4, coordinator_keys=["g"])).coordinators[0].error_code == 0

    await eventually("there is a coordinator", found)


async def test_who_has_no_acl_may_do_nothing_and_who_is_super_everything(cast: Cast) -> None:
    for user, code in (("root", 0), ("ann", DENIED)):
        wire = await cast.login(user)
        assert (await wire.produce("t", batch(b"x"))).error_code == code
        part = await wire.fetch("t", 0)
        assert part.error_code == code and bool(part.records) is not bool(code)
        assert (await wire.create(f"of-{user}")).error_code == code


async def test_an_acl_opens_what_it_says_and_nothing_else(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    assert values((await cast.ann.fetch("t", 0)).records) == [b"secret"]
    assert (await cast.ann.produce("t", batch(b"x"))).error_code == DENIED
    bob = await cast.login("bob")
    assert (await bob.fetch("t", 0)).error_code == DENIED
    metadata = await cast.ann.call("Metadata", 12, topics=None)
    assert [topic.name for topic in metadata.topics] == ["t"], "READ implies DESCRIBE"
    assert (await bob.call("Metadata", 12, topics=None)).topics == []


async def test_a_change_acts_on_connections_that_are_open(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ), (TOPIC, "t", WRITE))
    assert (await cast.ann.produce("t", batch(b"x"))).error_code == 0
    await cast.give((TOPIC, "t", WRITE), permission=Permission.DENY)
    assert (await cast.ann.produce("t", batch(b"x"))).error_code == DENIED
    assert (await cast.ann.fetch("t", 0)).error_code == 0
    assert await cast.take(TOPIC, "t") == 3
    assert (await cast.ann.fetch("t", 0)).error_code == DENIED


async def test_what_a_fetch_waits_for_is_not_read_once_it_is_denied(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ))
    cast.ann.send("Fetch", 12, **fetch_fields("t", 1, max_wait_ms=10_000))
    await cast.live.one_waits()
    await cast.take()
    assert (await cast.root.produce("t", batch(b"later"))).error_code == 0
    _, answer = await cast.ann.receive("Fetch", 12)
    [part] = answer.responses[0].partitions
    assert part.error_code == DENIED and not part.records


async def test_a_fetch_that_is_partly_denied_waits_for_the_rest(cast: Cast) -> None:
    """A Fetch denied in part waits for its other partitions, as in Kafka, and has no session: rights may change."""
    await cast.root.create("u")
    await cast.give((TOPIC, "u", READ))
    kind = m.FetchRequest.Topics
    topics = [
        kind(topic=name, partitions=[kind.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)])
        for name in ("t", "u")
    ]
    began = time.monotonic()
    answer = await cast.ann.call("Fetch", 12, topics=topics, max_wait_ms=300, min_bytes=1, session_epoch=0)
    assert time.monotonic() - began >= 0.3
    assert {each.topic: each.partitions[0].error_code for each in answer.responses} == {"t": DENIED, "u": 0}
    assert answer.session_id == 0
    refused = await cast.ann.call("Fetch", 12, topics=[], session_id=7, session_epoch=1, min_bytes=1)
    assert refused.error_code == errors.FETCH_SESSION_ID_NOT_FOUND


async def test_a_client_that_says_it_is_a_replica_is_a_client(cast: Cast) -> None:
    """A client with a replica id is refused as a client: no read, no moved high watermark (CVE-2018-1288)."""
    await cast.give((TOPIC, "t", READ))
    fields = fetch_fields("t", 0)
    answer = await cast.ann.call("Fetch", 12, replica_id=1, **fields)
    assert answer.responses[0].partitions[0].error_code == DENIED
    answer = await cast.ann.call("OffsetForLeaderEpoch", 4, replica_id=1, topics=[])
    assert answer.topics == []


async def test_metadata_shows_neither_that_a_topic_is_there_nor_that_it_is_not(cast: Cast) -> None:
    kind = m.MetadataRequest.Topics
    told = await cast.root.call("Metadata", 12, topics=[kind(name="t")])
    topic_id = told.topics[0].topic_id
    asked = [kind(name="t"), kind(name="nowhere"), kind(name=None, topic_id=topic_id)]
    answer = await cast.ann.call("Metadata", 12, topics=asked, allow_auto_topic_creation=True)
    assert [(t.error_code, t.name, any(t.topic_id), t.partitions) for t in answer.topics] == [
        (DENIED, "t", False, []), (DENIED, "nowhere", False, []), (DENIED, None, True, [])
    ]  # fmt: skip
    await cast.give((TOPIC, "now", DESCRIBE), pattern=PREFIXED)
    for allow, code in ((True, DENIED), (False, errors.UNKNOWN_TOPIC_OR_PARTITION)):
        answer = await cast.ann.call("Metadata", 12, topics=[kind(name="nowhere")], allow_auto_topic_creation=allow)
        assert [topic.error_code for topic in answer.topics] == [code]
    answer = await cast.ann.call("Metadata", 0, topics=[kind(name="t")])
    assert [(t.name, t.error_code) for t in answer.topics] == [("t", DENIED)], "an old client gets no list of all"


async def test_who_may_do_what_is_told(cast: Cast) -> None:
    """The answer has the bits of authorized operations, only if the client asks for them."""
    kind = m.MetadataRequest.Topics
    await cast.give((TOPIC, "t", READ), (GROUP, "g", READ))
    answer = await cast.ann.call("Metadata", 9, topics=[kind(name="t")], include_topic_authorized_operations=True,
                                 include_cluster_authorized_operations=True)  # fmt: skip
    assert answer.topics[0].topic_authorized_operations == 1 << READ | 1 << DESCRIBE
    assert answer.cluster_authorized_operations == 0
    answer = await cast.ann.call("Metadata", 9, topics=[kind(name="t")])
    assert answer.topics[0].topic_authorized_operations == NOT_ASKED
    answer = await cast.root.call("Metadata", 9, topics=[kind(name="t")], include_topic_authorized_operations=True,
                                  include_cluster_authorized_operations=True)  # fmt: skip
    assert (answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations) == (3576, 8096)
    await coordinator(cast.root)
    groups = (await cast.ann.call("DescribeGroups", 5, groups=["g"], include_authorized_operations=True)).groups
    assert groups[0].authorized_operations == 1 << READ | 1 << DESCRIBE
    shown = await cast.ann.call("DescribeCluster", 1, endpoint_type=1, include_cluster_authorized_operations=True)
    assert shown.cluster_authorized_operations == 0 and shown.brokers
    await cast.give((CLUSTER, CLUSTER_NAME, DESCRIBE))
    shown = await cast.ann.call("DescribeCluster", 1, endpoint_type=1, include_cluster_authorized_operations=True)
    assert shown.cluster_authorized_operations == 1 << DESCRIBE


async def test_every_version_of_every_api_denies_at_its_level(cast: Cast) -> None:
    for name, (first, last), fields, is_denied in TABLE + TRANSACTIONS:
        for version in range(first, last + 1):
            answer = await cast.ann.call(name, version, **fields)
            assert is_denied(answer), (name, version, answer)
            assert b"secret" not in repr(answer).encode()


async def test_every_api_is_in_the_table_or_everybodys() -> None:
    from pybroker.protocol.apis import SERVED
    from pybroker.security.matrix import MATRIX

    open_to_all = {api.name for api in SERVED.values() if not MATRIX[api.key].checks}
    in_table = {name for name, *_ in TABLE + TRANSACTIONS}
    assert in_table | open_to_all | {"Metadata"} == {api.name for api in SERVED.values()}
    assert open_to_all == {
        "ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster", "RenewDelegationToken",
        "ExpireDelegationToken",
    }  # fmt: skip


async def test_some_of_a_request_is_denied_and_the_rest_is_done(cast: Cast) -> None:
    await cast.root.create("u")
    await cast.give((TOPIC, "u", Operation.ALL), (GROUP, "g", READ), (CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS))
    data = produce_data("t", {0: batch(b"x")}) + produce_data("u", {0: batch(b"x")})
    answer = await cast.ann.call("Produce", 9, acks=-1, timeout_ms=1000, topic_data=data)
    codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {"t": DENIED, "u": 0}
    kind = m.DeleteTopicsRequest.Topics
    ids = {t.name: t.topic_id for t in (await cast.root.call("Metadata", 12, topics=None)).topics}
    asked = [kind(name="t"), kind(name=None, topic_id=ids["t"]), kind(name=None, topic_id=b"x" * 16), kind(name="u")]
    answer = await cast.ann.call("DeleteTopics", 6, topics=asked, timeout_ms=5000)
    assert sorted((t.name or "", t.error_code) for t in answer.responses) == [
        ("", DENIED), ("", errors.UNKNOWN_TOPIC_ID), ("t", DENIED), ("u", 0)
    ]  # fmt: skip
    commit = m.OffsetCommitRequest.Topics
    topics = [commit(name=n, partitions=[commit.Partitions(committed_offset=1)]) for n in ("t", "t2")]
    answer = await cast.ann.call("OffsetCommit", 8, group_id="g", topics=topics)
    assert {topic.partitions[0].error_code for topic in answer.topics} == {DENIED}


async def test_a_producer_without_acks_is_closed_by_a_denial(cast: Cast) -> None:
    await cast.root.create("u")
    await cast.give((TOPIC, "u", WRITE))
    data = produce_data("u", {0: batch(b"kept")}) + produce_data("t", {0: batch(b"not")})
    cast.ann.send("Produce", 9, acks=0, timeout_ms=1000, topic_data=data)
    assert await cast.ann.closed()
    assert values((await cast.root.fetch("u", 0)).records) == [b"kept"]


async def test_idempotent_producers_need_any_topic(cast: Cast) -> None:
    await cast.give((TOPIC, "any-", WRITE), pattern=PREFIXED)
    assert (await cast.ann.call("InitProducerId", 4, transactional_id=None)).error_code == 0


async def test_acls_are_described_and_deleted_by_filters(cast: Cast) -> None:
    await cast.give((TOPIC, "t", READ), (TOPIC, "*", WRITE), (GROUP, "g", READ))
    await cast.give((TOPIC, "t", DESCRIBE), pattern=PREFIXED)
    await cast.give((TOPIC, "t", READ), permission=Permission.DENY, principal="User:bob", host="10.0.0.1")

    async def found(kind: ResourceType, name: str | None, pattern: PatternType, principal: str | None = None) -> int:
        answer = await cast.root.call(
            "DescribeAcls", 3, resource_type_filter=kind, resource_name_filter=name, pattern_type_filter=pattern,
            principal_filter=principal, host_filter=None, operation=1, permission_type=1,
        )  # fmt: skip
        assert answer.error_code == 0
        return sum(len(resource.acls) for resource in answer.resources)

    assert await found(ResourceType.ANY, None, PatternType.ANY) == 5
    assert await found(TOPIC, "t", LITERAL) == 2
    assert await found(TOPIC, "t", PatternType.ANY) == 3
    assert await found(TOPIC, "t", PatternType.MATCH) == 4
    assert await found(ResourceType.ANY, None, PatternType.ANY, "User:bob") == 1
    answer = await cast.root.call("DeleteAcls", 3, filters=[
        acl_filter(TOPIC, "t", pattern_type_filter=LITERAL), acl_filter(TOPIC), acl_filter(ResourceType.UNKNOWN),
    ])  # fmt: skip
    assert [(r.error_code, len(r.matching_acls)) for r in answer.filter_results] == [(0, 2), (0, 2), (42, 0)]
    assert await found(ResourceType.ANY, None, PatternType.ANY) == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (creation(CLUSTER, "other", READ), "the cluster's name is kafka-cluster"),
        (creation(TOPIC, "", READ), "cannot be empty"),
        (creation(TOPIC, "a/b", READ), "valid ZooKeeper node name"),
        (creation(TOPIC, "t", Operation.ANY), "cannot have the operation ANY"),
        (creation(ResourceType.ANY, "t", READ), "cannot have the resource type ANY"),
        (creation(TOPIC, "t", READ, principal="ann"), "is no principal"),
        (creation(TOPIC, "t", READ, pattern=PatternType.MATCH), "cannot have the pattern type MATCH"),
    ],
)
async def test_what_can_be_no_acl_is_refused_and_the_others_are_made(cast: Cast, bad: Any, words: str) -> None:
    answer = await cast.root.call("CreateAcls", 3, creations=[bad, creation(TOPIC, "t", READ)])
    assert [result.error_code for result in answer.results] == [errors.INVALID_REQUEST, 0]
    assert words in answer.results[0].error_message
    assert (await cast.ann.fetch("t", 0)).error_code == 0


async def test_acls_survive_a_restart_and_a_bad_node_denies_its_resource(
    cast: Cast, caplog: pytest.LogCaptureFixture
) -> None:
    await cast.root.create("u")
    await cast.give((TOPIC, "t", READ), (TOPIC, "u", READ))
    assert cast.live.broker is not None and cast.live.broker.session is not None
    await cast.live.broker.session.set("/kafka-acl/Topic/u", b'{"version":1,"acls":[{')
    await cast.live.restart()
    ann, root = await cast.login("ann"), await cast.login("root")
    assert (await ann.fetch("t", 0)).error_code == 0
    assert (await ann.fetch("u", 0)).error_code == DENIED
    assert (await root.fetch("u", 0)).error_code == 0
    assert [r.getMessage() for r in caplog.records if "ACLs unreadable" in r.getMessage()]
    answer = await root.call("CreateAcls", 3, creations=[creation(TOPIC, "u", READ)])
    assert answer.results[0].error_code == errors.INVALID_REQUEST


async def test_denials_are_told_and_do_not_fill_the_log(cast: Cast, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(50):
        await cast.ann.fetch("t", 0)
    told = [r.getMessage() for r in caplog.records if "request denied" in r.getMessage()]
    assert len(told) == 1 and "User:ann is not authorized to Read Topic 't'" in told[0]


@pytest.mark.parametrize("everyone", [True, False])
async def test_everyone_may_where_no_acl_is_if_that_is_allowed(tmp_path: Path, everyone: bool) -> None:
    cast = Cast(Live(tmp_path / "data", [*SETS, f"allow.everyone.if.no.acl.found={str(everyone).lower()}"]))
    await cast.start()
    assert (await cast.ann.fetch("t", 0)).error_code == (0 if everyone else DENIED)
    await cast.give((TOPIC, "t", READ), principal="User:bob")
    assert (await cast.ann.fetch("t", 0)).error_code == DENIED
    await cast.live.stop()


async def test_acls_that_are_there_already_change_nothing(cast: Cast) -> None:
    """Creating existing ACLs does not invalidate cached authorizations, as the rules are the same."""
    assert cast.live.broker is not None and cast.live.broker._authorization is not None
    access = cast.live.broker._authorization.access
    await cast.give((TOPIC, "t", READ), (GROUP, "g", READ))
    number = access.number
    await cast.give((TOPIC, "t", READ), (GROUP, "g", READ))
    assert await cast.take(TOPIC, "nothing") == 0
    assert access.number == number
    await cast.give((TOPIC, "t", WRITE))
    assert access.number == number + 1


async def test_a_deletion_that_fails_midway_tells_what_is_gone(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ACL of a DeleteAcls has its own result, as in Kafka; the one that failed is still there."""
    await cast.give((TOPIC, "a", READ), (TOPIC, "b", READ), (TOPIC, "c", READ))
    real = acls.commit

    async def commit(session: Any, ops: Any) -> Any:
        if any(op.path.endswith("/Topic/b") for op in ops):
            raise StoreError("no quorum")
        return await real(session, ops)

    monkeypatch.setattr(acls, "commit", commit)
    answer = await cast.root.call("DeleteAcls", 3, filters=[acl_filter(TOPIC, None), acl_filter(TOPIC, "c")])
    first, second = answer.filter_results
    assert (first.error_code, second.error_code, second.matching_acls) == (0, 0, [])
    told = {each.resource_name: each.error_code for each in first.matching_acls}
    assert told == {"a": 0, "b": errors.KAFKA_STORAGE_ERROR, "c": 0}
    assert "no quorum" in first.matching_acls[1].error_message
    left = await cast.root.call("DescribeAcls", 3, resource_type_filter=TOPIC, pattern_type_filter=PatternType.ANY,
                                resource_name_filter=None, principal_filter=None, host_filter=None,
                                operation=Operation.ANY, permission_type=Permission.ANY)  # fmt: skip
    assert [each.resource_name for each in left.resources] == ["b"]


async def test_the_number_of_denials_is_told_when_their_minute_is_over(
    cast: Cast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of denials is logged when its minute is over, without a later denial, or at the stop."""
    for module in (closed_connections, authorization):
        monkeypatch.setattr(module, "SILENT_SECONDS", 0.2)

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("request")]

    for _ in range(3):
        await cast.ann.fetch("t", 0)
    await eventually("their number is told", lambda: len(said()) == 2)
    command = "pybroker acls add --allow User:ann --operation read --topic t"
    why = f"\"User:ann is not authorized to Read Topic 't'; to allow it: {command}\""
    assert said() == [
        f"request denied client=127.0.0.1 reason={why}", f"requests denied client=127.0.0.1 count=2 reason={why}"
    ]  # fmt: skip
    monkeypatch.undo()
    await cast.ann.fetch("t", 0)
    await cast.ann.fetch("t", 0)
    await cast.live.stop()
    assert said()[-1] == f"requests denied client=127.0.0.1 count=1 reason={why}" or len(said()) == 3
