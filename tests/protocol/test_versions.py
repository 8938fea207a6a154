"""Our table of APIs lists what Kafka 4.1 lists, and states a reason for each API that it lacks."""

from __future__ import annotations

import pytest

from pybroker.protocol.apis import APIS, KNOWN, SERVED
from tests.asking import ask
from tests.harness import Server
from tests.java.peers import each_peer
from tests.protocol.kafka_versions import LISTED

LEFT_OUT = {
    "a KRaft controller's, and features that only those finalize": ["Envelope", "UpdateFeatures"],
    "a KRaft quorum's": ["DescribeQuorum", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter"],
    "only KRaft brokers list it; clients fall back to Metadata": ["DescribeTopicPartitions"],
    "lists the subscriptions of client metrics, which only KRaft brokers keep": ["ListConfigResources"],
    "the consumer protocol of KIP-848; clients fall back to the classic one": [
        *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe"),
    ],
    "share groups (KIP-932), off in 4.1 unless they are switched on": [
        *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge", "InitializeShareGroupState"),
        *("ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState", "ReadShareGroupStateSummary"),
        *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
    ],
}


SHORTER = {"ListTransactions": 1}
"""The newest version of APIs that lack one of Kafka 4.1. ListTransactions 2 has a pattern of transactional ids
(KIP-1152): a client could choose one that Python's regular expressions do not come to an end with."""


def test_every_api_of_ours_has_kafkas_versions() -> None:
    """Our APIs have the versions of Kafka 4.1; those between brokers of a ZooKeeper cluster have the newest of 3.9."""
    ours = {api.name: (api.min_version, api.max_version) for api in APIS.values()}
    for name, newest in SHORTER.items():
        assert ours[name] == (0, newest)
        ours[name] = (0, newest + 1)
    theirs = {listed.name: listed.kafka411 for listed in LISTED.values() if listed.kafka411 and listed.name in ours}
    between = {listed.name: listed.kafka391 for listed in LISTED.values() if listed.name in ours.keys() - theirs}
    assert theirs == {name: versions for name, versions in ours.items() if name not in between}
    assert sorted(between) == [
        "AllocateProducerIds", "AlterPartition", "ControlledShutdown", "LeaderAndIsr", "StopReplica", "UpdateMetadata"
    ]  # fmt: skip
    assert all(versions is not None and ours[name][1] == versions[1] for name, versions in between.items())


def test_clients_of_39_find_every_version_that_they_speak() -> None:
    """A client of Kafka 3.8 or 3.9 finds the newest version of each API that it uses."""
    for key, api in APIS.items():
        assert LISTED[key].kafka391 is not None and api.max_version >= LISTED[key].kafka391[1]


def test_what_kafka_lists_and_we_do_not_has_a_reason() -> None:
    missing = [listed.name for key, listed in LISTED.items() if key not in APIS]
    assert sorted(missing) == sorted(name for names in LEFT_OUT.values() for name in names)


def test_what_is_listed_is_served() -> None:
    """Listed versions are served, except Produce 0 to 2, which are listed for librdkafka and refused."""
    assert {key: api for key, api in SERVED.items() if api != APIS[key]} == {0: KNOWN[0]}
    assert not SERVED[0].has(2)
    assert SERVED[0].has(3) and SERVED[0].has(13)
    for key, api in SERVED.items():
        assert KNOWN[key].has(api.min_version) and KNOWN[key].has(api.max_version)


@pytest.mark.parametrize("name", each_peer())
def test_the_table_is_what_kafka_says(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    answer = ask(server.port, "ApiVersions", 0)
    said = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    listed = {key: getattr(versions, name) for key, versions in LISTED.items()}
    assert said == {key: versions for key, versions in listed.items() if versions is not None}
