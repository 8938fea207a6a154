"""Several listeners: each has its own socket, and its clients get the addresses advertised for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import pybroker.testing
from pybroker import errors
from pybroker.client.admin import Admin, Alteration, ConfigOperation, ConfigResource, ResourceType
from pybroker.metadata import nodes
from pybroker.model import HostPort
from pybroker.protocol import messages as m
from pybroker.security.login import Account, Login
from pybroker.server.network import bridge
from pybroker.server.network.listener import Listener
from pybroker.server.network.relay import Relay
from tests.harness import eventually, free_port, until
from tests.server.live import Live, Wire, batch, fetch_fields, values
from tests.server.test_alter_configs import BROKER, DELETE, SET, alter
from tests.server.test_sasl import give, log_in
from tests.server.test_tls import AUTHORITY, context

SETS = [
    "listeners=INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,HIDDEN://127.0.0.1:0",
    "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,HIDDEN:PLAINTEXT",
    "advertised.listeners=OUTSIDE://outside.example:7777,INSIDE://inside.example:0",
    "inter.broker.listener.name=INSIDE",
]


@pytest.fixture
async def several(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Live]:
    """A broker with two advertised listeners, and one that is not advertised."""
    made = Live(tmp_path / "data", SETS, native_plane=getattr(request, "param", "native") == "native")
    await made.start()
    yield made
    await made.stop()


def told(live: Live, listener: str) -> list[tuple[str, int]]:
    assert live.broker is not None
    inside = ("inside.example", live.broker.addresses["INSIDE"].port)
    return {"INSIDE": [inside], "OUTSIDE": [("outside.example", 7777)], "HIDDEN": []}[listener]


@pytest.mark.parametrize("listener", ["INSIDE", "OUTSIDE", "HIDDEN"])
async def test_an_answer_names_addresses_of_its_listener(several: Live, listener: str) -> None:
    """Metadata, DescribeCluster and FindCoordinator return the listener's addresses, or no leader if it has none."""
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

    async def coordinator_is(code: int, at: list[tuple[str, int]]) -> bool:
        [found] = (await wire.call("FindCoordinator", 4, coordinator_keys=["g"])).coordinators
        return (found.error_code, [(found.host, found.port)]) == (code, at)

    if expected:  # the first request creates the offsets topic, and may be answered before it is there
        await eventually("the coordinator has the address", lambda: coordinator_is(errors.NONE, expected))
    else:
        assert await coordinator_is(errors.COORDINATOR_NOT_AVAILABLE, [("", -1)])


async def test_records_go_in_by_one_listener_and_out_by_all(several: Live) -> None:
    wires = [await several.connect(name) for name in ("INSIDE", "OUTSIDE", "HIDDEN")]
    await wires[0].create("t")
    for number, wire in enumerate(wires):
        assert (await wire.produce("t", batch(b"%d" % number))).error_code == 0
    for wire in wires:
        assert values((await wire.fetch("t", 0)).records) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("several", ["native", "python"], indirect=True)
@pytest.mark.parametrize("listener", ["INSIDE", "OUTSIDE", "HIDDEN"])
async def test_a_fetch_that_comes_late_is_shown_the_leader_of_its_listener(several: Live, listener: str) -> None:
    """A client with an old leader epoch gets the current leader and its address at this listener (KIP-951)."""
    created = await (await several.connect(listener)).create("t")
    await several.restart()  # starts another leader epoch
    wire = await several.connect(listener)
    fields = fetch_fields(created.topic_id, 0, current_leader_epoch=0)
    answer = await wire.call("Fetch", 16, **fields)
    partition = answer.responses[0].partitions[0]
    assert (partition.error_code, partition.current_leader.leader_id) == (errors.FENCED_LEADER_EPOCH, 1001)
    assert [(n.host, n.port) for n in answer.node_endpoints] == told(several, listener)


async def test_the_registration_has_every_endpoint_that_is_advertised(several: Live) -> None:
    """The registration is in Kafka's format, in the order of advertised.listeners; host and port are the first's."""
    broker = several.broker
    assert broker is not None and broker.session is not None
    data, _ = await broker.session.get(nodes.broker(broker.broker_id))
    found = json.loads(data)
    port = broker.addresses["INSIDE"].port
    assert found["endpoints"] == ["OUTSIDE://outside.example:7777", f"INSIDE://inside.example:{port}"]
    assert found["listener_security_protocol_map"] == {"OUTSIDE": "PLAINTEXT", "INSIDE": "PLAINTEXT"}
    assert (found["version"], found["host"], found["port"]) == (5, "outside.example", 7777)
    assert nodes.load_broker(1001, data) == broker.metadata.image.brokers[1001]


async def test_a_listener_that_is_not_advertised_asks_for_logins_all_the_same(tmp_path: Path) -> None:
    """A listener's security protocol comes from the map, even if it is not advertised; the same holds for TLS."""
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
    """advertised.listeners is altered at run time; the next answer and the registration have the new address."""
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


# -- listeners that come and go ----------------------------------------------------------------------------------------

THREE, MAP, ADVERTISED, INTER_BROKER = (text.partition("=")[2] for text in SETS)
ME = "1001"


async def altered(wire: Wire, *, validate_only: bool = False, **settings: str | None) -> Any:
    """Alter settings of this broker, None deletes one; return the answer."""
    changes = [(n.replace("_", "."), DELETE if v is None else SET, v) for n, v in settings.items()]
    return await alter(wire, BROKER, ME, *changes, validate_only=validate_only)


def at(live: Live, listener: str, host: str = "127.0.0.1") -> str:
    assert live.broker is not None
    return f"{listener}://{host}:{live.broker.addresses[listener].port}"


async def registered(live: Live) -> dict[str, Any]:
    broker = live.broker
    assert broker is not None and broker.session is not None
    found: dict[str, Any] = json.loads((await broker.session.get(nodes.broker(broker.broker_id)))[0])
    return found


async def test_a_listener_comes_and_goes_while_others_serve(several: Live, tmp_path: Path) -> None:
    """One alteration adds a listener with login and TLS. Other listeners' clients stay connected; a removed listener's
    connections end and its port is free. A restart has the last state."""
    inside = await several.connect("INSIDE")
    assert (await inside.create("t")).error_code == 0
    broker = AUTHORITY.sign("localhost")
    (tmp_path / "broker.pem").write_bytes(broker.key + broker.chain)
    own = {
        "listener.name.new.ssl.keystore.type": "PEM", "listener.name.new.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.new.ssl.keystore.location": str(tmp_path / "broker.pem"),
    }  # fmt: skip
    await give(inside, "ann", "secret")
    answer = await altered(
        inside, listeners=f"{THREE},NEW://127.0.0.1:0", listener_security_protocol_map=f"{MAP},NEW:SASL_SSL",
        advertised_listeners=f"{ADVERTISED},NEW://new.example:0", **own,
    )  # fmt: skip
    assert answer.error_code == 0, answer.error_message
    ann = await several.connect("NEW", context())
    await log_in(ann, Account("SCRAM-SHA-256", "ann", "secret"))
    assert (await ann.produce("t", batch(b"by ann"))).error_code == 0
    metadata = await ann.call("Metadata", 12, topics=[])
    assert [(b.host, b.port) for b in metadata.brokers] == [("new.example", int(at(several, "NEW").split(":")[-1]))]
    assert (await registered(several))["listener_security_protocol_map"]["NEW"] == "SASL_SSL"
    stranger = await several.connect("NEW", context())
    stranger.send("Metadata", 9, topics=None)
    assert await stranger.closed()

    port = at(several, "NEW")
    hidden = await several.connect("HIDDEN")
    fewer = {"listeners": THREE, "advertised_listeners": ADVERTISED}
    assert (await altered(inside, **fewer)).error_code == 0
    assert await ann.closed() and "NEW" not in (await registered(several))["listener_security_protocol_map"]
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(port.split(":")[-1])))
    for wire in (inside, hidden):
        assert values((await wire.fetch("t", 0)).records) == [b"by ann"]

    assert (await altered(inside, listeners=f"{THREE},NEW://127.0.0.1:0", advertised_listeners=None)).error_code == 0
    await log_in(await several.connect("NEW", context()), Account("SCRAM-SHA-256", "ann", "secret"))
    await several.restart()
    await log_in(await several.connect("NEW", context()), Account("SCRAM-SHA-256", "ann", "secret"))


async def test_who_logs_in_while_a_listener_goes_is_closed(several: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that ends just after the removal is closed. If the next listener of that name is prepared while the first
    one still closes, clients can log in to the next."""
    assert several.broker is not None and several.broker._sockets is not None and several.broker.replicas is not None
    inside, sockets, replicas = await several.connect("INSIDE"), several.broker._sockets, several.broker.replicas
    await give(inside, "ann", "secret")
    mapped = {"listener_security_protocol_map": f"{MAP},NEW:SASL_PLAINTEXT",
              "listener.name.new.sasl.enabled.mechanisms": "SCRAM-SHA-256"}  # fmt: skip
    more, account = f"{THREE},NEW://127.0.0.1:0", Account("SCRAM-SHA-256", "ann", "secret")
    assert (await altered(inside, listeners=more, **mapped)).error_code == 0
    ann, steps = await several.connect("NEW"), Login(account, "the broker")
    steps.start()
    first = steps.step(await ann.call("SaslHandshake", 1, mechanism="SCRAM-SHA-256"))
    last = steps.step(await ann.call("SaslAuthenticate", 2, auth_bytes=first.auth_bytes))
    follow, close, configure, farewell = sockets.follow, Listener.close, replicas.configure, asyncio.Event()

    def follow_next() -> None:
        """Send the login's last step, then apply the change in the next turn of the event loop, before it is read."""
        ann.send("SaslAuthenticate", 2, auth_bytes=last.auth_bytes)
        asyncio.get_running_loop().call_soon(follow)

    async def close_later(self: Listener, *how: Any) -> None:
        await farewell.wait()
        await close(self, *how)

    async def configure_later(topics: Any) -> None:
        """Let the old listener finish closing between the preparation and the opening of the next one."""
        farewell.set()
        await asyncio.gather(*sockets._leaving)
        await configure(topics)

    monkeypatch.setattr(Listener, "close", close_later)
    with monkeypatch.context() as patched:
        patched.setattr(sockets, "follow", follow_next)
        assert (await altered(inside, listeners=THREE)).error_code == 0
    assert await ann.closed()
    assert (await altered(inside, listeners=more)).error_code == 0
    with monkeypatch.context() as patched:
        patched.setattr(Listener, "close", close_later)
        assert (await altered(inside, listeners=THREE)).error_code == 0
        patched.setattr(replicas, "configure", configure_later)
        assert (await altered(inside, listeners=more)).error_code == 0
    await log_in(await several.connect("NEW"), account)


async def test_a_listener_takes_the_port_of_one_that_goes(several: Live) -> None:
    """A new listener can take the port of a removed one, and an alteration sent through the removed one is answered."""
    assert several.broker is not None
    hidden = await several.connect("HIDDEN")
    first, second, _ = THREE.split(",")
    assert (await altered(hidden, listeners=f"{first},{second},{at(several, 'HIDDEN')}")).error_code == 40
    port = several.broker.addresses["HIDDEN"].port
    again = await several.connect("INSIDE")
    assert (await altered(again, listeners=f"{first},{second}")).error_code == 0
    assert await hidden.closed()
    assert (await altered(again, listeners=f"{first},{second},HIDDEN://127.0.0.1:{port}")).error_code == 0
    hidden = await several.connect("HIDDEN")
    more = f"{first},{second},NEXT://127.0.0.1:{port}"
    taken = await altered(hidden, listeners=more, listener_security_protocol_map=f"{MAP},NEXT:PLAINTEXT")
    assert taken.error_code == 0, taken.error_message
    assert await hidden.closed()
    wire = await several.connect("NEXT")
    assert (await wire.create("t")).error_code == 0 and several.broker.addresses["NEXT"].port == port
    for name, host in (("OPEN", ""), ("LOCAL", "localhost"), ("AGAIN", "127.0.0.1")):
        told = {"listeners": f"{first},{second},{name}://{host}:{port}",
                "listener_security_protocol_map": f"{MAP},{name}:PLAINTEXT"}  # fmt: skip
        taken = await altered(again, **told)
        assert taken.error_code == 0, taken.error_message
        assert (await (await several.connect(name)).call("ApiVersions", 0)).error_code == 0


async def test_names_of_hosts_are_looked_up_beside_the_event_loop(
    several: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are served while a slow name lookup runs, for an alteration and for a start. An unknown host is
    refused."""
    found, asked, answer = socket.getaddrinfo, threading.Event(), threading.Event()

    def look_up(host: Any, *args: Any, **how: Any) -> Any:
        if host == "slow.example":
            asked.set()
            assert answer.wait(30)
            host = "127.0.0.1"
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found(host, *args, **how)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    inside, asks = await several.connect("INSIDE"), await several.connect("INSIDE")
    mapped = {"listener_security_protocol_map": f"{MAP},NEW:PLAINTEXT"}
    unknown = await altered(asks, listeners=f"{THREE},NEW://none.example:0", **mapped)
    assert unknown.error_message == "listeners: could not listen on none.example:0: the name is not known"
    new = asyncio.create_task(altered(asks, listeners=f"{THREE},NEW://slow.example:0", **mapped))
    assert await asyncio.to_thread(asked.wait, 30)
    assert (await inside.create("t")).error_code == 0 and not new.done()
    answer.set()
    assert (await new).error_code == 0
    assert (await (await several.connect("NEW")).produce("t", batch(b"x"))).error_code == 0

    await several.stop()
    asked.clear()
    answer.clear()
    start = asyncio.create_task(several.start())
    assert await asyncio.to_thread(asked.wait, 30)
    answer.set()
    assert "NEW" in (await start).addresses


async def test_more_listeners_than_the_plane_tells_apart(
    several: Live, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop serves the listeners beyond the plane's limit, and the log says so."""
    assert several.broker is not None and several.broker._sockets is not None
    monkeypatch.setattr(bridge, "LISTENERS_MAX", 4)
    inside = await several.connect("INSIDE")
    assert (await inside.create("t")).error_code == 0
    for number in range(3):
        more = {"listeners": f"{THREE},NEW://127.0.0.1:0", "listener_security_protocol_map": f"{MAP},NEW:PLAINTEXT"}
        assert (await altered(inside, **more)).error_code == 0
        wire = await several.connect("NEW")
        assert (await wire.produce("t", batch(b"x"))).base_offset == number
        [plane] = several.broker.replicas.plane_stats()[:1]  # type: ignore[union-attr]
        assert plane["connections"] == 2
        peers = [peer for each in several.broker._sockets._listeners for peer in each._connections]
        assert sum(isinstance(peer, Relay) for peer in peers) == (number > 0)
        assert ("listener is slow listener=NEW" in caplog.text) == (number > 0)
        assert (await altered(inside, listeners=None)).error_code == 0
        assert await wire.closed()


async def test_what_cannot_become_of_listeners(several: Live) -> None:
    """Each invalid change is refused with one sentence, by the rules of Kafka's DynamicListenerConfig; nothing changes
    and nothing is bound. With validate_only the answer is the same."""
    wire = await several.connect("INSIDE")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        two = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
        mapped = {"listener_security_protocol_map": f"{MAP},NEW:PLAINTEXT,SECURE:SSL"}
        asked: list[tuple[dict[str, str | None], str]] = [
            ({"listeners": THREE.replace("INSIDE://127.0.0.1:0,", "")}, "Found OUTSIDE,INSIDE"),
            ({"listeners": "OUTSIDE://127.0.0.1:0", "advertised_listeners": "OUTSIDE://outside.example:1"},
             "inter.broker.listener.name = 'INSIDE'"),
            ({"advertised_listeners": "OUTSIDE://outside.example:1"}, "must be a listener name defined in advertised"),
            ({"listeners": f"{THREE},NEW://127.0.0.1:0"}, "No security protocol defined for listener NEW"),
            ({"listeners": THREE.replace("HIDDEN://127.0.0.1:0", "HIDDEN://127.0.0.1:1")},
             "give the listener at HIDDEN://127.0.0.1:1 another name"),
            ({"listener_security_protocol_map": MAP.replace("HIDDEN:PLAINTEXT", "HIDDEN:SSL")},
             "Security protocol cannot be updated for existing listener HIDDEN"),
            ({"listeners": f"{THREE},NEW://127.0.0.1:0,SECURE://127.0.0.1:0", **mapped},
             "the listener SECURE has TLS, but no certificate"),
            ({"listeners": f"{THREE},NEW://127.0.0.1:{port}", **mapped},
             f"listeners: could not listen on 127.0.0.1:{port}: the port is in use"),
            ({"listeners": f"{THREE},NEW://192.0.2.1:0", **mapped}, "192.0.2.1:0: cannot assign requested address"),
            ({"listener.name.hidden.ssl.principal.mapping.rules": "DEFAULT"},
             "Configs cannot be updated dynamically for existing listener HIDDEN, restart broker or create a new "
             "listener for update: listener.name.hidden.ssl.principal.mapping.rules"),
            ({"listeners": two, "listener_security_protocol_map": "nonsense"}, "listener.security.protocol.map"),
        ]  # fmt: skip
        before = several.broker and several.broker.addresses
        for settings, said in asked:
            answer, dry = await altered(wire, **settings), await altered(wire, validate_only=True, **settings)
            assert answer.error_code == errors.INVALID_CONFIG and said in answer.error_message, answer.error_message
            assert (dry.error_code, dry.error_message) == (answer.error_code, answer.error_message)
            assert "\n" not in answer.error_message and (several.broker and several.broker.addresses) == before
        refused = await alter(wire, BROKER, "", ("listeners", SET, two))
        assert refused.error_code == errors.INVALID_REQUEST and "each broker's own" in refused.error_message
    new = {"listeners": f"{THREE},NEW://127.0.0.1:{port}", "listener.security.protocol.map": f"{MAP},NEW:PLAINTEXT"}
    for dry in (True, True, False):
        assert (await altered(wire, validate_only=dry, **new)).error_code == 0
        assert (several.broker and several.broker.addresses == before) == dry


def test_brokers_of_a_cluster_show_each_others_listeners() -> None:
    """Brokers show listeners that others add and remove, while followers go on fetching."""
    with pybroker.testing.cluster(2) as cluster, Admin(cluster.bootstrap_servers) as admin:
        topic = cluster.create_topic("t")
        late = {node.id: free_port() for node in admin.describe_cluster().nodes}
        first = {node.id: f"PLAINTEXT://{node.host}:{node.port}" for node in admin.describe_cluster().nodes}
        mapped = Alteration("listener.security.protocol.map", ConfigOperation.SET, "PLAINTEXT:PLAINTEXT,LATE:PLAINTEXT")

        def shown() -> dict[int, int]:
            with Admin(f"127.0.0.1:{late[1]}") as asked:
                return {node.id: node.port for node in asked.describe_cluster().nodes}

        for number, port in late.items():
            listeners = Alteration("listeners", ConfigOperation.SET, f"{first[number]},LATE://127.0.0.1:{port}")
            admin.alter_configs(ConfigResource(ResourceType.BROKER, str(number)), [listeners, mapped])
        until("both are seen", lambda: shown() == late)
        fewer = [Alteration("listeners", ConfigOperation.DELETE)]
        admin.alter_configs(ConfigResource(ResourceType.BROKER, "2"), fewer)
        until("one is not seen any more", lambda: shown() == {1: late[1]})
        cluster.produce(topic, "x")
        cluster.wait_in_sync(topic)
        assert [record.value for record in cluster.records(topic)] == [b"x"]


async def test_connections_of_all_listeners_count_together(several: Live) -> None:
    """max.connections.per.ip counts over all listeners: an address at its limit is refused by each of them."""
    await several.restart("max.connections.per.ip=2")
    first, second = await several.connect("INSIDE"), await several.connect("OUTSIDE")
    for wire in (first, second):
        assert (await wire.call("ApiVersions", 0)).error_code == 0
    assert await (await several.connect("HIDDEN")).closed()
    first.writer.close()
    await first.writer.wait_closed()
    async with asyncio.timeout(5):
        while True:  # until the broker has seen the closed connection
            again = await several.connect("HIDDEN")
            again.send("ApiVersions", 0)
            if await again.reader.read(4):
                break


async def test_a_listener_that_cannot_be_bound_ends_the_start(several: Live, tmp_path: Path) -> None:
    """The sockets already bound are closed, and the next start can bind them."""
    assert several.broker is not None
    taken = several.broker.addresses["OUTSIDE"]
    assert taken == HostPort("127.0.0.1", taken.port)
    other = Live(tmp_path / "other", [SETS[0].replace("OUTSIDE://127.0.0.1:0", f"OUTSIDE://{taken}"), *SETS[1:]])
    with pytest.raises(Exception, match=f"could not listen on {taken}: the port is in use"):
        await other.start()
    other.sets[0] = SETS[0]
    await other.start()
    await other.stop()


async def test_a_listener_of_an_earlier_life_that_cannot_be_had_is_left_out(
    several: Live, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored listener whose port is taken or whose certificate file is gone is left out, as an operator needs a
    running broker to remove it. Other settings can change, and the next change opens it if possible, also at another
    address. The brokers' listener stays at its address of the start."""
    inside_port, new_port, moved_port = free_port(), free_port(), free_port()
    inside = f"INSIDE://127.0.0.1:{inside_port}"
    await several.restart(f"listeners={inside}", "advertised.listeners=INSIDE://i.example:0")
    wire = await several.connect("INSIDE")
    await wire.create("t")
    broker = AUTHORITY.sign("localhost")
    (tmp_path / "broker.pem").write_bytes(broker.key + broker.chain)
    answer = await altered(
        wire, listeners=f"{inside},NEW://127.0.0.1:{new_port},SAFE://127.0.0.1:0,MOVED://127.0.0.1:{moved_port}",
        listener_security_protocol_map=f"{MAP},NEW:PLAINTEXT,SAFE:SSL,MOVED:PLAINTEXT",
        advertised_listeners="INSIDE://i.example:0",
        **{"listener.name.safe.ssl.keystore.type": "PEM",
           "listener.name.safe.ssl.keystore.location": str(tmp_path / "broker.pem")},
    )  # fmt: skip
    assert answer.error_code == 0, answer.error_message
    await several.stop()
    (tmp_path / "broker.pem").unlink()
    with contextlib.ExitStack() as others:
        for port in (inside_port, new_port, moved_port):
            others.enter_context(socket.create_server(("127.0.0.1", port)))
        started = await several.start()
        assert set(started.addresses) == {"INSIDE"} and started.addresses["INSIDE"].port != inside_port
        told = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        for listener, why in (("INSIDE", "the port is in use"), ("NEW", "the port is in use"), ("SAFE", "broker.pem")):
            [line] = [line for line in told if f"listener={listener} " in line]
            assert why in line and "stored" in line and "--delete listeners" in line, line
        wire = await several.connect("INSIDE")
        assert (await wire.produce("t", batch(b"x"))).error_code == 0
        assert (await altered(wire, background_threads="3")).error_code == 0
        assert set(started.addresses) == {"INSIDE"}
        moved = f"{inside},NEW://127.0.0.1:{new_port},SAFE://127.0.0.1:0,MOVED://127.0.0.1"
        taken = others.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        assert "the port is in use" in (await altered(wire, listeners=f"{moved}:{taken}")).error_message
        assert (await altered(wire, listeners=f"{moved}:0")).error_code == 0
        assert set(started.addresses) == {"INSIDE", "MOVED"}
        assert (await (await several.connect("MOVED")).produce("t", batch(b"x"))).error_code == 0
    assert (await altered(wire, background_threads="4")).error_code == 0
    assert set(started.addresses) == {"INSIDE", "NEW", "MOVED"}
    assert (await wire.produce("t", batch(b"x"))).error_code == 0
    assert (await (await several.connect("NEW")).produce("t", batch(b"x"))).error_code == 0
    assert (await altered(wire, listeners=None, advertised_listeners=None)).error_code == 0
    assert set(started.addresses) == {"INSIDE", "OUTSIDE", "HIDDEN"}
