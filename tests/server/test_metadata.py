"""Answers from the metadata cache: each is of one image, and names brokers as the clients of its listener see them."""

from __future__ import annotations

from typing import Any

import pytest

from pybroker import errors
from pybroker.cluster.caller import Call, Caller
from pybroker.cluster.image import NO_LEADER, Image, LiveBroker, PartitionState
from pybroker.cluster.metadata_cache import MetadataCache, TopicStates, UpdateMetadata
from pybroker.model import PLAINTEXT, HostPort
from pybroker.protocol import messages as m
from pybroker.server.handlers.cluster import DescribeCluster
from pybroker.server.handlers.metadata import Metadata

ID = b"i" * 16
ASKED = m.MetadataRequest(topics=None)


def broker(number: int, *listeners: str) -> LiveBroker:
    at = {name: HostPort(name.lower(), 1000 * number) for name in listeners}
    return LiveBroker(number, at, dict.fromkeys(listeners, PLAINTEXT))


def state(leader: int, *replicas: int) -> PartitionState:
    return PartitionState(replicas, leader, 3, replicas, 1, 0)


@pytest.fixture
def cache() -> MetadataCache:
    """Broker 1 is inside and outside, broker 2 inside only; each leads one; broker 3, dead, and nobody the others."""
    made = MetadataCache("c")
    partitions = dict(enumerate([state(1, 1, 2), state(2, 2, 1), state(3, 3, 1), state(NO_LEADER, 2)]))
    brokers = [broker(1, "INSIDE", "OUTSIDE"), broker(2, "INSIDE")]
    made.update(UpdateMetadata(2, 1, brokers, [TopicStates("t", ID, partitions)]))
    return made


def call(listener: str, version: int = 12) -> Call:
    return Call(version, None, Caller("somewhere", 1, listener))


class Nobody:
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
    """A broker without it is not named; where it leads, the code says so, as far as the version knows the code."""
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
    """Another image each time that somebody looks."""

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
    """Whatever is told while it is made: brokers, topics and leaders are those of one moment."""
    before = cache.image
    cache.update(UpdateMetadata(1, 2, [broker(2, "INSIDE")], (), ["t"]))
    restless = Restless([before, cache.image])
    assert asked(restless, "INSIDE") == asked(MetadataCacheOf(before), "INSIDE")
    assert asked(restless, "INSIDE") == asked(MetadataCacheOf(cache.image), "INSIDE")


def test_a_leader_that_hung_up_is_none(cache: MetadataCache) -> None:
    """Until the controller's next word its partitions have no leader: clients ask again soon."""
    cache.look = lambda: cache.suspects.add(1)
    (topic,) = asked(cache, "INSIDE").topics
    assert [(p.leader_id, p.error_code) for p in topic.partitions[:2]] == [(-1, errors.LEADER_NOT_AVAILABLE), (2, 0)]
    cache.look = lambda: None
    cache.update(UpdateMetadata(1, 2, list(cache.image.brokers.values())))
    (topic,) = asked(cache, "INSIDE").topics
    assert [(p.leader_id, p.error_code) for p in topic.partitions[:2]] == [(1, 0), (2, 0)]


class MetadataCacheOf(MetadataCache):
    def __init__(self, image: Image) -> None:
        super().__init__()
        self.image = image
