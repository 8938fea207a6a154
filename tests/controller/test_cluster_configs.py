"""Settings in a cluster: any broker writes them, all brokers read them, and no change is lost."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest

from pybroker import errors
from pybroker.config import BrokerConfig, Source
from pybroker.coordination.store import Create, Delete, Op, Set, StoreDamaged
from pybroker.decisions.config_changes import AlterOperation, ConfigChange
from pybroker.errors import KafkaError
from pybroker.metadata import nodes, slow_changes
from pybroker.metadata.config_watch import UNKNOWN
from pybroker.metadata.configs import load, take
from pybroker.metadata.planning import NewTopic
from pybroker.metadata.topic_admin import TopicAdmin
from pybroker.security.quotas import CLIENT_ID, CONSUMER, PRODUCER, USER, Entity
from tests.controller.member import T_ID, Member
from tests.harness import eventually, looked

KEEP = ConfigChange("retention.ms", AlterOperation.SET, "7000")
SMALL = ConfigChange("segment.bytes", AlterOperation.SET, "1048576")


async def test_all_brokers_go_by_what_one_wrote(members: tuple[Member, Member]) -> None:
    one, other = members
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    after = {"max.message.bytes": "1000", "retention.ms": "7000"}
    assert one.topics.topic("t") == after == one.held.configured[-1], "the broker that wrote it applies it at once"
    await eventually("the other goes by it", lambda: other.held.configured[-1] == after)
    assert other.topics.topic("t") == after
    notice = (await one.session.children(nodes.CONFIG_CHANGES))[0][-1]
    assert json.loads((await one.session.get(f"{nodes.CONFIG_CHANGES}/{notice}"))[0])["entity_path"] == "topics/t"


async def test_what_cannot_be_used_is_no_hindrance(members: tuple[Member, Member]) -> None:
    """A stored setting that the broker does not accept stays where it is, and other settings can be altered."""
    one = members[0]
    await one.session.create(nodes.broker_config(1), nodes.dump_config({"log.segment.bytes": "soon"}))
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")
    await one.configs.alter_broker("1", [change], replace=False, validate_only=False)
    held = nodes.load_config((await one.session.get(nodes.broker_config(1)))[0])
    assert held == {"log.segment.bytes": "soon", "log.retention.ms": "9000"}
    assert one.config.dynamic(Source.DYNAMIC_BROKER) == {"log.retention.ms": "9000"}


async def test_what_was_altered_before_a_session_began(members: tuple[Member, Member]) -> None:
    """A broker without a session gets no notification; with a new session it reads all settings, its own too."""
    one, other = members
    told: list[str] = []

    async def hear() -> None:
        told.append("broker")

    other.on_broker_altered, other.on_altered = hear, lambda: told.append("any")
    other.following.cancel()
    other.session.expire()
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    assert other.held.configured[-1] == {"max.message.bytes": "1000"}
    await other.join(one.store)
    after = {"max.message.bytes": "1000", "retention.ms": "7000"}
    await eventually("it goes by them", lambda: other.held.configured[-1] == after)
    await eventually("its own are told of", lambda: told == ["broker", "any"])
    assert other.config["log.retention.ms"] == 9000


async def test_what_is_not_known_is_not_led_by_defaults(members: tuple[Member, Member]) -> None:
    """Until a topic's settings are read, acks=all is refused and nothing is deleted; then the settings apply."""
    one, _ = members
    new = b"n" * 16
    assert await one.watch.topic(one.session, "t", T_ID) == {"max.message.bytes": "1000"}
    one.session.suspend()
    assert await one.watch.topic(one.session, "new", new) == UNKNOWN
    assert await one.watch.topic(one.session, "t", new) == UNKNOWN, "the settings are an earlier topic's"
    one.session.resume()
    admin = await one.store.session(60_000)
    config = Create(nodes.topic_config("new"), nodes.dump_config({"min.insync.replicas": "2"}))
    await admin.multi([config, Create(nodes.topic("new"), nodes.dump_assignment(new, [(1, 2)]))])
    await eventually("it goes by them", lambda: {"min.insync.replicas": "2"} in one.held.configured)
    assert await one.watch.topic(one.session, "new", new) == {"min.insync.replicas": "2"}


async def test_two_changes_at_once(members: tuple[Member, Member]) -> None:
    """The second write detects the first, and is checked again."""
    one, other = members
    await asyncio.gather(
        one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False),
        other.configs.alter_topic("t", [SMALL], replace=False, validate_only=False),
    )
    after = {"max.message.bytes": "1000", "retention.ms": "7000", "segment.bytes": "1048576"}
    for member in members:
        await eventually("both are there", lambda member=member: member.topics.topic("t") == after)


async def test_settings_of_all_brokers_and_of_one(members: tuple[Member, Member]) -> None:
    one, other = members
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.config["log.retention.ms"] == 9000)
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "8000")
    await one.configs.alter_broker("1", [change], replace=False, validate_only=False)
    assert (one.config["log.retention.ms"], other.config["log.retention.ms"]) == (8000, 9000)
    gone = ConfigChange("log.retention.ms", AlterOperation.DELETE, None)
    await one.configs.alter_broker("1", [gone], replace=False, validate_only=False)
    assert one.config["log.retention.ms"] == 9000
    with pytest.raises(KafkaError) as told:
        await one.configs.alter_broker("2", [change], replace=False, validate_only=False)
    assert told.value.code == errors.INVALID_REQUEST


async def test_passwords_are_encrypted_in_the_store(members: tuple[Member, Member]) -> None:
    """Passwords are encrypted as in Kafka. Unchanged ones keep their text; undecryptable ones stay, unapplied."""
    one, _ = members
    name, other, lost = (f"listener.name.plaintext.ssl.{what}.password" for what in ("key", "keystore", "truststore"))
    path = nodes.broker_config(1)

    async def stored() -> dict[str, str]:
        return nodes.load_config((await one.session.get(path))[0])

    async def alter(setting: str, value: str | None) -> None:
        operation = AlterOperation.DELETE if value is None else AlterOperation.SET
        change = ConfigChange(setting, operation, value)
        await one.configs.alter_broker("1", [change], replace=False, validate_only=False)

    await alter(name, "sesame")
    first = await stored()
    assert first[name].startswith("initializationVector:") and "sesame" not in first[name]
    await one.session.set(path, nodes.dump_config({**first, lost: "no password"}))
    await alter(other, "sesame")
    second = await stored()
    assert (second[name], second[lost]) == (first[name], "no password") and second[other] != first[name]
    assert one.config.dynamic(Source.DYNAMIC_BROKER) == {name: "sesame", other: "sesame"}
    await alter(name, "another")
    await alter(lost, None)
    third = await stored()
    assert third.keys() == {name, other} and third[name] != first[name]
    assert one.config.dynamic(Source.DYNAMIC_BROKER) == {name: "another", other: "sesame"}


def test_settings_that_only_go_together_are_taken_in_any_order() -> None:
    """A listener and its protocol can be set in any order, also together with settings that are no longer valid."""
    texts = {
        "log.cleaner.threads": "none", "no.such.setting": "1", "advertised.listeners": "LATE://here:1,PLAINTEXT://here:2",
        "listeners": "PLAINTEXT://:0,LATE://:0", "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LATE:PLAINTEXT",
        "log.retention.ms": "9000",
    }  # fmt: skip
    config = BrokerConfig.load(None, [])
    refused = take(config, Source.DYNAMIC_BROKER, texts)
    assert refused.keys() == {"log.cleaner.threads", "no.such.setting"} and all(refused.values())
    assert config.dynamic(Source.DYNAMIC_BROKER) == {n: text for n, text in texts.items() if n not in refused}
    assert take(config, Source.DYNAMIC_BROKER, {"log.retention.ms": "8000"}) == {}
    assert config["log.retention.ms"] == 8000 and config.listeners.protocols == {"PLAINTEXT": "PLAINTEXT"}


async def test_what_is_wrong_is_refused_and_written_nowhere(members: tuple[Member, Member]) -> None:
    one, _ = members
    before = await one.session.get(nodes.topic_config("t"))
    for name, value, code in (
        ("t", "not a number", errors.INVALID_CONFIG),
        ("nowhere", "7000", errors.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        with pytest.raises(KafkaError) as told:
            change = ConfigChange("retention.ms", AlterOperation.SET, value)
            await one.configs.alter_topic(name, [change], replace=False, validate_only=False)
        assert told.value.code == code
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=True)
    assert await one.session.get(nodes.topic_config("t")) == before
    assert (await one.session.children(nodes.CONFIG_CHANGES))[0] == []


async def test_no_broker_is_given_the_address_of_another(members: tuple[Member, Member]) -> None:
    """An address advertised twice would send clients of both brokers to one of them."""
    one, _ = members
    for host, taken in (("host-2", True), ("host-3", False)):
        change = ConfigChange("advertised.listeners", AlterOperation.SET, f"PLAINTEXT://{host}:9092,CLIENTS://{host}:9093")
        alter = one.configs.alter_broker(str(one.number), [change], replace=False, validate_only=True)
        if not taken:
            await alter
            continue
        with pytest.raises(KafkaError, match="host-2:9092 is the address of broker 2, which is registered") as refused:
            await alter
        assert refused.value.code == errors.INVALID_CONFIG


async def test_topics_come_and_go_without_a_notice(members: tuple[Member, Member]) -> None:
    """Settings of topics are read without a notification, as Kafka creates and deletes topics without one."""
    one, _ = members
    await one.session.create(nodes.topic_config("new"), nodes.dump_config({"retention.ms": "1"}))
    await eventually("it is known", lambda: one.topics.topic("new") == {"retention.ms": "1"})
    await one.session.delete(nodes.topic_config("new"))
    await eventually("it is forgotten", lambda: not one.topics.topic("new"))


def born(topic_id: bytes, config: dict[str, str]) -> list[Op]:
    """The writes that create topic t anew, with its settings, in place of an earlier one."""
    return [
        Delete(nodes.topic_config("t")),
        Delete(nodes.topic("t")),
        Create(nodes.topic_config("t"), nodes.dump_config(config)),
        Create(nodes.topic("t"), nodes.dump_assignment(topic_id, [(1, 2)])),
    ]


@pytest.mark.virtual_time
async def test_a_topic_that_takes_a_name(members: tuple[Member, Member]) -> None:
    """A new topic does not get the settings of an earlier one of its name, deleted between two reads."""
    one, _ = members
    new_id = b"u" * 16
    await one.session.multi(born(new_id, {"retention.ms": "7"}))
    await asyncio.sleep(0.1)  # until all notifications of the watches have arrived
    await one.watch.topic(one.session, "t", new_id)
    assert one.topics.topic("t") == {"retention.ms": "7"}
    assert one.held.configured[-1] == {"retention.ms": "7"}


@pytest.mark.virtual_time
async def test_a_topic_that_its_server_has_not_heard_of(members: tuple[Member, Member]) -> None:
    """Settings of a topic that the ZooKeeper server does not have yet apply as soon as the server has them."""
    one, _ = members
    new_id = b"u" * 16
    one.session.disconnect()
    await one.watch.topic(one.session, "t", new_id)
    assert one.topics.topic("t") == {"max.message.bytes": "1000"}, "the wait for it ends"
    one.session.reconnect()
    await asyncio.sleep(0.05)
    await one.session.multi(born(new_id, {"retention.ms": "7"}))
    await eventually("it goes by them", lambda: one.held.configured[-1:] == [{"retention.ms": "7"}])
    await one.watch.close()


async def test_a_change_while_the_connection_was_broken(members: tuple[Member, Member]) -> None:
    """Watches are lost with the connection; after the next one all changes are read."""
    one, other = members
    other.session.disconnect()
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    other.session.reconnect()
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")


async def test_a_change_while_the_store_is_away(
    members: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change during an outage of the store fails with the reason and that it may still come; it comes afterwards."""
    one, _ = members
    monkeypatch.setattr(slow_changes, "WAIT_S", 0.01)
    one.session.disconnect()
    for alter in (
        one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False),
        one.configs.alter_entity(((USER, "ann"),), lambda held: {**held, PRODUCER: "7"}),
    ):
        with pytest.raises(KafkaError) as told:
            await alter
        assert told.value.code == errors.REQUEST_TIMED_OUT
        assert told.value.message == "not done in time (the cluster's store does not answer); it may be done later"
    one.session.reconnect()
    await eventually("the topic has it", lambda: one.topics.topic("t").get("retention.ms") == "7000")
    await eventually("the user has it", lambda: ((USER, "ann"),) in one.entities.quotas.all())


async def test_a_damaged_node_and_a_damaged_notice_are_passed_by(
    members: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = members
    await one.session.create(f"{nodes.CONFIG_CHANGES}/config_change_", b"{", sequential=True)
    await one.session.create(nodes.topic_config("bad"), b"[]")
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")
    assert "settings notice ignored" in caplog.text
    assert "topic settings ignored" in caplog.text


async def test_a_notice_whose_name_comes_last_hides_no_other(members: tuple[Member, Member]) -> None:
    """A foreign node, or names that start again from 0 in a new parent, do not hide other notifications."""
    one, other = members
    await one.session.create(f"{nodes.CONFIG_CHANGES}/lock", b"{}")
    await looked()
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")
    names, _ = await one.session.children(nodes.CONFIG_CHANGES)
    paths = [f"{nodes.CONFIG_CHANGES}/{name}" for name in names]
    assert len(paths) == 2
    config = {"retention.ms": "8000"}
    await one.session.multi([
        *map(Delete, paths), Delete(nodes.CONFIG_CHANGES), Create(nodes.CONFIG_CHANGES),
        Set(nodes.topic_config("t"), nodes.dump_config(config)),
        Create(nodes.CONFIG_CHANGE, nodes.dump_config_change("topics/t"), sequential=True),
    ])  # fmt: skip
    await eventually("the other has that", lambda: other.topics.topic("t") == config)


async def test_settings_of_all_brokers_that_cannot_be_read(
    members: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    """A running broker keeps its settings, logs it, and applies new ones of topics; a start fails."""
    one, other = members
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.config["log.retention.ms"] == 9000)
    await one.session.set(nodes.broker_config(None), b'{"version":1,"config":{"log.retention.ms":8000}}')
    other.following.cancel()
    other.session.expire()
    await other.join(one.store)
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")
    assert other.config["log.retention.ms"] == 9000
    assert "broker settings ignored" in caplog.text
    with pytest.raises(StoreDamaged, match="/config/brokers/<default>: a node of the coordination store is damaged"):
        await load(other.session, BrokerConfig.load(), 2)


async def test_a_cautious_start_deletes_nothing(members: tuple[Member, Member]) -> None:
    """A start with unreadable settings deletes nothing; readable or removed settings apply again."""
    one, other = members
    path = nodes.broker_config(None)
    await one.session.create(path, b"{x")
    starts = BrokerConfig.load(None, ["log.retention.ms=5", "log.cleanup.policy=compact"])
    assert await load(other.session, starts, 2, cautious=True) == {path}
    assert (starts["log.retention.ms"], starts["log.cleanup.policy"]) == (-1, ("delete",))
    assert await load(other.session, starts, 2, running=True) == {path}
    assert starts["log.retention.ms"] == -1
    await one.session.set(path, nodes.dump_config({"log.retention.ms": "7"}))
    assert await load(other.session, starts, 2, running=True) == set()
    assert (starts["log.retention.ms"], starts["log.cleanup.policy"]) == (7, ("compact",))
    await one.session.set(path, b"{x")
    assert await load(other.session, starts, 2, running=True) == {path}
    assert starts["log.retention.ms"] == 7
    await one.session.delete(path)
    again = BrokerConfig.load(None, ["log.retention.ms=5"])
    await load(other.session, again, 2, cautious=True)
    assert again["log.retention.ms"] == 5


async def test_who_follows_no_more_hears_no_more(members: tuple[Member, Member]) -> None:
    """No listener is left in the session after its task ends, as a session may outlast it."""
    _, other = members
    assert len(other.session._listeners) == 1
    other.following.cancel()
    await asyncio.wait([other.following])
    assert other.session._listeners == []


async def test_settings_that_have_no_place(members: tuple[Member, Member]) -> None:
    """An alteration fails with the reason if the parent nodes were removed, and delays no other."""
    one, _ = members
    for member in members:
        member.following.cancel()
    held = nodes.broker_config(1).rpartition("/")[0]
    change = ConfigChange("log.retention.ms", AlterOperation.SET, "9000")
    await one.session.delete(nodes.CONFIG_CHANGES)
    for asked in (
        lambda: one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False),
        lambda: one.configs.alter_broker("1", [change], replace=False, validate_only=False),
    ):
        async with asyncio.timeout(5):
            with pytest.raises(KafkaError, match=nodes.CONFIG_CHANGES) as told:
                await asked()
        assert told.value.code == errors.KAFKA_STORAGE_ERROR
    await one.session.create(nodes.CONFIG_CHANGES)
    await one.session.delete(held)
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match=held) as told:
            await one.configs.alter_broker("1", [change], replace=False, validate_only=False)
    assert told.value.code == errors.KAFKA_STORAGE_ERROR
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)


@pytest.mark.parametrize("removed", [nodes.TOPICS, nodes.TOPIC_CONFIGS])
async def test_a_topic_that_has_no_place(members: tuple[Member, Member], removed: str) -> None:
    one, _ = members
    for member in members:
        member.following.cancel()
    await one.session.multi([Delete(f"{removed}/t"), Delete(removed)])
    topics = TopicAdmin(lambda: one.session, one.config, one.metadata, Random(1), lambda: None)
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match=removed) as told:
            await topics.create(NewTopic("u", 1, 1))
    assert told.value.code == errors.KAFKA_STORAGE_ERROR


async def test_a_wish_for_a_deletion_that_has_no_place(members: tuple[Member, Member]) -> None:
    one, _ = members
    await one.session.delete(nodes.DELETIONS)
    topics = TopicAdmin(lambda: one.session, one.config, one.metadata, Random(1), lambda: None)
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match=nodes.DELETIONS) as told:
            await topics.delete("t", T_ID)
    assert told.value.code == errors.KAFKA_STORAGE_ERROR


ALICE: Entity = ((USER, "a~b"),)
PAIR: Entity = ((USER, "u"), (CLIENT_ID, "c/d"))


async def test_quotas_of_one_broker_are_those_of_all(members: tuple[Member, Member]) -> None:
    one, other = members
    for number, entity in enumerate((ALICE, PAIR, ((USER, None), (CLIENT_ID, None)), ((CLIENT_ID, "c"),))):
        value = {PRODUCER: str(number + 1)}
        await one.configs.alter_entity(entity, lambda held, value=value: {**held, **value})
        assert one.entities.quotas.all()[entity] == {PRODUCER: number + 1.0}, "at once at the broker that wrote it"
        await eventually("the other has it", lambda entity=entity: entity in other.entities.quotas.all())
    await other.configs.alter_entity(PAIR, lambda held: {})
    await eventually("it is gone", lambda: PAIR not in one.entities.quotas.all())
    await other.configs.alter_entity(ALICE, lambda held: {**held, CONSUMER: "5"}, validate_only=True)
    assert one.entities.quotas.all() == other.entities.quotas.all() and len(one.entities.quotas.all()) == 3


async def test_quotas_that_kafka_writes_are_taken_up(members: tuple[Member, Member]) -> None:
    one, other = members
    session = await one.store.session(60_000)
    await session.create("/config/users/u", b"")
    await session.create("/config/users/u/clients", b"")
    path = "users/u/clients/c%2Fd"
    await session.create(f"/config/{path}", nodes.dump_config({PRODUCER: "7"}))
    notice = json.dumps({"version": 2, "entity_path": path}).encode()
    await session.create(nodes.CONFIG_CHANGE, notice, sequential=True)
    for member in members:
        quotas = member.entities.quotas
        await eventually("it holds", lambda quotas=quotas: quotas.all() == {PAIR: {PRODUCER: 7.0}})
    for junk in ("users", "users/u/clients", "users/u/clients/c/x", "clients/c/users/u", "ips/a/clients/c", "x/y", ""):
        await session.create(nodes.CONFIG_CHANGE, nodes.dump_config_change(junk), sequential=True)
    await one.configs.alter_entity(((CLIENT_ID, "c"),), lambda held: {PRODUCER: "9"})
    await eventually("junk stops nobody", lambda: len(other.entities.quotas.all()) == 2)


async def test_both_write_one_entity_and_nothing_is_lost(members: tuple[Member, Member]) -> None:
    one, other = members
    await asyncio.gather(
        one.configs.alter_entity(PAIR, lambda held: {**held, PRODUCER: "1"}),
        other.configs.alter_entity(PAIR, lambda held: {**held, CONSUMER: "2"}),
    )
    for member in members:
        quotas = member.entities.quotas
        await eventually("both hold", lambda quotas=quotas: quotas.all() == {PAIR: {PRODUCER: 1.0, CONSUMER: 2.0}})
