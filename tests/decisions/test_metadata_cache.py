"""The metadata cache: a controller's update is applied at once and whole, and earlier images never change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import pytest

from pybroker import errors
from pybroker.decisions import metadata_cache
from pybroker.decisions.image import NO_LEADER, LiveBroker, Node, PartitionState, TopicImage
from pybroker.decisions.metadata_cache import GAP_MAX, LISTED_S, UNTOLD, MetadataCache, TopicStates, UpdateMetadata
from pybroker.errors import KafkaError
from pybroker.model import PLAINTEXT, HostPort, TopicPartition

ID, OTHER_ID = b"i" * 16, b"o" * 16


def broker(number: int, **ports: int) -> LiveBroker:
    at = {name: HostPort(f"{name.lower()}.example", port) for name, port in ports.items()}
    return LiveBroker(number, at, dict.fromkeys(ports, PLAINTEXT), "r1")


def state(leader: int = 1, epoch: int = 0) -> PartitionState:
    return PartitionState((1, 2), leader, epoch, (1, 2), 5, 0)


def topic(name: str, topic_id: bytes = ID, **partitions: PartitionState) -> TopicStates:
    """A topic with partitions by their numbers, as p0, p1."""
    return TopicStates(name, topic_id, {int(index[1:]): held for index, held in partitions.items()})


def told(*topics: TopicStates, deleted: tuple[str, ...] = (), epoch: int = 5) -> UpdateMetadata:
    return UpdateMetadata(1, epoch, [broker(1, INSIDE=1, OUTSIDE=2), broker(2, INSIDE=3)], topics, deleted)


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache("of-this-cluster")


def test_nothing_is_known_at_first(cache: MetadataCache) -> None:
    image = cache.image
    assert (image.cluster_id, image.controller_id, len(image), image.nodes("INSIDE")) == (
        "of-this-cluster",
        NO_LEADER,
        0,
        [],
    )
    assert image.topic("t") is image.topic_by_id(ID) is image.partition("t", 0) is None


def test_a_broker_is_where_the_listener_that_is_asked_says(cache: MetadataCache) -> None:
    """A broker's address is that of the listener that is asked for; a broker without that listener is left out."""
    cache.update(told())
    image = cache.image
    assert image.nodes("OUTSIDE") == [Node(1, "outside.example", 2, "r1")]
    assert [node.id for node in image.nodes("INSIDE")] == [1, 2] and image.nodes("NOWHERE") == []
    assert image.node(2, "INSIDE") == Node(2, "inside.example", 3, "r1")
    assert image.node(2, "OUTSIDE") is image.node(3, "INSIDE") is None
    cache.update(UpdateMetadata(1, 5, [broker(2, INSIDE=3)]))
    assert cache.image.node(1, "INSIDE") is None


def test_a_topic_is_found_by_name_and_by_id(cache: MetadataCache) -> None:
    cache.update(told(topic("t", p0=state(), p1=state(2))))
    image = cache.image
    found = image.topic("t")
    assert found is not None and image.topic_by_id(ID) is found and list(image.topics()) == [found]
    assert image.partition("t", 1) == state(2) and image.partition("t", 2) is image.partition("t", -1) is None


def test_news_of_a_partition_leave_the_others_as_they_are(cache: MetadataCache) -> None:
    """An update of a partition leaves the others as they are; new partitions come behind the existing ones."""
    cache.update(told(topic("t", p0=state(), p1=state()), topic("u", OTHER_ID, p0=state())))
    before = cache.image
    cache.update(told(topic("t", p1=state(2, 1), p2=state())))
    found = cache.image.topic("t")
    assert found is not None and found.partitions == (state(), state(2, 1), state())
    assert cache.image.topic("u") is before.topic("u"), "what did not change is shared"
    assert before.partition("t", 1) == state() and before.partition("t", 2) is None, "an image never changes"


def test_a_newer_leader_epoch_is_learnt_and_an_older_is_not(cache: MetadataCache) -> None:
    """A newer leader epoch is learnt, and an older one is not: LeaderAndIsr comes before UpdateMetadata. An unknown
    partition is ignored."""
    cache.update(told(topic("t", p0=state(1, 3), p1=state(1, 3))))
    key, other, unknown = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
    cache.learn({key: state(2, 4), other: state(2, 2), unknown: state(2, 9)})
    assert (cache.image.partition(*key), cache.image.partition(*other)) == (state(2, 4), state(1, 3))
    assert cache.image.topic("u") is None
    found = cache.image.topic_by_id(ID)
    assert found is cache.image.topic("t")


def test_all_partitions_of_a_topic_are_learnt_in_one_step(
    cache: MetadataCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A LeaderAndIsr may name thousands of partitions of one topic: its partitions are not copied for each of them."""
    cache.update(told(topic("t", **{f"p{index}": state(1, 3) for index in range(5)})))
    copies: list[int] = []
    grown = metadata_cache._grown

    def counted(known: TopicImage, news: Mapping[int, PartitionState]) -> TopicImage:
        copies.append(len(news))
        return grown(known, news)

    monkeypatch.setattr(metadata_cache, "_grown", counted)
    cache.learn({TopicPartition("t", index): state(2, 4) for index in range(4)})
    assert [cache.image.partition("t", index) for index in range(5)] == [state(2, 4)] * 4 + [state(1, 3)]
    assert copies == [4]


def test_a_topic_that_is_gone_is_found_no_more(cache: MetadataCache) -> None:
    """A topic that was deleted is not found, and one of its name with another id is another topic."""
    cache.update(told(topic("t", p0=state(), p1=state())))
    before = cache.image
    cache.update(told(deleted=("t", "never-there")))
    assert cache.image.topic("t") is cache.image.topic_by_id(ID) is None
    assert before.topic_by_id(ID) is not None
    for again in (told(topic("t", p0=state(), p1=state())), told(topic("t", OTHER_ID, p0=state()))):
        cache.update(again)
    found = cache.image.topic("t")
    assert found is not None and len(found.partitions) == 1
    assert cache.image.topic_by_id(ID) is None and cache.image.topic_by_id(OTHER_ID) is found


def test_a_controller_that_was_replaced_is_not_heard(cache: MetadataCache) -> None:
    """A controller with an older epoch is ignored; one of the same or a later epoch is not."""
    cache.update(told(topic("t", p0=state()), epoch=5))
    before = cache.image
    with pytest.raises(KafkaError) as refused:
        cache.update(told(deleted=("t",), epoch=4))
    assert refused.value.code == errors.STALE_CONTROLLER_EPOCH and cache.image is before
    cache.update(told(epoch=5))
    cache.update(UpdateMetadata(2, 6, [], [topic("u", OTHER_ID, p0=state())]))
    assert (cache.image.controller_id, cache.image.controller_epoch, len(cache.image)) == (2, 6, 2)


def test_a_partition_that_nobody_could_lead_is_told_later(cache: MetadataCache) -> None:
    """A partition without a leader may come later: Kafka's controller first sends the topic's others. The image has all
    of them."""
    cache.update(told(topic("good", OTHER_ID, p0=state()), topic("t", p1=state(2), p3=state(3))))
    found = cache.image.topic("t")
    assert found is not None and found.partitions == (UNTOLD, state(2), UNTOLD, state(3))
    assert cache.image.topic("good") is not None
    cache.update(told(topic("t", p0=state())))
    assert cache.image.partition("t", 0) == state() and cache.image.partition("t", 2) == UNTOLD


@pytest.mark.parametrize(("index", "taken"), [(GAP_MAX, True), (GAP_MAX + 1, False), (-1, False)])
def test_a_gap_has_a_limit(cache: MetadataCache, index: int, taken: bool) -> None:
    """A gap in partition numbers has a limit: beyond it the whole request is ignored, its other topics included."""
    before = cache.image
    states = TopicStates("t", ID, {index: state()})
    with nullcontext() if taken else pytest.raises(KafkaError):
        cache.update(told(topic("good", OTHER_ID, p0=state()), states))
    assert (cache.image is before) != taken


def test_a_topic_that_goes_and_comes_in_one_request_is_new(cache: MetadataCache) -> None:
    cache.update(told(topic("t", p0=state(), p1=state())))
    cache.update(told(topic("t", p0=state(2)), deleted=("t",)))
    found = cache.image.topic_by_id(ID)
    assert found is not None and found is cache.image.topic("t") and found.partitions == (state(2),)


def test_a_broker_that_is_gone_is_listed_for_a_while() -> None:
    """A broker that is gone stays listed for clients for a while and leads nothing; one that is back is listed once, at
    its new address."""
    now_s = 100.0
    cache = MetadataCache("of-this-cluster", lambda: now_s)
    cache.update(told())
    cache.update(UpdateMetadata(1, 5, [broker(1, INSIDE=1)]))
    assert cache.image.nodes("INSIDE") == [Node(1, "inside.example", 1, "r1")]
    now_s += LISTED_S - 0.1
    assert [node.id for node in cache.listed(cache.image, "INSIDE")] == [1, 2] and cache.listed(
        cache.image, "NOWHERE"
    ) == []
    now_s += 0.1
    assert [node.id for node in cache.listed(cache.image, "INSIDE")] == [1]
    cache.update(told())
    cache.update(UpdateMetadata(1, 5, [broker(1, INSIDE=1)]))
    cache.update(UpdateMetadata(1, 5, [broker(1, INSIDE=1), broker(2, INSIDE=7)]))
    assert cache.listed(cache.image, "INSIDE")[1:] == [Node(2, "inside.example", 7, "r1")]
