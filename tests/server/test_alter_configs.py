"""Settings altered while the broker runs: what is refused, what takes effect at once, and what survives a restart."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pybroker import errors
from pybroker.clock import wall_ms
from pybroker.config import Source
from pybroker.decisions.config_changes import AlterOperation, ConfigChange, altered
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.protocol import messages as m
from pybroker.replication.workers import Workers
from tests.harness import eventually
from tests.rows import with_each
from tests.server.live import Live, Wire, batch

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def alter(wire: Wire, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> Any:
    """Send IncrementalAlterConfigs for one resource; return its part of the answer."""
    made = m.IncrementalAlterConfigsRequest.Resources
    configs = [made.Configs(name=n, config_operation=op, value=v) for n, op, v in changes]
    resources = [made(resource_type=kind, resource_name=name, configs=configs)]
    [answer] = (await wire.call("IncrementalAlterConfigs", 1, resources=resources, **more)).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer


async def replace(wire: Wire, kind: int, name: str, version: int = 2, **configs: str | None) -> Any:
    """Send AlterConfigs with all settings of the resource."""
    made = m.AlterConfigsRequest.Resources
    given = [made.Configs(name=n.replace("_", "."), value=v) for n, v in configs.items()]
    resources = [made(resource_type=kind, resource_name=name, configs=given)]
    return (await wire.call("AlterConfigs", version, resources=resources)).responses[0]


async def described(wire: Wire, kind: int, name: str) -> dict[str, tuple[str | None, int]]:
    """Return {setting: (value, source)}."""
    resources = [m.DescribeConfigsRequest.Resources(resource_type=kind, resource_name=name, configuration_keys=None)]
    [result] = (await wire.call("DescribeConfigs", 4, resources=resources)).results
    assert result.error_code == 0
    return {c.name: (c.value, c.config_source) for c in result.configs}


# -- decisions --------------------------------------------------------------------------------------------------------


@with_each(
    ("own", "change", "after"),
    [
        ({}, ("a", SET, "1"), {"a": "1"}),
        ({"a": "1", "b": "2"}, ("a", DELETE, None), {"b": "2"}),
        ({}, ("a", DELETE, None), {}),
        ({}, ("l", APPEND, "x"), {"l": "d,x"}),
        ({"l": "x,y"}, ("l", APPEND, "y, z"), {"l": "x,y,z"}),
        ({"l": "x,y"}, ("l", SUBTRACT, "y"), {"l": "x"}),
        ({"l": ""}, ("l", APPEND, "x"), {"l": "x"}),
        ({}, ("l", SUBTRACT, "d"), {"l": ""}),
    ],
)
def test_operations(own: dict[str, str], change: tuple[str, int, str | None], after: dict[str, str]) -> None:
    assert altered(own, [ConfigChange(*change)], {"l"}, lambda _: "d") == after


@with_each(
    ("changes", "code"),
    [
        ([("a", SET, None)], errors.INVALID_REQUEST),
        ([("a", 9, "1")], errors.INVALID_REQUEST),
        ([("a", SET, "1"), ("a", DELETE, None)], errors.INVALID_REQUEST),
        ([("a", APPEND, "1")], errors.INVALID_CONFIG),
        ([("a", SUBTRACT, "1")], errors.INVALID_CONFIG),
        ([("l", APPEND, "x" * 32_766)], errors.INVALID_CONFIG),  # longer than an answer can carry
    ],
)
def test_operations_that_are_none(changes: list[tuple[str, int, str | None]], code: int) -> None:
    with pytest.raises(KafkaError) as refused:
        altered({}, [ConfigChange(*change) for change in changes], {"l"}, lambda _: "d")
    assert refused.value.code == code


def test_operations_are_numbered_as_in_the_protocol() -> None:
    assert list(AlterOperation) == [SET, DELETE, APPEND, SUBTRACT]


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_topics_setting_is_set_shown_and_deleted(wire: Wire) -> None:
    await wire.create("t", retention_ms="1000")
    assert (await alter(wire, TOPIC, "t", ("segment.bytes", SET, "5000000"))).error_code == 0
    shown = await described(wire, TOPIC, "t")
    assert shown["segment.bytes"] == ("5000000", Source.DYNAMIC_TOPIC)
    assert shown["retention.ms"] == ("1000", Source.DYNAMIC_TOPIC)
    assert (await alter(wire, TOPIC, "t", ("retention.ms", DELETE, None))).error_code == 0
    assert (await described(wire, TOPIC, "t"))["retention.ms"] == ("604800000", Source.DEFAULT)


async def test_a_list_grows_and_shrinks(wire: Wire) -> None:
    await wire.create("t")
    assert (await alter(wire, TOPIC, "t", ("cleanup.policy", APPEND, "compact"))).error_code == 0
    assert (await described(wire, TOPIC, "t"))["cleanup.policy"][0] == "delete,compact"
    assert (await alter(wire, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"))).error_code == 0
    assert (await described(wire, TOPIC, "t"))["cleanup.policy"][0] == "compact"


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_old_call_replaces_everything(wire: Wire, version: int) -> None:
    await wire.create("t", retention_ms="1000", segment_bytes="5000000")
    assert (await replace(wire, TOPIC, "t", version, retention_ms="2000")).error_code == 0
    shown = await described(wire, TOPIC, "t")
    assert shown["retention.ms"][0] == "2000" and shown["segment.bytes"][1] == Source.DEFAULT
    assert (await replace(wire, TOPIC, "t", version, retention_ms=None)).error_code == errors.INVALID_REQUEST


@with_each(
    ("change", "code", "says"),
    [
        (("retention.ms", SET, "soon"), errors.INVALID_CONFIG, "retention.ms = 'soon'"),
        (("retention.sm", SET, "1"), errors.INVALID_CONFIG, "did you mean retention.ms?"),
        (("retention.ms", APPEND, "1"), errors.INVALID_CONFIG, "not a list"),
        (("cleanup.policy", APPEND, "burn"), errors.INVALID_CONFIG, "compact, delete"),
        (("retention.ms", SET, None), errors.INVALID_REQUEST, "no value"),
    ],
)
async def test_what_is_refused_changes_nothing(
    wire: Wire, change: tuple[str, int, str | None], code: int, says: str
) -> None:
    await wire.create("t")
    before = await described(wire, TOPIC, "t")
    answer = await alter(wire, TOPIC, "t", ("segment.bytes", SET, "5000000"), change)
    assert answer.error_code == code and says in answer.error_message
    assert await described(wire, TOPIC, "t") == before


async def test_resources_that_are_none(live: Live, wire: Wire) -> None:
    assert live.broker is not None
    other = str(live.broker.broker_id + 1)
    for kind, name, code in (
        (TOPIC, "none", errors.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", errors.INVALID_TOPIC_EXCEPTION),
        (BROKER, other, errors.INVALID_REQUEST),
        (BROKER, "x", errors.INVALID_REQUEST),
        (8, "", errors.INVALID_REQUEST),
    ):
        answer = await alter(wire, kind, name, ("retention.ms", SET, "1"))
        assert answer.error_code == code and answer.error_message


async def test_each_resource_has_its_answer(wire: Wire) -> None:
    """One request alters one topic and refuses an unknown one and one that is named twice."""
    for name in ("good", "twice"):
        await wire.create(name)
    made = m.IncrementalAlterConfigsRequest.Resources
    change = [made.Configs(name="retention.ms", config_operation=SET, value="7")]
    names = ["good", "none", "twice", "twice"]
    resources = [made(resource_type=TOPIC, resource_name=name, configs=change) for name in names]
    answers = (await wire.call("IncrementalAlterConfigs", 1, resources=resources)).responses
    wrong = errors.INVALID_REQUEST
    assert [(a.resource_name, a.error_code) for a in answers] == list(
        zip(names, [0, errors.UNKNOWN_TOPIC_OR_PARTITION, wrong, wrong], strict=True)
    )


async def test_to_validate_is_not_to_alter(wire: Wire) -> None:
    await wire.create("t")
    before = await described(wire, TOPIC, "t")
    good = await alter(wire, TOPIC, "t", ("retention.ms", SET, "7"), validate_only=True)
    bad = await alter(wire, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)
    assert (good.error_code, bad.error_code) == (0, errors.INVALID_CONFIG)
    assert await described(wire, TOPIC, "t") == before


@pytest.mark.both_planes
async def test_a_topic_goes_by_its_new_settings_at_once(live: Live, wire: Wire) -> None:
    """Message size, timestamp type and the need of keys apply to the next batch; retention to the next round."""
    await wire.create("t", segment_bytes="1048576")
    big = batch(b"x" * 2000)
    assert (await wire.produce("t", big)).error_code == 0
    await alter(wire, TOPIC, "t", ("max.message.bytes", SET, "1000"))
    assert (await wire.produce("t", big)).error_code == errors.MESSAGE_TOO_LARGE
    await alter(wire, TOPIC, "t", ("max.message.bytes", DELETE, None), ("message.timestamp.type", SET, "LogAppendTime"))
    assert (await wire.produce("t", big)).log_append_time_ms > 0
    await alter(wire, TOPIC, "t", ("cleanup.policy", SET, "compact"))
    assert (await wire.produce("t", batch(b"v", key=None))).error_code == errors.INVALID_RECORD
    await alter(
        wire, TOPIC, "t", ("cleanup.policy", SET, "delete"), ("segment.ms", SET, "1"), ("retention.ms", SET, "1")
    )
    altered_ms = wall_ms()
    await eventually("time has passed", lambda: wall_ms() > altered_ms + 1)
    assert (await wire.produce("t", batch(b"v", key=None))).error_code == 0
    assert live.broker is not None and live.broker.replicas is not None
    replica = live.broker.replicas.get("t", 0)
    assert replica is not None and replica.log is not None
    assert replica.config["retention.ms"] == 1
    assert replica.log.enforce_retention(1 << 50) > 0


# -- brokers ----------------------------------------------------------------------------------------------------------


@pytest.mark.both_planes
async def test_a_broker_default_reaches_the_topics_that_say_nothing(live: Live, wire: Wire) -> None:
    """A broker's own setting comes before the one of all brokers, and both before the one it was started with."""
    assert live.broker is not None
    me = str(live.broker.broker_id)
    await wire.create("own", max_message_bytes="5000")
    await wire.create("t")
    assert (await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000"))).error_code == 0
    big = batch(b"x" * 2000)
    assert (await wire.produce("t", big)).error_code == errors.MESSAGE_TOO_LARGE
    assert (await wire.produce("own", big)).error_code == 0
    assert (await described(wire, TOPIC, "t"))["max.message.bytes"] == ("1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert await described(wire, BROKER, "") == {"message.max.bytes": ("1000", Source.DYNAMIC_DEFAULT_BROKER)}
    assert (await alter(wire, BROKER, me, ("message.max.bytes", SET, "3000"))).error_code == 0
    assert (await wire.produce("t", big)).error_code == 0
    assert (await described(wire, BROKER, me))["message.max.bytes"] == ("3000", Source.DYNAMIC_BROKER)
    await alter(wire, BROKER, me, ("message.max.bytes", DELETE, None))
    assert (await described(wire, BROKER, me))["message.max.bytes"] == ("1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert (await wire.produce("t", big)).error_code == errors.MESSAGE_TOO_LARGE


@with_each("name", ["num.partitions", "broker.id", "log.dirs", "metrics.listener", "process.roles"])
async def test_what_a_running_broker_cannot_change_is_refused(wire: Wire, name: str) -> None:
    """The setting is refused with Kafka's error code, even if its value would not change."""
    answer = await alter(wire, BROKER, "", (name, SET, "1"))
    assert answer.error_code == errors.INVALID_REQUEST and name in answer.error_message


@pytest.mark.parametrize(
    ("name", "hint"), [("num.partition", "; did you mean num.partitions?"), ("no.such.setting", "")]
)
async def test_what_is_no_setting_of_a_broker_is_told_with_the_nearest(wire: Wire, name: str, hint: str) -> None:
    answer = await alter(wire, BROKER, "", (name, SET, "1"))
    assert answer.error_code == errors.INVALID_CONFIG
    assert answer.error_message == f"{name!r} is no setting of a broker{hint}"


async def test_a_broker_default_that_a_topic_cannot_go_with_is_refused(wire: Wire) -> None:
    await wire.create("t", max_compaction_lag_ms="10")
    answer = await alter(wire, BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "20"))
    assert answer.error_code == errors.INVALID_CONFIG and "topic t" in answer.error_message
    assert await described(wire, BROKER, "") == {}


async def test_a_start_with_other_settings_serves_what_is_stored(
    live: Live, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Stored topic settings that conflict with the broker's new file are ignored with one line, and the file's apply.

    The broker can still be altered, and so can the topic, whose settings then apply again."""
    await wire.create("t", min_compaction_lag_ms="500")
    await live.restart("log.cleaner.max.compaction.lag.ms=100")
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("settings ignored")]
    assert len(lines) == 1 and "topic=t" in lines[0] and "min.compaction.lag.ms = 500 is above" in lines[0]
    wire = await live.connect()
    assert (await wire.produce("t", batch(b"v"))).error_code == 0
    shown = await described(wire, TOPIC, "t")
    assert (shown["min.compaction.lag.ms"][0], shown["max.compaction.lag.ms"][0]) == ("0", "100")
    assert (await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000"))).error_code == 0
    refused = await alter(wire, TOPIC, "t", ("retention.ms", SET, "7"))
    assert refused.error_code == errors.INVALID_CONFIG and "is above" in refused.error_message
    assert (await alter(wire, TOPIC, "t", ("min.compaction.lag.ms", SET, "50"))).error_code == 0
    assert (await described(wire, TOPIC, "t"))["min.compaction.lag.ms"][0] == "50"


async def test_connections_are_limited_at_once(live: Live, wire: Wire) -> None:
    """At max.connections a new connection waits; over max.connections.per.ip it is closed."""
    assert (await alter(wire, BROKER, "", ("max.connections.per.ip", SET, "2"))).error_code == 0
    assert (await (await live.connect()).call("DescribeCluster", 0)).error_code == 0
    assert await (await live.connect()).closed()
    assert (await alter(wire, BROKER, "", ("max.connections.per.ip", DELETE, None))).error_code == 0
    assert (await (await live.connect()).call("DescribeCluster", 0)).error_code == 0


# -- stored settings --------------------------------------------------------------------------------------------------


async def shown_at(wire: Wire) -> set[tuple[str, int]]:
    """The broker addresses in the answers to Metadata, DescribeCluster and FindCoordinator."""
    told: list[Any] = [*(await wire.call("Metadata", 12, topics=[])).brokers]
    told += (await wire.call("DescribeCluster", 1)).brokers
    told += (await wire.call("FindCoordinator", 4, key_type=0, coordinator_keys=["g"])).coordinators
    return {(node.host, node.port) for node in told}


async def test_clients_are_told_another_address_at_once(live: Live, wire: Wire) -> None:
    """A broker's own advertised.listeners is stored and returned at once; its removal restores the old address."""
    assert live.broker is not None
    name, before = str(live.broker.broker_id), await shown_at(wire)
    elsewhere = ("advertised.listeners", SET, "PLAINTEXT://elsewhere:7777")
    assert (await alter(wire, BROKER, "", elsewhere)).error_code == errors.INVALID_REQUEST
    assert await shown_at(wire) == before
    assert (await alter(wire, BROKER, name, elsewhere)).error_code == 0
    assert await shown_at(wire) == {("elsewhere", 7777)}
    await live.restart()
    wire = await live.connect()
    assert await shown_at(wire) == {("elsewhere", 7777)}
    assert (await alter(wire, BROKER, name, ("advertised.listeners", DELETE, None))).error_code == 0
    assert await shown_at(wire) == {(live.broker.host, live.broker.port)}


@pytest.mark.parametrize("name", ["num.io.threads", "background.threads", "num.recovery.threads.per.data.dir"])
async def test_threads_change_while_the_broker_works(live: Live, wire: Wire, name: str) -> None:
    """Topics are created and read with any number of threads, and the number is shown."""
    for count in ("1", "40", "2"):
        assert (await alter(wire, BROKER, "", (name, SET, count))).error_code == 0
        assert (await described(wire, BROKER, ""))[name] == (count, int(Source.DYNAMIC_DEFAULT_BROKER))
        assert (await wire.create(f"t{count}", 20)).error_code == 0
        await wire.produce(f"t{count}", batch(b"v"))
        assert (await wire.fetch(f"t{count}", 0)).high_watermark == 1
    assert (await alter(wire, BROKER, "", (name, SET, "0"))).error_code == errors.INVALID_CONFIG


def test_a_pool_works_with_as_many_threads_as_it_is_told() -> None:
    """After a resize more tasks run at once, and the first threads finish what they began."""
    workers = Workers(1, "test")
    held = threading.Event()
    first = [workers.submit(held.wait, 30) for _ in range(2)]  # the second waits for the first
    workers.resize(3)
    together = threading.Barrier(3)
    assert sorted(f.result(30) for f in [workers.submit(together.wait, 30) for _ in range(3)]) == [0, 1, 2]
    held.set()
    assert [f.result(30) for f in first] == [True, True]
    workers.shutdown()
    with pytest.raises(RuntimeError):
        workers.submit(print)


async def test_settings_survive_a_restart(live: Live, wire: Wire) -> None:
    assert live.broker is not None
    me = str(live.broker.broker_id)
    await wire.create("t")
    await alter(wire, TOPIC, "t", ("retention.ms", SET, "7"))
    await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000"), ("max.connections.per.ip", SET, "1"))
    await alter(wire, BROKER, me, ("log.roll.ms", SET, "77000"))
    await live.restart()
    wire = await live.connect()
    shown = await described(wire, TOPIC, "t")
    assert shown["retention.ms"] == ("7", Source.DYNAMIC_TOPIC)
    assert shown["max.message.bytes"] == ("1000", Source.DYNAMIC_DEFAULT_BROKER)
    assert shown["segment.ms"] == ("77000", Source.DYNAMIC_BROKER)
    assert (await wire.produce("t", batch(b"x" * 2000))).error_code == errors.MESSAGE_TOO_LARGE
    assert await (await live.connect()).closed()


async def test_the_store_has_kafkas_nodes(live: Live, wire: Wire) -> None:
    """Altered settings are stored in /config/topics and /config/brokers, with a notification for each change."""
    assert live.broker is not None
    await wire.create("t")
    await alter(wire, TOPIC, "t", ("retention.ms", SET, "7"))
    await alter(wire, BROKER, "", ("message.max.bytes", SET, "1000"))
    await alter(wire, BROKER, "", ("message.max.bytes", SET, "2000"))
    session = live.broker.session
    assert session is not None
    kept = {
        "/config/topics/t": b'{"version":1,"config":{"retention.ms":"7"}}',
        "/config/brokers/<default>": b'{"version":1,"config":{"message.max.bytes":"2000"}}',
        "/config/changes/config_change_0000000000": b'{"version":2,"entity_path":"topics/t"}',
        "/config/changes/config_change_0000000002": b'{"version":2,"entity_path":"brokers/<default>"}',
    }
    for path, data in kept.items():
        assert (await session.get(path))[0] == data
    assert len((await session.children(nodes.CONFIG_CHANGES))[0]) == 3
