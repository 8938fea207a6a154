"""Settings in a cluster: any broker writes them, all brokers read them, and nobody's change is lost."""

from __future__ import annotations

import asyncio
import json
from random import Random

import pytest

from pybroker import errors
from pybroker.cluster.config_changes import Change, Operation
from pybroker.config import BrokerConfig, Source
from pybroker.controller import late, nodes
from pybroker.controller.cluster_topics import ClusterTopics
from pybroker.controller.config_watch import UNKNOWN
from pybroker.controller.configs import load, take
from pybroker.controller.planning import NewTopic
from pybroker.coordination.store import Create, Delete, Op, Set, StoreDamaged
from pybroker.errors import KafkaError
from pybroker.security.quotas import CLIENT_ID, CONSUMER, PRODUCER, USER, Entity
from tests.controller.member import T_ID, Member
from tests.harness import eventually, looked

KEEP = Change("retention.ms", Operation.SET, "7000")
SMALL = Change("segment.bytes", Operation.SET, "1048576")


async def test_all_brokers_go_by_what_one_wrote(members: tuple[Member, Member]) -> None:
    one, other = members
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    after = {"max.message.bytes": "1000", "retention.ms": "7000"}
    assert one.topics.topic("t") == after == one.held.configured[-1], "who wrote it goes by it at once"
    await eventually("the other goes by it", lambda: other.held.configured[-1] == after)
    assert other.topics.topic("t") == after
    notice = (await one.session.children(nodes.CONFIG_CHANGES))[0][-1]
    assert json.loads((await one.session.get(f"{nodes.CONFIG_CHANGES}/{notice}"))[0])["entity_path"] == "topics/t"


async def test_what_cannot_be_used_is_no_hindrance(members: tuple[Member, Member]) -> None:
    """Somebody stored a setting that the broker does not take: others are altered, and it stays where it is."""
    one = members[0]
    await one.session.create(nodes.broker_config(1), nodes.dump_config({"log.segment.bytes": "soon"}))
    change = Change("log.retention.ms", Operation.SET, "9000")
    await one.configs.alter_broker("1", [change], replace=False, validate_only=False)
    held = nodes.load_config((await one.session.get(nodes.broker_config(1)))[0])
    assert held == {"log.segment.bytes": "soon", "log.retention.ms": "9000"}
    assert one.config.dynamic(Source.DYNAMIC_BROKER) == {"log.retention.ms": "9000"}


async def test_what_was_altered_before_a_session_began(members: tuple[Member, Member]) -> None:
    """While a broker had none it was told of nothing: it goes by all that there is then, its own settings too."""
    one, other = members
    told: list[str] = []

    async def hear() -> None:
        told.append("broker")

    other.watch.on_broker_altered.append(hear)
    other.watch.on_altered.append(lambda: told.append("any"))
    other.following.cancel()
    other.session.expire()
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    change = Change("log.retention.ms", Operation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    assert other.held.configured[-1] == {"max.message.bytes": "1000"}
    await other.join(one.store)
    after = {"max.message.bytes": "1000", "retention.ms": "7000"}
    await eventually("it goes by them", lambda: other.held.configured[-1] == after)
    await eventually("its own are told of", lambda: told == ["broker", "any"])
    assert other.config["log.retention.ms"] == 9000


async def test_what_is_not_known_is_not_led_by_defaults(members: tuple[Member, Member]) -> None:
    """Acks=all is refused and nothing deleted until the store has told; then the topic's own hold."""
    one, _ = members
    new = b"n" * 16
    assert await one.watch.topic(one.session, "t", T_ID) == {"max.message.bytes": "1000"}
    one.session.suspend()
    assert await one.watch.topic(one.session, "new", new) == UNKNOWN
    assert await one.watch.topic(one.session, "t", new) == UNKNOWN, "of an earlier topic of that name"
    one.session.resume()
    admin = await one.store.session(60_000)
    config = Create(nodes.topic_config("new"), nodes.dump_config({"min.insync.replicas": "2"}))
    await admin.multi([config, Create(nodes.topic("new"), nodes.dump_assignment(new, [(1, 2)]))])
    await eventually("it goes by them", lambda: {"min.insync.replicas": "2"} in one.held.configured)
    assert await one.watch.topic(one.session, "new", new) == {"min.insync.replicas": "2"}


async def test_two_changes_at_once(members: tuple[Member, Member]) -> None:
    """The second sees that it was not first, and judges again."""
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
    change = Change("log.retention.ms", Operation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.config["log.retention.ms"] == 9000)
    change = Change("log.retention.ms", Operation.SET, "8000")
    await one.configs.alter_broker("1", [change], replace=False, validate_only=False)
    assert (one.config["log.retention.ms"], other.config["log.retention.ms"]) == (8000, 9000)
    gone = Change("log.retention.ms", Operation.DELETE, None)
    await one.configs.alter_broker("1", [gone], replace=False, validate_only=False)
    assert one.config["log.retention.ms"] == 9000
    with pytest.raises(KafkaError) as told:
        await one.configs.alter_broker("2", [change], replace=False, validate_only=False)
    assert told.value.code == errors.INVALID_REQUEST


async def test_passwords_are_encrypted_in_the_store(members: tuple[Member, Member]) -> None:
    """As Kafka's brokers keep them. What did not change keeps its text; what cannot be decrypted stays, ungone by."""
    one, _ = members
    name, other, lost = (f"listener.name.plaintext.ssl.{what}.password" for what in ("key", "keystore", "truststore"))
    path = nodes.broker_config(1)

    async def stored() -> dict[str, str]:
        return nodes.load_config((await one.session.get(path))[0])

    async def alter(setting: str, value: str | None) -> None:
        operation = Operation.DELETE if value is None else Operation.SET
        await one.configs.alter_broker("1", [Change(setting, operation, value)], replace=False, validate_only=False)

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
    """A listener and the protocol of its name, and those that stand beside one that is not allowed any more."""
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
            change = Change("retention.ms", Operation.SET, value)
            await one.configs.alter_topic(name, [change], replace=False, validate_only=False)
        assert told.value.code == code
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=True)
    assert await one.session.get(nodes.topic_config("t")) == before
    assert (await one.session.children(nodes.CONFIG_CHANGES))[0] == []


async def test_no_broker_is_given_the_address_of_another(members: tuple[Member, Member]) -> None:
    """An address that is advertised twice leads clients of both brokers to one of them."""
    one, _ = members
    for host, taken in (("host-2", True), ("host-3", False)):
        change = Change("advertised.listeners", Operation.SET, f"PLAINTEXT://{host}:9092,CLIENTS://{host}:9093")
        alter = one.configs.alter_broker(str(one.number), [change], replace=False, validate_only=True)
        if not taken:
            await alter
            continue
        with pytest.raises(KafkaError, match="host-2:9092 is the address of broker 2, which is registered") as refused:
            await alter
        assert refused.value.code == errors.INVALID_CONFIG


async def test_topics_come_and_go_without_a_notice(members: tuple[Member, Member]) -> None:
    """As Kafka creates and deletes them."""
    one, _ = members
    await one.session.create(nodes.topic_config("new"), nodes.dump_config({"retention.ms": "1"}))
    await eventually("it is known", lambda: one.topics.topic("new") == {"retention.ms": "1"})
    await one.session.delete(nodes.topic_config("new"))
    await eventually("it is forgotten", lambda: not one.topics.topic("new"))


def born(topic_id: bytes, config: dict[str, str]) -> list[Op]:
    """A topic named t, with its settings, in the place of an earlier one."""
    return [
        Delete(nodes.topic_config("t")),
        Delete(nodes.topic("t")),
        Create(nodes.topic_config("t"), nodes.dump_config(config)),
        Create(nodes.topic("t"), nodes.dump_assignment(topic_id, [(1, 2)])),
    ]


async def test_a_topic_that_takes_a_name(members: tuple[Member, Member]) -> None:
    """It does not go by the settings of the topic that had its name before, which came and went between two looks."""
    one, _ = members
    new_id = b"u" * 16
    await one.session.multi(born(new_id, {"retention.ms": "7"}))
    await asyncio.sleep(0.1)  # what the watches tell has been heard
    await one.watch.topic(one.session, "t", new_id)
    assert one.topics.topic("t") == {"retention.ms": "7"}
    assert one.held.configured[-1] == {"retention.ms": "7"}


async def test_a_topic_that_its_server_has_not_heard_of(members: tuple[Member, Member]) -> None:
    """The controller told of it first: its settings are gone by as soon as the server of ZooKeeper has them."""
    one, _ = members
    new_id = b"u" * 16
    one.session.disconnect()
    await one.watch.topic(one.session, "t", new_id)
    assert one.topics.topic("t") == {"max.message.bytes": "1000"}, "nobody waits for it for ever"
    one.session.reconnect()
    await asyncio.sleep(0.05)
    await one.session.multi(born(new_id, {"retention.ms": "7"}))
    await eventually("it goes by them", lambda: one.held.configured[-1:] == [{"retention.ms": "7"}])
    await one.watch.close()


async def test_a_change_while_the_connection_was_broken(members: tuple[Member, Member]) -> None:
    """The watches went with it; what they would have told is read with the next connection."""
    one, other = members
    other.session.disconnect()
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    other.session.reconnect()
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")


async def test_a_change_while_the_store_is_away(
    members: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks is told why it takes so long, and that it may come; it comes once the store is back."""
    one, _ = members
    monkeypatch.setattr(late, "WAIT_S", 0.01)
    one.session.disconnect()
    for alter in (
        one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False),
        one.configs.alter_entity(((USER, "ann"),), lambda held: {**held, PRODUCER: "7"}),
    ):
        with pytest.raises(KafkaError) as told:
            await alter
        assert told.value.code == errors.REQUEST_TIMED_OUT
        assert told.value.message == "not done in time (ZooKeeper does not answer); it may be done later"
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
    assert "notice of settings ignored" in caplog.text
    assert "settings of a topic ignored" in caplog.text


async def test_a_notice_whose_name_comes_last_hides_no_other(members: tuple[Member, Member]) -> None:
    """Another program left it; and names begin anew where their parent was made anew."""
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
    """A broker keeps what it goes by, says so, and goes by those of topics that change; one that starts does not."""
    one, other = members
    change = Change("log.retention.ms", Operation.SET, "9000")
    await one.configs.alter_broker("", [change], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.config["log.retention.ms"] == 9000)
    await one.session.set(nodes.broker_config(None), b'{"version":1,"config":{"log.retention.ms":8000}}')
    other.following.cancel()
    other.session.expire()
    await other.join(one.store)
    await one.configs.alter_topic("t", [KEEP], replace=False, validate_only=False)
    await eventually("the other has it", lambda: other.topics.topic("t").get("retention.ms") == "7000")
    assert other.config["log.retention.ms"] == 9000
    assert "settings of a broker ignored" in caplog.text
    with pytest.raises(StoreDamaged, match="/config/brokers/<default>: a node of the coordination store is damaged"):
        await other.watch.read_all(other.session)


async def test_a_cautious_start_deletes_nothing(members: tuple[Member, Member]) -> None:
    """By settings that cannot be read; once they can, or are gone, the broker goes by them."""
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
    """A session lasts longer than what failed in it: nothing is left of that."""
    _, other = members
    assert len(other.session._listeners) == 1
    other.following.cancel()
    await asyncio.wait([other.following])
    assert other.session._listeners == []


async def test_settings_that_have_no_place(members: tuple[Member, Member]) -> None:
    """Somebody removed the parents: whoever alters settings is told, and holds up nobody."""
    one, _ = members
    for member in members:
        member.following.cancel()
    held = nodes.broker_config(1).rpartition("/")[0]
    change = Change("log.retention.ms", Operation.SET, "9000")
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
    topics = ClusterTopics(lambda: one.session, one.config, one.metadata, Random(1), lambda: None)
    async with asyncio.timeout(5):
        with pytest.raises(KafkaError, match=removed) as told:
            await topics.create(NewTopic("u", 1, 1))
    assert told.value.code == errors.KAFKA_STORAGE_ERROR


async def test_a_wish_for_a_deletion_that_has_no_place(members: tuple[Member, Member]) -> None:
    one, _ = members
    await one.session.delete(nodes.DELETIONS)
    topics = ClusterTopics(lambda: one.session, one.config, one.metadata, Random(1), lambda: None)
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
        assert one.entities.quotas.all()[entity] == {PRODUCER: number + 1.0}, "at once where it is written"
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
