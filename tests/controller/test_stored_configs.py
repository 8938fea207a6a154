"""Settings that another program stored without asking a broker: the usable ones apply, and the others are logged."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig, Source
from pybroker.coordination.store import Create, Set
from pybroker.decisions.config_changes import AlterOperation, ConfigChange
from pybroker.errors import KafkaError
from pybroker.metadata import nodes, users
from pybroker.metadata.configs import load
from pybroker.security.quotas import PRODUCER
from pybroker.testing.certificates import Authority
from tests.controller.member import LISTENERS, Member
from tests.controller.stage import Stage
from tests.harness import eventually


async def store(member: Member, held: dict[str, str]) -> None:
    """Write a broker's settings with a notification, as kafka-configs does through ZooKeeper."""
    node, path = nodes.dump_config(held), nodes.broker_config(member.number)
    there = await member.session.exists(path) is not None
    notice = nodes.dump_config_change(f"brokers/{member.number}")
    await member.session.multi([
        Set(path, node) if there else Create(path, node), Create(nodes.CONFIG_CHANGE, notice, sequential=True)
    ])  # fmt: skip


NEW = {"listeners": "PLAINTEXT://:9092,CLIENTS://:9093,NEW://:9094",
       "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,NEW:PLAINTEXT"}  # fmt: skip


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"listener.security.protocol.map": "PLAINTEXT:SSL,CLIENTS:PLAINTEXT,NEW:PLAINTEXT"},
         "cannot be updated for existing listener PLAINTEXT; it is stored all the same, and the next start applies it"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,NEW:SSL"},
         "Security protocol cannot be updated for existing listener NEW"),
        ({"listener.security.protocol.map": "CLIENTS:PLAINTEXT"},
         "No security protocol defined for listener PLAINTEXT"),
        ({"listeners": "CLIENTS://:9093"}, "it must be a listener name defined in advertised.listeners"),
        ({"listeners": "PLAINTEXT://:9092,CLIENTS://:9095,NEW://:9094"},
         "give the listener at CLIENTS://:9095 another name"),
        ({"listener.name.new.ssl.principal.mapping.rules": "DEFAULT"},
         "cannot be updated dynamically for existing listener NEW"),
    ],
)  # fmt: skip
async def test_what_is_stored_is_judged_as_what_is_asked(
    members: tuple[Member, Member], caplog: pytest.LogCaptureFixture, stored: dict[str, str], said: str
) -> None:
    """A stored change of listeners that a running broker cannot make is logged, and its listeners stay. Other stored
    settings apply, and later alterations work."""
    one = members[0]
    changes = [ConfigChange(name, AlterOperation.SET, text) for name, text in NEW.items()]
    await one.configs.alter_broker("1", changes, replace=False, validate_only=False)
    before = one.config.listeners
    held = {**NEW, **stored, "log.retention.ms": "8000"}
    await store(one, held)
    await eventually("the rest is gone by", lambda: one.config["log.retention.ms"] == 8000)
    [line] = {record.getMessage() for record in caplog.records if "setting ignored" in record.getMessage()}
    assert said in line and one.config.listeners == before
    more = ConfigChange("log.segment.bytes", AlterOperation.SET, "1048576")
    await one.configs.alter_broker("1", [more], replace=False, validate_only=False)
    assert one.config["log.segment.bytes"] == 1 << 20 and one.config.listeners == before
    assert nodes.load_config((await one.session.get(nodes.broker_config(1)))[0]) == {**held, more.name: more.value}
    await one.configs.alter_broker("1", [*changes, more], replace=True, validate_only=False)
    assert nodes.load_config((await one.session.get(nodes.broker_config(1)))[0]) == {**NEW, more.name: more.value}


async def test_a_stored_certificate_that_no_broker_would_believe(
    members: tuple[Member, Member], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored certificate that other brokers would refuse is not used on their listener; the next valid one is."""
    authority, name = Authority(), "listener.name.ssl.ssl.keystore.location"
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    signed = {"first": authority, "strange": Authority("another"), "next": authority}
    paths = {each: str(tmp_path / f"{each}.pem") for each in signed}
    for each, signer in signed.items():
        certificate = signer.sign("localhost")
        Path(paths[each]).write_bytes(certificate.key + certificate.chain)
    one = Member(3, [
        "listeners=SSL://0.0.0.0:9092", "inter.broker.listener.name=SSL", "ssl.keystore.type=PEM",
        f"ssl.keystore.location={paths['first']}", "ssl.truststore.type=PEM",
        f"ssl.truststore.location={tmp_path / 'ca.pem'}",
    ])  # fmt: skip
    await one.join(members[0].store)
    await store(one, {name: paths["strange"], "log.retention.ms": "8000"})
    await eventually("the rest is gone by", lambda: one.config["log.retention.ms"] == 8000)
    assert f"setting ignored setting={name} reason=\"other brokers could no longer connect to" in caplog.text
    assert one.config.dynamic(Source.DYNAMIC_BROKER) == {"log.retention.ms": "8000"}
    await store(one, {name: paths["next"]})
    await eventually("the next is gone by", lambda: one.config.dynamic(Source.DYNAMIC_BROKER) == {name: paths["next"]})
    one.following.cancel()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listeners", "PLAINTEXT://:9092,CLIENTS://:9093,MORE://:0"), ("advertised.listeners", "PLAINTEXT://elsewhere:1"),
        ("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT,CLIENTS:PLAINTEXT,MORE:SSL"),
        ("listener.name.clients.ssl.keystore.location", "nowhere.pem"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("running", [True, False])
async def test_what_is_each_brokers_own_is_not_taken_for_all(
    stage: Stage, caplog: pytest.LogCaptureFixture, name: str, text: str, running: bool
) -> None:
    """A listener setting stored for all brokers is ignored, as in Kafka: it would give each broker the same address."""
    config = BrokerConfig.load(None, LISTENERS)
    before = config.listeners
    held = nodes.dump_config({name: text, "log.retention.ms": "8000"})
    await stage.session.create(nodes.broker_config(None), held)
    await load(stage.session, config, 1, running=running)
    assert config.dynamic(Source.DYNAMIC_DEFAULT_BROKER) == {"log.retention.ms": "8000"}
    assert config.listeners == before
    assert f"setting ignored setting={name} reason=\"{name} is each broker's own: alter it by the" in caplog.text


@pytest.mark.parametrize(
    ("alone", "path"),
    [
        (False, "brokers/1"), (False, "brokers/<default>"), (False, "topics/t"), (False, "users/ann"),
        (False, "clients/c"), (True, "brokers/1"), (True, "users/ann"),
    ],
)  # fmt: skip
async def test_what_is_damaged_is_told_with_its_path(
    members: tuple[Member, Member], stage: Stage, alone: bool, path: str
) -> None:
    """An alteration, also without a broker, fails with the node and its damage, and does not overwrite it."""
    session, configs = (stage.session, stage.configs) if alone else (members[0].session, members[0].configs)
    node, (kind, name) = f"{nodes.CONFIGS}/{path}", path.split("/")
    if await session.exists(node) is not None:
        await session.delete(node)
    await session.create(node, b"{")
    change = ConfigChange("retention.ms" if kind == "topics" else "log.retention.ms", AlterOperation.SET, "9000")
    with pytest.raises(KafkaError) as told:
        if kind == "brokers":
            name = name.replace("<default>", "")
            await configs.alter_broker(name, [change], replace=False, validate_only=False)
        elif kind == "topics":
            await configs.alter_topic(name, [change], replace=False, validate_only=False)
        else:
            await configs.alter_entity(nodes.entity_of_path(path) or (), lambda held: {**held, PRODUCER: "1"})
    said = [told.value]
    if kind == "users":
        with pytest.raises(KafkaError) as told:
            await users.alter(session, name, lambda held: {**held, PRODUCER: "1"})
        said.append(told.value)
    for problem in said:
        assert problem.code == errors.KAFKA_STORAGE_ERROR
        assert problem.message.startswith(f"{node} is damaged in the coordination store (Expecting property name")
    assert (await session.get(node))[0] == b"{"


async def test_a_stored_protocol_that_cannot_be_spoken_ends_no_start(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker starts with the protocol in its file, as a repair needs the broker. A usable stored protocol applies,
    as in Kafka."""
    config = BrokerConfig.load(None, [*LISTENERS, "ssl.keystore.type=PEM"])
    held = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SSL", "log.retention.ms": "8000"}
    await stage.session.create(nodes.broker_config(1), nodes.dump_config(held))
    await load(stage.session, config, 1)
    assert config.listeners.protocols == {"PLAINTEXT": "PLAINTEXT", "CLIENTS": "PLAINTEXT"}
    assert config["log.retention.ms"] == 8000
    why = 'reason="the listener CLIENTS has TLS, but no certificate'
    assert f"setting ignored setting=listener.security.protocol.map {why}" in caplog.text
    signed, store = Authority().sign("localhost"), tmp_path / "broker.pem"
    store.write_bytes(signed.key + signed.chain)
    held["listener.name.clients.ssl.keystore.location"] = str(store)
    await stage.session.set(nodes.broker_config(1), nodes.dump_config(held))
    await load(stage.session, config, 1)
    assert config.listeners.protocols == {"PLAINTEXT": "PLAINTEXT", "CLIENTS": "SSL"}
