"""Requests of a controller to many brokers: encoded once for all, and accepted at any size of a cluster."""

import pytest

from pybroker.protocol import codec
from pybroker.protocol import messages as m
from pybroker.protocol.bounds import bound_of

UPDATE_METADATA = 6
VERSIONS = range(m.UpdateMetadataRequest.SCHEMA.first, m.UpdateMetadataRequest.SCHEMA.last + 1)


def update(broker_epoch: int) -> m.UpdateMetadataRequest:
    kind = m.UpdateMetadataRequest
    states = [kind.TopicStates.PartitionStates(partition_index=at, replicas=[1, 2], isr=[2]) for at in range(3)]
    at = kind.LiveBrokers.Endpoints(host="h", port=9092, listener="L")
    return kind(
        controller_id=1, controller_epoch=7, broker_epoch=broker_epoch,
        topic_states=[kind.TopicStates(topic_name="t", topic_id=b"t" * 16, partition_states=states)],
        live_brokers=[kind.LiveBrokers(id=1, endpoints=[at], rack="r")],
    )  # fmt: skip


def test_a_request_with_a_shared_tail_is_the_request() -> None:
    """At each version that has topics of their own, the header and the fields before the tail are the request's."""
    checked = 0
    for version in VERSIONS:
        if not any(field.name == "topic_states" for field in m.UpdateMetadataRequest.STRUCT.untagged(version)):
            continue
        tail = codec.encode_tail(update(0), version, "topic_states")
        for epoch in (-1, 1 << 40):
            whole = codec.encode_request(UPDATE_METADATA, version, 5, "us", update(epoch))
            assert codec.encode_request(UPDATE_METADATA, version, 5, "us", update(epoch), tail) == whole
        checked += 1
    assert checked > 2


def test_what_cannot_be_encoded_is_named() -> None:
    """Errors before and in the tail name the field, as those of a whole request do."""
    version = VERSIONS[-1]
    tail = codec.encode_tail(update(0), version, "topic_states")
    with pytest.raises(codec.EncodeError, match="broker_epoch"):
        codec.encode_request(UPDATE_METADATA, version, 5, "us", update(1 << 70), tail)
    wrong = update(0)
    wrong.topic_states[0].partition_states[1].leader_epoch = 1 << 40
    with pytest.raises(codec.EncodeError, match="leader_epoch"):
        codec.encode_tail(wrong, version, "topic_states")


def test_the_metadata_of_the_largest_clusters_is_accepted() -> None:
    """200,000 partitions with three replicas are within the bounds of the requests that a controller sends of all."""
    count = 200_000
    for kind, name in ((m.UpdateMetadataRequest, "UpdateMetadata"), (m.LeaderAndIsrRequest, "LeaderAndIsr")):
        version = kind.SCHEMA.last
        states = kind.TopicStates.PartitionStates
        one = states(replicas=[1, 2, 3], isr=[1, 2, 3])
        topic = kind.TopicStates(topic_name="t", partition_states=[one] * count)
        data = codec.encode(kind(topic_states=[topic]), version)
        decoded, _ = codec.decode(kind, version, data, 0, bound_of(name).most)
        assert len(decoded.topic_states[0].partition_states) == count
