"""The answer of each API to a user without any ACL: the error code, and its place in the answer."""

from __future__ import annotations

from typing import Any

from pybroker.protocol import messages as m
from tests.server.cast import (
    CLUSTER_DENIED,
    GROUP_DENIED,
    READ,
    TOPIC,
    TOPIC_DENIED,
    acl_filter,
    creation,
)
from tests.server.live import batch, fetch_fields, produce_data

Q = m.ListOffsetsRequest.Topics
TRANSACTIONAL = batch(b"x", attributes=1 << 4, producer_id=1, producer_epoch=0, base_sequence=0)
TABLE: list[tuple[str, tuple[int, int], dict[str, Any], Any]] = [
    ("Produce", (3, 12), {"acks": 1, "timeout_ms": 1000, "topic_data": produce_data("t", {0: batch(b"x")})},
     lambda a: a.responses[0].partition_responses[0].error_code == TOPIC_DENIED),
    ("Produce", (3, 12), {"transactional_id": "x", "acks": -1, "topic_data": produce_data("t", {0: TRANSACTIONAL})},
     lambda a: a.responses[0].partition_responses[0].error_code == 53),
    ("Fetch", (4, 12), fetch_fields("t", 0),
     lambda a: (a.error_code, a.responses[0].partitions[0].error_code) == (0, 29)),
    ("ListOffsets", (1, 10), {"replica_id": -1, "topics": [Q(name="t", partitions=[Q.Partitions(timestamp=-1)])]},
     lambda a: a.topics[0].partitions[0].error_code == TOPIC_DENIED),
    ("LeaderAndIsr", (4, 7), {"topic_states": [], "live_leaders": []}, lambda a: a.error_code == CLUSTER_DENIED),
    ("StopReplica", (3, 4), {"topic_states": []}, lambda a: a.error_code == CLUSTER_DENIED),
    ("UpdateMetadata", (6, 8), {"topic_states": [], "live_brokers": []}, lambda a: a.error_code == CLUSTER_DENIED),
    ("ControlledShutdown", (2, 3), {"broker_id": 1001}, lambda a: a.error_code == CLUSTER_DENIED),
    ("OffsetCommit", (2, 9), {"group_id": "g", "topics": [m.OffsetCommitRequest.Topics(
        name="t", partitions=[m.OffsetCommitRequest.Topics.Partitions(committed_offset=1)])]},
     lambda a: a.topics[0].partitions[0].error_code == GROUP_DENIED),
    ("OffsetFetch", (8, 9), {"groups": [m.OffsetFetchRequest.Groups(group_id="g", topics=None)]},
     lambda a: a.groups[0].error_code == GROUP_DENIED),
    ("OffsetFetch", (2, 7), {"group_id": "g", "topics": None}, lambda a: a.error_code == GROUP_DENIED),
    ("OffsetFetch", (1, 1), {"group_id": "g", "topics": [
        m.OffsetFetchRequest.Topics(name="t", partition_indexes=[0])]},
     lambda a: a.topics[0].partitions[0].error_code == GROUP_DENIED),
    ("FindCoordinator", (4, 6), {"coordinator_keys": ["g"]}, lambda a: a.coordinators[0].error_code == GROUP_DENIED),
    ("FindCoordinator", (4, 6), {"key_type": 1, "coordinator_keys": ["x"]},
     lambda a: a.coordinators[0].error_code == 53),
    ("FindCoordinator", (0, 3), {"key": "g"}, lambda a: a.error_code == GROUP_DENIED),
    ("JoinGroup", (0, 9), {"group_id": "g", "session_timeout_ms": 10000, "rebalance_timeout_ms": 1000, "member_id": "",
                      "protocol_type": "consumer", "protocols": []}, lambda a: a.error_code == GROUP_DENIED),
    ("Heartbeat", (0, 4), {"group_id": "g", "generation_id": 1, "member_id": "m"},
     lambda a: a.error_code == GROUP_DENIED),
    ("LeaveGroup", (0, 5), {"group_id": "g", "members": []}, lambda a: a.error_code == GROUP_DENIED),
    ("SyncGroup", (0, 5), {"group_id": "g", "generation_id": 1, "member_id": "m",
                           "protocol_type": "consumer", "protocol_name": "range"},
     lambda a: a.error_code == GROUP_DENIED),
    ("DescribeGroups", (0, 6), {"groups": ["g"]}, lambda a: a.groups[0].error_code == GROUP_DENIED),
    ("ListGroups", (0, 5), {}, lambda a: (a.error_code, a.groups) == (0, [])),
    ("CreateTopics", (2, 7), {"timeout_ms": 1000, "topics": [m.CreateTopicsRequest.Topics(
        name="new", num_partitions=1, replication_factor=1)]}, lambda a: a.topics[0].error_code == TOPIC_DENIED),
    ("DeleteTopics", (1, 5), {"topic_names": ["t"], "timeout_ms": 1000},
     lambda a: a.responses[0].error_code == TOPIC_DENIED),
    ("DeleteRecords", (0, 2), {"timeout_ms": 1000, "topics": [m.DeleteRecordsRequest.Topics(
        name="t", partitions=[m.DeleteRecordsRequest.Topics.Partitions(offset=1)])]},
     lambda a: a.topics[0].partitions[0].error_code == TOPIC_DENIED),
    ("InitProducerId", (0, 5), {"transactional_id": None}, lambda a: a.error_code == CLUSTER_DENIED),
    ("InitProducerId", (0, 5), {"transactional_id": "x"}, lambda a: a.error_code == 53),
    ("OffsetForLeaderEpoch", (2, 4), {"topics": [m.OffsetForLeaderEpochRequest.Topics(
        topic="t", partitions=[m.OffsetForLeaderEpochRequest.Topics.Partitions(leader_epoch=0)])]},
     lambda a: a.topics[0].partitions[0].error_code == TOPIC_DENIED),
    ("DescribeAcls", (1, 3), {"resource_type_filter": 1, "operation": 1, "permission_type": 1,
                     "pattern_type_filter": 1},
     lambda a: a.error_code == CLUSTER_DENIED),
    ("CreateAcls", (1, 3), {"creations": [creation(TOPIC, "t", READ)]},
     lambda a: a.results[0].error_code == CLUSTER_DENIED),
    ("DeleteAcls", (1, 3), {"filters": [acl_filter()]}, lambda a: a.filter_results[0].error_code == CLUSTER_DENIED),
    ("DescribeConfigs", (1, 4), {"resources": [m.DescribeConfigsRequest.Resources(resource_type=2, resource_name="t"),
                                          m.DescribeConfigsRequest.Resources(resource_type=4, resource_name="1001")]},
     lambda a: [(r.resource_name, r.error_code, r.configs) for r in a.results] == [("t", 29, []), ("1001", 31, [])]),
    ("AlterConfigs", (0, 2), {"resources": [m.AlterConfigsRequest.Resources(resource_type=2, resource_name="t")]},
     lambda a: a.responses[0].error_code == TOPIC_DENIED),
    ("IncrementalAlterConfigs", (0, 1), {"resources": [
        m.IncrementalAlterConfigsRequest.Resources(resource_type=4, resource_name="")]},
     lambda a: a.responses[0].error_code == CLUSTER_DENIED),
    ("AlterReplicaLogDirs", (1, 2), {"dirs": [m.AlterReplicaLogDirsRequest.Dirs(
        path="/x", topics=[m.AlterReplicaLogDirsRequest.Dirs.Topics(name="t", partitions=[0])])]},
     lambda a: a.results[0].partitions[0].error_code == CLUSTER_DENIED),
    ("DescribeLogDirs", (3, 4), {"topics": None}, lambda a: (a.error_code, a.results) == (CLUSTER_DENIED, [])),
    ("DescribeLogDirs", (1, 2), {"topics": None}, lambda a: a.results == []),
    ("CreatePartitions", (0, 3), {"timeout_ms": 1000, "topics": [m.CreatePartitionsRequest.Topics(name="t", count=9)]},
     lambda a: a.results[0].error_code == TOPIC_DENIED),
    ("DeleteGroups", (0, 2), {"groups_names": ["g"]}, lambda a: a.results[0].error_code == GROUP_DENIED),
    ("ElectLeaders", (1, 2), {"topic_partitions": None}, lambda a: a.error_code == CLUSTER_DENIED),
    ("AlterPartitionReassignments", (0, 1), {"topics": []}, lambda a: a.error_code == CLUSTER_DENIED),
    ("ListPartitionReassignments", (0, 0), {"topics": None}, lambda a: a.error_code == CLUSTER_DENIED),
    ("OffsetDelete", (0, 0), {"group_id": "g", "topics": []}, lambda a: a.error_code == GROUP_DENIED),
    ("DescribeClientQuotas", (0, 1), {}, lambda a: a.error_code == CLUSTER_DENIED),
    ("AlterClientQuotas", (0, 1), {"entries": [m.AlterClientQuotasRequest.Entries(
        entity=[m.AlterClientQuotasRequest.Entries.Entity(entity_type="user", entity_name="ann")])]},
     lambda a: a.entries[0].error_code == CLUSTER_DENIED),
    ("DescribeUserScramCredentials", (0, 0), {"users": None}, lambda a: a.error_code == CLUSTER_DENIED),
    ("AlterUserScramCredentials", (0, 0), {"deletions": [
        m.AlterUserScramCredentialsRequest.Deletions(name="ann", mechanism=1)]},
     lambda a: a.results[0].error_code == CLUSTER_DENIED),
    ("CreateDelegationToken", (3, 3), {"owner_principal_type": "User", "owner_principal_name": "root", "renewers": []},
     lambda a: a.error_code == 65),
    ("DescribeDelegationToken", (1, 3), {"owners": None}, lambda a: (a.error_code, a.tokens) == (61, [])),
    ("AlterPartition", (2, 3), {"broker_id": 1001, "topics": []}, lambda a: a.error_code == CLUSTER_DENIED),
    ("DescribeProducers", (0, 0), {"topics": [m.DescribeProducersRequest.Topics(name="t", partition_indexes=[0])]},
     lambda a: a.topics[0].partitions[0].error_code == TOPIC_DENIED),
    ("AllocateProducerIds", (0, 0), {"broker_id": 1001}, lambda a: a.error_code == CLUSTER_DENIED),
]  # fmt: skip
"""(API, first and last version of this form, fields of a request for the existing topic t, True if an answer is a
denial.) tests/java sends Kafka 3.9.1 the same requests."""
