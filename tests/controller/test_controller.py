"""The controller of a cluster: leaders, requests to brokers, and the deaths of brokers and controllers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors, retries
from pybroker.config.settings import Source
from pybroker.controller import broker_channel
from pybroker.controller.requests import check_asker, elect_leaders
from pybroker.coordination.store import Create, Delete, Set
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.model import TopicPartition
from pybroker.protocol import messages as m
from pybroker.protocol.wire import EncodeError
from tests.controller.brokers import FakeBroker, FakeCluster, FakeLink, alter_partition, controlled_shutdown
from tests.harness import eventually


async def test_one_is_elected_and_all_are_told_who_is_alive(cluster: FakeCluster) -> None:
    assert cluster.controller.number == 1
    assert nodes.load_controller((await cluster.admin.get(nodes.CONTROLLER))[0]) == 1
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 1
    assert sum(broker.controller.active for broker in cluster.living) == 1


async def test_a_new_topic(cluster: FakeCluster) -> None:
    """The first replicas lead; replicas get LeaderAndIsr as new, with the topic id, before all get UpdateMetadata."""
    zero, one = await cluster.create("t", (2, 3), (3, 1))
    assert await cluster.state(zero) == (2, 0, [2, 3], 0)
    assert await cluster.state(one) == (3, 0, [3, 1], 0)
    for broker in cluster.living:
        assert set(broker.states) == {key for key, held in ((zero, (2, 3)), (one, (3, 1))) if broker.number in held}
        assert all(state.is_new for state in broker.states.values())
        kinds = [type(each) for each in broker.told if getattr(each, "topic_states", None)]
        assert kinds == [m.LeaderAndIsrRequest, m.UpdateMetadataRequest], "leaders know it before clients do"


async def test_a_process_that_dies_is_missed_at_once(cluster: FakeCluster) -> None:
    """The dead broker's address refuses connections, so the controller need not wait half a minute for its session."""
    (key,) = await cluster.create("t", (2, 3, 1))
    await cluster.brokers[2].die()
    await cluster.until_led(key, 3)
    assert await cluster.state(key) == (3, 1, [3, 1], 1)
    for number in (1, 3):
        assert cluster.brokers[number].states[key].leader_epoch == 1
        assert cluster.brokers[number].live == {1, 3}


async def test_a_broker_that_was_never_reached_is_not_dead(cluster: FakeCluster) -> None:
    """A broker may register before its port accepts, as Kafka's does, so a refused connection proves nothing yet."""
    late = FakeBroker(cluster, 4)
    late.alive = False
    cluster.brokers[4] = await late.join()
    await eventually("others are told of it", lambda: all(b.live == {1, 2, 3, 4} for b in cluster.living))
    await eventually("it has refused", lambda: late.refused > 2)
    assert await cluster.admin.exists(nodes.broker(4))
    late.alive = True
    await eventually("it is told who is alive", lambda: late.live == {1, 2, 3, 4})


async def test_who_is_alive_is_told_before_who_leads(cluster: FakeCluster) -> None:
    """Kafka's brokers do not follow a leader unless they know that it is alive, so UpdateMetadata comes first. A new
    broker gets all topics at once, as it then serves clients."""
    (key,) = await cluster.create("t", (2, 3))
    (offline,) = await cluster.create("u", (4, 3))
    await cluster.brokers[2].die()
    await cluster.until_led(key, 3)
    before = len(cluster.brokers[3].told)
    again, came = await cluster.join(2), await cluster.join(4)
    await eventually("both have their replicas", lambda: key in again.states and offline in came.states)
    await eventually("3 follows 4", lambda: offline in cluster.brokers[3].states)
    seen = ((again.told, set[int]()), (came.told, set[int]()), (cluster.brokers[3].told[before:], {1, 3}))
    assert {topic.topic_name for topic in again.told[0].topic_states} == {"t", "u"}
    for told, known in seen:
        for request in told:
            if isinstance(request, m.UpdateMetadataRequest):
                known = {broker.id for broker in request.live_brokers}
            elif isinstance(request, m.LeaderAndIsrRequest):
                assert known >= {p.leader for topic in request.topic_states for p in topic.partition_states}


async def test_without_proofs_a_death_waits_for_the_session() -> None:
    cluster = await FakeCluster("broker.death.proof.enable=false").begin()
    (key,) = await cluster.create("t", (2, 3))
    await cluster.brokers[2].die()
    assert (await cluster.state(key))[0] == 2
    cluster.brokers[2].session.expire()
    await cluster.until_led(key, 3)
    await cluster.end()


async def test_a_host_that_falls_silent(cluster: FakeCluster) -> None:
    """The silent host's connections stay open, so the controller waits until its session expires."""
    (key,) = await cluster.create("t", (2, 3))
    await cluster.brokers[2].die(silently=True)
    cluster.brokers[2].session.expire()
    await cluster.until_led(key, 3)


async def test_the_controller_dies(cluster: FakeCluster) -> None:
    """The next controller has all it needs in the store: a topic without states, and a dead leader."""
    (key,) = await cluster.create("t", (1, 2, 3))
    await cluster.brokers[1].die()
    data = nodes.dump_assignment(b"u" * 16, [(2, 3), (1, 3)])
    await cluster.admin.create(nodes.topic_config("u"), nodes.dump_config({}))
    await cluster.admin.create(nodes.topic("u"), data)
    cluster.brokers[1].session.expire()
    await cluster.until_led(key, 2)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 2
    await cluster.until_led(TopicPartition("u", 0), 2)
    await cluster.until_led(TopicPartition("u", 1), 3)


async def test_a_bounced_broker(cluster: FakeCluster) -> None:
    """A broker back with a new epoch before its loss was noticed is handled as gone, then gets everything again."""
    (key,) = await cluster.create("t", (2, 3))
    broker = cluster.brokers[2]
    broker.states.clear()
    before = broker.epoch
    await cluster.admin.delete(nodes.broker(2))
    await broker.register()
    assert broker.epoch > before
    await cluster.until_led(key, 3)
    await eventually("it is told", lambda: key in broker.states)
    assert broker.states[key].leader == 3


async def test_the_last_of_the_isr_is_waited_for(cluster: FakeCluster) -> None:
    (key,) = await cluster.create("t", (2, 3))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.brokers[2].die()
    await cluster.until_led(key, -1)
    assert (await cluster.state(key))[2] == [2]
    await cluster.brokers[3].leave()
    await cluster.join(3)
    await eventually("it is told", lambda: key in cluster.brokers[3].states)
    assert (await cluster.state(key))[0] == -1, "it lacks acknowledged records"
    await cluster.brokers[2].leave()
    await cluster.join(2)
    await cluster.until_led(key, 2)


async def test_an_unclean_election(cluster: FakeCluster) -> None:
    cluster.configs["t"] = {"unclean.leader.election.enable": "true"}
    (key,) = await cluster.create("t", (2, 3))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.brokers[2].die()
    await cluster.until_led(key, -1)
    await cluster.brokers[3].leave()
    await cluster.join(3)
    await cluster.until_led(key, 3)
    assert (await cluster.state(key))[2] == [3]


@pytest.mark.parametrize("of", ["the topic", "all topics"])
async def test_an_unclean_election_is_allowed_late(cluster: FakeCluster, of: str) -> None:
    """An operator allows it while no broker comes or goes."""
    (key,) = await cluster.create("t", (2, 3))
    await cluster.brokers[3].die()
    await cluster.until_led(key, 2)
    await cluster.brokers[2].die()
    await cluster.until_led(key, -1)
    await cluster.brokers[3].leave()
    await cluster.join(3)
    await eventually("it is told", lambda: key in cluster.brokers[3].states)
    assert (await cluster.state(key))[0] == -1
    allowed = {"unclean.leader.election.enable": "true"}
    if of == "the topic":
        cluster.configs["t"] = allowed
    else:
        cluster.config.overlay(Source.DYNAMIC_DEFAULT_BROKER, allowed)
    cluster.controller.controller.settings_changed()
    await cluster.until_led(key, 3)
    assert (await cluster.state(key))[2] == [3]


def asked(
    broker: FakeBroker, key: TopicPartition, isr: dict[int, int], leader_epoch: int, partition_epoch: int
) -> Any:
    kind = m.AlterPartitionRequest.Topics
    members = [kind.Partitions.NewIsrWithEpochs(broker_id=b, broker_epoch=e) for b, e in isr.items()]
    partition = kind.Partitions(
        partition_index=key.partition, leader_epoch=leader_epoch, new_isr_with_epochs=members,
        partition_epoch=partition_epoch, leader_recovery_state=0,
    )  # fmt: skip
    topic = kind(topic_id=key.topic.encode().ljust(16, b"_"), partitions=[partition])
    return m.AlterPartitionRequest(broker_id=broker.number, broker_epoch=broker.epoch, topics=[topic])


async def test_an_isr_changes_as_its_leader_asks(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """AlterPartition is a compare-and-set: the leader epoch stays, the partition epoch grows, and brokers get it."""
    (key,) = await cluster.create("t", (2, 3, 1))
    leader, controller = cluster.brokers[2], cluster.controller.controller
    epochs = {number: broker.epoch for number, broker in cluster.brokers.items()}

    async def alter(*isr: int, leader_epoch: int = 0, partition_epoch: int, **wrong: int) -> tuple[int, int]:
        members = {broker: wrong.get(f"epoch_{broker}", epochs[broker]) for broker in isr}
        answer = await alter_partition(controller, asked(leader, key, members, leader_epoch, partition_epoch), 3)
        (p,) = answer.topics[0].partitions
        return p.error_code, p.partition_epoch

    assert await alter(2, 3, partition_epoch=0) == (0, 1)
    assert await cluster.state(key) == (2, 0, [2, 3], 1)
    await eventually("all know", lambda: all(list(b.image[key].isr) == [2, 3] for b in cluster.living))
    assert await alter(2, 3, partition_epoch=1) == (0, 1), "the same once more"
    assert await alter(2, 3, 1, partition_epoch=1, epoch_1=-1) == (0, 2), "an unknown epoch is accepted"
    assert await alter(2, partition_epoch=2) == (0, 3)
    for code, result in (
        (errors.INVALID_UPDATE_VERSION, alter(2, 3, partition_epoch=1)),
        (errors.NOT_CONTROLLER, alter(2, 3, partition_epoch=9)),
        (errors.NOT_CONTROLLER, alter(2, 3, partition_epoch=3, leader_epoch=1)),
        (errors.INVALID_REQUEST, alter(3, partition_epoch=3)),
        (errors.INELIGIBLE_REPLICA, alter(2, 3, partition_epoch=3, epoch_3=epochs[3] - 1)),
    ):
        assert (await result)[0] == code
    leader.epoch -= 1
    for _ in range(2):
        with pytest.raises(KafkaError) as told:
            await alter(2, 3, partition_epoch=3)
        assert told.value.code == errors.STALE_BROKER_EPOCH
    assert caplog.text.count("broker fenced") == 1
    leader.epoch += 1
    leader = cluster.brokers[3]
    assert (await alter(2, 3, partition_epoch=3))[0] == errors.FENCED_LEADER_EPOCH
    with pytest.raises(KafkaError) as told:
        await alter_partition(leader.controller, asked(leader, key, {3: 0}, 0, 3), 3)
    assert told.value.code == errors.NOT_CONTROLLER


async def test_fenced_leaders_share_a_line(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A former leader of hundreds of partitions asks for all of them at once, before it has the new leaders."""
    caplog.set_level("INFO")
    keys = await cluster.create("t", (2, 3, 1), (2, 3, 1), (2, 3, 1))
    old, all_ = cluster.brokers[3], {2: -1, 3: -1, 1: -1}
    request = asked(old, keys[0], all_, 0, 0)
    request.topics[0].partitions += [asked(old, key, all_, 0, 0).topics[0].partitions[0] for key in keys[1:]]
    answer = await alter_partition(cluster.controller.controller, request, 3)
    assert {p.error_code for p in answer.topics[0].partitions} == {errors.FENCED_LEADER_EPOCH}
    (said,) = [r for r in caplog.records if r.getMessage().startswith("leader fenced")]
    assert (said.levelname, said.getMessage()) == (
        "INFO", 'leader fenced leader=3 partitions=3 first=t-0 leader_epoch=0 cause="2 leads in epoch 0"',
    )  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("isr", [(2, 2), (2, 3, 3), (2, 3, 2), (2, 9), (2, 3, 9), ()])
async def test_an_isr_that_is_none(cluster: FakeCluster, version: int, isr: tuple[int, ...]) -> None:
    """An ISR with a broker twice, which no controller could read, or with a broker that is no replica, is refused."""
    (key,) = await cluster.create("t", (2, 3, 1))
    leader = cluster.brokers[2]
    kind = m.AlterPartitionRequest.Topics
    members = [kind.Partitions.NewIsrWithEpochs(broker_id=broker, broker_epoch=-1) for broker in isr]
    told = {"new_isr_with_epochs": members} if version >= 3 else {"new_isr": list(isr)}
    asks = kind.Partitions(partition_index=0, leader_epoch=0, partition_epoch=0, leader_recovery_state=0, **told)
    topic = kind(topic_name="t", topic_id=b"t".ljust(16, b"_"), partitions=[asks])
    request = m.AlterPartitionRequest(broker_id=2, broker_epoch=leader.epoch, topics=[topic])
    answer = await alter_partition(cluster.controller.controller, request, version)
    assert answer.topics[0].partitions[0].error_code == errors.INVALID_REQUEST
    assert await cluster.state(key) == (2, 0, [2, 3, 1], 0)


async def test_features_are_on_record(cluster: FakeCluster) -> None:
    """The controller creates the node as Kafka's does, and leaves an existing one as it is."""

    async def made() -> bool:
        return await cluster.admin.exists(nodes.FEATURE) is not None

    await eventually("the node is made", made)
    assert (await cluster.admin.get(nodes.FEATURE))[0] == b'{"features":{},"version":2,"status":1}'
    await cluster.admin.set(nodes.FEATURE, b"another's")
    await cluster.admin.delete(nodes.CONTROLLER)
    await cluster.create("t", (1,))
    assert (await cluster.admin.get(nodes.FEATURE))[0] == b"another's"


async def test_who_asks_is_registered_and_asks_the_controller(cluster: FakeCluster) -> None:
    """The checks, and the error codes, are those of Kafka's AllocateProducerIds."""
    broker = cluster.brokers[2]
    check_asker(cluster.controller.controller, 2, broker.epoch)
    for controller, number, epoch, code in (
        (cluster.controller.controller, 2, broker.epoch - 1, errors.STALE_BROKER_EPOCH),
        (cluster.controller.controller, 9, 1, errors.STALE_BROKER_EPOCH),
        (broker.controller, 2, broker.epoch, errors.NOT_CONTROLLER),
    ):
        with pytest.raises(KafkaError) as refused:
            check_asker(controller, number, epoch)
        assert refused.value.code == code


async def test_a_controlled_shutdown(cluster: FakeCluster) -> None:
    """A broker's partitions get other leaders before it stops, and it leaves each ISR unless it is the only member."""
    led, followed, alone = await cluster.create("t", (2, 3), (3, 2), (2,))
    broker = cluster.brokers[2]
    request = m.ControlledShutdownRequest(broker_id=2, broker_epoch=broker.epoch)
    answer = await controlled_shutdown(cluster.controller.controller, request)
    assert answer.remaining_partitions == []
    assert await cluster.state(led) == (3, 1, [3], 1)
    assert await cluster.state(followed) == (3, 1, [3], 1)
    assert (await cluster.state(alone))[:2] == (2, 0)
    await eventually("it is told", lambda: any(isinstance(each, m.StopReplicaRequest) for each in broker.told))
    assert broker.deleted == []


async def test_preferred_leaders(cluster: FakeCluster) -> None:
    one, other = await cluster.create("t", (2, 3), (3, 2))
    await cluster.brokers[2].die()
    await cluster.until_led(one, 3)
    await cluster.brokers[2].leave()
    await cluster.join(2)
    await eventually("it is told", lambda: one in cluster.brokers[2].states)
    controller = cluster.controller.controller
    assert await elect_leaders(controller, [one], 0) == {one: errors.PREFERRED_LEADER_NOT_AVAILABLE}
    three = cluster.brokers[3]
    epochs = {3: three.epoch, 2: cluster.brokers[2].epoch}
    await alter_partition(controller, asked(three, one, epochs, 1, 1), 3)
    found = await elect_leaders(controller, None, 0)
    assert found == {one: errors.NONE, other: errors.ELECTION_NOT_NEEDED}
    await cluster.until_led(one, 2)
    missing = TopicPartition("none", 0)
    assert await elect_leaders(controller, [missing], 0) == {missing: errors.UNKNOWN_TOPIC_OR_PARTITION}


async def test_a_stale_controller_writes_nothing(cluster: FakeCluster) -> None:
    """A controller deposed while it was frozen resigns, and leaves a broker's death to its successor."""
    (key,) = await cluster.create("t", (2, 3))
    old = cluster.controller
    claim = Create(nodes.CONTROLLER, nodes.dump_controller(9, 0), ephemeral=True)
    await cluster.admin.multi([Delete(nodes.CONTROLLER), claim, Set(nodes.CONTROLLER_EPOCH, b"7", 1)])
    await cluster.brokers[2].die()
    cluster.brokers[2].session.expire()
    await eventually("it has resigned", lambda: not old.controller.active)
    assert (await cluster.state(key))[0] == 2
    await cluster.admin.delete(nodes.CONTROLLER)
    await cluster.until_led(key, 3)
    assert int((await cluster.admin.get(nodes.CONTROLLER_EPOCH))[0]) == 8


async def test_a_state_that_another_wrote(cluster: FakeCluster) -> None:
    """A state with an unexpected version is read again, and the election repeated."""
    (key,) = await cluster.create("t", (2, 3, 1))
    data, _ = await cluster.admin.get(nodes.state(*key))
    await cluster.admin.set(nodes.state(*key), data.replace(b"[2,3,1]", b"[2,1]"))
    await cluster.brokers[2].die()
    await cluster.until_led(key, 1)
    assert await cluster.state(key) == (1, 1, [1], 2)


async def test_a_failed_log_is_no_replica(cluster: FakeCluster) -> None:
    """A live broker does not lead partitions on a failed disk."""
    key = TopicPartition("t", 0)
    cluster.brokers[2].refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.create("t", (2, 3))
    await cluster.until_led(key, 3)


async def test_a_log_that_can_be_used_again(cluster: FakeCluster) -> None:
    """Once its broker answers without an error, the replica may join the ISR."""
    key = TopicPartition("t", 0)
    two, three = cluster.brokers[2], cluster.brokers[3]
    two.refuses[key] = errors.KAFKA_STORAGE_ERROR
    await cluster.create("t", (2, 3))
    await cluster.until_led(key, 3)
    controller, epochs = cluster.controller.controller, {3: three.epoch, 2: two.epoch}
    context = controller.context
    assert context is not None

    async def joins() -> int:
        answer = await alter_partition(controller, asked(three, key, epochs, 1, 1), 3)
        return int(answer.topics[0].partitions[0].error_code)

    assert await joins() == errors.INELIGIBLE_REPLICA
    two.refuses.clear()
    await cluster.admin.create(nodes.LOG_DIR_EVENT, nodes.dump_log_dir_event(2), sequential=True)
    await eventually("it is told again, and answers", lambda: not context.failed)
    assert await joins() == errors.NONE


async def test_who_stops_it_can_be_cancelled(cluster: FakeCluster) -> None:
    """A stopping broker cancels the task that waits for the term's end; if it went on, it would start another term."""
    stopping = asyncio.create_task(cluster.controller.controller.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping


async def test_what_cannot_be_read_of_a_topic_takes_it_from_nobody(cluster: FakeCluster) -> None:
    """Brokers keep what they have of the topic, other topics have leaders, and so has this one once it is repaired."""
    (t,) = await cluster.create("t", (2, 3))
    (u,) = await cluster.create("u", (2, 3))
    (gone,) = await cluster.create("gone", (2, 3))
    sound, _ = await cluster.admin.get(nodes.state(*t))
    await cluster.admin.set(nodes.state(*t), b"{")
    paths = nodes.state(*gone), nodes.partition(*gone), nodes.partitions("gone"), nodes.topic("gone")
    cluster.brokers[1].session.suspend()
    await cluster.admin.multi([Delete(path) for path in paths])
    await cluster.admin.create(nodes.deletion("t"))
    await cluster.admin.delete(nodes.CONTROLLER)
    others = [cluster.brokers[number] for number in (2, 3)]
    await eventually("another controls", lambda: any(broker.controller.active for broker in others))
    await eventually("it has told of u", lambda: all(b.told[-1].controller_epoch == 2 and b.image[u] for b in others))
    assert all(broker.image.keys() == {t, u, gone} for broker in others)
    assert await cluster.admin.exists(nodes.deletion("t")) is not None
    await cluster.admin.delete(nodes.deletion("t"))
    await cluster.admin.set(nodes.state(*t), sound)
    await cluster.admin.set(nodes.topic("t"), (await cluster.admin.get(nodes.topic("t")))[0])
    dies = next(broker for broker in others if not broker.controller.active)
    known = cluster.controller.controller.context
    assert known is not None
    await eventually("it is known", lambda: "t" in known.topics)
    await eventually("what is gone is gone", lambda: all(broker.image.keys() == {t, u} for broker in others))
    await dies.die()
    await cluster.until_led(t, 5 - dies.number)


async def test_a_reign_leaves_no_listener(cluster: FakeCluster) -> None:
    """A session may see many terms, and each listens only while it lasts."""
    session = cluster.brokers[1].session
    before = len(session._listeners)
    for epoch in (2, 3, 4):
        await cluster.admin.delete(nodes.CONTROLLER)
        await cluster.admin.set(nodes.CONTROLLER_EPOCH, str(epoch).encode())
        await cluster.create(f"t{epoch}", (2, 3))
    await eventually("it stands again", lambda: len(session._listeners) <= before)


async def test_what_a_broker_failed_with_is_told_again(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that failed in a broker, for lack of a thread or memory, is sent again, as the broker is alive."""
    answer, failures = FakeBroker.answer, 0

    def fails_twice(self: FakeBroker, request: Any) -> Any:
        nonlocal failures
        if self.number == 2 and isinstance(request, m.LeaderAndIsrRequest) and failures < 2:
            failures += 1
            kind = m.LeaderAndIsrResponse
            parts = [kind.Topics.PartitionErrors(partition_index=0, error_code=errors.UNKNOWN_SERVER_ERROR)]
            topics = [kind.Topics(topic_id=t.topic_id, partition_errors=parts) for t in request.topic_states]
            return kind(error_code=errors.UNKNOWN_SERVER_ERROR, topics=topics)
        return answer(self, request)

    monkeypatch.setattr(FakeBroker, "answer", fails_twice)
    monkeypatch.setattr(broker_channel, "AGAIN_S", 0.01)
    (key,) = await cluster.create("t", (2,))
    await eventually("it is told again", lambda: key in cluster.brokers[2].states, 5)
    said = [r.getMessage() for r in caplog.records if "broker request failed" in r.getMessage()]
    assert failures == 2
    assert said == ['broker request failed broker=2 reason="it answered UNKNOWN_SERVER_ERROR"']


async def test_what_cannot_be_told_keeps_nobody_from_the_rest(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception in the channel to a broker is logged, and the broker gets its later requests."""
    opens, failures = cluster.open_link, 0

    async def slips(broker: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures < 3:
            raise ValueError("unforeseen")
        return await opens(broker)

    monkeypatch.setattr(retries, "AGAIN_S", 0.01)
    channel = cluster.controller.controller.channels[2]
    channel._open_link = slips
    for link in list(cluster.brokers[2].links):
        link.close()
    (key,) = await cluster.create("t", (2,))
    await eventually("it is told", lambda: key in cluster.brokers[2].states, 5)
    assert sum("task failed" in r.getMessage() for r in caplog.records) == 2


async def test_what_no_request_can_carry_keeps_nobody_from_the_rest(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A request that cannot be encoded is logged and not sent again; the broker gets its later requests."""
    ask, failures = FakeLink.ask, 0

    async def cannot(self: FakeLink, message: Any, version: int, **_: Any) -> Any:
        nonlocal failures
        if self._broker.number == 2 and isinstance(message, m.LeaderAndIsrRequest) and not failures:
            failures += 1
            raise EncodeError("leader_epoch is 2147483648")
        return await ask(self, message, version)

    monkeypatch.setattr(FakeLink, "ask", cannot)
    await cluster.create("t", (2, 3))
    (key,) = await cluster.create("u", (2, 3))
    await eventually("it is told of the other", lambda: key in cluster.brokers[2].states, 5)
    said = [r.getMessage() for r in caplog.records if "not encodable" in r.getMessage()]
    assert said == ['broker request not encodable broker=2 reason="leader_epoch is 2147483648"']
