"""Kafka's settings that have no effect here: accepted, checked, described as without effect, and stored as in Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pybroker import errors
from pybroker.config import BROKER, BrokerConfig, Source, Type
from pybroker.config.no_effect import NO_EFFECT
from pybroker.metadata.configs import PER_BROKER
from pybroker.protocol import messages as m
from tests.server.live import Live, Wire
from tests.server.test_alter_configs import BROKER as BROKER_KIND
from tests.server.test_alter_configs import DELETE, SET, TOPIC, alter, described, replace
from tests.server.test_describe import configs

RUNNING = [name for name, setting in BROKER.items() if setting.dynamic and setting.without_effect]
RELOGIN = "sasl.kerberos.min.time.before.relogin"


def test_every_text_says_that_nothing_comes_of_it() -> None:
    assert all(setting.without_effect for setting in NO_EFFECT.values())


def test_no_table_has_what_another_has() -> None:
    """A setting that gets an effect is removed from the table of settings without effect."""
    from pybroker.config.broker import CHAPTERS

    assert sum(map(len, CHAPTERS.values())) == len(BROKER)


async def test_each_is_taken_shown_and_kept(live: Live, wire: Wire) -> None:
    """Every such setting that Kafka alters at run time can be altered, for one broker, and for all brokers where Kafka
    allows it."""
    assert live.broker is not None
    me = str(live.broker.broker_id)
    told = {name: BROKER[name].default or "" for name in RUNNING if BROKER[name].type is not Type.PASSWORD}
    told = {name: text for name, text in told.items() if text or BROKER[name].type in (Type.LIST, Type.STRING)}
    assert len(told) > 20
    taken = await alter(wire, BROKER_KIND, me, *((name, SET, text) for name, text in told.items()))
    assert taken.error_code == 0, taken.error_message
    common = {name: text for name, text in told.items() if not name.startswith(PER_BROKER)}
    taken = await alter(wire, BROKER_KIND, "", *((name, SET, text) for name, text in common.items()))
    assert taken.error_code == 0, taken.error_message
    await live.restart()
    wire = await live.connect()
    shown = await described(wire, BROKER_KIND, me)
    assert {name: shown[name] for name in told} == {n: (text, Source.DYNAMIC_BROKER) for n, text in told.items()}
    assert (await described(wire, BROKER_KIND, "")).keys() == common.keys()


async def test_it_is_shown_with_kafkas_type_its_default_and_a_text_that_says_so(live: Live, wire: Wire) -> None:
    assert live.broker is not None
    me = str(live.broker.broker_id)
    assert (await alter(wire, BROKER_KIND, me, (RELOGIN, SET, "58000"))).error_code == 0
    [shown] = (
        await configs(wire, BROKER_KIND, me, keys=[RELOGIN], include_synonyms=True, include_documentation=True)
    ).configs
    assert (shown.value, shown.config_source, shown.read_only, shown.is_sensitive) == ("58000", 2, False, False)
    assert (shown.config_type, shown.documentation) == (Type.LONG, "Without effect: Kerberos is not supported.")
    assert [(s.name, s.value, s.source) for s in shown.synonyms] == [(RELOGIN, "58000", 2), (RELOGIN, "60000", 5)]
    assert live.broker.session is not None
    node, _ = await live.broker.session.get(f"/config/brokers/{me}")
    assert node == b'{"version":1,"config":{"sasl.kerberos.min.time.before.relogin":"58000"}}'
    assert (await alter(wire, BROKER_KIND, me, (RELOGIN, DELETE, None))).error_code == 0
    assert (await described(wire, BROKER_KIND, me))[RELOGIN] == ("60000", Source.DEFAULT)


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        (RELOGIN, "soon", errors.INVALID_CONFIG),
        ("log.cleaner.io.buffer.size", "-1", errors.INVALID_CONFIG),
        ("log.preallocate", "perhaps", errors.INVALID_CONFIG),
        ("sasl.kerberos.min.time.before.relogn", "1", errors.INVALID_CONFIG),
        ("remote.log.reader.threads", "4", errors.INVALID_REQUEST),
        ("ssl.keystore.location", "/file", errors.INVALID_REQUEST),
        ("listener.name.plaintext.process.roles", "broker", errors.INVALID_CONFIG),
        ("sasl.jaas.config", "module required;", errors.INVALID_CONFIG),  # no listener encrypts it
    ],
)
async def test_it_is_checked_all_the_same(live: Live, wire: Wire, name: str, text: str, code: int) -> None:
    """Values are checked by type and Kafka's bounds; a setting that Kafka keeps read-only gets Kafka's error code."""
    assert live.broker is not None
    refused = await alter(wire, BROKER_KIND, str(live.broker.broker_id), (name, SET, text))
    assert refused.error_code == code and name in refused.error_message, refused.error_message


@pytest.mark.parametrize("name", [RELOGIN, "ssl.protocol", "principal.builder.class"])
async def test_it_is_each_brokers_own_where_it_is_in_kafka(wire: Wire, name: str) -> None:
    refused = await alter(wire, BROKER_KIND, "", (name, SET, "1"))
    assert refused.error_code == errors.INVALID_REQUEST and "by the broker's id" in refused.error_message


async def test_a_listener_has_those_that_kafkas_listeners_have(live: Live, wire: Wire) -> None:
    """A listener's own settings without effect can be set while it exists, and survive a restart."""
    assert live.broker is not None
    me, own = str(live.broker.broker_id), "listener.name.plaintext."
    given = {f"{own}sasl.kerberos.kinit.cmd": "/x", f"{own}ssl.provider": "p", f"{own}num.network.threads": "2",
             f"{own}plain.sasl.login.class": "some.Class"}  # fmt: skip
    taken = await alter(wire, BROKER_KIND, me, *((name, SET, text) for name, text in given.items()))
    assert taken.error_code == 0, taken.error_message
    await live.restart()
    shown = await described(await live.connect(), BROKER_KIND, me)
    assert {name: shown[name] for name in given} == {n: (text, Source.DYNAMIC_BROKER) for n, text in given.items()}


async def test_librdkafkas_own_test_of_alter_configs(live: Live, wire: Wire) -> None:
    """The requests of librdkafka's test 0081 (a topic, a broker, an unknown topic) get the expected answers."""
    assert live.broker is not None
    me = str(live.broker.broker_id)
    await wire.create("t")
    asked: list[tuple[int, str, dict[str, Any], int]] = [
        (TOPIC, "t", {"compression.type": "gzip", "flush.ms": "12345678"}, 0),
        (BROKER_KIND, me, {RELOGIN: "58000"}, 0),
        (TOPIC, "no", {"compression.type": "lz4", "offset.metadata.max.bytes": "12345"},
         errors.UNKNOWN_TOPIC_OR_PARTITION),
    ]  # fmt: skip
    for kind, name, given, code in asked:
        assert (await replace(wire, kind, name, **given)).error_code == code
    made = m.IncrementalAlterConfigsRequest.Resources
    resources = [
        made(resource_type=TOPIC, resource_name="t", configs=[
            made.Configs(name="compression.type", config_operation=SET, value="gzip"),
            made.Configs(name="flush.ms", config_operation=SET, value="12345678"),
        ]),
        made(resource_type=BROKER_KIND, resource_name=me, configs=[
            made.Configs(name=RELOGIN, config_operation=SET, value="59000"),
        ]),
    ]  # fmt: skip
    answers = (await wire.call("IncrementalAlterConfigs", 1, resources=resources)).responses
    assert [answer.error_code for answer in answers] == [0, 0]
    assert (await described(wire, BROKER_KIND, me))[RELOGIN] == ("59000", Source.DYNAMIC_BROKER)


def test_a_file_for_kafka_is_taken_and_names_what_has_no_effect(tmp_path: Path) -> None:
    """The file's settings without effect are listed with their lines; node.id has an effect, as alias of broker.id."""
    file = tmp_path / "server.properties"
    file.write_text("process.roles=broker,controller\nnode.id=7\nnum.partitions=3\nlog.preallocate=true\n")
    config = BrokerConfig.load(str(file), ["listener.name.plaintext.ssl.provider=p"])
    assert config.without_effect == [
        f"process.roles ({file}:1)", f"log.preallocate ({file}:4)", "listener.name.plaintext.ssl.provider (--set)"
    ]  # fmt: skip
    assert (config["broker.id"], config["num.partitions"], config.warnings) == (7, 3, [])
    assert BrokerConfig.load(sets=["delegation.token.master.key=k"])["delegation.token.secret.key"] == "k"
