"""The broker's description of itself: API versions, cluster and configs."""

from __future__ import annotations

import struct
from typing import Any

from pybroker import errors
from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.apis import API_VERSIONS, APIS
from tests.rows import with_each
from tests.server.live import Live, Wire


@with_each("version", range(5))
async def test_the_versions_that_are_served(wire: Wire, version: int) -> None:
    who = {"client_software_name": "a-test", "client_software_version": "1.0"}
    response = await wire.call("ApiVersions", version, **who)
    told = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
    assert response.error_code == 0
    assert told == {api.key: (api.min_version, api.max_version) for api in APIS.values()}


async def test_a_client_from_the_future_is_answered_in_the_oldest_words(wire: Wire) -> None:
    """An unknown version gets UNSUPPORTED_VERSION with the range of ApiVersions; the connection goes on (KIP-511)."""
    wire.send_frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1) + b"\0whatever")
    number, response = codec.decode_response(API_VERSIONS, 99, await wire.frame())
    assert (number, response.error_code) == (7, errors.UNSUPPORTED_VERSION)
    assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 4)]
    assert (await wire.call("ApiVersions", 0)).error_code == 0


@with_each("name", ["", "with space", "-dash", "ends."])
async def test_a_program_must_be_named_properly(wire: Wire, name: str) -> None:
    response = await wire.call("ApiVersions", 3, client_software_name=name, client_software_version="1")
    assert response.error_code == errors.INVALID_REQUEST


async def test_the_cluster(live: Live, wire: Wire) -> None:
    assert live.broker is not None
    for version in (0, 1):
        response = await wire.call("DescribeCluster", version, include_cluster_authorized_operations=True)
        assert response.cluster_id == live.broker.cluster_id
        assert response.controller_id == live.broker.broker_id == 1001
        assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [(1001, "127.0.0.1", live.broker.port)]
        assert response.cluster_authorized_operations == 8096  # Kafka's answer without an authorizer
    for kind, code in ((2, errors.MISMATCHED_ENDPOINT_TYPE), (9, errors.UNSUPPORTED_ENDPOINT_TYPE)):
        assert (await wire.call("DescribeCluster", 1, endpoint_type=kind)).error_code == code


async def test_clients_are_sent_where_the_broker_is_advertised(live: Live) -> None:
    await live.restart("advertised.listeners=PLAINTEXT://broker.example:19092", "broker.rack=r1")
    wire = await live.connect()
    [node] = (await wire.call("Metadata", 12, topics=[])).brokers
    assert (node.node_id, node.host, node.port, node.rack) == (1001, "broker.example", 19092, "r1")


async def configs(wire: Wire, kind: int, name: str, **fields: Any) -> Any:
    keys = fields.pop("keys", None)
    resource = m.DescribeConfigsRequest.Resources(resource_type=kind, resource_name=name, configuration_keys=keys)
    return (await wire.call("DescribeConfigs", 4, resources=[resource], **fields)).results[0]


async def test_the_configs_of_a_topic(live: Live) -> None:
    """A topic's own value comes before the broker's, and the broker's before the default; each has its source."""
    await live.restart("log.retention.hours=2")
    wire = await live.connect()
    await wire.create("own", retention_ms="5000")
    await wire.create("plain")
    asked = {"keys": ["retention.ms"], "include_synonyms": True, "include_documentation": True}
    [own] = (await configs(wire, 2, "own", **asked)).configs
    assert (own.value, own.config_source, own.read_only) == ("5000", 1, False)
    assert (own.synonyms[0].name, own.synonyms[0].value) == ("retention.ms", "5000")
    assert ("log.retention.hours", "2") in [(s.name, s.value) for s in own.synonyms]
    assert own.documentation
    [plain] = (await configs(wire, 2, "plain", keys=["retention.ms"])).configs
    assert (plain.value, plain.config_source, list(plain.synonyms)) == ("7200000", 4, [])
    assert len((await configs(wire, 2, "plain")).configs) > 20


async def test_the_configs_of_the_broker(wire: Wire) -> None:
    result = await configs(wire, 4, "1001", keys=["num.partitions", "log.dirs"])
    assert result.error_code == 0
    assert {c.name: c.config_source for c in result.configs} == {"num.partitions": 5, "log.dirs": 4}
    assert (await configs(wire, 4, "")).error_code == 0


@with_each(
    ("kind", "name", "code"), [(2, "unknown", 3), (2, "a/b", 17), (4, "7", 42), (4, "x", 42), (77, "x", 42)]
)
async def test_configs_of_what_is_not_there(wire: Wire, kind: int, name: str, code: int) -> None:
    result = await configs(wire, kind, name)
    assert (result.error_code, result.resource_name) == (code, name)
    assert result.error_message
