"""Several listeners: each is a socket of its own, and who comes by it is told the addresses that are meant for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker import errors
from pybroker.controller import nodes
from pybroker.model import HostPort
from pybroker.protocol import messages as m
from tests.server.live import Live, batch, fetch_fields, values
from tests.server.test_tls import AUTHORITY, context

SETS = [
    "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,HIDDEN://127.0.0.1:0",
    "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,HIDDEN:PLAINTEXT",
    "advertised.listeners=OUTSIDE://outside.example:7777,INSIDE://inside.example:0",
    "inter.broker.listener.name=INSIDE",
]


@pytest.fixture(params=["native", "python"])
async def several(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with two listeners that are advertised, and one that is not."""
    made = Live(tmp_path / "data", SETS, native_plane=request.param == "native")
    await made.start()
    yield made
    await made.stop()


def told(live: Live, listener: str) -> list[tuple[str, int]]:
    assert live.broker is not None
    inside = ("inside.example", live.broker.addresses["INSIDE"].port)
    return {"INSIDE": [inside], "OUTSIDE": [("outside.example", 7777)], "HIDDEN": []}[listener]


@pytest.mark.parametrize("listener", ["INSIDE", "OUTSIDE", "HIDDEN"])
async def test_an_answer_names_addresses_of_its_listener(several: Live, listener: str) -> None:
    """Metadata, DescribeCluster and FindCoordinator; by one that is not advertised no leader can be reached."""
    wire = await several.connect(listener)
    assert (await wire.create("t")).error_code == 0
    expected = told(several, listener)
    metadata = await wire.call("Metadata", 12, topics=None)
    assert [(b.host, b.port) for b in metadata.brokers] == expected
    [partition] = metadata.topics[0].partitions
    leader = (1001, errors.NONE) if expected else (-1, errors.LISTENER_NOT_FOUND)
    assert (partition.leader_id, partition.error_code) == leader
    described = await wire.call("DescribeCluster", 1, endpoint_type=1)
    assert [(b.host, b.port) for b in described.brokers] == expected
    [found] = (await wire.call("FindCoordinator", 4, coordinator_keys=["g"])).coordinators
    if expected:
        assert (found.error_code, [(found.host, found.port)]) == (0, expected)
    else:
        assert (found.error_code, found.node_id) == (errors.COORDINATOR_NOT_AVAILABLE, -1)


async def test_records_go_in_by_one_listener_and_out_by_all(several: Live) -> None:
    wires = [await several.connect(name) for name in ("INSIDE", "OUTSIDE", "HIDDEN")]
    await wires[0].create("t")
    for number, wire in enumerate(wires):
        assert (await wire.produce("t", batch(b"%d" % number))).error_code == 0
    for wire in wires:
        assert values((await wire.fetch("t", 0)).records) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("listener", ["INSIDE", "OUTSIDE", "HIDDEN"])
async def test_a_fetch_that_comes_late_is_shown_the_leader_of_its_listener(several: Live, listener: str) -> None:
    """It knows an epoch that is over, and is told who leads now, and where (KIP-951)."""
    created = await (await several.connect(listener)).create("t")
    await several.restart()  # another epoch begins
    wire = await several.connect(listener)
    fields = fetch_fields(created.topic_id, 0, current_leader_epoch=0)
    answer = await wire.call("Fetch", 16, **fields)
    partition = answer.responses[0].partitions[0]
    assert (partition.error_code, partition.current_leader.leader_id) == (errors.FENCED_LEADER_EPOCH, 1001)
    assert [(n.host, n.port) for n in answer.node_endpoints] == told(several, listener)


async def test_the_registration_has_every_endpoint_that_is_advertised(several: Live) -> None:
    """In Kafka's words, in the order of advertised.listeners; host and port are those of the first."""
    broker = several.broker
    assert broker is not None and broker._session is not None
    data, _ = await broker._session.get(nodes.broker(broker.broker_id))
    found = json.loads(data)
    port = broker.addresses["INSIDE"].port
    assert found["endpoints"] == ["OUTSIDE://outside.example:7777", f"INSIDE://inside.example:{port}"]
    assert found["listener_security_protocol_map"] == {"OUTSIDE": "PLAINTEXT", "INSIDE": "PLAINTEXT"}
    assert (found["version"], found["host"], found["port"]) == (5, "outside.example", 7777)
    assert nodes.load_broker(1001, data) == broker.metadata.image.brokers[1001]


async def test_a_listener_that_is_not_advertised_asks_for_logins_all_the_same(tmp_path: Path) -> None:
    """Its protocol is what the map says, whether others are told of it or not; so with TLS."""
    broker = AUTHORITY.sign("localhost")
    (tmp_path / "broker.pem").write_bytes(broker.key + broker.chain)
    secured = SETS[1].replace("HIDDEN:PLAINTEXT", "HIDDEN:SASL_SSL")
    live = Live(tmp_path / "data", [
        SETS[0], secured, *SETS[2:], "ssl.keystore.type=PEM", f"ssl.keystore.location={tmp_path / 'broker.pem'}",
        "sasl.enabled.mechanisms=SCRAM-SHA-256",
    ])  # fmt: skip
    await live.start()
    try:
        in_the_open = await live.connect("HIDDEN")
        in_the_open.send("ApiVersions", 2)
        assert await in_the_open.closed()
        stranger = await live.connect("HIDDEN", context())
        stranger.send("Metadata", 9, topics=None)
        assert await stranger.closed()
    finally:
        await live.stop()


async def test_an_address_changes_for_its_listener_alone(several: Live) -> None:
    """advertised.listeners is altered while the broker runs; the next answer and the registration have it."""
    outside, inside = await several.connect("OUTSIDE"), await several.connect("INSIDE")
    assert several.broker is not None
    kind = m.IncrementalAlterConfigsRequest.Resources
    text = "OUTSIDE://elsewhere.example:7778,INSIDE://inside.example:0"
    change = kind.Configs(name="advertised.listeners", config_operation=0, value=text)
    resource = kind(resource_type=4, resource_name="1001", configs=[change])
    [altered] = (await inside.call("IncrementalAlterConfigs", 1, resources=[resource])).responses
    assert altered.error_code == 0
    for wire, expected in ((outside, [("elsewhere.example", 7778)]), (inside, told(several, "INSIDE"))):
        answer = await wire.call("Metadata", 12, topics=[])
        assert [(b.host, b.port) for b in answer.brokers] == expected


async def test_connections_of_all_listeners_count_together(several: Live) -> None:
    """max.connections.per.ip is the broker's: who is over it by one listener is refused by the others as well."""
    await several.restart("max.connections.per.ip=2")
    first, second = await several.connect("INSIDE"), await several.connect("OUTSIDE")
    for wire in (first, second):
        assert (await wire.call("ApiVersions", 0)).error_code == 0
    assert await (await several.connect("HIDDEN")).closed()
    first.writer.close()
    await first.writer.wait_closed()
    async with asyncio.timeout(5):
        while True:  # until the broker has seen the end
            again = await several.connect("HIDDEN")
            again.send("ApiVersions", 0)
            if await again.reader.read(4):
                break


async def test_a_listener_that_cannot_be_bound_ends_the_start(several: Live, tmp_path: Path) -> None:
    """The others are given back: the next start has them."""
    assert several.broker is not None
    taken = several.broker.addresses["OUTSIDE"]
    assert taken == HostPort("127.0.0.1", taken.port)
    other = Live(tmp_path / "other", [SETS[0].replace("OUTSIDE://127.0.0.1:0", f"OUTSIDE://{taken}"), *SETS[1:]])
    with pytest.raises(Exception, match=f"could not listen on {taken}: the port is in use"):
        await other.start()
    other.sets[0] = SETS[0]
    await other.start()
    await other.stop()
