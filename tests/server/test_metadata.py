"""Answers from the metadata cache: each is built from one image, with the addresses of the client's listener."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pybroker import errors
from pybroker.decisions.caller import Call, Caller, Disconnect
from pybroker.decisions.image import NO_LEADER, Image, LiveBroker, PartitionState
from pybroker.decisions.metadata_cache import (
    SUSPECTED_S,
    MetadataCache,
    Suspects,
    TopicStates,
    UpdateMetadata,
)
from pybroker.model import PLAINTEXT, HostPort
from pybroker.protocol import messages as m
from pybroker.server.api.handlers.cluster import DescribeCluster
from pybroker.server.api.handlers.metadata import Metadata
from tests import virtual

ID = b"i" * 16
ASKED = m.MetadataRequest(topics=None)


def broker(number: int, *listeners: str) -> LiveBroker:
    at = {name: HostPort(name.lower(), 1000 * number) for name in listeners}
    return LiveBroker(number, at, dict.fromkeys(listeners, PLAINTEXT))


def state(leader: int, *replicas: int) -> PartitionState:
    return PartitionState(replicas, leader, 3, replicas, 1, 0)


@pytest.fixture
def cache() -> MetadataCache:
    """Brokers 1 (INSIDE, OUTSIDE) and 2 (INSIDE) and dead broker 3 lead a partition each; the last has no leader."""
    made = MetadataCache("c")
    partitions = dict(enumerate([state(1, 1, 2), state(2, 2, 1), state(3, 3, 1), state(NO_LEADER, 2)]))
    brokers = [broker(1, "INSIDE", "OUTSIDE"), broker(2, "INSIDE")]
    made.update(UpdateMetadata(2, 1, brokers, [TopicStates("t", ID, partitions)]))
    return made


def call(listener: str, version: int = 12) -> Call:
    return Call(version, None, Caller("somewhere", 1, listener))


class Nobody:
    def is_creating(self, name: str) -> bool:
        return False

    def auto_create(self, name: str) -> None:
        raise AssertionError(name)


def asked(cache: MetadataCache, listener: str, version: int = 12) -> Any:
    return Metadata(cache, Nobody(), auto_create=False)(ASKED, call(listener, version))


@pytest.mark.parametrize(
    ("listener", "version", "brokers", "leaders"),
    [
        ("INSIDE", 12, [(1, "inside", 1000), (2, "inside", 2000)], [(1, 0), (2, 0), (-1, 5), (-1, 5)]),
        ("OUTSIDE", 12, [(1, "outside", 1000)], [(1, 0), (-1, errors.LISTENER_NOT_FOUND), (-1, 5), (-1, 5)]),
        ("OUTSIDE", 6, [(1, "outside", 1000)], [(1, 0), (-1, errors.LISTENER_NOT_FOUND), (-1, 5), (-1, 5)]),
        ("OUTSIDE", 5, [(1, "outside", 1000)], [(1, 0), (-1, errors.LEADER_NOT_AVAILABLE), (-1, 5), (-1, 5)]),
        ("NOWHERE", 12, [], [(-1, errors.LISTENER_NOT_FOUND)] * 2 + [(-1, 5)] * 2),
    ],
)
def test_metadata_is_of_the_listener_that_was_asked(
    cache: MetadataCache,
    listener: str,
    version: int,
    brokers: list[tuple[int, str, int]],
    leaders: list[tuple[int, int]],
) -> None:
    """A broker without this listener is left out, and its partitions get an error code that the version knows."""
    answer = asked(cache, listener, version)
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == brokers
    [topic] = answer.topics
    assert [(p.leader_id, p.error_code) for p in topic.partitions] == leaders
    assert [list(p.replica_nodes) for p in topic.partitions] == [[1, 2], [2, 1], [3, 1], [2]]
    assert [list(p.offline_replicas) for p in topic.partitions] == [[], [], [3], []]
    assert (answer.controller_id, answer.cluster_id) == (2, "c")


@pytest.mark.parametrize(("listener", "ids"), [("INSIDE", [1, 2]), ("OUTSIDE", [1]), ("NOWHERE", [])])
def test_a_cluster_is_described_to_the_listener_that_asked(
    cache: MetadataCache, listener: str, ids: list[int]
) -> None:
    answer = DescribeCluster(cache)(m.DescribeClusterRequest(), call(listener))
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(i, listener.lower(), 1000 * i) for i in ids]


class Restless(MetadataCache):
    """A cache that returns another image at each access."""

    def __init__(self, images: list[Image]) -> None:
        self._images = [Image(), *images]
        super().__init__()

    @property
    def image(self) -> Image:  # type: ignore[override]
        return self._images.pop(0)

    @image.setter
    def image(self, image: Image) -> None:
        self._images.pop(0)


def test_an_answer_is_of_one_image(cache: MetadataCache) -> None:
    """An answer has the brokers, topics and leaders of one moment, even if an update arrives meanwhile."""
    before = cache.image
    cache.update(UpdateMetadata(1, 2, [broker(2, "INSIDE")], (), ["t"]))
    restless = Restless([before, cache.image])
    assert asked(restless, "INSIDE") == asked(MetadataCacheOf(before), "INSIDE")
    assert asked(restless, "INSIDE") == asked(MetadataCacheOf(cache.image), "INSIDE")


def leaders(answer: Any) -> list[tuple[int, int]]:
    return [(p.leader_id, p.error_code) for p in answer.topics[0].partitions[:2]]


def hang_up(cache: MetadataCache, broker_id: int) -> None:
    """Make the next request find that the broker's connection ended."""

    def once() -> None:
        cache.look = lambda: None
        cache.suspects.add(broker_id)

    cache.look, cache.grace_s = once, 0.001


def test_who_asks_for_a_leader_that_hung_up_waits_for_the_next(cache: MetadataCache) -> None:
    """A Metadata request waits until the controller sends the topic's new leader; other updates do not end the wait."""

    async def ask() -> Any:
        hang_up(cache, 1)
        asking = asyncio.ensure_future(asked(cache, "INSIDE"))
        alive = list(cache.image.brokers.values())
        await asyncio.sleep(0)
        cache.update(UpdateMetadata(1, 2, alive))
        for _ in range(2):  # longer than its grace period
            await virtual.settle()
        assert not asking.done()
        known = cache.image.topic("t")
        assert known is not None
        elected = known.partitions[0]._replace(leader=2, leader_epoch=known.partitions[0].leader_epoch + 1)
        began = asyncio.get_running_loop().time()
        cache.update(UpdateMetadata(1, 2, alive, [TopicStates("t", known.id, {0: elected})]))
        answer = await asking
        assert asyncio.get_running_loop().time() == pytest.approx(began, abs=1e-6)
        return answer

    assert leaders(virtual.run(ask())) == [(2, 0), (2, 0)]


def test_a_leader_that_hung_up_is_none(cache: MetadataCache) -> None:
    """The broker's partitions have no leader until the controller sends one, or until the broker is reached again."""

    async def ask() -> Any:
        hang_up(cache, 1)
        return await asked(cache, "INSIDE")

    assert leaders(asyncio.run(ask())) == [(-1, errors.LEADER_NOT_AVAILABLE), (2, 0)]
    cache.suspects.discard(1)
    cache.grace_s = 0
    assert leaders(asked(cache, "INSIDE")) == [(1, 0), (2, 0)]


def test_a_broker_that_no_controller_reaches_sends_its_clients_to_others(cache: MetadataCache) -> None:
    """A broker whose registration ended does not know the new leaders. Its connections are closed: librdkafka would
    repeat a request that is answered without a leader."""
    cache.grace_s = 0.001
    cache.suspects.doubt(1, True)

    async def ask() -> Any:
        return await asked(cache, "INSIDE")

    with pytest.raises(Disconnect, match="no controller has reached this broker"):
        asyncio.run(ask())
    cache.suspects.doubt(1, False)
    assert leaders(asyncio.run(ask())) == [(1, 0), (2, 0)]


@pytest.mark.parametrize(("topics", "version", "names_it"), [([], 12, False), ([], 0, True), (None, 12, True)])
def test_who_asks_for_no_topic_asks_for_no_leader(
    cache: MetadataCache, topics: list[Any] | None, version: int, names_it: bool
) -> None:
    """Metadata without topics (v1 and later) is answered at once; aiokafka asks for brokers and controller this way."""
    cache.grace_s = 0.001
    cache.suspects.doubt(1, True)

    async def ask() -> Any:
        request = m.MetadataRequest(topics=topics)
        return await Metadata(cache, Nobody(), auto_create=False)(request, call("INSIDE", version))

    if names_it:
        with pytest.raises(Disconnect, match="no controller has reached this broker"):
            asyncio.run(ask())
    else:
        answer = asyncio.run(ask())
        assert ([node.node_id for node in answer.brokers], answer.topics) == ([1, 2], [])


def test_a_suspicion_ends(cache: MetadataCache) -> None:
    """A leader that only this broker cannot reach is returned to clients again after SUSPECTED_S."""
    clock = [0.0]
    cache.suspects = Suspects(lambda: clock[0])
    cache.suspects.add(1)
    clock[0] = SUSPECTED_S
    assert leaders(asked(cache, "INSIDE")) == [(1, 0), (2, 0)]


class MetadataCacheOf(MetadataCache):
    def __init__(self, image: Image) -> None:
        super().__init__()
        self.image = image


def test_nobody_hears_that_there_is_no_topic_before_topics_were_told() -> None:
    """A new controller sends live brokers before topics. Until then a client is asked to retry, and no topic is
    created."""
    cache = MetadataCache("c")
    cache.expect_topics(True)
    named = m.MetadataRequest(topics=[m.MetadataRequest.Topics(name="t")], allow_auto_topic_creation=True)

    def code() -> int:
        answer = Metadata(cache, Nobody(), auto_create=cache.expects_topics)(named, call("INSIDE"))
        return int(answer.topics[0].error_code)

    with pytest.raises(Disconnect, match="has not received the live brokers"):
        code()
    cache.update(UpdateMetadata(1, 1, [broker(1, "INSIDE")]))
    assert not cache.complete and code() == errors.LEADER_NOT_AVAILABLE
    with pytest.raises(Disconnect, match="has not received the list of topics"):
        Metadata(cache, Nobody(), auto_create=True)(m.MetadataRequest(topics=None), call("INSIDE"))
    by_id = m.MetadataRequest(topics=[m.MetadataRequest.Topics(name=None, topic_id=ID)])
    with pytest.raises(Disconnect, match="has not received the list of topics"):
        Metadata(cache, Nobody(), auto_create=True)(by_id, call("INSIDE"))
    cache.update(UpdateMetadata(1, 1, [broker(1, "INSIDE")], [TopicStates("t", ID, {0: state(1, 1)})]))
    assert cache.complete and code() == errors.NONE
    cache.update(UpdateMetadata(1, 1, [broker(1, "INSIDE")], deleted=["t"]))
    cache.expect_topics(False)
    assert cache.complete and code() == errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_broker_that_others_may_have_replaced_stays_suspect() -> None:
    """The broker stays suspected until the controller reaches it, and waiting requests get no extra time."""
    clock = [0.0]
    suspects = Suspects(lambda: clock[0])
    suspects.doubt(1, True)
    clock[0] = 60.0
    suspects.doubt(1, True)
    suspects.look()
    assert 1 in suspects and bool(suspects) and suspects.is_doubted(1) and suspects.patience_s([1]) < 0
    suspects.doubt(1, False)
    assert 1 not in suspects and not suspects and not suspects.is_doubted(1)
    suspects.add(1)
    suspects.doubt(1, False)
    assert 1 in suspects, "another broker with a closed connection is suspected as before"
