"""Our bytes equal Kafka's by kafka-python's schemas, for every message and version that both sides know."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pybroker.protocol import codec, messages
from pybroker.protocol.apis import KNOWN
from pybroker.protocol.definitions import TEXTS
from pybroker.protocol.schema import OUR_TAGS, VERSION_LAST, Struct
from tests.protocol import oracle
from tests.protocol.values import at, messages_of
from tests.rows import with_each

SHARED = sorted(oracle.THEIRS.keys() & TEXTS.keys())

# Messages between brokers, of internal topics, or unused by the oracle's clients (delegation tokens, newer ones).
# A message missing from the oracle for any other reason fails here. The Java parity test has these.
NOT_A_CLIENTS = {
    *("AllocateProducerIds", "AlterPartition", "ControlledShutdown", "LeaderAndIsr", "StopReplica", "UpdateMetadata"),
    *("GroupMetadataKey", "GroupMetadataValue", "OffsetCommitKey", "OffsetCommitValue"),
    *("TransactionLogKey", "TransactionLogValue"),
    *("TopicRecord", "RemoveTopicRecord", "ConfigRecord"),
    *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"),
    "ConsumerGroupDescribe",
}


def test_the_oracle_knows_every_message_of_clients() -> None:
    missing = {name.removesuffix("Request").removesuffix("Response") for name in TEXTS.keys() - oracle.THEIRS.keys()}
    assert missing == NOT_A_CLIENTS


OLD = {"CreateTopics", "DeleteTopics", "DescribeConfigs", "ListOffsets", "OffsetFetch"}
"""APIs whose oldest versions, dropped by Kafka (KIP-896), are known so that a refusal has their format."""


@with_each("name", SHARED)
def test_names_versions_and_the_flexible_boundary_are_kafkas(name: str) -> None:
    schema, theirs = messages.message(name).SCHEMA, oracle.THEIRS[name]
    first, last = theirs.valid_versions
    is_old = name.removesuffix("Request").removesuffix("Response") in OLD
    assert (schema.first, schema.last) == (0 if is_old else first, last)
    flexible = theirs._flexible_versions[0]
    assert schema.flexible_from == (VERSION_LAST + 1 if flexible < 0 else flexible)
    if not name.startswith("Consumer"):
        assert schema.key == theirs.API_KEY


@with_each("name", SHARED)
def test_defaults_are_kafkas(name: str) -> None:
    """Defaults equal Kafka's, except for fields that are nullable in all versions: ours is null there."""

    def check(struct: Struct, theirs: Any, path: str) -> None:
        for field in struct.fields:
            if field.tag is not None and field.tag >= OUR_TAGS:
                continue
            their_field = theirs.fields[field.name]
            if field.struct:
                check(field.struct, their_field.array_of if field.is_array else their_field, f"{path}.{field.name}")
            elif field.default is not None:
                default = bytes(16) if field.type == "uuid" and not their_field.default else their_field.default
                assert field.default == default, f"{path}.{field.name}"

    check(messages.message(name).STRUCT, oracle.THEIRS[name]._struct, name)


@with_each("name", SHARED)
def test_both_codecs_write_the_same_bytes_and_read_the_same_values(name: str) -> None:
    """At each version our codec and theirs write the same bytes and read each other's."""
    kind: Any = messages.message(name)
    theirs = oracle.THEIRS[name]
    versions = range(theirs.valid_versions[0], kind.SCHEMA.last + 1)

    @settings(
        max_examples=max(6, 45 // len(versions)),
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(messages_of(kind))
    def check(drawn: Any) -> None:
        for version in versions:
            message = at(drawn, version)
            ours = codec.encode(message, version)
            assert ours == oracle.encode(theirs, message, version), f"v{version}"
            assert codec.decode(kind, version, ours) == (message, len(ours)), f"v{version}"
            read = oracle.decode(theirs, ours, version)
            assert oracle.differences(theirs._struct, kind.STRUCT, read, message, version) == [], f"v{version}"

    check()


@given(
    api_key=st.sampled_from([0, 1, 3, 17, 18, 60]),
    correlation_id=st.integers(-(1 << 31), (1 << 31) - 1),
    client_id=st.none() | st.text(max_size=300),
)
@settings(max_examples=50, deadline=None, database=None)
def test_headers_are_kafkas(api_key: int, correlation_id: int, client_id: str | None) -> None:
    """Our headers equal theirs, and reading one gives the position of the body."""
    api = KNOWN[api_key]
    for version in range(api.min_version, api.max_version + 1):
        message = api.request()
        theirs = oracle.THEIRS[f"{api.name}Request"](version=version)
        theirs.with_header(correlation_id=correlation_id, client_id=client_id)
        header = bytes(theirs.encode_header(flexible=version >= api.flexible_from))
        body = codec.encode(message, version)
        assert codec.encode_request(api_key, version, correlation_id, client_id, message) == header + body
        read = codec.decode_request_header(header + body)
        assert read == (api_key, version, correlation_id, client_id, len(header))
        answer = codec.encode_response(api_key, version, correlation_id, api.response())
        assert codec.decode_response(api_key, version, answer) == (correlation_id, api.response())
        response = oracle.CLIENTS[f"{api.name}Response"]
        assert response.decode(answer, version=version, header=True).header.correlation_id == correlation_id
