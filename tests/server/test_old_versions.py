"""Clients older than KIP-896 get UNSUPPORTED_VERSION where the answer's shape is known; the connection goes on."""

from __future__ import annotations

from typing import Any

from pybroker import errors
from pybroker.protocol import messages as m
from pybroker.protocol.apis import KNOWN, SERVED
from tests.rows import with_each
from tests.server.live import Live, Wire

LISTED, FETCHED = m.ListOffsetsRequest.Topics, m.OffsetFetchRequest.Topics
OLD: list[tuple[str, int, dict[str, Any]]] = [
    ("CreateTopics", 0, {"topics": [m.CreateTopicsRequest.Topics(name="t", num_partitions=1, replication_factor=1)]}),
    ("CreateTopics", 1, {"topics": [m.CreateTopicsRequest.Topics(name="t", num_partitions=1, replication_factor=1)]}),
    ("DeleteTopics", 0, {"topic_names": ["there"], "timeout_ms": 1000}),
    ("DescribeConfigs", 0, {"resources": [m.DescribeConfigsRequest.Resources(resource_type=2, resource_name="there")]}),
    ("OffsetFetch", 0, {"group_id": "g", "topics": [FETCHED(name="there", partition_indexes=[0])]}),
    ("ListOffsets", 0, {"replica_id": -1, "topics": [
        LISTED(name="there", partitions=[LISTED.Partitions(partition_index=0, timestamp=-1)])]}),
]  # fmt: skip


def codes(answer: Any) -> set[int]:
    """The error codes in an answer, at any depth."""
    found: set[int] = set()
    for field in answer.STRUCT.untagged(0):
        value = getattr(answer, field.name, None)
        if field.name == "error_code":
            found.add(value)
        elif isinstance(value, list):
            found.update(*(codes(each) for each in value if hasattr(each, "STRUCT")))
    return found


@with_each(("name", "version", "fields"), OLD, ids=[f"{name} v{version}" for name, version, _ in OLD])
async def test_an_old_version_is_refused_in_words(
    live: Live, wire: Wire, name: str, version: int, fields: dict[str, Any]
) -> None:
    """The request has no effect, and ApiVersions does not list its version."""
    await wire.create("there")
    answer = await wire.call(name, version, **fields)
    assert codes(answer) == {errors.UNSUPPORTED_VERSION}
    assert (await wire.call("ApiVersions", 2)).error_code == 0, "on the same connection"
    listed = {each.api_key: each.min_version for each in (await wire.call("ApiVersions", 2)).api_keys}
    [api] = [api for api in KNOWN.values() if api.name == name]
    assert SERVED[api.key].min_version == listed[api.key] > version
    assert live.broker is not None and live.broker.topic_count == 1
