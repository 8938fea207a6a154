"""DescribeClientQuotas and AlterClientQuotas of a whole broker: what is stored, and what is refused with which code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pybroker.metadata import nodes
from pybroker.protocol import messages as m
from pybroker.security.quotas import CONNECTION, CONSUMER, MUTATION, PRODUCER, REQUEST
from tests.rows import with_each
from tests.server.live import Live, Wire

A = m.AlterClientQuotasRequest.Entries
D = m.DescribeClientQuotasRequest.Components
Components = Mapping[str, str | None]
EXACT, DEFAULT, ANY = range(3)


def entry(of: Components, **values: float | None) -> Any:
    """Build an entry that sets these quotas of an entity; None removes one."""
    return A(
        entity=[A.Entity(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in of.items()],
        ops=[A.Ops(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


async def alter(wire: Wire, *entries: Any, version: int = 1, **how: Any) -> list[int]:
    answer = await wire.call("AlterClientQuotas", version, entries=list(entries), **how)
    for told, asked in zip(answer.entries, entries, strict=True):
        assert [(e.entity_type, e.entity_name) for e in told.entity] == [
            (e.entity_type, e.entity_name) for e in asked.entity
        ]
        assert (told.error_message is None) == (told.error_code == 0)
    return [told.error_code for told in answer.entries]


async def described(
    wire: Wire, *wanted: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    components = [D(entity_type=kind, match_type=how, match=name) for kind, how, name in wanted]
    answer = await wire.call("DescribeClientQuotas", version, components=components, strict=strict)
    assert answer.error_code == 0, answer.error_message
    return {
        tuple((e.entity_type, e.entity_name) for e in found.entity): {v.key: v.value for v in found.values}
        for found in answer.entries
    }


async def node(live: Live, path: str) -> Any:
    assert live.broker is not None and live.broker.session is not None
    data, _ = await live.broker.session.get(path)
    return json.loads(data) if data else None


HOSTILE = ["a/b", "<default>", "ä ö~*", "%41", "\u2603" * 100, "x" * 1024, "nul\0", "..."]


@pytest.mark.parametrize("version", [0, 1])
async def test_quotas_are_kept_as_kafka_keeps_them(live: Live, version: int) -> None:
    wire = await live.connect()
    done = await alter(
        wire,
        entry({"user": "alice"}, **{PRODUCER: 1e9, REQUEST: 12.5}),
        entry({"user": "bob", "client_id": "c1"}, **{CONSUMER: 5.0}),
        entry({"user": None, "client_id": None}, **{CONSUMER: 6.0}),
        entry({"client_id": "c 1"}, **{MUTATION: 2.0}),
        entry({"ip": "1.2.3.4"}, **{CONNECTION: 10.0}),
        entry({"ip": None}, **{CONNECTION: 100.0}),
        version=version,
    )
    assert done == [0] * 6
    assert await node(live, "/config/users/alice") == {
        "version": 1, "config": {PRODUCER: "1000000000", REQUEST: "12.5"},
    }  # fmt: skip
    assert await node(live, "/config/users/bob") is None, "bob has quotas with a client id only"
    assert await node(live, "/config/users/bob/clients/c1") == {"version": 1, "config": {CONSUMER: "5"}}
    assert await node(live, "/config/users/<default>/clients/<default>") == {"version": 1, "config": {CONSUMER: "6"}}
    assert await node(live, "/config/clients/c%201") == {"version": 1, "config": {MUTATION: "2.0"}}
    assert await node(live, "/config/ips/1.2.3.4") == {"version": 1, "config": {CONNECTION: "10"}}
    assert live.broker is not None and live.broker.session is not None
    notices, _ = await live.broker.session.children("/config/changes")
    told = [await node(live, f"/config/changes/{name}") for name in sorted(notices)]
    assert told == [
        {"version": 2, "entity_path": path}
        for path in ("users/alice", "users/bob/clients/c1", "users/<default>/clients/<default>", "clients/c%201",
                     "ips/1.2.3.4", "ips/<default>")
    ]  # fmt: skip
    everything = await described(wire, version=version)
    assert everything[("user", "alice"),] == {PRODUCER: 1e9, REQUEST: 12.5}
    await live.restart()
    wire = await live.connect()
    assert await described(wire, version=version) == everything, "quotas survive a restart"
    assert await alter(wire, entry({"user": "alice"}, **{PRODUCER: None, REQUEST: None}), version=version) == [0]
    assert await node(live, "/config/users/alice") == {"version": 1, "config": {}}
    del everything[("user", "alice"),]
    assert await described(wire, version=version) == everything


async def test_names_are_anything(live: Live) -> None:
    wire = await live.connect()
    for name in HOSTILE:
        entries = [entry({"user": name}, **{PRODUCER: 1.0}), entry({"client_id": name}, **{PRODUCER: 2.0})]
        assert await alter(wire, *entries, entry({"user": name, "client_id": name}, **{PRODUCER: 3.0})) == [0] * 3
    await live.restart()
    wire = await live.connect()
    for name in HOSTILE:
        assert await described(wire, ("user", EXACT, name), strict=True) == {(("user", name),): {PRODUCER: 1.0}}
        pair = ("user", EXACT, name), ("client-id", EXACT, name)
        assert await described(wire, *pair) == {(("user", name), ("client-id", name)): {PRODUCER: 3.0}}
    assert len(await described(wire)) == 3 * len(HOSTILE)
    assert await described(wire, ("user", DEFAULT, None)) == {}


REFUSED = {
    "an unknown quota": entry({"user": "u"}, speed=1.0),
    "an unknown quota that is removed": entry({"user": "u"}, **{"SCRAM-SHA-256": None}),
    "a quota of addresses": entry({"user": "u"}, **{CONNECTION: 1.0}),
    "a quota of clients": entry({"ip": "1.2.3.4"}, **{PRODUCER: 1.0}),
    "a fraction": entry({"user": "u"}, **{PRODUCER: 1.5}),
    "less than nothing": entry({"user": "u"}, **{PRODUCER: -1.0}),
    "no number": entry({"user": "u"}, **{PRODUCER: float("nan")}),
    "without end": entry({"user": "u"}, **{REQUEST: float("inf")}),
    "an ip with a user": entry({"user": "u", "ip": "1.2.3.4"}, **{CONNECTION: 1.0}),
    "a host": entry({"ip": "localhost"}, **{CONNECTION: 1.0}),
    "an unknown type": entry({"group": "g"}, **{PRODUCER: 1.0}),
    "an empty name": entry({"user": ""}, **{PRODUCER: 1.0}),
    "an empty entity": entry({}, **{PRODUCER: 1.0}),
    "no name of a node": entry({"user": ".."}, **{PRODUCER: 1.0}),
    "a name that is too long": entry({"client_id": "x" * 1025}, **{PRODUCER: 1.0}),
}


async def test_what_is_refused_changes_nothing_and_the_others_are_done(live: Live) -> None:
    wire = await live.connect()
    good = [entry({"user": "first"}, **{PRODUCER: 1.0}), entry({"user": "last"}, **{PRODUCER: 2.0})]
    assert await alter(wire, good[0], *REFUSED.values(), good[1]) == [0, *[42] * len(REFUSED), 0]
    assert set(await described(wire)) == {(("user", "first"),), (("user", "last"),)}
    assert await alter(wire, entry({"user": "u"}, **{PRODUCER: 1.0}), validate_only=True) == [0]
    assert await alter(wire, REFUSED["a fraction"], validate_only=True) == [42]
    assert len(await described(wire)) == 2
    assert await alter(wire, entry({"user": "nobody"}, **{PRODUCER: None})) == [0], "no error without a quota"
    twice = entry({"user": "u"}, **{PRODUCER: 1.0})
    twice.ops.append(A.Ops(key=PRODUCER, value=0.0))
    assert await alter(wire, twice) == [0]
    assert await described(wire, ("user", EXACT, "u")) == {(("user", "u"),): {PRODUCER: 0.0}}, "the last value counts"


@with_each(
    ("wanted", "code"),
    [
        ([("host", EXACT, "h")], 35), ([("", EXACT, "h")], 42), ([("user", 7, None)], 42),
        ([("user", EXACT, None)], 42), ([("user", DEFAULT, "u")], 42),
        ([("user", ANY, None), ("user", ANY, None)], 42), ([("user", ANY, None), ("ip", ANY, None)], 42),
    ],
)  # fmt: skip
async def test_filters_that_are_refused(live: Live, wanted: list[tuple[str, int, str | None]], code: int) -> None:
    wire = await live.connect()
    components = [D(entity_type=kind, match_type=how, match=name) for kind, how, name in wanted]
    answer = await wire.call("DescribeClientQuotas", 1, components=components)
    assert (answer.error_code, answer.entries) == (code, None) and answer.error_message


async def test_passwords_and_quotas_share_a_node(live: Live) -> None:
    wire = await live.connect()
    kind = m.AlterUserScramCredentialsRequest
    made = kind.Upsertions(name="a~b", mechanism=1, iterations=4096, salt=b"s" * 16, salted_password=b"k" * 32)
    assert (await wire.call("AlterUserScramCredentials", 0, upsertions=[made])).results[0].error_code == 0
    assert await alter(wire, entry({"user": "a~b"}, **{PRODUCER: 7.0})) == [0]
    await live.restart()
    wire = await live.connect()
    held = await node(live, "/config/users/a%7Eb")
    assert set(held["config"]) == {"SCRAM-SHA-256", PRODUCER}, "password and quota share the node"
    users = await wire.call("DescribeUserScramCredentials", 0, users=None)
    assert [user.user for user in users.results] == ["a~b"]
    assert await described(wire) == {(("user", "a~b"),): {PRODUCER: 7.0}}
    assert await alter(wire, entry({"user": "a~b"}, **{PRODUCER: None})) == [0]
    assert set((await node(live, "/config/users/a%7Eb"))["config"]) == {"SCRAM-SHA-256"}
    gone = kind.Deletions(name="a~b", mechanism=1)
    assert (await wire.call("AlterUserScramCredentials", 0, deletions=[gone])).results[0].error_code == 0


async def test_a_node_that_cannot_be_read_stops_no_start(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    wire = await live.connect()
    entries = [entry({"user": "u"}, **{PRODUCER: 7.0}), entry({"client_id": "c"}, **{PRODUCER: 8.0})]
    assert await alter(wire, *entries) == [0, 0]
    assert live.broker is not None and live.broker.session is not None
    session = live.broker.session
    await session.set("/config/users/u", b"{")
    await session.set("/config/clients/c", nodes.dump_config({PRODUCER: "much", CONSUMER: "5"}))
    await live.restart()
    wire = await live.connect()
    assert await described(wire) == {(("client-id", "c"),): {CONSUMER: 5.0}}
    assert "entity settings ignored" in caplog.text and "quota ignored" in caplog.text


async def test_a_name_that_is_no_address_stops_no_start(live: Live) -> None:
    """Host names, which Kafka accepts as `ip` entities, and malformed names in ZooKeeper do not stop a start."""
    assert live.broker is not None and live.broker.session is not None
    for name in ("localhost", "a%3Ab"):
        await live.broker.session.create(f"/config/ips/{name}", nodes.dump_config({CONNECTION: "1"}))
    await live.restart()
    wire = await live.connect()
    assert set(await described(wire)) == {(("ip", "localhost"),), (("ip", "a:b"),)}
    assert await alter(wire, entry({"ip": "::1"}, **{CONNECTION: 5.0})) == [0], "later changes are still applied"
