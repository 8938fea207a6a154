"""Topics that clients name in a cluster: any broker checks them against its own metadata before it answers."""

from __future__ import annotations

from random import Random

import pytest

from pybroker import errors
from pybroker.decisions.image import OFFSETS_TOPIC
from pybroker.decisions.metadata_cache import UpdateMetadata
from pybroker.errors import KafkaError
from pybroker.metadata import nodes
from pybroker.metadata.topic_admin import TopicAdmin
from tests.controller.member import Member
from tests.controller.stage import live_broker
from tests.harness import eventually


def topics_of(member: Member) -> TopicAdmin:
    return TopicAdmin(lambda: member.session, member.config, member.metadata, Random(1), lambda: None)


def refused(topics: TopicAdmin, name: str) -> int:
    with pytest.raises(KafkaError) as told:
        topics.auto_create(name)
    assert not topics.is_creating(name)
    return told.value.code


async def test_what_cannot_be_is_refused_at_once(members: tuple[Member, Member]) -> None:
    """A name that collides with an existing topic, or one being created, is refused, and so are too few brokers."""
    one, _ = members
    topics = topics_of(one)
    topics.auto_create("a.b")
    assert topics.is_creating("a.b") and refused(topics, "a_b") == errors.INVALID_TOPIC_EXCEPTION
    topics.auto_create("a.b")
    await eventually("it is written", lambda: written(one, "a.b"))


async def written(member: Member, name: str) -> bool:
    return name in (await member.session.children(nodes.TOPICS))[0]


async def test_too_few_brokers_are_enough_later(members: tuple[Member, Member]) -> None:
    one, _ = members
    topics = topics_of(one)
    assert refused(topics, OFFSETS_TOPIC) == errors.INVALID_REPLICATION_FACTOR, "2 brokers, 3 replicas"
    one.metadata.update(UpdateMetadata(1, 1, [live_broker(number) for number in (1, 2, 3)], []))
    topics.auto_create(OFFSETS_TOPIC)
    assert topics.is_creating(OFFSETS_TOPIC)
